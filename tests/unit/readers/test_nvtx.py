"""The emitter of NVTX ranges: what it emits, that it stays nested, and what it costs."""

import pytest
from torch import nn

from profstack.readers import nvtx
from tests.support.engine import elsewhere
from tests.support.tables import cases


@pytest.fixture
def emitter(domain):
    made = nvtx.Emitter(nvtx.Domain())
    made.start(7)
    return made


def drive(emitter, words):
    """Enter `+kind:name` and leave `-kind:name`; `8` ends a step, `<1:name` and `>1` are apart.

    A name alone is a module's; `=8` begins a step.
    """
    for word in words.split():
        kind, _, name = word[1:].rpartition(":")
        if word[0] in "+-":
            (emitter.enter if word[0] == "+" else emitter.leave)(kind or "module", name)
        elif word[0] in "<>":
            emitter.enter_apart(int(kind), name) if kind else emitter.leave_apart(int(name))
        else:
            (emitter.step_begun if word[0] == "=" else emitter.step_ended)(int(word.strip("=")))


def counted(emitter):
    """The calls of each range, by step."""
    return [{f"{r.kind}:{r.name}": calls for r, calls, _ in step} for step in emitter.steps]


@cases(
    "words told",
    # The outermost module's call is a forward pass; in regions, too.
    ("+Net +Net.fc -Net.fc -Net +Net -Net", "forward,.Net,..Net.fc,forward,.Net"),
    ("+region:r +Net -Net -region:r", "r,.forward,..Net"),
    # Not so in a backward pass, where forward work is repeated.
    ("+backward:backward +Net +Net.fc", "backward,.Net,..Net.fc"),
    ("+Net +Net -Net +Net.fc -Net.fc -Net +a", "forward,.Net,..Net,..Net.fc,forward,.a"),
    ("+optimizer:SGD +Net -Net -optimizer:SGD +r", "optimizer SGD,.forward,..Net,forward,.r"),
    # An error has left inner ones open: they end with the outer one and go on, as do tasks that
    # take turns; but for optimizers, whose end nothing tells.
    ("+region:a +region:b -region:a +region:a -region:b +region:c", "a,.b,b,.a,a,.c"),
    ("+region:a +optimizer:SGD +region:b -region:a", "a,.optimizer SGD,..b,b"),
    # What began before the slice is not ended in it.
    ("-region:epoch +Net -optimizer:SGD -Net -Net +Net", "forward,.Net,forward,.Net"),
)
def test_ranges_and_what_is_around_them(emitter, domain, words, told):
    drive(emitter, words)
    texts = [(line, line.lstrip(".")) for line in told.split(",")]
    expected = ["  " * (1 + len(line) - len(text)) + text for line, text in texts]
    assert domain.told == ["step 7", *expected]
    emitter.stop()
    assert domain.open == []


def test_texts_categories_and_numbers(emitter, domain):
    for name, module in (("MSELoss", nn.MSELoss()), ("Net", nn.Linear(2, 2))):
        emitter.enter("module", name, module)
        emitter.leave("module", name)
    drive(emitter, "+backward:backward -backward:backward +optimizer:SGD -optimizer:SGD 8 =8")
    inside = ["MSELoss", "forward", "  Net", "backward", "optimizer SGD"]
    assert domain.told == ["step 7", *(f"  {text}" for text in inside), "step 8"]
    kinds = ["module", "forward", "module", "backward", "optimizer", "step", "step"]
    texts = [*map(str.strip, inside), "step 7", "step 8"]
    assert [domain.categories[text] for text in texts] == kinds
    assert domain.numbers == [7, 8]


def test_regions_across_steps_and_slices_that_are_cut_off_or_abandoned(emitter, domain):
    drive(emitter, "+region:epoch +optimizer:SGD +Net -Net +Net -Net 8")
    assert domain.open == []
    drive(emitter, "=8 =8")
    # It goes on in the next step and counts in both.
    assert domain.open == ["step 8", "epoch"]
    drive(emitter, "-region:epoch 9")
    first = {"step:step": 1, "region:epoch": 1, "optimizer:SGD": 1}
    first |= {"forward:forward": 2, "module:Net": 2}
    assert counted(emitter) == [first, {"step:step": 1, "region:epoch": 1}]
    drive(emitter, "=9 +region:epoch")
    told = len(domain.told)
    emitter.stop()
    # The step has not ended: who reads the ranges is not to count it.
    assert (domain.told[told:], domain.categories["cut step 9"]) == (["    cut step 9"], "cut")
    drive(emitter, "-region:epoch")
    emitter.start(20)
    drive(emitter, "21")
    emitter.stop()
    # Between two steps nothing is cut, and what was open in the last slice is forgotten.
    assert (domain.told[told + 1 :], domain.open) == (["step 20"], [])
    assert counted(emitter) == [{"step:step": 1}]
    emitter.start(20)
    assert (domain.told[told + 2 :], emitter.steps) == (["step 20"], [])
    # A push is taken back by its own thread alone; elsewhere it would take another's range.
    elsewhere(emitter.stop)
    emitter.start(21)
    drive(emitter, "<1:load")
    emitter.abandon()
    emitter.stop()
    drive(emitter, ">1 <2:late")
    assert (domain.open, domain.apart) == (["step 20", "step 21"], ["+load"])


def test_ranges_of_their_own_go_on_across_steps_and_are_counted_where_they_begin(emitter, domain):
    drive(emitter, "<1:load +region:train <2:load >1 -region:train 8 =8")
    elsewhere(emitter.leave_apart, 2)
    # The third began before the slice did.
    drive(emitter, ">3 <4:open 9")
    emitter.stop()
    # Nothing more is begun, and what has ended is not ended again.
    drive(emitter, "<5:late >4")
    assert domain.apart == ["+load", "+load", "-load", "-load", "+open", "-open"]
    assert domain.told == ["step 7", "  train", "step 8"]
    steps = [[(r.name, n) for r, n, _ in step] for step in emitter.steps]
    assert steps[0] == [("step", 1), ("train", 1), ("load", 1), ("load", 1), ("load", 0)]
    assert steps[1] == [("step", 1), ("load", 0), ("open", 1)]


def test_a_cost_is_the_time_of_the_pushes_and_pops(domain, monkeypatch):
    now = [0.0]
    takes = {"push": 100.0, "pop": 20.0, "make": 3.0, "start": 7000.0, "end": 500.0}

    def passes(seconds):
        now[0] += seconds
        return now[0]

    domain.passes = lambda name: passes(takes[name])
    monkeypatch.setattr(nvtx, "_clock", lambda: passes(0.25))
    emitter = nvtx.Emitter(nvtx.Domain())
    for number in (7, 8):
        emitter.start(number)
        drive(emitter, f"+region:a -region:a +region:a <1:b >1 {number + 1}")
        costs = [(each.name, emit_s) for each, _, emit_s in emitter.steps[0]]
        emitter.stop()
        # Each interval holds one reading of the clock; a step's attributes are made in a third.
        assert costs == [("step", 123.75), ("a", 241.0), ("b", 7003.25), ("b", 500.25)]


@cases(
    "nsys installed takes",
    "2022.4.2.1-df9881f 0.2.12 False; 2021.3.1.54 1.0.0 False; 2022.4.2.1-df9881f 0.2.12rc1 False",
    "2022.4.2.1 0.2.11 True; 2022.4.2.1 0.2.10 True; 2023.1.2.43-32377213v0 0.2.17 True",
    "None 0.2.17 None; 2022.4.2.1 None None; unknown 0.2.17 None; 2022.4.2.1 unknown None",
)
def test_pairs_of_nsys_and_nvtx(nsys, installed, takes):
    assert nvtx.takes_ranges(nsys, installed) is takes
