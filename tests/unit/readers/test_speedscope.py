"""Profiles of speedscope: the seconds of every stack, and what damaged files say."""

import json
from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import given

from profstack.errors import UsageError
from profstack.readers import speedscope
from profstack.readers.formats import Request
from tests.support.damage import ANY_VALUE, CHANCE, damaged, put_anywhere
from tests.support.tables import cases

FRAMES = [{"name": "<module>", "file": "train.py", "line": 80}]
FRAMES += [{"name": "step", "file": "train.py", "line": 40, "col": 3}, {"name": "native"}]
MODULE, STEP = ("train.py", 80, "<module>"), ("train.py", 40, "step")
NATIVE = ("<unknown>", None, "native")
SECONDS = {"nanoseconds": 1e-9, "microseconds": 1e-6, "milliseconds": 1e-3, "seconds": 1.0}
GOOD = {"type": "sampled", "name": "t", "unit": "seconds", "startValue": 0, "endValue": 1}
EVENTED = {**GOOD, "type": "evented"}
GOOD |= {"samples": [[0]], "weights": [1]}
SAMPLED = {**GOOD, "startValue": 5, "endValue": 17.5}
SAMPLED |= {"samples": [[0], [0, 1], [0], [], [0, 1, 2], [0, 1]], "weights": [2.5, 3, 0, 1, 4, 2]}
OF_SAMPLED = {(MODULE,): 2.5, (MODULE, STEP): 5, (): 1, (MODULE, STEP, NATIVE): 4}


def opened(*events):
    names = ("type", "frame", "at")
    return EVENTED | {"events": [dict(zip(names, each, strict=True)) for each in events]}


# Seconds of `<module>` alone are 2 + 1 + 1.
OPENED = opened(*(("O", 0, 7), ("O", 1, 9), ("C", 1, 9), ("O", 1, 10), ("C", 1, 15), ("C", 0, 16)))
OF_OPENED = {(MODULE,): 4, (MODULE, STEP): 5}


def written(path, profiles):
    whole = {"exporter": "py-spy@0.3.14", "shared": {"frames": FRAMES}, "profiles": profiles}
    path.write_text(json.dumps(whole), encoding="utf-8")
    return path


def seconds_by_stack(taken):
    """Seconds by stacks of file, line and name, from the root."""
    stacks, held = {None: ()}, Counter()
    for row in taken.added["watch_frames"]:
        assert row["function_line"] is None
        stacks[row["frame"]] = (*stacks[row["parent"]], (row["file"], row["line"], row["name"]))
    for row in taken.added["watch_samples"]:
        held[stacks[row["frame"]]] += row["weight"] * 0.01
    return held


@pytest.mark.parametrize("unit", SECONDS)
def test_every_sample_counts_with_its_weight(tmp_path, unit):
    path = written(tmp_path / "p.json", [{**SAMPLED, "unit": unit}])
    taken = speedscope.take([path], Request(slice=4))
    expected = {stack: count * SECONDS[unit] for stack, count in OF_SAMPLED.items()}
    assert seconds_by_stack(taken) == pytest.approx(expected)
    (layer,), (part,) = taken.added["layers"], taken.added["slices"]
    assert layer["tool"] == "py-spy@0.3.14, read from p.json"
    assert (part["slice"], part["layer"]) == (4, "watch")
    assert part["wall_s"] == pytest.approx(12.5 * SECONDS[unit])
    # A sample's time ends where the next begins.
    times = [row["t_s"] / SECONDS[unit] for row in taken.added["watch_samples"]]
    assert times == pytest.approx([2.5, 5.5, 6.5, 10.5, 12.5])


def test_threads_and_files_are_added_up_under_their_names(tmp_path):
    main, other = {**SAMPLED, "name": "main"}, {**OPENED, "name": None}
    files = [written(tmp_path / "a.json", [main, other]), written(tmp_path / "b.json", [main])]
    taken = speedscope.take(files, Request())
    # A thread that is alone in its file has no row of its own.
    threads = [("<thread>", None, name) for name in ("main", "2")]
    expected = OF_SAMPLED | {(threads[0], *stack): count for stack, count in OF_SAMPLED.items()}
    expected |= {(threads[1], *stack): count for stack, count in OF_OPENED.items()}
    assert seconds_by_stack(taken) == pytest.approx(expected)
    assert "a.json, b.json: " in taken.summary[0]
    assert taken.summary[0].endswith(" on 3 threads")


def test_too_many_samples_are_merged_with_their_neighbours(tmp_path, monkeypatch):
    samples = [stack for stack in [[0], [0, 1]] * 5 for _ in range(10)]
    profile = {**GOOD, "samples": samples, "weights": [1, 0.5, 2, 1, 0.25] * 20}
    path = written(tmp_path / "p.json", [profile])
    whole = seconds_by_stack(speedscope.take([path], Request()))
    monkeypatch.setattr(speedscope, "MOST_SAMPLES", 10)
    taken = speedscope.take([path], Request())
    assert len(taken.added["watch_samples"]) <= 10
    assert seconds_by_stack(taken) == pytest.approx(whole)
    monkeypatch.setattr(speedscope, "MOST_SAMPLES", 3)
    with pytest.raises(UsageError, match="more than 3 changes of the stack"):
        speedscope.take([path], Request())
    monkeypatch.setattr(speedscope, "MOST_NODES", 1)
    with pytest.raises(UsageError, match="more than 1 different frames"):
        speedscope.take([path], Request())


@cases(
    "start known",
    (b'{"$schema": "https://www.speedscope.app/file-format-schema.json"', True),
    (b' \n{"exporter":"py-spy@0.4.0","name":"x"', True),
    (b'{"profiles":[{"type" : "sampled"', True),
    (b'{"schemaVersion": 1, "traceEvents": [{"name": "speedscope"', False),
    (b'[{"type":"sampled"}]', False),
)
def test_files_are_told_by_their_content(start, known):
    assert speedscope.recognise(start, "trace.speedscope.json") is known


@cases(
    "profiles words",
    ([{**GOOD, "unit": "bytes"}], "unit is 'bytes', and not a time"),
    ([{**GOOD, "weights": [-1]}], "do not agree"),
    ([{**GOOD, "weights": [True]}], "a time is no number"),
    ([{**GOOD, "weights": [float("nan")]}], "out of bounds"),
    ([{**GOOD, "weights": [1e300]}], "out of bounds"),
    ([{**GOOD, "samples": [[len(FRAMES)]]}], "not in shared.frames"),
    ([{**GOOD, "samples": [[-1]]}], "not in shared.frames"),
    ([opened(("O", 0, 1), ("C", 1, 2))], "not the innermost"),
    ([opened(("O", 0, 2), ("C", 0, 1))], "not in order"),
    ([{**GOOD, "weights": [0]}], "has no sample"),
    (7, "profiles is no list"),
    (b"[" * 200_000, "is no JSON"),
    (b'{"a": ' + b"9" * 5000 + b"}", "hundreds of digits"),
    (b'{"a": "\xff"}', "is no JSON"),
    (b'{"profiles": []}', "shared.frames is no list"),
)
def test_what_is_damaged_says_what(tmp_path, profiles, words):
    path = written(tmp_path / "p.json", [] if isinstance(profiles, bytes) else profiles)
    if isinstance(profiles, bytes):
        path.write_bytes(profiles)
    with pytest.raises(UsageError, match=words) as error:
        speedscope.take([path], Request())
    assert str(error.value).count("\n") == 0


def test_values_are_counted_before_they_are_made(tmp_path, monkeypatch):
    path = written(tmp_path / "p.json", [GOOD])
    text = path.read_bytes()
    for limit, count in (
        ("MOST_CONTAINERS", text.count(b"[") + text.count(b"{")),
        ("MOST_VALUES", text.count(b",")),
        ("MOST_BYTES", len(text)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(speedscope, limit, count)
            assert speedscope.take([path], Request())
            patch.setattr(speedscope, limit, count - 1)
            with pytest.raises(UsageError, match="has more"):
                speedscope.take([path], Request())


@given(ANY_VALUE, CHANCE)
def test_damaged_files_are_read_or_end_in_one_line(tmp_path_factory, value, chance):
    path = tmp_path_factory.mktemp("damaged") / "p.json"
    whole = json.loads(written(path, [GOOD, OPENED]).read_text("utf-8"))
    contents = [damaged(path.read_bytes(), chance)]
    put_anywhere(value, whole, chance)
    for content in (*contents, json.dumps(whole).encode()):
        path.write_bytes(content)
        with suppress(UsageError):
            speedscope.take([path], Request())
