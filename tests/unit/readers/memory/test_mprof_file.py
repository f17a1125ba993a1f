"""Files of mprof: those that memory_profiler writes itself, and damaged ones."""

import io
import random
import threading
import time
from contextlib import suppress

import memory_profiler
import mprof
import pytest
from hypothesis import given

from profstack.errors import UsageError
from profstack.readers.formats import Request
from profstack.readers.memory import mprof_file
from tests.support.damage import CHANCE, damaged
from tests.support.tables import cases, of

MIB = 1 << 20


def written(folder, text):
    (folder / "m.dat").write_text(text, encoding="utf-8")
    return folder / "m.dat"


def hold(mebibytes):
    held = bytearray(mebibytes * MIB)
    time.sleep(0.03)
    return len(held)


def test_a_file_of_memory_profilers_own_is_what_mprof_reads(tmp_path):
    # As `mprof run --python` leaves it: memory, and the calls of marked functions.
    stamps, text = memory_profiler.TimeStamper("psutil"), io.StringIO("")
    print("CMDLINE python train.py --token=abc", file=text)
    marked = stamps(hold)
    options = {"interval": 0.01, "timeout": 0.3, "timestamps": True, "stream": text}
    readings = threading.Thread(target=memory_profiler.memory_usage, args=(-1,), kwargs=options)
    readings.start()
    for each in (20, 90, 40):
        marked(each)
    readings.join()
    stamps.show_results(stream=text)
    path = written(tmp_path, text.getvalue())
    theirs = mprof.read_mprofile_file(str(path))
    found = mprof_file.read(path)
    assert len(found.memory) == len(theirs["mem_usage"]) > 5
    pairs = sorted(zip(theirs["timestamp"], theirs["mem_usage"], strict=True))
    assert found.memory == pairs
    ((name, calls),) = theirs["func_timestamp"].items()
    assert [(each.begin_s, each.end_s, each.grown) for each in found.calls[name]] == [
        (begin, end, after - before) for begin, end, before, after, *_ in calls
    ]
    taken = mprof_file.take([path], Request(slice=2))
    rows = taken.added["memory"]
    assert [row["rss_bytes"] for row in rows] == [round(mib * MIB) for _, mib in pairs]
    assert [row["t_s"] for row in rows] == [moment - pairs[0][0] for moment, _ in pairs]
    (row,) = taken.added["mprof_functions"]
    assert (row["slice"], row["function"], row["calls"]) == (2, name, 3)
    assert row["at_peak"] == 1
    assert taken.summary[0].endswith("of python train.py '--token=***'")


NESTED = """MEM 10.000000 100.0000
MEM 70.000000 103.0000
MEM 30.000000 106.0000
FUNC a.outer 10.0000 101.0000 40.0000 105.0000 0
FUNC a.inner 12.0000 102.0000 60.0000 104.0000 1
FUNC a.brief 12.0000 102.5000 13.0000 102.7500 2
FUNC a.inner 20.0000 104.5000 15.0000 104.7500 1
FUNC a name 1.0 100.0 2.0 100.5
"""


CHILDREN = "CHLD 7 20.0 104.0\nCHLD 9 5.0 104.5\nCHLD 7 50.0 105.0\nCHLD 7 35.0 106.0\n"


def test_children_are_apart(tmp_path):
    taken = mprof_file.take([written(tmp_path, NESTED + CHILDREN)], Request())
    rows = [of(row, "child readings peak_bytes") for row in taken.added["mprof_children"]]
    assert sorted(rows) == [["process 7", 3, 50 * MIB], ["process 9", 1, 5 * MIB]]
    assert len(taken.added["memory"]) == 3


def test_marked_functions_have_growth_and_the_innermost_has_the_peak(tmp_path):
    taken = mprof_file.take([written(tmp_path, NESTED)], Request())
    rows = {row["function"]: row for row in taken.added["mprof_functions"]}
    columns = "calls wall_s grown_bytes largest_bytes at_peak"
    assert {name: tuple(of(row, columns)) for name, row in rows.items()} == {
        "a.outer": (1, 4.0, 30 * MIB, 30 * MIB, 0),
        "a.inner": (2, 2.25, 43 * MIB, 48 * MIB, 1),
        "a.brief": (1, 0.25, MIB, MIB, 0),
        "a name": (1, 0.5, MIB, MIB, 0),
    }
    assert "mprof_children" not in taken.added
    assert taken.added["slices"][0]["wall_s"] == 6.0


def test_readings_are_put_in_order_and_thinned_to_the_extremes(tmp_path, monkeypatch):
    chance = random.Random(2)
    values = [chance.randrange(10**9) for _ in range(500)]
    readings = [f"MEM {value / MIB:.6f} {100 + at}\n" for at, value in enumerate(values)]
    chance.shuffle(readings)
    monkeypatch.setattr("profstack.readers.formats.extremes.__defaults__", (40,))
    taken = mprof_file.take([written(tmp_path, "".join(readings))], Request())
    found, times = ([row[name] for row in taken.added["memory"]] for name in ("rss_bytes", "t_s"))
    assert (len(found) <= 40, times) == (True, sorted(times))
    assert (max(found), min(found)) == pytest.approx((max(values), min(values)), abs=2)
    assert "of 500 readings the highest and lowest" in taken.added["layers"][0]["truncated"]


@cases(
    "start known",
    (b"CMDLINE python a.py\n", True),
    (b"MEM 1.5 1700000000.1\nMEM", True),
    (b"MEM a b\n", False),
    (b"MEM 1 nan\n", False),
    (b"COMMAND 1 2\n", False),
)
def test_files_are_told_by_their_first_line(start, known):
    assert mprof_file.recognise(start, "a.dat") is known


@cases(
    "text words",
    ("CMDLINE python a.py\n", "has no reading of memory"),
    ("MEM 1.0 2.0\nMEM x 3.0\nMEM 1.0 4.0\n", "line 2 is damaged"),
    ("MEM 1e300 1.0\nMEM 1.0 4.0\n", "line 1 is damaged"),
    ("MEM 1.0 4.0\nFUNC f 1.0\nMEM 1.0 5.0\n", "line 2 is damaged"),
)
def test_what_is_damaged_says_which_line(tmp_path, text, words):
    with pytest.raises(UsageError, match=words):
        mprof_file.take([written(tmp_path, text)], Request())


def test_a_torn_last_line_and_unknown_lines_are_counted(tmp_path):
    path = written(tmp_path, "CMDLINE x\nMEM 1.0 2.0\nBPRX 1 2\n\nMEM 3.0 4.0\nMEM 5.")
    taken = mprof_file.take([path], Request())
    assert len(taken.added["memory"]) == 2
    assert taken.added["layers"][0]["truncated"] == "2 lines of no known kind"
    for torn in ("CHLD 7 1.0 x", "FUNC f 1.0 2.0", "FUNC f 1 2 3 x 0"):
        added = mprof_file.take([written(tmp_path, f"MEM 1.0 2.0\n{torn}")], Request()).added
        assert not added.keys() & {"mprof_children", "mprof_functions"}


def test_lines_and_names_are_bounded(tmp_path, monkeypatch):
    text = "MEM 1.0 2.0\n" + "".join(f"FUNC f{at} 1 2 3 4 0\nCHLD {at} 1 2\n" for at in range(6))
    monkeypatch.setattr(mprof_file, "MOST_LINES", 13)
    assert mprof_file.take([written(tmp_path, text)], Request())
    monkeypatch.setattr(mprof_file, "MOST_NAMES", 2)
    added = mprof_file.take([written(tmp_path, text)], Request()).added
    assert [row["calls"] for row in added["mprof_functions"]] == [1, 1, 4]
    assert added["mprof_functions"][-1]["function"] == "(more functions)"
    assert [row["child"] for row in added["mprof_children"]][-1] == "(more processes)"
    monkeypatch.setattr(mprof_file, "MOST_LINES", 12)
    with pytest.raises(UsageError, match="more than 12 lines"):
        mprof_file.take([written(tmp_path, text)], Request())


@given(CHANCE)
def test_damaged_bytes_are_read_or_end_in_one_line(tmp_path_factory, chance):
    path = tmp_path_factory.mktemp("damaged") / "m.dat"
    path.write_bytes(damaged(NESTED.encode() + CHILDREN.encode(), chance))
    with suppress(UsageError):
        mprof_file.take([path], Request())
