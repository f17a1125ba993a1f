"""Names that the user gave: of classes, of parts of a DataLoader, of regions, of callers."""

import pytest

from profstack.findings import names
from profstack.findings.reading import CallGraph, key_of, qualified_name
from tests.support.findings import LOADER, MS, TRAIN, call, function, line, report_of
from tests.support.tables import cases, rows_of

TEXT = """
class Stats:
    @torch.no_grad()
    def update(self):
        inner = lambda: [x for x in self.all]
        return inner()

def pad_batch(rows):
    with profstack.region("pad"):
        return widen(rows)

@record_function("widen")
def widen(rows):
    return len(rows)
def train(rows):
    loss = pad_batch(rows)
"""
SOURCES = {"sources": [{"file": TRAIN, "text": TEXT}]}
FETCH = "/lib/torch/utils/data/_utils/fetch.py"


def at(number):
    return {"file": TRAIN, "line": number}


def test_methods_have_their_class_and_what_a_loader_calls_its_part():
    report = report_of(parts=SOURCES)
    asked = {"update": 3, "<listcomp>": 5, "pad_batch": 8, "other": 8, "<module>": 2}
    found = {name: qualified_name(report, at(place), name) for name, place in asked.items()}
    expected = {"update": "Stats.update", "<listcomp>": "Stats.update", "pad_batch": "pad_batch"}
    assert found == expected | {"other": "other", "<module>": "<module>"}
    fetch, vision = (function("fetch", 0.0, file=file) for file in (FETCH, "/x/torchvision/y.py"))
    next_ = function("__next__", 0.0, 10 * MS, file=LOADER)
    pad, widen = function("pad_batch", 0.0, 6 * MS, line=8), function("widen", 5 * MS, line=12)
    item, update = function("__getitem__", 2 * MS, line=1), function("update", 1 * MS, line=3)
    calls = [call(next_, fetch), call(fetch, pad), call(pad, widen, 5 * MS), call(fetch, item)]
    calls += [call(fetch, vision), call(vision, update)]
    rows = [next_, fetch, vision, pad, widen, item, update]
    report = report_of(functions=rows, calls=calls, parts=SOURCES)
    graph = CallGraph(report)
    found = [names.name_in_loading(report, graph, row) for row in rows[3:]]
    assert found == ["collate_fn pad_batch", "widen", "__getitem__", "transform Stats.update"]
    row, name, share = names.outermost_loading(report, graph, [key_of(next_)])
    assert (row["line"], name, share) == (8, "collate_fn pad_batch", pytest.approx(0.6))
    text = f"{TEXT}loader = DataLoader(data, collate_fn=pad_batch)\n"
    sources = {"sources": [{"file": TRAIN, "text": text}]}
    assert names.padding_collate_fn(report_of(parts=sources)) == at(8)
    for more, asks, number in (("", "", 17), ("test: D = DataLoader(rows)\n", "for x in test:", 18),
                             ("test = DataLoader(rows)\n", "for x in tests:", None)):  # fmt: skip
        sources["sources"] = [{"file": TRAIN, "text": text + more}]
        found = names.made_at(report_of(parts=sources), "DataLoader", asks)
        assert found == (number and at(number))


def test_a_librarys_function_is_named_by_the_users_that_calls_it():
    train, inner = function("train", 0.0, line=15), function("_mean", 5 * MS, file="/lib/s.py")
    api, other = (function(name, 0.0, file="/lib/s.py", line=7) for name in ("mean", "mode"))
    calls = [call(train, api, 6 * MS), call(train, other, 9 * MS), call(api, inner, 5 * MS)]
    report = report_of(functions=[train, inner, api, other], calls=calls, parts=SOURCES)
    place, name = names.own_place(report, inner)
    assert (place["file"], place["line"], name) == (TRAIN, 15, "train, which calls mean")
    # What runs all along is no caller to cProfile: its text calls it.
    alone, lines = function("fit", 9 * MS, file="/lib/s.py"), [line(16, "    loss = fit(rows)")]
    place, name = names.own_place(report_of(functions=[train, alone], lines=lines), alone)
    assert (place["line"], name) == (16, "the script, which calls fit")


@cases("place pad_ms widen_ms expected",
       # Within the block, the function around it, what it calls; the innermost with most of 8 ms.
       *((10, 9, 1, ("pad", 9)), (8, 9, 1, ("pad", 9)), (14, 9, 1, ("pad", 9))),
       *((14, 9, 8.5, ("widen", 12)), (12, 9, 8.5, ("widen", 12)), (10, 3.9, 1, None)),
       *((10, 16.1, 1, None), (5, 9, 9, None)))  # fmt: skip
def test_a_region_with_most_of_a_cause_is_named_first(place, pad_ms, widen_ms, expected):
    rows = [("outer/pad", "profstack.region", pad_ms * MS)]
    # The torch layer's times are calibrated.
    rows += [("widen", "record_function", widen_ms * MS / 0.8)]
    report = report_of(regions=rows_of("path source wall_s", *rows), parts=SOURCES)
    found = names.region_of(report, at(place), 8 * MS)
    assert (found and (found[0], found[1]["line"])) == expected
