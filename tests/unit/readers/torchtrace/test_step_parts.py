"""Parts of a step that no mark covers: by hand on steps whose times are known."""

import numpy as np
import pytest

from profstack.readers.torchtrace.attribution import in_steps
from profstack.readers.torchtrace.events import clip_to_steps, read_host
from profstack.readers.torchtrace.scopes import find_scopes
from profstack.readers.torchtrace.step_parts import divide
from profstack.storage import vocabulary as words
from tests.support.events import events, instant

LOSS_MODULE = 5
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
PARTS = {"wait": words.WAIT, "loss": words.LOSS, "clip": words.BEFORE_OPTIMIZER}
PARTS |= {"optimizer": words.OPTIMIZER, "outside": words.OUTSIDE, "rest": words.UNATTRIBUTED}


def parts_of(made, edges=(0, 1000), left_out=(), thread=1):
    host = read_host(events(made) if isinstance(made, str) else made)
    clip_to_steps(host, edges, left_out)
    scopes = find_scopes(host, in_steps(host, edges, left_out))
    return divide(scopes, list(edges), LOSS_MODULE.__eq__, left_out, thread)


def times(made, **more):
    names, found = {number: part for part, number in PARTS.items()}, parts_of(made, **more).times
    return [f"{names[number]}={time}" for number, time in found.items() if time]


# A module, a backward pass, and functions of that which go through an operator outside modules.
FORWARD, BACKWARD, MADE = "module:1 100-200;", "pass 300-400;", "sequence=3 forward=1"
BOTH_WAYS, THIRD = f"{FORWARD} {BACKWARD}", f"{BACKWARD} function:X 302-303 {MADE}"
BOTH = f"{THIRD}; function:X 301-302 sequence=4 forward=1"
GRAPH = "aten::mul 220-240 sequence=3; aten::sum 270-281 sequence=4;"
READS = "aten::item 410-415; aten::item 440-447; aten::item 470-474;"
CLOSURE = f"{FORWARD} aten::mul 220-240 sequence=3; {THIRD}"


CASES = f"""
 = rest=1000
# Operators are the wait's before a module, nobody's after it.
aten::ones 10-33; {FORWARD} aten::ones 230-261 = wait=100 outside=31 rest=769
# A loader's own range is waiting wherever it is.
{FORWARD} {LOADER} 250-290; module:1 300-400 = wait=140 rest=660
# A loss, from the first operator of the graph to the last one, with all between them.
{FORWARD} log 205-210; {GRAPH} x 250-257; eq 285-288; {BOTH} = wait=100 loss=61 outside=8 rest=631
# A loss that is a module has its own row; from it to the last operator of the graph.
{FORWARD} module:5 220-260; a::b 265-268; {BACKWARD} = wait=100 outside=3 rest=657
{FORWARD} module:5 220-260; aten::mul 270-275 sequence=3; {THIRD} = wait=100 loss=15 rest=645
# A model of functions.
aten::mm 130-170 sequence=3; {THIRD} = wait=130 outside=170 rest=600
# Clipping, from the first operator to the last one, but for those that read a value.
{BOTH_WAYS} {READS} norm 420-430; mul 450-465; step 500-600 = wait=100 clip=45 outside=9 rest=546
# Inside a region of profstack's.
{BOTH_WAYS} region:c 405-490; a 410-430; b 450-463; step 500-600 = wait=100 clip=53 rest=547
# No clipping without a backward pass; a range of the script's is one operator.
{FORWARD} mine 405-490; aten::norm 410-430; step 500-600 = wait=100 outside=85 rest=615
# Zeroing gradients ends nothing.
{BOTH_WAYS} zero 420-440; step 500-600 = wait=100 rest=580
# A range of the script's around a module is no operator; neither are those of other threads.
mine 50-900; {FORWARD} aten::ones 300-310 = wait=100 outside=10 rest=790
{FORWARD} aten::ones 300-320 thread=2 = wait=100 rest=800
# The optimizer's own time is its mark's; what the loss in a closure takes is given back.
step 50-600; {CLOSURE} = wait=50 loss=20 optimizer=-20 rest=400
# What a closure is seen to do is the loop's, as if it stood before the optimizer's step.
step 50-600; closure 80-500; {CLOSURE} = wait=70 loss=20 rest=580
step 50-600; closure 80-500; {CLOSURE}; aten::add 420-430 = wait=70 loss=20 clip=10 rest=570
step 50-990; closure 80-250; {FORWARD} closure 260-500; module:1 350-400 = wait=70 rest=250
step 50-600 thread=2; closure 80-500 thread=2; {FORWARD} module:1 700-800 = wait=100 rest=700
step 50-990; closure 80-450; {BOTH_WAYS} closure 500-900; module:1 550-600 = wait=70 rest=510
# Before compiled code; a backward function outside a pass.
Torch-Compiled Region: 0/0 100-200; aten::mul 220-240 = wait=100 outside=20 rest=780
{FORWARD} aten::mul 220-240 sequence=3; function:X 300-400 {MADE} = wait=100 loss=20 rest=680
"""


@pytest.mark.parametrize("case", [line for line in CASES[1:].splitlines() if line[0] != "#"])
def test_what_no_mark_covers(case):
    text, wanted = case.split(" = ")
    assert sorted(times([*events(text), instant(700, 64)])) == sorted(wanted.split())


def test_steps_are_divided_one_by_one_and_losses_have_moments():
    # The optimizer goes on into the second step.
    text, edges = "module:1 100-200; module:1 1110-1200; module:1 2120-2200", range(0, 5000, 1000)
    text += "; module:1 3130-3200; step 900-1050"
    wanted = [f"rest={700 + 800 * 3}", f"wait={100 + 60 + 120 + 130}"]
    assert sorted(times(text, edges=edges)) == wanted
    assert sorted(times(text, edges=edges, left_out=(1, 2))) == ["rest=1500", "wait=230"]
    assert times(text, edges=edges, thread=2) == ["rest=4000"]
    parts = parts_of(f"{FORWARD} {BACKWARD} module:1 500-600; pass 700-800")
    assert parts.losses == [(200, 300), (600, 700)]
    moments = np.array([150, 199, 200, 250, 300, 301, 599, 600, 700, 701])
    assert moments[parts.in_loss(moments)].tolist() == [200, 250, 300, 600, 700]
    assert not parts_of("").in_loss(moments).any()
