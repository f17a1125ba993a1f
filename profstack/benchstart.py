"""The script that a process of `profstack bench` is started with.

Executed as a file: code given by -c would stand in the layers' tables as the program's own.
"""

import os
import signal
import sys


def _start() -> int:
    here = os.path.dirname(os.path.abspath(__file__))
    root = os.path.dirname(here)
    # This folder holds names that the target may have too; its own folder comes first later.
    sys.path[:] = [root, *(entry for entry in sys.path if os.path.abspath(entry) != here)]
    from profstack.benchchild import main

    sys.path.remove(root)
    return main(sys.argv[1:])


def _code() -> int:
    """The exit code; Ctrl-C is none of ours to explain, and comes again while Python ends."""
    try:
        code = _start()
    except KeyboardInterrupt:
        code = 130
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return code


if __name__ == "__main__":
    raise SystemExit(_code())
