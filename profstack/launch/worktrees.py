"""Working trees of revisions of one repository, made for a comparison and removed after it.

Each revision is checked out in a temporary folder. Both trees have the same path while they are
used, one after the other: files, functions and lines then have the same names on both sides, and a
path's length changes nothing. The user's own checkout is never touched.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from profstack.errors import TargetError, UsageError
from profstack.launch.target import Target

# The revision that stands for the checkout as it is, with its uncommitted changes.
CHECKOUT = "."
# Variables of a git hook that lead to its own repository and index, not to a tree's.
_OF_A_HOOK = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
_PACKAGE = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Revision:
    """A revision as it was written, its commit, and what to call it."""

    text: str
    commit: str
    label: str


class Repository:
    """The repository around a folder; raises UsageError where there is none, or no git."""

    def __init__(self, folder: Path) -> None:
        self.top = folder
        code, said = self.ask("rev-parse", "--show-toplevel")
        if code:
            next_step = "start it inside the repository, or give two commands with --run"
            raise UsageError("there is no git repository here", where="--rev", next_step=next_step)
        self.top = Path(said.strip())

    def ask(self, *words: str) -> tuple[int, str]:
        """Run git; return its exit code and what it printed, its errors where it failed."""
        # No hook of the repository runs, and no Ctrl-C on the terminal ends git half-way.
        own = ("-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false")
        kept = {name: value for name, value in os.environ.items() if name not in _OF_A_HOOK}
        try:
            done = subprocess.run(
                ["git", "-C", str(self.top), *own, *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                env=kept,
                start_new_session=True,
                check=False,
            )
        except OSError as error:
            step = "install git, or give two commands with --run"
            what = f"git cannot be started ({error.strerror})"
            raise UsageError(what, where="--rev", next_step=step) from None
        return done.returncode, done.stdout if done.returncode == 0 else done.stderr

    def revision(self, text: str) -> Revision:
        """Return the commit of a revision; raise UsageError for one that does not exist."""
        if text == CHECKOUT:
            return self._checkout()
        _, said = self.ask(
            "rev-parse", "--verify", "--quiet", "--end-of-options", text + "^{commit}"
        )
        commit = said.strip()
        if not commit:
            raise UsageError(f"no revision {text!r}", where="--rev", next_step=self._remedy(text))
        short = commit[:10]
        return Revision(text, commit, text if commit.startswith(text) else f"{text} ({short})")

    def _checkout(self) -> Revision:
        """Return the tracked files as they are, as a commit that no branch has."""
        who = ("-c", "user.name=profstack", "-c", "user.email=profstack@localhost")
        code, said = self.ask(*who, "stash", "create")
        if code:
            step = "commit the changes, and name HEAD"
            raise UsageError(_last(said), where="--rev .", next_step=step)
        commit = said.strip() or self.revision("HEAD").commit
        return Revision(CHECKOUT, commit, "the checkout" if said.strip() else "HEAD (unchanged)")

    def _remedy(self, text: str) -> str:
        if self.ask("rev-parse", "--is-shallow-repository")[1].strip() == "true":
            return "this clone is shallow: fetch more of it (git fetch --unshallow)"
        known = self.ask("for-each-ref", "--format=%(refname:short)")[1].split()
        if close := get_close_matches(text, known, n=1):
            return f"did you mean {close[0]!r}?"
        return "'git branch --all' and 'git tag' list those that there are"

    def changes(self) -> tuple[int, int]:
        """Return the numbers of tracked files with uncommitted changes, and of untracked ones."""
        lines = self.ask("status", "--porcelain")[1].splitlines()
        untracked = sum(line.startswith("??") for line in lines)
        return len(lines) - untracked, untracked


class Worktrees:
    """Two working trees; `use` puts one of them at the path `tree`, where both are measured.

    Leaving the block removes them, also after an error or an interrupt.
    """

    def __init__(
        self, repository: Repository, revisions: Sequence[Revision], shared: Sequence[str] = ()
    ) -> None:
        self.repository, self.revisions, self._shared = repository, revisions, shared
        self._temporary = Path()
        self._in_use: int | None = None
        # What could not be removed, and why.
        self.left = ""

    @property
    def tree(self) -> Path:
        """Where a tree is while it is used; its last name is the checkout's own."""
        return self._temporary / "tree" / self.repository.top.name

    def __enter__(self) -> Worktrees:
        self._temporary = Path(tempfile.mkdtemp(prefix="profstack-rev-")).resolve()
        try:
            self.tree.parent.mkdir()
            for number, revision in enumerate(self.revisions):
                # Git names its own record of a tree after the folder's last name.
                place = str(self._place(number))
                add = ("worktree", "add", "--quiet", "--detach", place, revision.commit)
                code, said = self.repository.ask(*add)
                if code:
                    step = "free some space, or set TMPDIR to another folder"
                    what = f"git made no working tree ({_last(said)})"
                    raise UsageError(what, where=f"--rev {revision.text}", next_step=step)
                self._share(self._place(number))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with _signals_ignored():
            self._put_back()
            common = self.repository.ask("rev-parse", "--git-common-dir")[1].strip()
            for number in range(len(self.revisions)):
                place = self._place(number)
                self.repository.ask("worktree", "remove", "--force", "--force", str(place))
                # Left by a tree whose making was interrupted; the name is this process's own.
                record = self.repository.top / common / "worktrees" / place.name
                shutil.rmtree(record, ignore_errors=True)
            shutil.rmtree(self._temporary, ignore_errors=True)
            if self._temporary.exists():
                self.left = f"{self._temporary} could not be removed"

    def use(self, number: int) -> None:
        """Put the tree of this number at its place."""
        self._put_back()
        self._in_use = number
        self._place(number).rename(self.tree)

    def _put_back(self) -> None:
        if self._in_use is not None and self.tree.exists():
            self.tree.rename(self._place(self._in_use))
        self._in_use = None

    def _place(self, number: int) -> Path:
        return self._temporary / f"profstack-{os.getpid()}-{number}"

    def _share(self, tree: Path) -> None:
        """Give a tree the untracked files that were asked for: folders as links, files as copies.

        A script behind a link would import the modules beside its target.
        """
        for given in self._shared:
            source = Path(os.path.abspath(given))
            if not source.exists():
                raise UsageError(
                    f"there is no {given}", where="--share", next_step="check the path"
                )
            place = tree / self._inside(source, given)
            if place.exists():
                step = f"leave out --share {given}"
                raise UsageError(f"git tracks {given}", where="--share", next_step=step)
            place.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                place.symlink_to(source)
            else:
                shutil.copy2(source, place)

    def _inside(self, path: Path, given: str) -> Path:
        top = self.repository.top.resolve()
        if not path.resolve().is_relative_to(top):
            step = "name its absolute path to the script instead"
            raise UsageError(f"{given} is outside the repository", where="--share", next_step=step)
        return path.resolve().relative_to(top)

    # -- what a process in a tree gets --------------------------------------------------------

    def folder(self) -> Path:
        """Return the working folder in the tree in use: the same below its top as the user's."""
        return self.tree / self._inside(Path.cwd(), "the working folder")

    def target(self, target: Target) -> Target:
        """Return the target as seen from a tree; raise TargetError where a revision lacks it."""
        if target.kind != "script":
            self._check(target, Path())
            return target
        given = Path(target.arguments[0])
        top, whole = self.repository.top.resolve(), Path(os.path.abspath(given))
        whole = whole.parent.resolve() / whole.name
        if not whole.is_relative_to(top):
            # A script from elsewhere measures what it imports from the trees.
            return Target((str(whole), *target.arguments[1:]))
        self._check(target, whole.relative_to(top))
        if given.is_absolute():
            return Target((str(self.tree / whole.relative_to(top)), *target.arguments[1:]))
        return target

    def _check(self, target: Target, inside: Path) -> None:
        """Raise TargetError where a tree has neither the working folder nor the script."""
        working = self._inside(Path.cwd(), "the working folder")
        for number, revision in enumerate(self.revisions):
            for path in (working, inside):
                if (self._place(number) / path).exists():
                    continue
                step = "name a revision that has it"
                if (self.repository.top / path).exists() and path == inside:
                    step += f", or take the checkout's into both: --share {path}"
                what = f"it is not in revision {revision.text}"
                raise TargetError(what, where=str(path), next_step=step)

    def environment(self) -> dict[str, str]:
        """Return the environment whose imports come from the tree in use, not from the checkout.

        The environment's packages stay; of this repository, folders on PYTHONPATH and packages
        installed with `pip install --editable` lead into the tree.
        """
        given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
        mapped = {entry: self._mapped(entry) for entry in given}
        installed = filter(None, map(self._mapped, _installed_paths(given)))
        paths = [*dict.fromkeys(installed), *(mapped[entry] or entry for entry in given)]
        environment = dict(os.environ)
        if paths:
            environment["PYTHONPATH"] = os.pathsep.join(paths)
        return environment

    def _mapped(self, entry: str) -> str | None:
        """Return the folder in the tree for one of the checkout; None for any other."""
        top, path = self.repository.top.resolve(), Path(entry).resolve()
        # Relative folders begin in the working folder, which is in the tree. The profstack that
        # measures stays the same.
        if not Path(entry).is_absolute() or not path.is_relative_to(top) or path == _PACKAGE.parent:
            return None
        inside = path.relative_to(top)
        # An environment inside the checkout is not in a tree.
        if not any((self._place(number) / inside).is_dir() for number in range(2)):
            return None
        return str(self.tree / inside)

    def checkout_path(self, path: str) -> str:
        """Return the path in the checkout of a file in a tree; any other path as it is."""
        inside = os.path.relpath(path, self.tree)
        if not os.path.isabs(path) or inside.startswith(os.pardir):
            return path
        return str(self.repository.top / inside)


def _installed_paths(given: Sequence[str]) -> list[str]:
    """Return the folders that installed packages are imported from, editable ones among them."""
    # The first entry is the folder of the command, or of `python -m profstack`.
    found = [entry for entry in sys.path[1:] if entry not in given]
    for name, module in list(sys.modules.items()):
        # What setuptools leaves where no plain folder would do.
        places = getattr(module, "MAPPING", None) if name.startswith("__editable__") else None
        if isinstance(places, Mapping):
            found += [os.path.dirname(str(place)) for place in places.values()]
    return found


@contextlib.contextmanager
def _signals_ignored() -> Iterator[None]:
    """Let no second Ctrl-C leave half of the trees behind."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    try:
        before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    except ValueError:
        # Signals are the main thread's.
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _last(said: str) -> str:
    """Return the last line that git printed."""
    return next((line for line in reversed(said.splitlines()) if line.strip()), "no reason given")
