"""The target of a command line: a script, a module, code, or standard input."""

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
# Modules that train nothing unless the source has one of these words. The script's own modules
# are read; all others may train.
_HARMLESS = sys.stdlib_module_names | frozenset(
    ("torch", "numpy", "scipy", "pandas", "matplotlib", "PIL", "tqdm", "profstack")
)
# A script with more files of its own than this is not read to the end.
_MOST_FILES = 50


@dataclass(frozen=True)
class Target:
    """The arguments that python is started with: first the script, `-m`, `-c` or `-`."""

    arguments: tuple[str, ...]

    @property
    def kind(self) -> str:
        """`script`, `module`, `code` or `stdin`."""
        return {"-m": "module", "-c": "code", "-": "stdin"}.get(self.arguments[0], "script")

    @property
    def name(self) -> str:
        """The name for the recording's folder."""
        if self.kind in ("code", "stdin"):
            return self.kind
        if self.kind == "module":
            return _plain(self.arguments[1])
        path = Path(self.arguments[0])
        return _plain(path.stem if path.is_file() else path.resolve().name)

    @property
    def program(self) -> str:
        """The module, or else the first argument."""
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
        """Return whether the source ends its steps itself, with `profstack.step()`."""
        sources = self._sources()
        return sources is not None and any(map(_OWN_STEP.search, sources.texts))

    def has_no_step(self) -> bool:
        """Return whether the source, with the modules beside it, cannot hold a step.

        False in doubt: where parts cannot be read without running them, or a module from elsewhere
        might train.
        """
        sources = self._sources()
        if sources is None or not sources.known:
            return False
        return not any(map(_STEP_WORDS.search, sources.texts))

    def _sources(self) -> _Sources | None:
        """Return the program's own text, as far as it is known without running anything."""
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
        """Add a source that finds its own modules in `folder`."""
        self.texts.append(text)
        try:
            with warnings.catch_warnings():
                # Python repeats them when it runs the script.
                warnings.simplefilter("ignore")
                tree = ast.parse(text)
        except (SyntaxError, ValueError):
            # Python reports it; there will be nothing to measure.
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


def split(arguments: Sequence[str], with_value: frozenset[str]) -> tuple[list[str], list[str]]:
    """Return profstack's own options, and the target with everything after it.

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
    """Return the target of a command line; raise UsageError where there is none."""
    if not words:
        raise UsageError(
            "no script to run", next_step="profstack run [options] script.py [arguments]"
        )
    if words[0] in ("-m", "-c") and len(words) < 2:
        raise UsageError(f"{words[0]} needs a value", next_step="see 'profstack run --help'")
    return Target(tuple(words))


# -----------------------------------------------------------------------------
# Which rank of a launch a process is, and which of them record.
# -----------------------------------------------------------------------------


def own_rank() -> int | None:
    """Return the rank of this process; None without a launch of several processes."""
    ranks = map(_int_variable, ("RANK", "SLURM_PROCID"))
    return next((rank for rank in ranks if rank is not None), None)


def world_size() -> int | None:
    """Return the number of processes of the launch; None where it is not known."""
    return _int_variable("WORLD_SIZE")


def own_node() -> int | None:
    """Return the number of this machine in the launch; None where the launcher gave it none."""
    nodes = map(_int_variable, ("GROUP_RANK", "SLURM_NODEID"))
    return next((node for node in nodes if node is not None), None)


def launch_key() -> str:
    """Return a key that all ranks of one launch share with no other launch."""
    for names in (("TORCHELASTIC_RUN_ID", "MASTER_PORT"), ("SLURM_JOB_ID", "SLURM_STEP_ID")):
        values = [os.environ.get(name, "") for name in names]
        if values[0] and values[0] != "none":
            return "-".join(values)
    return f"parent-{os.getppid()}"


def recording_ranks(ranks: str) -> set[int] | None:
    """Return the ranks that record; None for all of them."""
    if ranks == "all":
        return None
    try:
        return {int(word) for word in ranks.split(",")}
    except ValueError:
        raise UsageError(
            f"--ranks {ranks} names no ranks", next_step="give 0, 0,3 or all"
        ) from None


def missing_ranks(recorded: set[int] | None) -> str | None:
    """Return a text that names the ranks to record that the launch lacks; None if it has all."""
    size = world_size()
    missing = sorted(rank for rank in recorded or () if size is not None and rank >= size)
    if not missing or size is None:
        return None
    there = {1: "0", 2: "0 and 1"}.get(size, f"0 to {size - 1}")
    return f"no rank {', '.join(map(str, missing))} among {there}"


def _int_variable(name: str) -> int | None:
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else None
