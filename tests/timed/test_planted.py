"""What is planted in a script is found where it is, end to end, by the command that users run.

Each program is run once for all tests. What is planted is far beyond its rule's limit.
"""

import json
from functools import cache
from pathlib import Path

import pytest

from tests.support.processes import CHECKOUT, run_python
from tests.support.reports import validate
from tests.support.set_memory import marked
from tests.support.tables import cases, of

PROGRAMS = CHECKOUT / "benchmarks" / "programs"
MIB = 2**20
# Programs that have one fault each.
TRAINED = ["data_starved__no_workers", "forced_synchronisation__items",
    "unfused_optimizer__many_small"]  # fmt: skip
ASKED = ["grad_in_inference__convolutions", "batchnorm_training_at_inference__forgotten_eval",
    "operators_without_flop_formula__inverse"]  # fmt: skip
OTHERS = ["small_operators__samples", "module_dominates__slow_block", "recompilations__counter",
    "graph_breaks__print", "warmup_never_settles__growing"]  # fmt: skip
# Those that are run without their fault, too: what is left lies nearest to a limit.
MENDED = (TRAINED[0], TRAINED[2], ASKED[0])
# By the finding that is about the fault.
FAULTS = {n.split("__")[0].replace("_", "-"): n for n in (*TRAINED, *ASKED, *OTHERS)}
FAULTS["python-hot-spot"] = FAULTS["data-starved"]
_TRAIN = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range({steps}):
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
"""
# A training in which a module, a function, an allocation and a list are each too much.
HEAVY = """
import torch
from torch import nn
class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(192))
    def forward(self, x):
        for _ in range(8):
            x = torch.tanh(x @ self.weight)
        return x
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.slow, self.last = nn.Linear(192, 192), Slow(), nn.Linear(192, 4)
    def forward(self, x):
        return self.last(self.slow(self.first(x)))
def count_slowly():
    total = 0
    for number in range(150_000):
        total += number * number  # @hot
    return total

def allocate():
    buffer = torch.ones(16 << 20)  # @allocation
    return buffer.numel()
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
history = []
for step in range(170):
    if step % 10 == 0:
        allocate()
    count_slowly()
    x = torch.randn(64, 192)
    loss = net(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append(torch.ones(1 << 18))  # @leak
"""
# It works out a measure of its own by NumPy after the optimizer's step.
PYTHON = """
import numpy as np
import torch
model, history = torch.nn.Linear(32, 8), []
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(150):
    x = torch.randn(32, 32)
    out = model(x)
    optimizer.zero_grad()
    out.square().mean().backward()
    optimizer.step()
    scores = out.detach().numpy().repeat(800)
    history.append(float(np.median(np.sort(scores))))  # @measure
"""
COMPUTE = """
import torch
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(3)))
x = torch.randn(256, 512)
"""
IO = """
import torch
model, x = torch.nn.Linear(512, 2048), torch.randn(2, 512)
def save():
    torch.save(model.state_dict(), "checkpoint.pt")
"""
COMMUNICATION = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
net = torch.nn.Sequential(torch.nn.Embedding(20000, 64), torch.nn.Linear(64, 8))
model = DistributedDataParallel(net)
x = torch.randint(0, 20000, (4, 8))
"""
RUN, MARKED = "torch,cprofile", marked(HEAVY)
# The texts of programs with their layers; those of whole programs.
TEXTS = {"heavy": (HEAVY, f"{RUN},memory,watch")}
TEXTS |= {"python": (PYTHON, RUN), "compute": (COMPUTE + _TRAIN.format(steps=50), RUN)}
TEXTS |= {"io": (IO + _TRAIN.format(steps=60) + "    save()\n", RUN)}
_END = "dist.destroy_process_group()\n"
TEXTS["communication"] = (COMMUNICATION + _TRAIN.format(steps=60) + _END, RUN)
LAYERS = dict.fromkeys(ASKED, "torch,flops,memory")
LAYERS |= {"unfused_optimizer__many_small": f"{RUN},nvtx", "warmup_never_settles__growing": "watch"}
LAUNCHER = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")


def text_of(name, kind="bad"):
    return (PROGRAMS / name / f"{kind}.py").read_text()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The reports of programs, each run when it is first asked for; "said" is what was printed."""
    base = tmp_path_factory.mktemp("runs")

    @cache
    def run(name, kind="bad"):
        folder = base / f"{name}-{kind}"
        folder.mkdir()
        text, layers = TEXTS.get(name) or (text_of(name, kind), LAYERS.get(name, RUN))
        (folder / "train.py").write_text(text)
        launcher = LAUNCHER if name == "communication" else ()
        command = (*launcher, "-m", "profstack", "run", "--force", "-o", "rec", "--layers", layers)
        environment = {"OMP_NUM_THREADS": "1", "PROFSTACK_PEAKS": str(int(name == "compute"))}
        how = {"cwd": folder, "env": environment, "timeout": 600}
        done = run_python(*command, "train.py", **how)
        (written,) = folder.glob("rec/**/report.json")
        report = json.loads(written.read_text())
        validate(report)
        assert not [row for row in report["warnings"] if row["slug"].endswith("-failed")]
        return report | {"said": done.stderr + done.stdout}

    return run


def found(report, slug):
    """The one finding of this slug."""
    (told,) = (each for each in report["findings"] if each["slug"] == slug)
    return told


@pytest.mark.parametrize("slug", FAULTS)
def test_a_fault_is_found_at_its_line(runs, slug):
    report = runs(FAULTS[slug])
    told, tables = found(report, slug), report["tables"]
    lines = marked(text_of(FAULTS[slug])).values()
    # Where an optimizer steps is read from the stack, else it has no line.
    if lines and told["line"] is not None:
        assert (Path(told["file"]).name, told["line"] in lines) == ("train.py", True)
    assert report["findings"][0]["title"] in " ".join(report["said"].split())
    assert told["evidence"]
    if told["gain_s"] is None:
        assert told["gain_reason"]
    else:
        assert 0 < told["gain_s"] <= report["benchmark"]["median_s"]
    known = {f"modules/{row['path']}" for row in tables["modules"]}
    known |= {f"operators/{row['name']}" for row in tables["operators"]}
    known |= {f"python/{row['file']}:{row['line']}:{row['name']}" for row in tables["functions"]}
    links = {row["link"] for row in told["evidence"] if "link" in row}
    assert {
        each for each in links if each.split("/")[0] in ("modules", "operators", "python")
    } <= known


def test_faults_have_the_figures_that_they_were_planted_with(runs):
    def about(slug):
        return found(runs(FAULTS[slug]), slug)

    assert about("forced-synchronisation")["evidence"][0]["values_per_step"] == 512
    assert about("unfused-optimizer")["evidence"][1]["tensors"] == 80
    wait, asked, first, *_ = about("data-starved")["evidence"]
    assert (wait["workers"], first["function"], first["called_from"]) == (0, "wave", "__getitem__")
    assert asked["range"].endswith("_SingleProcessDataLoaderIter.__next__")
    # The bar of the verdict has the same figure.
    parts = runs(FAULTS["data-starved"])["step_bar"]["parts"]
    bar = next(part["seconds"] for part in parts if part["name"] == "data wait")
    assert wait["loading_s"] == pytest.approx(bar)
    assert about("operators-without-flop-formula")["module"] == "Sequential.0"
    assert about("batchnorm-training-at-inference")["module"] == "Sequential.1"
    again = about("recompilations")
    assert (again["evidence"][0]["recompilations"], again["gain_is"]) == (29, "measured")
    assert again["evidence"][1]["failed_guard"].startswith("self.calls == ")
    assert about("graph-breaks")["evidence"][0]["graphs_per_step"] == 2.0
    assert about("module-dominates")["module"] == "Sequential.2"
    assert about("warmup-never-settles")["evidence"][0]["change_share"] > 0.2


@pytest.mark.parametrize("name", MENDED)
def test_the_same_program_without_its_fault_has_none(runs, name):
    slugs = {each["slug"] for each in runs(name, "mended")["findings"]}
    assert slugs & {slug for slug, program in FAULTS.items() if program == name} == set()


def ranked(rows, column):
    """Rows with a figure, the largest first."""
    known = [row for row in rows if row[column] is not None]
    return sorted(known, key=lambda row: row[column], reverse=True)


def test_what_is_heaviest_comes_first_in_every_table(runs):
    tables = runs("heavy")["tables"]
    inside = [row for row in tables["modules"] if row["depth"] and not row["path"].startswith("(")]
    for column in ("self_s", "calibrated_s"):
        first, second, *_ = ranked(inside, column)
        assert (first["path"], first[column] > 2 * second[column]) == ("Net.slow", True)
    # The large allocation, planted for another table, may be as slow where its pages are new.
    functions = [row for row in tables["functions"] if row["phase"] == "step"]
    first = ranked([row for row in functions if "torch.ones" not in row["name"]], "self_s")[0]
    assert of(first, "name own package") == ["count_slowly", True, "(own files)"]
    assert {"(own files)", "torch", "(built-in)"} <= {row["package"] for row in functions}
    assert all(row["own"] == (row["package"] == "(own files)") for row in functions)
    first, second, *_ = ranked(tables["lines"], "largest_bytes")
    assert first["line"] == MARKED["allocation"]
    assert first["largest_bytes"] >= 63 * MIB > 4 * second["largest_bytes"]


def test_lines_are_given_up_or_grow_where_that_was_planted(runs):
    report = runs("heavy")
    rows = {row["line"]: row for row in report["tables"]["lines"]}
    hot, leak = rows[MARKED["hot"]], rows[MARKED["leak"]]
    # Too many runs to time each: they are counted, and the time is an estimate.
    assert (hot["calls"] > 10_000, hot["reason"], hot["samples"] >= 20) == (True, None, True)
    others = [
        row["python_s"] or 0.0 for row in rows.values() if abs(row["line"] - hot["line"]) == 2
    ]
    assert hot["python_s"] > 10 * max(others, default=0.0)
    assert of(leak, "calls reason") == [1.0, None]
    assert all(row["own"] for row in rows.values())
    told = found(report, "memory-growth")
    assert told["line"] == MARKED["leak"]
    assert told["evidence"][0]["growth_per_step_bytes"] == pytest.approx(MIB, rel=0.25)
    # torch's allocator writes no line of the profile.
    assert (
        told["title"] in " ".join(report["said"].split()),
        "of unknown size" in report["said"],
    ) == (True, False)


@cases(
    "name words",
    ("python", f"(train.py:{marked(PYTHON)['measure']})"),
    *(("compute", "arithmetic"), ("io", "(train.py:")),
    ("communication", "gloo:all_reduce"),
)
def test_a_program_is_bound_by_what_it_does_most(runs, name, words):
    report = runs(name)
    told, bar = report["verdict"], report["step_bar"]
    if name == "compute" and report["benchmark"]["cores_busy"] < 0.8:
        pytest.skip("other work took a fifth of the core: no program reaches its peak so")
    assert told["slug"] == f"{name}-bound", (told, bar)
    assert words in told["sentence"]
    assert sum(part["seconds"] for part in bar["parts"]) == bar["median_s"]
    rows = {row["test"]: row["share"] or 0.0 for row in told["evidence"]}
    assert (len(rows), rows[told["slug"]]) == (7, max(rows.values()))
