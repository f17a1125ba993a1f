"""All tables of one slice: which are made, and what happens where one fails."""

import pytest

from profstack.readers.torchtrace import slice_tables as module
from profstack.readers.torchtrace.attribution import attribute
from profstack.readers.torchtrace.events import read_host
from tests.support.commands import fails
from tests.support.events import Event, events, instant

MM = Event("aten::mm", 20, 90, shapes=[[2, 3], [3, 4]], dtypes=["float"] * 2, number=5)
EVENTS = [*events("module:3 0-400; mine 10-300 user=1"), MM, instant(30, 64)]
ALWAYS = {"module_times", "operators", "kernels", "region_work", "launches", "gaps"}


def tables(*, shapes=True, memory=True):
    owned = attribute(read_host(EVENTS), [0, 1000], bool)
    runtime = [Event("cudaLaunchKernel", 21, 25, "cuda_runtime", number=9)]
    return module.slice_tables(owned, module.ObservedSlice(4, (), shapes, memory, runtime))


def test_what_was_not_recorded_has_neither_tables_nor_figures():
    plain, notes = tables(shapes=False, memory=False)
    assert (notes, plain.keys()) == ([], ALWAYS)
    assert {row["slice"] for rows in plain.values() for row in rows} == {4}
    assert plain["region_work"][0]["flop"] is plain["region_work"][0]["host_net_bytes"] is None
    assert {row["host_net_bytes"] for row in plain["module_times"]} == {None}


@pytest.mark.parametrize(("function", "slug", "lost"), [
    ("count_events", "flops-uncounted", {"flop_counts"}),
    ("region_records", "regions-unread", {"region_work"}),
    ("launch_records", "launches-unread", {"launches", "gaps"}),
])  # fmt: skip
def test_where_one_table_fails_the_others_are_made(function, slug, lost, monkeypatch):
    monkeypatch.setattr(module, function, fails(KeyError("a defect")))
    frames, [(found, text)] = tables()
    assert frames.keys() == (ALWAYS | {"moved_bytes", "flop_counts"}) - lost
    assert (found, "KeyError: 'a defect'" in text) == (slug, True)
