"""Profiles of cProfile: the live layer's rows, and no harm by any bytes."""

import cProfile
import marshal
from contextlib import suppress

import pytest
from hypothesis import given, settings

from profstack.errors import UsageError
from profstack.readers import prof_file, unmarshal
from profstack.readers.cprofile import function_table, merge_tables, records
from profstack.readers.formats import Request
from tests.support.damage import CHANCE, damaged
from tests.support.tables import cases, of

pytestmark = pytest.mark.usefixtures("nobody_watches")


def fib(number):
    return number if number < 2 else fib(number - 1) + fib(number - 2)


def work(count):
    fib(count)
    return sorted((str(each) for each in range(40 * count)), key=lambda text: text[::-1])


def by_key(rows):
    keys = "file line name caller_file caller_line caller_name callee_file callee_line callee_name"
    return {tuple(of(row, keys)): row for row in rows}


def test_rows_are_those_of_the_live_layer_and_of_several_files_their_sums(tmp_path):
    files, sums = [], {}
    for count in (9, 5, 11):
        profiler, path = cProfile.Profile(), tmp_path / f"{count}.prof"
        profiler.runcall(work, count)
        profiler.dump_stats(path)
        files.append(path)
        merge_tables(sums, function_table(profiler.getstats()))
        added = prof_file.take(files, Request(slice=3, step=7, plan=2)).added
        live = records(sums, 3)
        for name, rows in zip(("functions", "calls"), live, strict=True):
            assert by_key(added[name]) == by_key(rows)
            assert len(added[name]) == len(rows) > 4
        (layer,), (part,) = added["layers"], added["slices"]
        tool = f"cProfile, read from {', '.join(path.name for path in files)}"
        assert (layer["name"], layer["tool"]) == ("cprofile", tool)
        assert of(part, "slice first_step plan steps") == [3, 7, 2, 1]
        whole_s = pytest.approx(sum(row["self_s"] for row in live[0]))
        assert of(part, "counted_wall_s wall_s") == [whole_s] * 2


def test_the_module_profile_knows_callers_by_their_calls_alone(tmp_path):
    code = compile("0", "script.py", "exec")
    main, called = ("profile", 0, code), ("script.py", 4, "called")
    path = tmp_path / "p.prof"
    stats = {called: (2, 3, 0.5, 0.75, {main: 3}), main: (1, 1, 0.25, 1.0, {})}
    path.write_bytes(marshal.dumps(stats))
    (row,) = prof_file.take([path], Request()).added["calls"]
    assert of(row, "caller_name calls") == ["<module>", 3]
    assert of(row, "primitive_calls self_s total_s") == [None] * 3
    with pytest.raises(UsageError, match="by their calls alone; import it by itself"):
        prof_file.take([path, path], Request())


KEY = ("a.py", 1, "f")
GOOD = (1, 2, 0.5, 0.75, {})


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b'{"a": 1}', b"{)", b"{}", b"{(1, 2, 3): 4}", marshal.dumps([KEY, GOOD]),
     marshal.dumps({KEY[:2]: GOOD}), marshal.dumps({1: 2}), b"\x80\x04}q\0."],
)  # fmt: skip
def test_profiles_of_every_version_of_marshal_are_recognised_and_no_other_files(data):
    assert not prof_file.recognise(data, "a.prof")
    profiles = [marshal.dumps({KEY: GOOD}, version) for version in range(5)]
    assert all(prof_file.recognise(each[:8], "") for each in profiles)


@cases(
    "profile words",
    ([1], "no dictionary of functions"),
    ({KEY: GOOD[:4]}, "five figures"),
    ({("a.py", True, "f"): GOOD}, "file, line and name"),
    ({KEY: (-1, *GOOD[1:])}, "a count"),
    ({KEY: (1 << 63, *GOOD[1:])}, "a count"),
    ({KEY: (1, 2, float("nan"), 0.75, {})}, "a time"),
    ({("a.py", 1 << 40, "f"): GOOD}, "too long"),
    ({KEY: (*GOOD[:4], {KEY: (1, 2, 3.0)})}, "four figures"),
    ({KEY: (*GOOD[:4], {"f": (1, 1, 0.5, 0.5)})}, "file, line and name"),
    ({}, "has no function"),
)
def test_what_is_no_profile_says_why(tmp_path, profile, words):
    path = tmp_path / "p.prof"
    path.write_bytes(marshal.dumps(profile))
    with pytest.raises(UsageError, match=words) as error:
        prof_file.take([path], Request())
    assert str(error.value).count("\n") == 0


def test_calls_that_functions_share_end(monkeypatch):
    shared = {("b.py", number, "g"): (1, 1, 0.0, 0.0) for number in range(30)}
    stats = {("a.py", number, "f"): (1, 1, 0.0, 0.0, shared) for number in range(10)}
    monkeypatch.setattr(unmarshal, "MOST_ROWS", 310)
    assert len(unmarshal.table(stats)["calls"]) == 300
    monkeypatch.setattr(unmarshal, "MOST_ROWS", 309)
    with pytest.raises(ValueError, match="more than 309"):
        unmarshal.table(stats)


def _twice(levels):
    """A tuple that holds the one before it twice, by reference: its hash takes 2**levels steps."""
    # Each is noted as number 0, 1, ...: `)` and its size, then its parts.
    data, parts = b"", b"i\1\0\0\0" * 2
    for level in range(levels):
        data = b"\xa9\2" + (data + b"r" + (levels - level).to_bytes(4, "little") if data else parts)
    return b"{" + data + b"N0"


@cases(
    "data words",
    pytest.param(b"{)\3", "is damaged", id="torn"),
    pytest.param(b"[\xff\xff\xff\x7f", "too much memory", id="a list without end"),
    pytest.param(b"[\1\0\0\0" * 100_000, "is damaged", id="nested"),
    pytest.param(_twice(50), "ended its reader, or took more than 1 s", id="hashed for ever"),
    pytest.param(b"c" + bytes(40), "is damaged", id="code"),
)
def test_marshal_that_means_harm_ends_with_the_child(tmp_path, monkeypatch, data, words):
    monkeypatch.setattr(prof_file, "MOST_CPU_S", 1)
    path = tmp_path / "p.prof"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=words):
        prof_file.read_prof(path)


# Each example starts a process.
@settings(max_examples=15)
@given(CHANCE)
def test_damaged_files_are_read_or_end_in_one_line(tmp_path_factory, chance):
    stats = {("a.py", 3, "f"): (1, 2, 0.5, 0.75, {("b.py", 4, "g"): (1, 1, 0.25, 0.5)})}
    path = tmp_path_factory.mktemp("damaged") / "p.prof"
    path.write_bytes(damaged(marshal.dumps(stats), chance))
    with suppress(UsageError):
        prof_file.take([path], Request())
