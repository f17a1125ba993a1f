"""What a command line asks to measure: a script, a module, code, or standard input."""

from __future__ import annotations

import ast
import os
import re
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from profstack.errors import TargetError, UsageError

# Words without which no source has a step: a script that holds none of them is measured whole.
_STEP_WORDS = re.compile(
    r"\b(backward|optim|step|nn|Module|generate|model|transformers|lightning|accelerate|Trainer|"
    r"fit|jit|compile|load|hub|torchvision|timm|importlib|__import__|runpy|exec)\b"
)
_OWN_STEP = re.compile(r"\bprofstack\.step\s*\(|\bfrom\s+profstack\s+import\b.*\bstep\b")
# Modules that train nothing unless one of these words calls on them. The script's own ones are
# read; of all others nobody can tell.
_HARMLESS = sys.stdlib_module_names | frozenset(
    ("torch", "numpy", "scipy", "pandas", "matplotlib", "PIL", "tqdm", "profstack")
)
# What starts scripts in processes of its own, and the command that starts profstack in each.
_TORCHRUN = "torchrun --nproc-per-node N --no-python"
_ACCELERATE = "accelerate launch --no_python"
_DEEPSPEED = "deepspeed --no_python"
_LAUNCHERS = {
    **dict.fromkeys(("torchrun", "torch.distributed.run", "torch.distributed.launch"), _TORCHRUN),
    **dict.fromkeys(("accelerate", "accelerate.commands.launch"), _ACCELERATE),
    "accelerate.commands.accelerate_cli": _ACCELERATE,
    **dict.fromkeys(("deepspeed", "deepspeed.launcher.runner"), _DEEPSPEED),
    "deepspeed.launcher.launch": _DEEPSPEED,
}
# A script with more files of its own than this is not read to the end.
_MOST_FILES = 50


@dataclass(frozen=True)
class Target:
    """What python is started with: `arguments` begin with the script, `-m`, `-c` or `-`."""

    arguments: tuple[str, ...]

    @property
    def kind(self) -> str:
        """`script`, `module`, `code` or `stdin`."""
        first = self.arguments[0]
        return {"-m": "module", "-c": "code", "-": "stdin"}.get(first, "script")

    @property
    def name(self) -> str:
        """A name for the recording's folder."""
        kind = self.kind
        if kind == "code":
            return "code"
        if kind == "stdin":
            return "stdin"
        if kind == "module":
            return _plain(self.arguments[1])
        path = Path(self.arguments[0])
        return _plain(path.stem if path.is_file() else path.resolve().name)

    @property
    def program(self) -> str:
        """What is run: the module, or else the first argument."""
        return self.arguments[1] if self.kind == "module" else self.arguments[0]

    def check(self) -> None:
        """Raise TargetError when python could not even open the target."""
        if self.kind != "script":
            return
        path = self.arguments[0]
        if os.path.isdir(path):
            if not os.path.isfile(os.path.join(path, "__main__.py")):
                raise TargetError(
                    "is a folder without __main__.py", where=path, next_step="name a script in it"
                )
        elif not os.path.exists(path):
            raise TargetError(
                "no such script", where=path, next_step="check the path, or use -m for a module"
            )
        elif not os.access(path, os.R_OK):
            raise TargetError("cannot be read", where=path, next_step="check its permissions")

    def calls_step(self) -> bool:
        """Whether the source ends its steps itself, with `profstack.step()`."""
        sources = self._sources()
        return sources is not None and any(map(_OWN_STEP.search, sources.texts))

    def has_no_step(self) -> bool:
        """Whether the source, with the modules beside it, cannot hold a step.

        Only a clear no counts: what cannot be read without running it, or imports a module from
        elsewhere that might train, answers False.
        """
        sources = self._sources()
        if sources is None or not sources.known:
            return False
        return not any(map(_STEP_WORDS.search, sources.texts))

    def _sources(self) -> _Sources | None:
        """The program's own text, as far as it can be had without running anything."""
        sources = _Sources()
        if self.kind == "code":
            sources.add(self.arguments[1], Path())
        elif self.kind == "script":
            path = Path(self.arguments[0])
            sources.add_file(path / "__main__.py" if path.is_dir() else path)
        else:
            return None
        return sources


class _Sources:
    """The text of a program and of the modules beside it; `known` is False if parts are not."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.known = True
        self._seen: set[Path] = set()

    def add_file(self, path: Path) -> None:
        """Read a file and all that it imports from its own folder."""
        if path in self._seen:
            return
        self._seen.add(path)
        try:
            if len(self._seen) > _MOST_FILES:
                raise ValueError("too many files to read")
            self.add(path.read_text(encoding="utf-8"), path.parent)
        except (OSError, ValueError):
            self.known = False

    def add(self, text: str, folder: Path) -> None:
        """Take in a source that finds its own modules in `folder`."""
        self.texts.append(text)
        try:
            with warnings.catch_warnings():
                # Python says it itself when it runs the script.
                warnings.simplefilter("ignore")
                tree = ast.parse(text)
        except (SyntaxError, ValueError):
            # Python will say so; nothing is to be measured then.
            return
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self._add_module(alias.name, folder)
            # A relative import stays in the package, whose files are all read.
            elif isinstance(node, ast.ImportFrom) and not node.level:
                self._add_module(node.module or "", folder)

    def _add_module(self, name: str, folder: Path) -> None:
        top = name.partition(".")[0]
        if (folder / f"{top}.py").is_file():
            self.add_file(folder / f"{top}.py")
        elif (folder / top).is_dir():
            for path in sorted((folder / top).rglob("*.py")):
                self.add_file(path)
        elif top not in _HARMLESS:
            self.known = False


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"


def launcher_warning(script: str | None) -> str | None:
    """What to say of a script or module that only launches others; None of any else."""
    name = os.path.basename(script or "")
    command = _LAUNCHERS.get(name)
    if command is None:
        return None
    return (
        f"{name} starts the script in processes of its own, which are not measured: to measure "
        f"them write {command} profstack run --ranks all script.py"
    )


def split(arguments: Sequence[str], with_value: frozenset[str]) -> tuple[list[str], list[str]]:
    """profstack's own options, and the target with everything after it.

    `with_value` are the options that take the next word as their value.
    """
    own: list[str] = []
    words = list(arguments)
    while words:
        word = words[0]
        if word == "--":
            return own, words[1:]
        if word in ("-m", "-c", "-") or not word.startswith("-"):
            return own, words
        own.append(words.pop(0))
        if word in with_value and words:
            own.append(words.pop(0))
    return own, []


def parse(words: Sequence[str]) -> Target:
    """The target of a command line; raises UsageError when there is none."""
    if not words:
        raise UsageError(
            "no script to run", next_step="profstack run [options] script.py [arguments]"
        )
    if words[0] in ("-m", "-c") and len(words) < 2:
        raise UsageError(f"{words[0]} needs a value", next_step="see 'profstack run --help'")
    return Target(tuple(words))
