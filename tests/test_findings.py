"""Findings: memory that grows is found, and what only looks like it is not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it ships no types
import numpy as np
import pytest
from data_findings import completed
from data_recording import CLEAN_S, Run
from finding_programs import PLACES

from profstack.code_owner import FACT
from profstack.findings import judge
from profstack.findings.memory_growth import Group, keeps, memory_growth, trend
from profstack.report import files
from profstack.report.files import complete_report
from profstack.report.terminal import summary
from profstack.storage.reader import Recorded

MIB = 2**20
TRAIN = "/app/train.py"


# -- the trend -----------------------------------------------------------------------------------


def group(values: Any, first: float = 0.0) -> Group:
    """Readings with every step."""
    column = np.asarray(values, float)
    return first + np.arange(len(column)), column


def test_steady_growth_is_measured_whatever_moves_the_level_between_groups() -> None:
    levels = (0.0, 500.0, -3000.0, 80.0)
    groups = [group(level + 7.0 * np.arange(9), 20.0 * at) for at, level in enumerate(levels)]
    found = trend(groups)
    assert found is not None
    assert (found.slope, found.low, found.high) == (7.0, 7.0, 7.0)
    assert found.total == 7.0 * found.steps
    assert found.persistent


def test_growth_in_noise_has_an_interval_round_it() -> None:
    noise = np.random.default_rng(0).normal(0, 12, 60)
    found = trend([group(5.0 * np.arange(60) + noise)])
    assert found is not None
    assert found.low < 5.0 < found.high
    assert found.high - found.low < 2.0
    assert found.low > 0
    assert found.persistent


_AT = np.arange(40)


@pytest.mark.parametrize(
    "values",
    [
        np.zeros(40),
        -3.0 * _AT,
        np.where(_AT < 20, 0, 1e6),
        np.minimum(_AT, 14) * 1e5,
        np.minimum(_AT, 30) * 1e5,
        np.log1p(_AT) * 1e6,
        np.where(_AT % 2 == 0, 0, 1e6),
        np.where(_AT < 36, _AT, _AT + 1e6),
    ],
    ids=["flat", "falls", "one jump", "full early", "full late", "ever slower", "swings", "jump"],
)
def test_what_does_not_go_on_growing_is_not_persistent(values: Any) -> None:
    found = trend([group(values)])
    assert found is not None
    assert not found.persistent or found.low <= 0


def test_a_walk_at_random_is_rarely_taken_for_growth() -> None:
    taken = 0
    for seed in range(200):
        walk = np.cumsum(np.random.default_rng(seed).normal(0, 1, 40))
        found = trend([group(walk)])
        assert found is not None
        taken += found.persistent and found.low > 0
    assert taken <= 10


def test_too_little_says_nothing() -> None:
    assert trend([]) is None
    assert trend([group([1.0])]) is None
    assert trend([group([1.0, 2.0]), group([1.0, 3.0])]) is None
    few = trend([group([0.0, 5.0], 10.0 * at) for at in range(4)])
    assert few is not None
    assert few.slope == 5.0
    assert trend([group([0.0, 5.0, 6.0])] * 2) is None
    two = trend([group([0.0, 1.0], 10.0 * at) for at in range(2)] * 2)
    assert two is not None
    assert math.isinf(two.low) or two.low <= two.slope


# -- recordings ----------------------------------------------------------------------------------


class Growing:
    """A recording whose memory is known: `script` and `layers` give bytes for steps and slices."""

    def __init__(
        self, folder: Path, script: Callable[[int], float], torch_leaves: int = 0, base: int = 900
    ) -> None:
        self.run = Run(folder)
        self.run.writer.facts({FACT: PLACES})
        self.script = script
        self.left = base * MIB
        self.torch_leaves = torch_leaves
        self.column = "rss_bytes"

    def edge(self) -> None:
        """What is read when a slice has ended."""
        now = {"t_s": self.run.now, "step": self.run.steps, "rss_bytes": 900 * MIB}
        now[self.column] = round(self.left + self.script(self.run.steps))
        self.run.writer.write({"memory": [now]})

    def slices(self, rounds: int = 2, layers: int = 4, steps: int = 12) -> None:
        """Slices of the torch layer with clean ones between them, as a run has them."""
        # What the first steps take is no growth.
        self.run.clean(3, number=1)
        self.left += 300 * MIB
        self.edge()
        for number in range(2, 2 + rounds):
            for _ in range(layers):
                self.run.torch([CLEAN_S] * 3, number=number)
                self.left += self.torch_leaves
                self.edge()
                self.run.slice("settle", [CLEAN_S], number=number)
                self.edge()
                self.run.clean(steps, number=number)
                self.edge()

    def watch(self, steps: int = 2000, wall_s: float = CLEAN_S, swing: int = 0) -> None:
        """The open end of a run: a sample of the watch every other step."""
        begun, first = self.run.now, self.run.steps
        samples = [
            {
                "t_s": begun + at * wall_s + 0.001,
                "frame": 1,
                "rss_bytes": round(self.left + self.script(first + at) + swing * (at % 3)),
                "weight": 1.0,
            }
            for at in range(0, steps, 2)
        ]
        frames = [{"frame": 1, "file": TRAIN, "line": 9, "name": "f", "function_line": 3}]
        frames[0]["source"] = "kept.append(x)"
        self.run.writer.write({"watch_samples": samples, "watch_frames": frames})
        self.run.slice("watch", [wall_s] * steps, number=4)
        self.edge()

    def lines(self, *rows: tuple[int, str, int], source: str = "malloc") -> None:
        """A slice of the memory layer, of ten steps: line, text, and net bytes per step."""
        records = [
            {
                "file": TRAIN,
                "line": line,
                "source": text,
                "second_source": source,
                "allocated_bytes": 10 * net,
                "increment_bytes": 0,
                "occurrences": 10,
            }
            for line, text, net in rows
        ]
        self.run.slice(
            *("memory", [0.05] * 10), layer="memory", mode="lines", frames={"memory_lines": records}
        )
        times = {"calls": 10, "python_s": 0.1, "operator_s": 0.1}
        traced = [{"file": TRAIN, "line": line, "source": text, **times} for line, text, _ in rows]
        self.run.torch([CLEAN_S] * 10, mode="lines", frames={"lines": traced})

    def findings(self, report: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """What is found beside a report of nothing but what is given."""
        self.run.layers(torch="recorded", memory="recorded", watch="recorded")
        self.run.writer.close()
        return memory_growth(Recorded(self.run.folder), completed(report or {}))

    def report(self) -> dict[str, Any]:
        """The whole report, valid by its schema."""
        self.run.layers(torch="recorded", memory="recorded", watch="recorded")
        self.run.writer.close()
        report: dict[str, Any] = json.loads(files.text(complete_report(self.run.folder)))
        jsonschema.validate(report, files.schema())
        return report


def test_a_leak_is_found_with_its_line_and_what_keeps_it(tmp_path: Path) -> None:
    made = Growing(tmp_path / "rec", lambda step: 0.5 * MIB * step, torch_leaves=9 * MIB)
    made.lines(
        (5, "y = model(x)", 3 * MIB),
        (6, "z = y + 1", MIB // 2),
        (7, "loss.backward()", -3 * MIB),
        (8, "kept.append(z)", 0),
        (9, "count += 1", 0),
        (10, "total += loss.item()", 0),
    )
    made.slices()
    report = made.report()
    (finding,) = report["findings"]
    assert finding["slug"] == "memory-growth"
    assert finding["title"] == "Memory grows by 512 KiB with every step (resident set)"
    # The model takes more, and has it given back elsewhere.
    assert (finding["file"], finding["line"]) == (TRAIN, 6)
    assert (finding["gain_s"], finding["gain_is"]) == (None, None)
    growth, *rows = finding["evidence"]
    assert growth["growth_per_step_bytes"] == pytest.approx(MIB / 2)
    assert growth["ci95_low_bytes"] == pytest.approx(MIB / 2)
    assert growth["steps"] == 8 * 12
    assert rows[0]["taken_less_given_back_per_step_bytes"] == MIB / 2
    assert [row["line"] for row in rows if "keeps_what_it_is_given" in row] == [8]
    assert "train.py:6 (z = y + 1)" in finding["advice"]
    assert "train.py:8 (kept.append(z))" in finding["advice"]
    assert "2.05 k steps" in finding["advice"]
    said = summary(report, width=120, colour=False)
    assert finding["title"] in said


def test_a_leak_under_the_watch_is_found_in_the_swing_of_its_steps(tmp_path: Path) -> None:
    made = Growing(tmp_path / "rec", lambda step: 20_000.0 * step)
    made.watch(swing=200 * MIB)
    (finding,) = made.findings()
    assert finding["evidence"][0]["growth_per_step_bytes"] == pytest.approx(20_000, rel=0.05)
    assert finding["layers"] == ["watch"]
    assert finding["line"] == 9


def test_what_all_lines_together_gave_back_none_of_them_keeps(tmp_path: Path) -> None:
    made = Growing(tmp_path / "rec", lambda step: 20_000.0 * step)
    # Python's own small objects come from elsewhere; the model's output is freed a line later.
    made.lines((5, "y = model(x)", 22_000), (6, "loss.backward()", -21_900))
    made.watch()
    (finding,) = made.findings()
    assert (finding["line"], finding["layers"]) == (9, ["watch"])
    assert "train.py:9 (kept.append(x))" in finding["advice"]
    assert "train.py:5" not in finding["advice"]


def test_of_lines_that_took_as_much_the_one_that_keeps_it_comes_first(tmp_path: Path) -> None:
    made = Growing(tmp_path / "rec", lambda step: 0.5 * MIB * step)
    made.lines(
        (5, "z = make()", MIB // 2),
        (8, "losses.append(loss_of(model(z)))", MIB // 3),
    )
    made.slices()
    (finding,) = made.findings()
    assert finding["line"] == 8


def test_what_a_line_takes_and_another_gives_back_is_not_kept(tmp_path: Path) -> None:
    made = Growing(tmp_path / "rec", lambda step: 0.5 * MIB * step)
    made.lines(
        (5, "y = model(x)", MIB // 2),
        (6, "loss.backward()", -MIB // 2 - 300),
        (7, "remember(x)", MIB // 3),
    )
    made.slices()
    (finding,) = made.findings()
    assert finding["line"] == 7
    assert "train.py:5" not in finding["advice"]
    taken = [row for row in finding["evidence"] if "taken_less_given_back_per_step_bytes" in row]
    assert [row["line"] for row in taken] == [7]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("history.append(loss)", True),
        ("cache[str(name)] = model(x)", True),
        ("layer.register_forward_hook(show)", True),
        ("total += loss", True),
        ("history.append(loss.item())", False),
        ("history.append(float(loss))", False),
        ("count = len(x); count += x.size(0)", False),
        ("count += 1  # batches", False),
        ("bar.update(1)", False),
        ("bar.update()", False),
        ("# history.append(loss)", False),
        ("y = model(x)", False),
        (None, False),
    ],
)
def test_a_line_that_keeps_a_thing_is_told_by_its_text(text: str | None, kept: bool) -> None:
    assert keeps(text) is kept


def test_a_leak_in_evaluation_alone_is_one_too(tmp_path: Path) -> None:
    made = Growing(tmp_path / "rec", lambda step: 4 * MIB * (step // 100))
    made.watch()
    (finding,) = made.findings()
    assert finding["evidence"][0]["growth_per_step_bytes"] == pytest.approx(4 * MIB / 100, rel=0.1)


@pytest.mark.parametrize(
    ("each", "limit", "severity"),
    # At 10 ms a step: in 9 hours, in 5 days, and in an hour of what a container may take.
    [(20_000.0, None, "high"), (1_500.0, None, "medium"), (1_500.0, 1 << 29, "high")],
)
def test_memory_that_is_gone_within_a_day_is_urgent(
    tmp_path: Path, each: float, limit: int | None, severity: str
) -> None:
    made = Growing(tmp_path / "rec", lambda step: each * step)
    made.watch(steps=6_000)
    environment = {"memory_bytes": 64 << 30, "memory_limit_bytes": limit}
    report = {"environment": environment, "benchmark": {"median_s": 0.01}}
    (finding,) = made.findings(report)
    assert finding["severity"] == severity
    assert "1 GiB more after" in finding["advice"]


@pytest.mark.parametrize(
    ("script", "swing"),
    [
        (lambda step: 0.0, 0),
        (lambda step: 0.0, 300 * MIB),
        (lambda step: 500 * MIB if step > 800 else 0.0, 0),
        (lambda step: min(step, 700) * MIB, 0),
        (lambda step: 300.0 * step, 0),
        (lambda step: 100 * MIB if step % 200 < 5 else 0.0, 0),
        (lambda step: 50 * MIB * math.log1p(step), 0),
    ],
    ids=["steady", "swings", "one-off", "warm-up", "too little", "evaluation", "ever slower"],
)
def test_no_false_alarm(tmp_path: Path, script: Callable[[int], float], swing: int) -> None:
    made = Growing(tmp_path / "rec", script, torch_leaves=13 * MIB)
    made.slices()
    made.watch(swing=swing)
    assert made.findings() == []


def test_what_the_layers_leave_behind_is_no_leak_of_the_scripts(tmp_path: Path) -> None:
    made = Growing(tmp_path / "rec", lambda step: 0.0, torch_leaves=13 * MIB)
    made.slices(rounds=3)
    assert made.findings() == []


def test_a_short_run_says_nothing(tmp_path: Path) -> None:
    made = Growing(tmp_path / "rec", lambda step: 5.0 * MIB * step)
    made.slices(rounds=1, layers=1)
    assert made.findings() == []


@pytest.mark.parametrize("leaks", [True, False])
def test_live_tensors_of_a_device_are_followed_too(tmp_path: Path, leaks: bool) -> None:
    made = Growing(tmp_path / "rec", lambda step: leaks * 4096.0 * step)
    made.column = "device_allocated_bytes"
    made.lines((5, "y = model(x)", 4096), source="torch.cuda.memory_allocated")
    made.lines((6, "text = read()", 4096), source="malloc")
    made.slices()
    found = made.findings()
    assert [finding["title"] for finding in found] == [
        "Memory grows by 4.00 KiB with every step (live tensors on the device)"
    ] * leaks
    if leaks:
        assert found[0]["line"] == 5


def test_a_rule_that_fails_is_told_and_takes_nothing_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(recorded: Any, report: Any) -> Any:
        raise KeyError("a defect")

    monkeypatch.setattr(judge, "FAMILIES", (broken, *judge.FAMILIES))
    made = Growing(tmp_path / "rec", lambda step: 1.0 * MIB * step)
    made.slices()
    report = made.report()
    assert [finding["slug"] for finding in report["findings"]] == ["memory-growth"]
    told = [row["text"] for row in report["warnings"] if row["slug"] == "findings-failed"]
    assert told == ["findings are missing: KeyError: 'a defect'"]
