"""The script that a process of `profstack bench` is started with.

It is executed as a file: code given by -c would appear in the layers' tables as the program's own.
"""

import os
import signal
import sys


def _start() -> int:
    """Return the exit code; Ctrl-C, which may come again while Python ends, is silent."""
    here = os.path.dirname(os.path.abspath(__file__))
    root = os.path.dirname(os.path.dirname(here))
    # This folder holds names that the target may have too; its own folder comes first later.
    sys.path[:] = [root, *(entry for entry in sys.path if os.path.abspath(entry) != here)]
    try:
        from profstack.bench.child import main

        sys.path.remove(root)
        code = main(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return code


if __name__ == "__main__":
    raise SystemExit(_start())
