"""A script under `profstack run` is the same script: everything that can be seen is compared.

Each script of the harness runs once plain and once profiled, and must print, fail, write, seed
and leave behind the same, and be counted right. What is compared stands in harness/probe.py and
harness/runner.py, what may differ at the head of the latter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from ahead import done_ahead
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
    assert set(outcome.written) == set(MOMENTS[:2] if case.torn else MOMENTS)


@dataclass(frozen=True)
class Pair:
    """A case's two runs, one after the other, what each said of how often it ran, and a report."""

    plain: Outcome
    profiled: Outcome
    runs: tuple[str, str]
    recording: Path


def pair_of(case: Case, base: Path) -> Pair:
    """Run a case plain and profiled; a plain run that failed already is not run again."""
    runs, recording = base / "work" / "runs.log", base / "recording"
    plain = run_plain(case, base)
    ran_as_meant(case, plain)
    plain_runs = runs.read_text()
    profiled = run_profiled(case, base, recording)
    return Pair(plain, profiled, (plain_runs, runs.read_text()), recording)


@pytest.fixture(scope="module")
def pairs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Case], Pair]]:
    """Both runs of each case; two cases are run at a time."""

    folder = tmp_path_factory.mktemp("cases")

    def run(case: Case) -> Pair:
        (folder / case.name).mkdir()
        return pair_of(case, folder / case.name)

    with done_ahead(request, "case", run, lambda case: case.name) as found:
        yield found


@pytest.mark.parametrize("case", PARAMETERS)
def test_script_is_unharmed_and_counted(case: Case, pairs: Callable[[Case], Pair]) -> None:
    pair = pairs(case)
    plain, profiled = pair.plain, pair.profiled
    assert pair.runs[0] == "once\n"
    found = differences(plain, profiled)
    assert not found, "\n".join(found)
    # An empty difference would also come from a run that observed nothing.
    assert pair.runs[1] == "once\n"
    if case.name == "no_torch":
        # There is nothing to measure for a profiler of torch; it may say so.
        return
    report = report_of(pair.recording)
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
