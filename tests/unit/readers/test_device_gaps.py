"""Intervals of time, and the gaps of a device with their causes: by hand and nanosecond by hand."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from profstack.readers import device_gaps as module
from profstack.readers.device_gaps import UNKNOWN, Host, Intervals, Kernels

COPY, DATA_WAIT, HOST_LATE, QUEUED, START, SYNCHRONISATION, NOT_KNOWN = (
    *("copy", "data wait", "host late", "queued", "start of step", "synchronisation", "unknown"),
)
MOMENT = st.integers(0, 30)


def column(values=()):
    return np.array(list(values), np.int64)


def intervals(*spans):
    return Intervals.united(column(s for s, _ in spans), column(e for _, e in spans))


def moments(found):
    pairs = list(zip(found.start.tolist(), found.end.tolist(), strict=True))
    assert all(begin < end for begin, end in pairs)
    assert all(one[1] < other[0] for one, other in pairwise(pairs))
    return [moment for begin, end in pairs for moment in range(begin, end)]


@given(*[st.lists(st.tuples(MOMENT, MOMENT), max_size=12)] * 2, MOMENT, MOMENT)
def test_intervals_hold_every_moment_once(spans, more, one, other):
    begin, end = sorted((one, other))
    wanted = sorted({moment for span in spans for moment in range(*span)})
    union = intervals(*spans)
    assert moments(union) == wanted
    before = [sum(moment < limit for moment in wanted) for limit in range(32)]
    assert union.before(column(range(32))).tolist() == before
    inside = [moment for moment in wanted if begin <= moment < end]
    assert union.inside(column([begin]), column([end])).tolist() == [len(inside)]
    if begin < end:
        assert moments(union.cut(begin, end)) == inside
    others = intervals(*more)
    common = union.common(others)
    pairs = zip(common.start.tolist(), common.end.tolist(), strict=True)
    found = [moment for begin, end in pairs for moment in range(begin, end)]
    assert found == sorted({*wanted} & {*moments(others)})
    assert common.total == len(found)


# The device is idle from 100 to 200, between two kernels of which the second is launched at 170.
def test_the_cause_of_a_gap():
    for launched, copies, waits, synchronised, edges, cause in [
        # Launched before the device fell idle: it did not wait for the host.
        *((170, [], [], [], [0], HOST_LATE), (UNKNOWN, [], [], [], [0], NOT_KNOWN)),
        *((99, [], [(100, 200)], [120], [150], QUEUED), (100, [], [], [], [0], HOST_LATE)),
        *((99, [(199, 240)], [], [], [0], COPY), (99, [(200, 240)], [], [], [0], QUEUED)),
        # Half of the time goes to a copy, or to a wait at the begin of a step.
        (170, [(110, 130), (150, 180)], [(100, 200)], [120], [0], COPY),
        (170, [(110, 130), (150, 179)], [], [], [0], HOST_LATE),
        (170, [], [(50, 150)], [120], [120], DATA_WAIT),
        (170, [], [(50, 149)], [], [0], HOST_LATE),
        # The host waited for the device, and launched after that.
        (170, [], [], [40, 100, 400], [150], SYNCHRONISATION),
        *((170, [], [], [40, 170], [0], SYNCHRONISATION), (170, [], [], [40, 171], [0], HOST_LATE)),
        # Of a launch that was not seen only a copy is known to have kept the device.
        (UNKNOWN, [], [(100, 200)], [120], [150], NOT_KNOWN),
        (UNKNOWN, [(100, 150)], [], [], [0], COPY),
        (UNKNOWN, [(100, 149)], [], [], [0], NOT_KNOWN),
        # A step begins in it, if it is not the end of the run.
        *((170, [], [], [99], [0, 100, 900], START), (170, [], [], [], [0, 200], START)),
        (170, [], [], [], [0, 99, 201], HOST_LATE),
    ]:
        kernels = Kernels(column([10, 200]), column([100, 290]), column([5, launched]))
        host = Host(column(synchronised), intervals(*waits), column(edges))
        busy, copies = intervals((10, 100), (200, 290)), intervals(*copies)
        gaps = module.gaps_between(kernels, busy, copies, host, [(10, 290)])
        assert [each.tolist() for each in gaps] == [[100], [200], [cause], [0], [1]]


def test_gaps_are_cut_to_the_runs_and_know_their_kernels():
    # Two at once, of which the first to begin is the last to end; a run that ends while idle.
    columns = ([20, 30, 120, 260], [90, 60, 150, 270], [1, 2, 99, 259])
    kernels, busy = Kernels(*map(column, columns)), intervals((20, 90), (120, 150), (260, 270))
    given = (kernels, busy, intervals(), Host(column(), intervals(), column([0, 100, 300])))
    gaps = module.gaps_between(*given, [(0, 200), (210, 265), (280, 300)])
    assert list(zip(*(each.tolist() for each in gaps), strict=True)) == [
        (0, 20, START, -1, 0),
        *((90, 120, START, 0, 2), (150, 200, HOST_LATE, 2, -1)),
        *((210, 260, HOST_LATE, 2, 3), (280, 300, HOST_LATE, 3, -1)),
    ]
    assert [*map(len, module.gaps_between(*given, []))] == [0] * 5
