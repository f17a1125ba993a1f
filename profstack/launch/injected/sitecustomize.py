"""Arm profstack in the measured interpreter before the script, and leave no trace.

`profstack run` starts `python script.py` itself, so that the script is a true `__main__`; this
folder is first on PYTHONPATH for that one start. Everything the injection changed
(PYTHONPATH, sys.path, the importer cache) is put back before the script's first line, and the
environment's own sitecustomize, if there is one, is imported as if this one did not exist.
No module may be imported here that the bare interpreter has not loaded.
"""

import os
import sys


def _restore_environment(here: str) -> None:
    saved = os.environ.pop("PROFSTACK_PYTHONPATH", None)
    if saved is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = saved
    sys.path[:] = [entry for entry in sys.path if entry != here]
    sys.path_importer_cache.pop(here, None)


def _arm(here: str) -> None:
    folder = os.environ.pop("PROFSTACK_CHILD", None)
    options = os.environ.pop("PROFSTACK_CHILD_OPTIONS", "")
    if folder is None:
        return
    root = os.path.dirname(os.path.dirname(os.path.dirname(here)))
    known = set(sys.path_importer_cache)
    sys.path.insert(0, root)
    try:
        from profstack.launch import child
    finally:
        sys.path.remove(root)
        for entry in set(sys.path_importer_cache) - known:
            del sys.path_importer_cache[entry]
    child.arm(folder, options.split())


_here = os.path.dirname(os.path.abspath(__file__))
_restore_environment(_here)
try:
    _arm(_here)
except Exception as error:
    print(f"profstack: not armed, {type(error).__name__}: {error}", file=sys.stderr)
# Without another one the interpreter expects the ImportError.
del sys.modules["sitecustomize"]
import sitecustomize  # noqa: E402,F401
