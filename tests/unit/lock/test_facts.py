"""Facts of a step, read from a small recording, and what differences of them are said to mean."""

import json
import shutil
import subprocess

import pytest

from profstack.errors import RecordingError
from profstack.lock import facts as module
from profstack.lock.differences import Difference, compare
from profstack.lock.facts import COMPILE, FUNCTIONS, MEMORY, MODULE, STEP, SYNCHRONISATIONS, Key
from profstack.lock.lockfile import Lock
from profstack.lock.meaning import explain
from profstack.lock.places import Sources
from profstack.lock.text import answer
from profstack.storage.folder import Writer
from tests.support.tables import cases, rows_of

SOURCE = """\
import torch

class Net:
    def __init__(self):
        self.head = torch.nn.Linear(4, 2)

    @torch.no_grad()
    def forward(self, x):
        return [y for y in map(lambda z: z, x)]

def train(batches):
    for batch in batches:
        loss = net(batch)
        print(loss.item())

net = Net()
optimizer = torch.optim.Adam(net.parameters())
"""
LIBRARY = "/site-packages/torch/nn/modules/module.py"
ITEM = "<method 'item' of 'torch._C.TensorBase' objects>"
LOADER = "/site-packages/torch/utils/data/dataloader.py"


def recorded(folder, *, items=(0, 0), flop=(40, 40), steps=2):
    """Write a recording of two steps with operators, and `steps` with calls of functions."""
    script = str(folder / "train.py")
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(SOURCE)
    writer = Writer(folder)
    common = {"plan": 1, "phase": "train", "counted_steps": 1, "steps": 1, "layer": "torch"}
    detail = common | {"mode": "detail", "kind": "torch"}
    counted = common | {"layer": "cprofile", "mode": "timed"}
    counted |= {"counted_steps": steps, "steps": steps}
    operators = [
        {"slice": number, "name": "aten::item", "module_id": owner, "backward": 0, **calls}
        for number, count in zip((1, 2), items, strict=True)
        for owner, calls in ((None, {"calls": count, "outermost": count}), (-3, {"calls": 9}))
    ]
    operators += [{**row, "name": "aten::_local_scalar_dense", "outermost": 0} for row in operators]
    places = {"roots": [f"{folder}/"], "libraries": ["/site-packages/"], "profstack": []}
    places |= {"working": f"{folder}/", "text": False, "sep": "/"}
    writer.facts({"counts_by_phase": {"train": 7}, "own_files": places, "plan_1": {"rule": "step"}})
    sizes = {"parameters": 10, "own_parameters": 10, "own_bytes": 40, "own_trainable": 6}
    line = {"slice": 3, "file": script, "line": 14, "operator": "aten::item", "calls": sum(items)}
    functions = [
        (script, 7, "forward", 3 * steps), (script, 9, "<lambda>", 1), (script, 9, "<listcomp>", 5),
        (LOADER, 690, "_next_data", 7 * steps), (LOADER, 700, "__next__", steps),
        ("~", 0, ITEM, 10 * steps + sum(items)),
    ]  # fmt: skip
    call = {"slice": 3, "caller_file": LIBRARY, "callee_file": "~", "callee_name": ITEM}
    memory = [(1, "parameters", 40), (1, "activations", 5), (2, "parameters", 40)]
    memory.append((2, "activations", 7))
    counts = {"counter": "recorded_shapes", "module_id": 1, "backward": 0}
    graph_break = {"reason": "print\nmore", "stack": json.dumps([[script, 9, "forward"]])}
    writer.write({
        "slices": rows_of("slice first_step", (1, 1), (2, 2), **detail)
        + rows_of("slice first_step", (3, 3), **counted),
        "operators": operators,
        "modules": [{"module_id": 1, "path": "Net", "type": "Net", **sizes}],
        "steps": rows_of("step shape", (2, "32x4"), (0, "9"), plan=1),
        "flop_counts": rows_of("slice flop", *enumerate(flop, 1), **counts),
        "memory_owners": rows_of("slice kind peak_bytes", *memory, device="cpu"),
        "functions": rows_of("file line name calls", *functions, slice=3),
        "calls": [{**call, "calls": 10 * steps}],
        "line_operators": [line] if sum(items) else [],
        "lines": rows_of("line", (13,), (14,), slice=3, file=script, calls=2),
        "compilations": [{"name": "forward", "file": script, "line": 7, "versions": 0}],
        "graph_breaks": [graph_break],
    })  # fmt: skip
    writer.close()
    return module.CountedRun(folder, str(folder))


def test_facts_are_per_step_and_say_where_steps_differ(tmp_path):
    facts = module.read_facts(recorded(tmp_path / "a", items=(1, 0)))
    assert facts == {
        Key(STEP, "", "ends with"): "step",
        Key(STEP, "", "phase"): "train",
        Key(STEP, "", "inputs"): "32x4",
        Key(STEP, "", "parameters"): 10,
        Key(STEP, "", "forward_flop"): 40,
        Key(STEP, "", "batches asked for"): 1,
        Key(MODULE, "Net", "type"): "Net",
        Key(MODULE, "Net", "parameters"): 10,
        Key(MODULE, "Net", "parameter_bytes"): 40,
        Key(MODULE, "Net", "frozen_parameters"): 4,
        Key(MODULE, "Net", "forward_flop"): 40,
        Key(MODULE, "(outside modules)", "operator aten::item"): "1 in 2 steps",
        Key(SYNCHRONISATIONS, "", "values read by the host"): "1 in 2 steps",
        Key(SYNCHRONISATIONS, "", ".item()"): "1 in 2 steps",
        Key(FUNCTIONS, "", "train.py::Net.forward"): 3,
        Key(FUNCTIONS, "", "train.py::Net.forward.<lambda>"): "1 in 2 steps",
        Key(MEMORY, "cpu", "peak_bytes"): 47,
        Key(MEMORY, "cpu", "peak: parameters"): 40,
        Key(MEMORY, "cpu", "peak: activations"): 7,
        Key(COMPILE, "train.py::Net.forward", "graphs"): 1,
        Key(COMPILE, "graph breaks", "print"): 1,
    }


def test_too_few_steps_are_an_error(tmp_path):
    with pytest.raises(module.TooFewStepsError, match="7 steps"):
        module.read_facts(recorded(tmp_path / "a", steps=0))
    run = recorded(tmp_path / "b")
    run.facts = {}
    with pytest.raises(RecordingError, match="--step-by"):
        module.read_facts(run)


@cases("counts value", ([2, 2, 2], 2), ([2, 2], "4 in 3 steps"), ([4, 0, 2], "6 in 3 steps"))
def test_a_count_is_whole_only_where_all_steps_have_it(counts, value):
    assert (module.per_step(counts, 3), module.per_step([], 3)) == (value, 0)


def said(locked, run, tmp_path):
    """Return the causes of what differs between locked facts and a run, and the whole answer."""
    now = module.read_facts(run)
    comparison = compare(Lock({}, locked), now, {})
    sources = Sources(run, tmp_path / "profstack.lock")
    causes, left = explain(comparison.differences, locked, now, run, sources)
    return causes, left, answer("train.py", "its.lock", comparison, causes, left, whole=False)


def test_an_added_item_is_one_cause_with_its_line(tmp_path):
    locked = module.read_facts(recorded(tmp_path / "a"))
    run = recorded(tmp_path / "b", items=(1, 1))
    (cause,), left, text = said(locked, run, tmp_path)
    assert (len(cause.takes), left) == (3, [])
    assert "3 facts differ" in text
    assert "1 more synchronisation a step on an accelerator, train.py:14\n" in text
    assert "     print(loss.item())\n     2 other facts follow from it" in text


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_of_several_lines_the_one_changed_since_the_lock_was_committed_is_named(tmp_path):
    folder = tmp_path / "a"
    locked = module.read_facts(recorded(folder, items=(1, 1)))
    lock, script = folder / "profstack.lock", folder / "train.py"
    lock.write_text("")
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@localhost"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "Lock"]):
        subprocess.run([*git, *words], check=True)
    run = module.CountedRun(folder, str(folder))
    changed = SOURCE.replace("        loss = net(batch)", "        loss = net(batch); loss.item()")
    script.write_text(changed)
    module.parsed.cache_clear()
    more = [Difference(Key(SYNCHRONISATIONS, "", ".item()"), 1, 2)]
    causes, _ = explain(more, locked, locked, run, Sources(run, lock))
    assert [place.line for place in causes[0].places] == [13]
    assert [str(place) for place in Sources(run, lock).changed()] == ["train.py:13"]


def test_what_is_gone_is_said_too_and_the_rest_is_listed(tmp_path):
    locked = module.read_facts(recorded(tmp_path / "a", items=(1, 1)))
    run = recorded(tmp_path / "b", flop=(50, 50))
    locked[Key(MODULE, "Net.head", "type")] = "Linear"
    locked[Key(MODULE, "Net.head", "calls")] = 2
    locked[Key(FUNCTIONS, "", "train.py::augment")] = 2
    locked[Key(STEP, "", "unheard of")] = 5
    causes, left, text = said(locked, run, tmp_path)
    texts = [cause.text for cause in causes]
    assert "1 fewer synchronisation a step" in texts[0]
    assert texts[1:] == [
        "the module Net.head (Linear) is gone",
        "augment() is no longer called: 2 times before",
    ]
    assert [row.key.name for row in left] == ["forward_flop", "unheard of"]
    assert "unheard of           5    0" in text


@cases(
    "key locked words line",
    (Key(COMPILE, "train.py::Net.forward", "graphs"), 0, "1 instead of 0 graphs", 8),
    (Key(COMPILE, "graph breaks", "print"), 0, "breaks a graph 1 instead of 0 times", 9),
    (Key(STEP, "", "inputs"), "16x4", "a batch holds 32 samples instead of 16", None),
    (Key(STEP, "", "inputs"), "32x8", "the inputs are 32x4 instead of 32x8", None),
    (Key(FUNCTIONS, "", "train.py::Net.forward"), 1, "called 3 instead of 1 times", 8),
    (Key(MODULE, "Net", "parameters"), 8, "Net has 10 instead of 8 parameters", 16),
    (Key(MODULE, "Net", "parameter_bytes"), 20, "another number type", None),
    (Key(MODULE, "Net", "frozen_parameters"), 0, "4 instead of 0 frozen", None),
    (Key(MODULE, "Net", "type"), "Other", "the module Net is a Net, and was a Other", 16),
    (Key(STEP, "", "batches asked for"), 2, "asks a DataLoader for 1 instead of 2", None),
    (Key(MEMORY, "cpu", "peak_bytes"), 46, "tensors take 47 instead of 46 bytes", None),
    (Key(SYNCHRONISATIONS, "", ".cpu()"), 2, ".cpu() is called 0 instead of 2 times", None),
)
def test_one_changed_fact_has_its_meaning(tmp_path, key, locked, words, line):
    run = recorded(tmp_path / "a")
    facts = {**module.read_facts(run), key: locked}
    causes, left, text = said(facts, run, tmp_path)
    assert (len(causes), left) == (1, [])
    assert words in causes[0].text
    assert [place.line for place in causes[0].places] == ([line] if line else [])
    assert "1 fact differs" in text


def test_blocks_with_the_same_change_are_one_cause(tmp_path):
    run = recorded(tmp_path / "a")
    changed = {Key(MODULE, f"Net.h.{number}.fc", "calls"): 2 for number in (0, 1, 10)}
    changed[Key(MODULE, "Net.h.2.fc", "calls")] = 3
    causes, left, _ = said({**module.read_facts(run), **changed}, run, tmp_path)
    first = "the module Net.h.0.fc is called 0 instead of"
    assert [(cause.text, len(cause.takes)) for cause in causes] == [
        (f"{first} 2 times a step; the same in 2 more modules like it", 3),
        ("the module Net.h.2.fc is called 0 instead of 3 times a step", 1),
    ]
    assert left == []


def test_kernels_are_counted_by_module_and_copies_of_a_device_by_kind(tmp_path):
    run = recorded(tmp_path / "a")
    names = ("gemm", "gemm", "Memcpy DtoH (Device -> Pageable)", "Memset (Device)")
    rows = [(number, name, 1, calls) for number in (1, 2) for calls, name in enumerate(names, 2)]
    run._tables["kernels"] = (["slice", "name", "module_id", "calls"], rows)
    facts = {key: value for key, value in module.read_facts(run).items() if "kernel" in key.name}
    assert facts == {
        Key(STEP, "", "kernel launches"): 5,
        Key(STEP, "", "kernel launches: Memcpy DtoH (Device -> Pageable)"): 4,
        Key(STEP, "", "kernel launches: Memset (Device)"): 5,
        Key(MODULE, "Net", "kernel launches"): 5,
    }
    causes, left, _ = said({**module.read_facts(run), **dict.fromkeys(facts, 2)}, run, tmp_path)
    assert [cause.text for cause in causes][:2] == [
        "a step launches 5 instead of 2 kernels",
        "the device does 4 instead of 2 of Memcpy DtoH (Device -> Pageable) a step",
    ]
    assert left == []


def test_many_modules_of_another_size_are_one_cause_with_the_work_around_them(tmp_path):
    run = recorded(tmp_path / "a")
    locked = {**module.read_facts(run), Key(MODULE, "Net", "forward_flop"): 30}
    locked |= {Key(MODULE, f"Net.{name}", "parameters"): 5 for name in "abcd"}
    causes, left, _ = said(locked, run, tmp_path)
    assert [cause.text for cause in causes] == [
        "4 modules have another number of parameters: Net.a has 0 instead of 5 parameters"
    ]
    assert (len(causes[0].takes), left) == (5, [])


def test_memory_is_said_with_the_kinds_that_changed_most(tmp_path):
    run = recorded(tmp_path / "a")
    kinds = {"activations": 17, "parameters": 38, "inputs": 1}
    changed = {Key(MEMORY, "cpu", f"peak: {kind}"): size for kind, size in kinds.items()}
    locked = {**module.read_facts(run), Key(MEMORY, "cpu", "peak_bytes"): 56, **changed}
    (cause,), left, _ = said(locked, run, tmp_path)
    assert "(activations 7 instead of 17, parameters 40 instead of 38)" in cause.text
    assert (len(cause.takes), left) == (4, [])


def test_operators_on_another_type_take_the_place_of_the_usual_ones(tmp_path):
    run = recorded(tmp_path / "a")
    columns = ["slice", "name", "module_id", "backward", "dtype", "outermost", "calls"]
    rows = [(number, "aten::mm", 1, 0, "float32", 2, 2) for number in (1, 2)]
    run._tables["operators"] = (columns, rows)
    locked = module.read_facts(run)
    usual = locked.pop(Key(MODULE, "Net", "operator aten::mm"))
    locked[Key(MODULE, "Net", "operator aten::mm bfloat16")] = usual
    (cause,), left, _ = said(locked, run, tmp_path)
    assert cause.text == "operators of 1 modules and parts no longer compute in bfloat16"
    assert (len(cause.takes), left) == (2, [])
