"""A script under `profstack run` is the same script: everything that can be seen is compared.

Each script of the harness runs plain and profiled, and must print, fail, write, seed and leave
behind the same, and be counted right. What may differ stands at the head of harness/runner.py.
"""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from tests.support.harness.runner import CASES, MOMENTS, case, differences, run
from tests.support.recorded_runs import report_of, rows_of, steps_in
from tests.support.tables import missing

# The table that a layer with data cannot leave empty, where it is not named as the layer is.
_FINISHED = "SELECT key FROM facts WHERE key = 'finishing'"
DATA_OF = {"cprofile": "functions", "torch": "operators", "nvtx": "ranges", "memory": "lines"}


def pair_of(name, base):
    """A case's two runs, one after the other, and the recording."""
    plain = run(CASES[name], base)
    # A plain run that failed already tells nothing.
    ended = plain.done.returncode, set(plain.facts)
    assert ended == (CASES[name].exit_code, set(MOMENTS)), plain.done.stderr.decode()
    folder = base / "recording"
    profiled = run(CASES[name], base, "-m", "profstack", "run", "-o", str(folder))
    return SimpleNamespace(plain=plain, profiled=profiled, folder=folder)


@pytest.fixture(scope="module")
def pairs(request, tmp_path_factory):
    """Both runs of each selected case; two cases are run at a time, before their turn."""
    here = [item for item in request.session.items if item.path == request.path]
    wanted = {item.callspec.params["name"] for item in here if hasattr(item, "callspec")}
    with ThreadPoolExecutor(2) as pool:
        futures = {
            name: pool.submit(pair_of, name, tmp_path_factory.mktemp(name))
            for name in CASES
            if name in wanted
        }
        yield lambda name: futures[name].result()
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("name", CASES)
def test_script_is_unharmed_and_counted(name, pairs):
    pair = pairs(name)
    found = differences(pair.plain, pair.profiled)
    assert not found, "\n".join(found)
    assert pair.plain.runs == pair.profiled.runs == "once\n"
    # An empty difference would also come from a run that observed nothing.
    report = report_of(pair.folder)
    assert steps_in(report) == pair.plain.steps
    with_data = ("recorded", "emitted")
    recorded = {row["name"] for row in report["layers"] if row["status"] in with_data}
    assert recorded >= {"cprofile", "torch"}, report["layers"]
    # On a busy machine another loop may take most time: a layer may have no slice in that one.
    plans = {loop["plan"] for loop in report["step"]["loops"] if loop["reported"]}
    elsewhere = {row["layer"] for row in report["slices"]} - {
        row["layer"] for row in report["slices"] if row["plan"] in plans or not plans
    }
    empty = {name for name in recorded if not report["tables"][DATA_OF.get(name, name)]}
    assert empty <= elsewhere
    parts, reason = [row["wall_s"] for row in report["run_bar"]], report["run_bar_reason"]
    # One that ends by os._exit or a signal leaves no end to divide to.
    assert bool(parts) is (reason is None) is bool(rows_of(pair.folder, _FINISHED))
    assert not parts or min(parts) > 0
    assert not parts or sum(parts) == pytest.approx(report["run"]["duration_s"])


@pytest.mark.parametrize("name", ["compiled"])
def test_layers_give_way_to_compiled_code_and_count_from_shapes(name, pairs):
    folder = pairs(name).folder
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
