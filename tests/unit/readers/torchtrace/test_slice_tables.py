"""All tables of one slice: which are made of what was recorded."""

from profstack.readers.torchtrace.attribution import attribute
from profstack.readers.torchtrace.events import read_host
from profstack.readers.torchtrace.slice_tables import ObservedSlice, slice_tables
from tests.support.events import Event, events, instant

MM = Event("aten::mm", 20, 90, shapes=[[2, 3], [3, 4]], dtypes=["float"] * 2, number=5)
EVENTS = [*events("module:3 0-400; mine 10-300 user=1"), MM, instant(30, 64)]


def test_what_was_not_recorded_has_neither_tables_nor_figures():
    owned = attribute(read_host(EVENTS), [0, 1000], bool)
    plain, notes = slice_tables(owned, ObservedSlice(4, (), shapes=False, memory=False))
    always = {"module_times", "operators", "kernels", "region_work", "launches", "gaps"}
    always |= {"collectives"}
    assert (notes, plain.keys()) == ([], always)
    assert {row["slice"] for rows in plain.values() for row in rows} == {4}
    assert plain["region_work"][0]["flop"] is plain["region_work"][0]["host_net_bytes"] is None
    assert {row["host_net_bytes"] for row in plain["module_times"]} == {None}
    whole, _ = slice_tables(owned, ObservedSlice(4, (), shapes=True, memory=True))
    assert whole.keys() == always | {"moved_bytes", "flop_counts"}
