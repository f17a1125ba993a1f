"""The command line: call the command that was asked for, and print errors in one line.

A command module is imported only when its command is called, and this module imports next to
nothing, so that `profstack --help` takes about as long as starting Python. A command module has
`HELP`, `configure(parser)` and `execute(arguments) -> int`. One that must read its arguments
itself (everything after the target of `profstack run` belongs to the script) sets `RAW = True`
and has `main(argv) -> int` instead.
"""

from __future__ import annotations

import os
import sys

# In the order of the help.
SUMMARIES = {
    "run": "run a script once and write its page",
    "bench": "measure a callable or a model cleanly, layer by layer",
    "lock": "write the exact numbers of a step into a file for the repository",
    "check": "compare a step with its lock, and say what differs and where",
    "report": "write the page of a recording again",
    "show": "print a recording's figures in the terminal",
    "try": "try changes of a script, and say what each gains",
    "compare": "say which of two recordings is faster, by how much, and why",
    "history": "list runs in order of time, and the commits that changed them",
    "merge": "write one page of all ranks of a launch",
    "view": "open a recording's page, or its profile in snakeviz",
    "import": "take in profiles made by other tools",
    "doctor": "say which layers and tools work here, and what to install",
}
# Their processes wait, or build one report and end: looking for garbage there finds next to none,
# and took a sixth of their CPU time.
_WITHOUT_COLLECTOR = frozenset({"run", "report", "show"})
# These are keywords, so their modules have other names.
MODULES = {"import": "import_", "try": "try_"}

_INTERRUPTED = 130
_BROKEN_PIPE = 141


def command_names() -> list[str]:
    """Return the commands of this installation, in the order of the help."""
    return list(SUMMARIES)


def main(argv: list[str] | None = None) -> int:
    """Run one command line and return the exit code; without `argv` that of this process."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    if argv is None and hasattr(sys.stdout, "reconfigure"):
        # Names of files may hold bytes that are no text in the terminal's encoding.
        sys.stdout.reconfigure(errors="backslashreplace")
    if argv is None and arguments[:1] and arguments[0] in _WITHOUT_COLLECTOR:
        import gc

        gc.disable()
    try:
        code = _dispatch(arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # Standard output leads nowhere from here on: Python's flush at exit finds no broken pipe.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        return _BROKEN_PIPE
    except Exception as error:
        # Errors that a user can correct are one line; a defect of profstack keeps its traceback.
        from profstack.errors import ProfstackError

        if not isinstance(error, ProfstackError):
            raise
        # Names of files and messages of other tools may contain escape sequences.
        kept = "".join(one if one.isprintable() or one.isspace() else "?" for one in str(error))
        print("profstack:", *kept.split(), file=sys.stderr)
        return 2


def _dispatch(arguments: list[str]) -> int:
    """Answer the options of profstack itself, or call the command."""
    if not arguments:
        sys.stderr.write(help_text())
        return 2
    first = arguments[0]
    if first in ("-h", "--help"):
        sys.stdout.write(help_text())
        return 0
    if first == "--version":
        from profstack.environment import __version__

        print(f"profstack {__version__}")
        return 0
    if first not in command_names():
        raise _unknown_command(first)
    return _call(first, arguments[1:])


def _call(name: str, arguments: list[str]) -> int:
    """Import the command's module and call it with its arguments."""
    import atexit
    import gc
    from importlib import import_module

    # The interpreter would look for garbage several times as it ends: a tenth of a short command.
    atexit.register(gc.freeze)
    module = import_module(f"profstack.commands.{MODULES.get(name, name)}")
    try:
        if getattr(module, "RAW", False):
            return int(module.main(arguments))
        from profstack.commands.options import CommandParser

        parser = CommandParser(name, module.HELP)
        module.configure(parser)
        return int(module.execute(parser.parse_args(arguments)))
    except SystemExit as stop:
        # argparse exits after printing a command's help.
        if isinstance(stop.code, int) or stop.code is None:
            return stop.code or 0
        raise


def _unknown_command(name: str) -> Exception:
    """Return the error for an unknown command, with the command that is most like it."""
    from difflib import get_close_matches

    from profstack.errors import UsageError

    known = command_names()
    if name.startswith("-"):
        return UsageError(f"no option {name}", next_step="see 'profstack --help'")
    if close := get_close_matches(name, known, n=1):
        next_step = f"did you mean '{close[0]}'?"
    elif name.endswith(".py"):
        next_step = f"to run a script write 'profstack run {name}'"
    else:
        next_step = f"the commands are {', '.join(known)}"
    return UsageError(f"no command '{name}'", next_step=next_step)


def help_text() -> str:
    """Return the help of profstack itself."""
    lines = [
        "usage: profstack COMMAND [options] ...",
        "",
        "One run of an unmodified PyTorch script, every profiling layer, one offline page.",
        "",
        "commands:",
        *(f"  {name:<9}{SUMMARIES[name]}" for name in command_names()),
        "",
        "options:",
        "  -h, --help  show this help",
        "  --version   show the version",
        "",
        "'profstack COMMAND --help' shows the options of a command.",
    ]
    return "\n".join(lines) + "\n"
