"""Profiles of speedscope: every sample counted by brute force, and what damaged files say."""

import json
import random
from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import given

from profstack.errors import UsageError
from profstack.readers import speedscope
from profstack.readers.formats import Request
from tests.support.damage import ANY_VALUE, CHANCE, damaged, put_anywhere
from tests.support.tables import cases

FRAMES = [
    {"name": "<module>", "file": "train.py", "line": 80},
    {"name": "step", "file": "train.py", "line": 40},
    {"name": "forward", "file": "model.py", "line": 60},
    {"name": "forward", "file": "model.py", "line": 61},
    {"name": "native"},
    {"name": "recurses", "file": "model.py", "line": 9, "col": 3},
]
SECONDS = {"nanoseconds": 1e-9, "microseconds": 1e-6, "milliseconds": 1e-3, "seconds": 1.0}


def written(path, profiles, **parts):
    whole = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "shared": {"frames": FRAMES},
        "profiles": profiles,
        **parts,
    }
    path.write_text(json.dumps(whole), encoding="utf-8")
    return path


def sampled(chance, unit, name="t", count=200):
    stacks = [
        [chance.randrange(len(FRAMES)) for _ in range(chance.randint(0, 6))] for _ in range(9)
    ]
    samples = [chance.choice(stacks) for _ in range(count)]
    weights = [chance.choice((0, 1, 2.5, 10)) for _ in range(count)]
    return {
        "type": "sampled", "name": name, "unit": unit, "startValue": 5,
        "endValue": 5 + sum(weights), "samples": samples, "weights": weights,
    }  # fmt: skip


def evented(chance, unit, name="t", count=300):
    """Frames that open and close, and seconds by stack as they were made."""
    events, stack, now, held = [], [], 7.0, Counter()
    for _ in range(count):
        passed = chance.choice((0, 0.5, 3))
        if stack:
            held[tuple(stack)] += passed
        now += passed
        if stack and (chance.random() < 0.5 or len(stack) > 6):
            events.append({"type": "C", "frame": stack.pop(), "at": now})
        else:
            stack.append(chance.randrange(len(FRAMES)))
            events.append({"type": "O", "frame": stack[-1], "at": now})
    return {
        "type": "evented", "name": name, "unit": unit, "startValue": 7, "endValue": now,
        "events": events,
    }, held  # fmt: skip


def places(taken):
    """The stack of each frame number, as file, line and name."""
    stacks = {None: ()}
    for row in taken.added["watch_frames"]:
        assert row["function_line"] is None
        stacks[row["frame"]] = (
            *stacks[row["parent"]],
            (row["file"], row["line"], row["name"]),
        )
    return stacks


def seconds_by_stack(taken):
    stacks, held = places(taken), Counter()
    for row in taken.added["watch_samples"]:
        held[stacks[row["frame"]]] += row["weight"] * 0.01
    return held


def seconds_of(profile, *around):
    """Seconds by stack of a sampled profile, counted sample by sample; without those of 0."""
    held = zip(map(tuple, profile["samples"]), profile["weights"], strict=True)
    return in_words(held, SECONDS[profile["unit"]], *around)


def in_words(held, unit_s, *around):
    """Seconds by stack, written as file, line and name from the root."""
    named = [(each.get("file", "<unknown>"), each.get("line"), each["name"]) for each in FRAMES]
    found = Counter()
    for stack, weight in held:
        found[(*around, *(named[number] for number in stack))] += weight * unit_s
    return +found


@pytest.mark.parametrize("unit", SECONDS)
def test_every_sample_counts_with_its_weight(tmp_path, unit):
    profile = sampled(random.Random(1), unit)
    taken = speedscope.take(
        [written(tmp_path / "p.json", [profile], exporter="py-spy@0.3.14")], Request(slice=4)
    )
    assert seconds_by_stack(taken) == pytest.approx(seconds_of(profile))
    count = sum(weight > 0 for weight in profile["weights"])
    assert len(taken.added["watch_samples"]) == count
    whole_s = sum(profile["weights"]) * SECONDS[unit]
    (layer,), (part,) = taken.added["layers"], taken.added["slices"]
    assert layer["tool"] == "py-spy@0.3.14, read from p.json"
    assert (part["slice"], part["layer"]) == (4, "watch")
    assert part["wall_s"] == pytest.approx(whole_s)
    # A sample's time ends where the next begins.
    times = [row["t_s"] for row in taken.added["watch_samples"]]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(whole_s)


@pytest.mark.parametrize("unit", SECONDS)
def test_frames_that_open_and_close_are_the_time_between(tmp_path, unit):
    profile, held = evented(random.Random(2), unit)
    taken = speedscope.take([written(tmp_path / "p.json", [profile])], Request())
    assert seconds_by_stack(taken) == pytest.approx(in_words(held.items(), SECONDS[unit]))
    assert taken.added["layers"][0]["tool"] == "speedscope, read from p.json"


def test_threads_and_files_are_added_up_under_their_names(tmp_path):
    chance = random.Random(3)
    one, two = sampled(chance, "seconds", "main", 70), sampled(chance, "milliseconds", None, 50)
    three, held = evented(chance, "seconds", "loader", 90)
    files = [written(tmp_path / "a.json", [one, two, three]), written(tmp_path / "b.json", [one])]
    taken = speedscope.take(files, Request())
    threads = [("<thread>", None, name) for name in ("main", "2", "loader")]
    expected = seconds_of(one, threads[0]) + seconds_of(two, threads[1]) + seconds_of(one)
    expected += in_words(held.items(), 1.0, threads[2])
    assert seconds_by_stack(taken) == pytest.approx(expected)
    assert "a.json, b.json: " in taken.summary[0]
    assert taken.summary[0].endswith(" on 4 threads")


def test_too_many_samples_are_merged_with_their_neighbours(tmp_path, monkeypatch):
    profile = sampled(random.Random(4), "seconds", count=100)
    profile["samples"] = [stack for stack in profile["samples"][:10] for _ in range(10)]
    path = written(tmp_path / "p.json", [profile])
    whole = seconds_by_stack(speedscope.take([path], Request()))
    monkeypatch.setattr(speedscope, "MOST_SAMPLES", 10)
    taken = speedscope.take([path], Request())
    assert len(taken.added["watch_samples"]) <= 10
    assert seconds_by_stack(taken) == pytest.approx(whole)
    monkeypatch.setattr(speedscope, "MOST_SAMPLES", 3)
    with pytest.raises(UsageError, match="more than 3 changes of the stack"):
        speedscope.take([path], Request())
    monkeypatch.setattr(speedscope, "MOST_NODES", 3)
    with pytest.raises(UsageError, match="more than 3 different frames"):
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


GOOD = {
    "type": "sampled", "name": "t", "unit": "seconds", "startValue": 0, "endValue": 1,
    "samples": [[0]], "weights": [1],
}  # fmt: skip
EVENTED = {"type": "evented", "name": "t", "unit": "seconds", "startValue": 0, "endValue": 1}


def opened(*events):
    return {
        **EVENTED,
        "events": [dict(zip(("type", "frame", "at"), each, strict=True)) for each in events],
    }


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
    profile, _ = evented(random.Random(8), "seconds", count=12)
    whole = json.loads(written(path, [GOOD, profile]).read_text("utf-8"))
    contents = [damaged(path.read_bytes(), chance)]
    put_anywhere(value, whole, chance)
    for content in (*contents, json.dumps(whole).encode()):
        path.write_bytes(content)
        with suppress(UsageError):
            speedscope.take([path], Request())
