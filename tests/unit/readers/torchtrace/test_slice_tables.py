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


def tables(*, shapes=True, memory=True, kernels=()):
    owned = attribute(read_host(EVENTS), [0, 1000], bool)
    runtime = [Event("cudaLaunchKernel", 21, 25, "cuda_runtime", number=9)]
    return module.slice_tables(owned, module.ObservedSlice(4, kernels, shapes, memory, runtime))


def test_tables_follow_from_what_was_recorded():
    frames, notes = tables(kernels=[Event("k", 100, 700, "kernel", number=9, linked=5, device=0)])
    assert (notes, frames.keys()) == ([], ALWAYS | {"moved_bytes", "flop_counts"})
    assert {row["slice"] for rows in frames.values() for row in rows} == {4}
    # The script's range is no operator.
    assert [row["name"] for row in frames["operators"]] == ["aten::mm"]
    [region], launches = frames["region_work"], frames["launches"][0]
    assert (region["path"], region["flop"], region["host_net_bytes"]) == ("mine", 2 * 24, 64)
    assert (launches["launches"], launches["kernels"]) == (1, 1)
    [device_s] = [r["forward_device_s"] for r in frames["module_times"] if r["module_id"] == 3]
    assert region["device_s"] == device_s == pytest.approx(600e-9)
    plain, _ = tables(shapes=False, memory=False)
    assert plain.keys() == ALWAYS
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
