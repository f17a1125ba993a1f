"""The command line of torch's launcher that `--nproc-per-node` becomes."""

import sys

import pytest

from profstack.commands import run
from profstack.errors import UsageError
from profstack.launch import ranks, target
from tests.support.tables import cases


def command(words, folder="out"):
    """The words after the interpreter, and what follows `--no-python`."""
    own, rest = target.split(words, frozenset(each for action in run.parser()._actions
                                              if action.nargs is None
                                              for each in action.option_strings))  # fmt: skip
    options = run.parser().parse_args(own)
    assert ranks.wanted(options)
    made = ranks.Launch(options, own, rest, folder).command()
    at = made.index("--no-python")
    return made[made.index("torch.distributed.run") + 1 : at], made[at + 1 :]


MANY = "--nproc-per-node 8 --nnodes 2 --node-rank 1 --master-addr a --master-port 9"


@cases(
    "own launcher passed",
    (
        "--light --nproc-per-node=gpu --ranks 0,3 -o other --force --open -q",
        *("--standalone --nproc-per-node gpu", "--ranks 0,3 -o out --light -q"),
    ),
    (MANY, MANY, "--ranks all -o out"),
)
def test_options_reach_the_launcher_or_profstack_in_each_rank(own, launcher, passed):
    words, run_words = command([*own.split(), "train.py", "--nnodes", "7", "-o", "x"])
    assert words == launcher.split()
    assert run_words[0] == sys.executable
    at = run_words.index("profstack")
    expected = [*passed.split(), "--", "train.py", "--nnodes", "7", "-o", "x"]
    assert run_words[at + 1 :] == ["run", *expected]


def test_no_launch_is_wanted_without_its_options_or_in_a_rank(monkeypatch):
    def wanted(*words):
        return ranks.wanted(run.parser().parse_args(list(words)))

    monkeypatch.delenv("RANK", raising=False)
    assert not wanted("--light")
    with pytest.raises(UsageError, match=r"--nnodes is for several ranks.*--nproc-per-node"):
        wanted("--nnodes", "2")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(UsageError, match="a launcher has started this rank already"):
        wanted("--nproc-per-node", "2")


@cases(
    "words node",
    *(("", None), ("SLURM_NODEID=3", 3), ("GROUP_RANK=0 SLURM_NODEID=3", 0)),
    ("GROUP_RANK=x", None),
)
def test_the_number_of_the_machine_is_the_launchers(monkeypatch, words, node):
    for name in ("GROUP_RANK", "SLURM_NODEID"):
        monkeypatch.delenv(name, raising=False)
    for word in words.split():
        monkeypatch.setenv(*word.split("="))
    assert target.own_node() == node
