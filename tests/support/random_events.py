"""For tests: random structures of profiler events, properly nested on each thread, from a seed."""

import random
from collections import namedtuple

from profstack.readers.torchtrace.events import ACCUMULATE, EVALUATE
from profstack.storage.vocabulary import BACKWARD_RANGE, MODULE_PREFIX, REGION_PREFIX
from tests.support.events import Event, instant

MAIN, DEVICE, SECOND_DEVICE = 1, 2, 3
# The number of the module that is a loss.
LOSS_MODULE = 5
STEP, ZERO = "Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad"
FUNCTION = EVALUATE + "MmBackward0"
# What may happen on the thread of the steps; the more often, the likelier.
NAMES = (
    *(f"{MODULE_PREFIX}{number}" for number in (1, 1, 2, 2, 3, 4, LOSS_MODULE)),
    *("aten::mm", "aten::add", "aten::item", "a range of the script's own", "[memory]"),
    *(BACKWARD_RANGE, BACKWARD_RANGE, FUNCTION, FUNCTION, FUNCTION, EVALUATE + ACCUMULATE),
    *(STEP, STEP, ZERO, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"),
    *("Torch-Compiled Region: 0/0", "CompiledFunction", f"{REGION_PREFIX}of the script"),
)
# Events of a slice of steps, in no order; what `attribute` is asked.
Structure = namedtuple("Structure", "events boundaries left_out")


def structure(seed):
    """A slice of one to four steps, some left out; with functions of two devices for odd seeds."""
    chance, events = random.Random(seed), []
    end = 1000 + chance.choice((60, 1000, 20_000))
    _fill(chance, events, 1000, end, MAIN, chance.choices(NAMES, k=12))
    for thread in (DEVICE, SECOND_DEVICE) if seed % 2 else ():
        _fill(chance, events, 1000, end, thread, [FUNCTION] * 3)
    chance.shuffle(events)
    steps = chance.randint(1, 4)
    inner = sorted(chance.sample(range(1001, end), steps - 1))
    edges = [1000 - chance.choice((0, 7, -9)), *inner, end + chance.choice((0, 11, -9))]
    left_out = tuple(number for number in range(steps) if steps > 1 and chance.random() < 0.2)
    return Structure(events, sorted(edges), left_out)


def _fill(chance, events, begin, end, thread, names=(), depth=0):
    """Add events one after the other between two moments, and events inside those."""
    at, room = begin, (end - begin) // max(6, len(names))
    for name in names or chance.choices(NAMES, k=chance.randint(1, 4)):
        at += chance.choice((0, 0, 1, chance.randint(0, room)))
        if at >= end:
            return
        if name == "[memory]":
            device = chance.choice((-1, -1, 0))
            events.append(instant(at, chance.randint(-90, 99), thread=thread, device=device))
            continue
        until = chance.randint(at, min(end, at + max(1, room * chance.choice((1, 3)))))
        number, made_on = chance.randint(-1, 8), MAIN if name.startswith(EVALUATE) else 0
        events.append(Event(name, at, until, thread=thread, sequence=number, forward=made_on))
        if depth < 4 and until - at > 2 and name != ZERO:
            _fill(chance, events, at, until, thread, depth=depth + 1)
        at = until
