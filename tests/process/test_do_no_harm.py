"""A script under `profstack run` is the same script: everything that can be seen is compared.

Each script of the harness runs plain and profiled, and must print, fail, write, seed and leave
behind the same, and be counted right. What may differ stands at the head of harness/runner.py.
"""

from functools import cache
from types import SimpleNamespace

import pytest

from tests.support.harness.runner import CASES, MOMENTS, case, differences, run
from tests.support.recorded_runs import report_of, rows_of, steps_in
from tests.support.tables import missing


@pytest.fixture(scope="module")
def pair_of(tmp_path_factory):
    """A function that gives a case's two runs, one after the other, and the recording."""

    @cache
    def pair_of(name):
        base = tmp_path_factory.mktemp(name)
        plain = run(CASES[name], base)
        # A plain run that failed already tells nothing.
        ended = plain.done.returncode, set(plain.facts)
        assert ended == (CASES[name].exit_code, set(MOMENTS)), plain.done.stderr.decode()
        folder = base / "recording"
        profiled = run(CASES[name], base, "-m", "profstack", "run", "-o", str(folder))
        return SimpleNamespace(plain=plain, profiled=profiled, folder=folder)

    return pair_of


@pytest.mark.parametrize("name", CASES)
def test_script_is_unharmed_and_counted(name, pair_of):
    pair = pair_of(name)
    found = differences(pair.plain, pair.profiled)
    assert not found, "\n".join(found)
    assert pair.plain.runs == pair.profiled.runs == "once\n"
    # An empty difference would also come from a run that observed nothing.
    report = report_of(pair.folder)
    assert steps_in(report) == pair.plain.steps
    with_data = ("recorded", "emitted")
    recorded = {row["name"] for row in report["layers"] if row["status"] in with_data}
    assert recorded >= {"cprofile", "torch"}, report["layers"]


def test_layers_give_way_to_compiled_code_and_count_from_shapes(pair_of):
    folder = pair_of("compiled").folder
    statuses = rows_of(folder, "SELECT name, status, reason FROM layers")
    layers = {layer: rest for layer, *rest in statuses}
    assert layers["flops"][0] == "skipped"
    assert "compiled" in layers["flops"][1]
    assert layers["memory"][0] != "recorded"
    assert "dynamo" in layers["memory"][1]
    # The torch slice has the shapes.
    assert rows_of(folder, "SELECT DISTINCT counter FROM flop_counts") == [("recorded_shapes",)]
    assert rows_of(folder, "SELECT DISTINCT path FROM region_times") == [("step",)]
    # A compiled region gets one range, under the path of the model that it wraps (this backend
    # calls its graphs as modules); none of the modules that were compiled away.
    found = rows_of(folder, "SELECT DISTINCT name FROM ranges WHERE kind = 'module'")
    modules = {name for (name,) in found}
    assert "Sequential" in modules
    assert not any(name.endswith((".0", ".1", ".2")) for name in modules)
    assert rows_of(folder, "SELECT COUNT(*) FROM ranges WHERE kind = 'backward'")[0][0] >= 2
    rows = {row["path"]: row for row in report_of(folder)["tables"]["modules"]}
    # What was compiled belongs to the model.
    assert not any(path.endswith((".0", ".1", ".2")) for path in rows)
    assert min(rows["Sequential"]["forward_s"], rows["Sequential"]["backward_s"]) > 0


HARMED = """
random.python random.torch switches.warnings switches.cudnn switches.gc: switches.gc_callbacks
final.path hooks._global_forward_hooks watched.model.itself.hooks._forward_hooks
observers.optimizer_hooks observers.profile observers.thread_profile observers.threads
observers.raw_threads namespaces.torch.nn.modules.module.Module.__call__
namespaces.torch.autograd.backward
"""


def test_the_harness_finds_harm(tmp_path):
    outcomes = [run(case("harm.py", stdin=word), tmp_path) for word in ("no\n", "harm\n")]
    assert all(set(outcome.facts) == set(MOMENTS) for outcome in outcomes)
    assert missing("\n".join(differences(*outcomes)), *HARMED.split()) == []
    assert not differences(outcomes[0], outcomes[0])
