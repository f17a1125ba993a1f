"""A script under `profstack run` is the same script: everything that can be seen is compared.

Each script of the harness runs once plain and once profiled, and must print, fail, write, seed
and leave behind the same, and be counted right. What is compared stands in harness/probe.py and
harness/runner.py, what may differ at the head of the latter.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.cases import CASES, Case
from harness.runner import MOMENTS, Outcome, differences, report_of, run_plain, run_profiled

PARAMETERS = [
    pytest.param(case, id=case.name, marks=[pytest.mark.slow] if case.slow else [])
    for case in CASES
]


# The table that a layer with data cannot leave empty.
DATA_OF = {
    "cprofile": "functions",
    "torch": "operators",
    "nvtx": "ranges",
    "memory": "lines",
    "flops": "flops",
    "watch": "watch",
}


def ran_as_meant(case: Case, outcome: Outcome) -> None:
    """The script itself did what its case says, once; else a comparison means nothing."""
    assert outcome.exit_code == case.exit_code, outcome.stderr.decode()
    assert set(outcome.facts) == set(MOMENTS[:2] if case.torn else MOMENTS)


@pytest.mark.parametrize("case", PARAMETERS)
def test_script_is_unharmed_and_counted(case: Case, tmp_path: Path) -> None:
    plain = run_plain(case, tmp_path)
    ran_as_meant(case, plain)
    assert (tmp_path / "work" / "runs.log").read_text() == "once\n"

    recording = tmp_path / "recording"
    profiled = run_profiled(case, tmp_path, recording)
    found = differences(plain, profiled)
    assert not found, "\n".join(found)
    # An empty difference would also come from a run that observed nothing.
    assert (tmp_path / "work" / "runs.log").read_text() == "once\n"
    if case.name == "no_torch":
        # There is nothing to measure for a profiler of torch; it may say so.
        return
    report = report_of(recording)
    if case.torn:
        # What the engine had not written yet has ended with the process.
        assert 0 < counted_steps(report) <= plain.steps
    else:
        assert counted_steps(report) == plain.steps
    with_data = ("recorded", "emitted")
    recorded = {row["name"] for row in report["layers"] if row["status"] in with_data}
    assert recorded >= set(case.layers), report["layers"]
    assert all(report["tables"][DATA_OF[name]] for name in recorded)


def counted_steps(report: dict) -> int:
    """Steps of all phases."""
    return sum((report["step"]["counts_by_phase"] or {}).values())


def test_the_harness_finds_harm(tmp_path: Path) -> None:
    outcomes = [
        run_plain(Case("harm", ("harm.py",), stdin=word), tmp_path) for word in ("no\n", "harm\n")
    ]
    assert all(set(outcome.facts) == set(MOMENTS) for outcome in outcomes)
    found = "\n".join(differences(*outcomes))
    for place in (
        "random.python",
        "random.torch",
        "switches.warnings",
        "switches.cudnn",
        "switches.gc:",
        "switches.gc_callbacks",
        "final.path",
        "hooks._global_forward_hooks",
        "watched.model..hooks._forward_hooks",
        "observers.optimizer_hooks",
        "observers.profile",
        "observers.thread_profile",
        "observers.threads",
        "observers.raw_threads",
        "namespaces.torch.nn.modules.module.Module.__call__",
        "namespaces.torch.autograd.backward",
    ):
        assert place in found, place
    assert not differences(outcomes[0], outcomes[0])
