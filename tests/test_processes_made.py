"""A script that leaves its steps to other processes, and one that is to be run without words."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import pytest
from conftest import RunProfstack

from profstack.capture.threads import made_by_multiprocessing
from profstack.storage.folder import PAGE_MARKER

SPAWNING = """
    import torch
    import torch.multiprocessing as mp
    from torch import nn

    def work(rank, net):
        optimizer = torch.optim.SGD(net.parameters(), 0.01)
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.ones(2, 4)).sum().backward()
            optimizer.step()

    if __name__ == "__main__":
        net = nn.Linear(4, 1)
        net.share_memory()
        mp.spawn(work, (net,), nprocs=2)
"""
# It goes on until the early page has been written.
LONG = """
    import sys
    from pathlib import Path
    import torch
    from torch import nn

    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for _ in range(200_000):
        optimizer.zero_grad()
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        if Path(sys.argv[1]).exists():
            break
"""


def test_steps_in_processes_of_multiprocessing_are_told_of(
    tmp_path: Path, run_profstack: RunProfstack
) -> None:
    script = tmp_path / "spawning.py"
    script.write_text(textwrap.dedent(SPAWNING))
    answer = run_profstack(["run", "-o", "rec", str(script)])
    assert answer.returncode == 0, answer.stderr
    why = (
        "no step was found in the script: it started 2 processes by multiprocessing, and what "
        "those do is not measured"
    )
    report = json.loads((tmp_path / "rec" / "report.json").read_text())
    assert report["step"]["reason"] == why
    assert report["verdict"]["sentence"] == f"Unclear: {why}."
    assert report["benchmark"]["warnings"] == [why]
    reasons = {row["reason"] for row in report["layers"] if row["status"] == "empty"}
    assert reasons == {why}
    assert why in " ".join(answer.stderr.split())
    assert "more steps" not in answer.stderr


def test_without_words_there_is_none_on_the_early_page(
    tmp_path: Path, run_profstack: RunProfstack
) -> None:
    script = tmp_path / "long.py"
    script.write_text(textwrap.dedent(LONG))
    for options in ([], ["-q"]):
        folder = tmp_path / f"rec{len(options)}"
        arguments = ["run", "--layers", "cprofile", "-o", str(folder), *options, str(script)]
        answer = run_profstack([*arguments, str(folder / PAGE_MARKER)])
        assert answer.returncode == 0, answer.stderr
        assert (folder / PAGE_MARKER).exists()
        assert ("early page" in answer.stderr) is not bool(options)
        last = answer.stderr.splitlines()[-1]
        assert last.startswith("Wrote ")
        assert not options or answer.stderr.splitlines() == [last]


def test_the_count_of_processes_goes_without_multiprocessing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "multiprocessing.process", raising=False)
    assert made_by_multiprocessing() == 0
