"""What is planted in a script is found where it is, end to end, by the command that users run.

Each program is run once, and has faults far beyond their rules' limits.
"""

import json
from pathlib import Path

import pytest

from tests.support.agreement import contradictions
from tests.support.processes import CHECKOUT, run_python
from tests.support.reports import validate
from tests.support.set_memory import marked
from tests.support.tables import of

STARVED = CHECKOUT / "benchmarks" / "programs" / "data_starved__no_workers"
MIB = 2**20
# It counts its hits one by one, and its optimizer goes through many small tensors.
TRAINED = """
import torch
from torch import nn
def hits(scores, labels):
    best, count = scores.argmax(1), 0
    for at in range(len(labels)):
        if best[at].item() == labels[at].item():  # @item
            count += 1
    return count
model = nn.Sequential(*[nn.Linear(48, 48) for _ in range(40)])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=False)
x, labels = torch.randn(256, 48), torch.randint(0, 48, (256,))
for _ in range(90):
    scores = model(x)
    optimizer.zero_grad()
    nn.functional.cross_entropy(scores, labels).backward()
    optimizer.step()  # @step
    hits(scores, labels)
"""
# One compiled model works with a number that it counts, one prints.
COMPILED = """
import torch
from torch import nn
# As the warning of the limit that it would reach advises.
torch._dynamo.config.cache_size_limit = 10_000
torch._dynamo.config.accumulated_cache_size_limit = 10_000
class Cooling(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.calls = nn.Linear(64, 64), 0
    def forward(self, x):
        self.calls += 1  # @counter
        return self.inner(x) / (1.0 + 0.01 * self.calls)
class Talkative(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
    def forward(self, x):
        hidden = torch.relu(self.first(x))
        print("between", hidden.shape)  # @print
        return self.second(hidden)
models = [torch.compile(one, backend="eager") for one in (Cooling(), Talkative())]
model, x = nn.Sequential(*models), torch.randn(16, 64)
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
for step in range(300):
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
IO = """
import torch
model, x = torch.nn.Linear(512, 2048), torch.randn(2, 512)
def save():
    torch.save(model.state_dict(), "checkpoint.pt")
"""
_TRAIN = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range({steps}):
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
"""
MARKED = marked(HEAVY)
# The texts of programs, and their layers.
_USUAL = "torch,cprofile"
PROGRAMS = {
    "starved": ((STARVED / "bad.py").read_text(), _USUAL),
    "trained": (TRAINED, "torch,cprofile,nvtx"),
    "compiled": (COMPILED + _TRAIN.format(steps=24), _USUAL),
    "heavy": (HEAVY, f"{_USUAL},memory,watch"),
    "io": (IO + _TRAIN.format(steps=60) + "    save()\n", _USUAL),
}
# A program without its faults.
MENDED = TRAINED.replace("fused=False", "fused=True").replace("\n    hits(", "\n    (")


@pytest.fixture
def run(tmp_path):
    """A function that runs a program and gives its report; "said" is what was printed."""

    def run(name, mended=None):
        text, layers = PROGRAMS[name]
        (tmp_path / "train.py").write_text(mended or text)
        command = ("-m", "profstack", "run", "-o", "rec", "--layers", layers, "train.py")
        done = run_python(*command, cwd=tmp_path)
        report = json.loads((tmp_path / "rec" / "report.json").read_text())
        validate(report)
        assert not [row for row in report["warnings"] if row["slug"].endswith("-failed")]
        assert contradictions(report) == []
        return report | {"said": done.stderr + done.stdout}

    return run


def found(report, slug):
    """The one finding of this slug."""
    told = [each for each in report["findings"] if each["slug"] == slug]
    assert len(told) == 1, (slug, report["findings"], report["tables"]["memory"])
    return told[0]


def check_findings(report, text, slugs):
    """Each was found at a marked line, and its evidence is in the tables."""
    tables, lines = report["tables"], marked(text).values()
    known = {f"modules/{row['path']}" for row in tables["modules"]}
    known |= {f"operators/{row['name']}" for row in tables["operators"]}
    known |= {f"python/{row['file']}:{row['line']}:{row['name']}" for row in tables["functions"]}
    assert report["findings"][0]["title"] in " ".join(report["said"].split())
    for slug in slugs:
        told = found(report, slug)
        # Where an optimizer steps is read from the stack, else it has no line.
        if lines and told["line"] is not None:
            assert (Path(told["file"]).name, told["line"] in lines) == ("train.py", True), slug
        links = {row["link"] for row in told["evidence"] if "link" in row}
        assert {
            each for each in links if each.split("/")[0] in ("modules", "operators", "python")
        } <= known
        assert told["gain_s"] or told["gain_reason"]


# By program and finding: figures that its evidence begins with, row by row.
FAULTS = {
    "starved": {
        "data-starved": ({"workers": 0}, {}, {"function": "wave", "called_from": "__getitem__"}),
        "python-hot-spot": (),
    },
    "trained": {
        "forced-synchronisation": ({"values_per_step": 512},),
        "unfused-optimizer": ({}, {"tensors": 80}),
    },
    "compiled": {
        "recompilations": ({"recompilations": 23},),
        "graph-breaks": ({"graphs_per_step": 3.0},),
    },
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found_at_their_lines_with_the_figures_that_were_planted(run, name):
    report = run(name)
    check_findings(report, PROGRAMS[name][0], FAULTS[name])
    for slug, rows in FAULTS[name].items():
        evidence = found(report, slug)["evidence"]
        for planted, row in zip(rows, evidence[: len(rows)], strict=True):
            assert {key: row[key] for key in planted} == planted, slug
    if name == "starved":
        asked = found(report, "data-starved")["evidence"][1]
        assert asked["range"].endswith("_SingleProcessDataLoaderIter.__next__")
    if name == "compiled":
        again = found(report, "recompilations")
        assert again["evidence"][1]["failed_guard"].startswith("self.calls == ")
        assert (again["gain_is"], report["verdict"]["slug"]) == ("measured", "python-bound")


def test_the_same_program_without_its_faults_has_none(run):
    slugs = {each["slug"] for each in run("trained", MENDED)["findings"]}
    assert slugs & FAULTS["trained"].keys() == set()


def ranked(rows, column):
    """Rows with a figure, the largest first."""
    known = [row for row in rows if row[column] is not None]
    return sorted(known, key=lambda row: row[column], reverse=True)


def test_what_is_heaviest_comes_first_and_lines_are_given_up_or_grow_as_planted(run):
    report = run("heavy")
    tables = report["tables"]
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
    rows = {row["line"]: row for row in tables["lines"]}
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
    assert told["title"] in " ".join(report["said"].split())
    assert "of unknown size" not in report["said"]


def test_a_program_is_bound_by_what_it_does_most(run):
    report = run("io")
    told = report["verdict"]
    assert told["slug"] == "io-bound", (told, report["step_bar"])
    assert "(train.py:" in told["sentence"]
    rows = {row["test"]: row["share"] or 0.0 for row in told["evidence"]}
    assert (len(rows), rows[told["slug"]]) == (7, max(rows.values()))
