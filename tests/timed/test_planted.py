"""What is planted in a script is found where it is, end to end, by the command that users run.

Each program is run once for all tests. What is planted is far beyond its rule's limit.
"""

import json
import shutil
from functools import cache
from pathlib import Path

import jsonschema
import pytest

from profstack.report import files
from tests.support.processes import TESTS, run_python
from tests.support.tables import cases, of

PROGRAMS = TESTS / "support" / "programs"
MIB = 2**20
FAULTS = {
    "training": "data-starved python-hot-spot forced-synchronisation unfused-optimizer",
    "inference": "grad-in-inference batchnorm-training-at-inference operators-without-flop-formula",
}
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
RUN = "torch,cprofile"
# The texts of programs with their layers; those of whole programs.
TEXTS = {"heavy": (HEAVY, f"{RUN},memory,watch")}
TEXTS |= {"python": (PYTHON, RUN), "compute": (COMPUTE + _TRAIN.format(steps=50), RUN)}
TEXTS |= {"io": (IO + _TRAIN.format(steps=60) + "    save()\n", RUN)}
_END = "dist.destroy_process_group()\n"
TEXTS["communication"] = (COMMUNICATION + _TRAIN.format(steps=60) + _END, RUN)
LAYERS = {"growing": "watch", "inference": "torch,flops,memory", "training": f"{RUN},nvtx"}
LAUNCHER = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")


def line_of(text, mark):
    """The line that ends in `# @mark`."""
    lines = text.splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# @{mark}"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The reports of programs, each run when it is first asked for; "said" is what was printed."""
    base = tmp_path_factory.mktemp("runs")

    @cache
    def run(name, *arguments):
        folder = base / "-".join((name, *arguments))
        folder.mkdir()
        text, layers = TEXTS.get(name, (None, LAYERS.get(name, RUN)))
        script = folder / ("train.py" if text else f"{name}.py")
        if text:
            script.write_text(text)
        else:
            shutil.copy(PROGRAMS / script.name, script)
        launcher = LAUNCHER if name == "communication" else ()
        command = (*launcher, "-m", "profstack", "run", "--force", "-o", "rec", "--layers", layers)
        environment = {"OMP_NUM_THREADS": "1", "PROFSTACK_PEAKS": str(int(name == "compute"))}
        how = {"cwd": folder, "env": environment, "timeout": 600}
        done = run_python(*command, script.name, *arguments, **how)
        (written,) = folder.glob("rec/**/report.json")
        report = json.loads(written.read_text())
        jsonschema.validate(report, files.schema())
        assert not [row for row in report["warnings"] if row["slug"].endswith("-failed")]
        return report | {"said": done.stderr + done.stdout}

    return run


def found(report, slug):
    """The one finding of this slug."""
    (told,) = (each for each in report["findings"] if each["slug"] == slug)
    return told


@cases(
    "name slug mark",
    "training data-starved slow; training python-hot-spot slow; training unfused-optimizer step",
    "training forced-synchronisation item",
    "inference grad-in-inference call; inference batchnorm-training-at-inference call",
    "inference operators-without-flop-formula None; blocks small-operators loop",
    "blocks module-dominates None; compiled recompilations counter; compiled graph-breaks print",
    "growing warmup-never-settles None",
)
def test_a_fault_is_found_at_its_line(runs, name, slug, mark):
    report = runs(name)
    told, tables = found(report, slug), report["tables"]
    # Where an optimizer steps is read from the stack, else it has no line.
    if mark and told["line"] is not None:
        marked = line_of((PROGRAMS / f"{name}.py").read_text(), mark)
        assert (Path(told["file"]).name, told["line"]) == (f"{name}.py", marked)
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
    training, inference, compiled = runs("training"), runs("inference"), runs("compiled")
    assert found(training, "forced-synchronisation")["evidence"][0]["values_per_step"] == 512
    assert found(training, "unfused-optimizer")["evidence"][1]["tensors"] == 240
    wait, asked, first, *_ = found(training, "data-starved")["evidence"]
    assert (wait["workers"], first["function"], first["called_from"]) == (0, "wave", "__getitem__")
    assert asked["range"].endswith("_SingleProcessDataLoaderIter.__next__")
    # The bar of the verdict has the same figure.
    bar = {part["name"]: part["seconds"] for part in training["step_bar"]["parts"]}
    assert wait["loading_s"] == pytest.approx(bar["data wait"])
    assert found(inference, "operators-without-flop-formula")["module"] == "Sequential.3"
    assert found(inference, "batchnorm-training-at-inference")["module"] == "Sequential.1"
    again = found(compiled, "recompilations")
    assert (again["evidence"][0]["recompilations"], again["gain_is"]) == (29, "measured")
    assert again["evidence"][1]["failed_guard"].startswith("self.calls == ")
    assert found(compiled, "graph-breaks")["evidence"][0]["graphs_per_step"] == 3.0
    assert found(runs("blocks"), "module-dominates")["module"] == "Sequential.2"
    assert found(runs("growing"), "warmup-never-settles")["evidence"][0]["change_share"] > 0.2


@cases("name", "training; inference")
def test_the_same_program_without_its_faults_has_none(runs, name):
    slugs = {each["slug"] for each in runs(name, "mended")["findings"]}
    assert slugs & {*FAULTS[name].split()} == set()


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
    assert first["line"] == line_of(HEAVY, "allocation")
    assert first["largest_bytes"] >= 63 * MIB > 4 * second["largest_bytes"]


def test_lines_are_given_up_or_grow_where_that_was_planted(runs):
    report = runs("heavy")
    rows = {row["line"]: row for row in report["tables"]["lines"]}
    hot, leak = rows[line_of(HEAVY, "hot")], rows[line_of(HEAVY, "leak")]
    # Too many runs to time each: they are counted, and the time is an estimate.
    assert (hot["calls"] > 10_000, hot["reason"], hot["samples"] >= 20) == (True, None, True)
    others = [
        row["python_s"] or 0.0 for row in rows.values() if abs(row["line"] - hot["line"]) == 2
    ]
    assert hot["python_s"] > 10 * max(others, default=0.0)
    assert of(leak, "calls reason") == [1.0, None]
    assert all(row["own"] for row in rows.values())
    told = found(report, "memory-growth")
    assert told["line"] == line_of(HEAVY, "leak")
    assert told["evidence"][0]["growth_per_step_bytes"] == pytest.approx(MIB, rel=0.25)
    # torch's allocator writes no line of the profile.
    assert (
        told["title"] in " ".join(report["said"].split()),
        "of unknown size" in report["said"],
    ) == (True, False)


@cases(
    "name words",
    ("python", f"(train.py:{line_of(PYTHON, 'measure')})"),
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
