"""Start a script in several ranks, by torch's own launcher, each with profstack in it.

`profstack run --nproc-per-node 4 train.py` becomes `torchrun --nproc-per-node 4` of `profstack run
train.py`: the launcher's own options, signals and error reports stay as they are.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from profstack.errors import UsageError
from profstack.launch import process, target

# Options that are the launcher's, in its own spelling.
LAUNCHER_OPTIONS = {
    "--nproc-per-node": "processes on this machine: a number, auto, cpu or gpu",
    "--nnodes": "machines (default: 1)",
    "--node-rank": "number of this machine, where the launcher cannot find it out",
    "--rdzv-backend": "how the machines find each other",
    "--rdzv-endpoint": "where they do: HOST:PORT",
    "--rdzv-id": "name of the job",
    "--master-addr": "address of the first machine",
    "--master-port": "port there",
}
# Options of `profstack run` that the launching process carries out, with those that take no value.
_OWN = ("--ranks", "-o", "--output")
_FLAGS = ("--force", "--open")
# Set in the ranks: who started them prints the result.
LAUNCHED = "PROFSTACK_LAUNCHED"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the launcher's options to the parser of `profstack run`."""
    group = parser.add_argument_group("several ranks, by torch's launcher")
    for option, meaning in LAUNCHER_OPTIONS.items():
        group.add_argument(option, metavar="X", help=meaning)


def wanted(options: argparse.Namespace) -> bool:
    """Return whether several ranks are to be started; raise UsageError where that cannot be."""
    given = [option for option in LAUNCHER_OPTIONS if _value(options, option) is not None]
    if not given:
        return False
    if options.nproc_per_node is None:
        step = "give --nproc-per-node, the number of processes on this machine"
        raise UsageError(f"{given[0]} is for several ranks", where="run", next_step=step)
    if target.own_rank() is not None:
        step = "leave out --nproc-per-node, or the launcher around profstack"
        raise UsageError("a launcher has started this rank already", where="run", next_step=step)
    return True


def _value(options: argparse.Namespace, option: str) -> str | None:
    value: str | None = getattr(options, option.removeprefix("--").replace("-", "_"))
    return value


@dataclass(frozen=True)
class Launch:
    """A launch of several ranks that record into `folder`."""

    options: argparse.Namespace
    # Words of the command line before the target, and the target's.
    own: Sequence[str]
    target: Sequence[str]
    folder: Path

    def command(self) -> list[str]:
        """Return the command line of torch's launcher."""
        given = {option: _value(self.options, option) for option in LAUNCHER_OPTIONS}
        launcher = [word for key, value in given.items() if value for word in (key, value)]
        if not any(given[each] for each in ("--nnodes", "--rdzv-endpoint", "--master-addr")):
            # A free port of its own: other launches on the machine are not disturbed.
            launcher = ["--standalone", *launcher]
        python = [sys.executable, *process.interpreter_flags()]
        ranks = self.options.ranks or "all"
        passed = ["--ranks", ranks, "-o", str(self.folder), *_passed_on(self.own)]
        run = [*python, "-m", "profstack", "run", *passed, "--", *self.target]
        return [*python, "-m", "torch.distributed.run", *launcher, "--no-python", *run]

    def execute(self) -> int:
        """Run the ranks to their end; return the launcher's exit code, -n for signal n."""
        return process.run_beside(self.command(), {**os.environ, LAUNCHED: "1"})


def _passed_on(own: Sequence[str]) -> list[str]:
    """Return the words of the command line without those that the launching process carries out."""
    words, kept = list(own), []
    while words:
        word = words.pop(0)
        name = word.partition("=")[0]
        if name in LAUNCHER_OPTIONS or name in _OWN:
            if "=" not in word:
                words = words[1:]
        elif name not in _FLAGS:
            kept.append(word)
    return kept
