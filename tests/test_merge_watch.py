"""From the watch's samples to its tables: recordings of known figures, and one real run."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from conftest import clean_environment

from profstack.analysis import watch
from profstack.analysis import watch as merged
from profstack.analysis.clean_steps import Clean, clean_steps
from profstack.storage.folder import Writer
from profstack.storage.reader import Recorded
from profstack.storage.vocabulary import WATCH_INTERVAL_S

pytestmark = pytest.mark.timed

SCRIPT = "/home/somebody/work/train.py"
LIBRARY = "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py"
MIB = 2**20
STEP_S = 0.02


class Made:
    """A recording in the making: steps of 20 ms, and samples put into them by hand."""

    def __init__(self, folder: Path) -> None:
        (folder / "logs").mkdir(parents=True)
        self.folder = folder
        self.writer = Writer(folder)
        self.writer.facts({"plan_1": {"rule": "optimizer", "phase": "train"}})
        self.now = 1.0
        self.steps = self.slices = 0
        self.samples: list[dict[str, Any]] = []
        self.frames: dict[tuple[Any, ...], int] = {}
        self.rss = 100 * MIB

    def slice(self, kind: str, walls: list[float], **frames: list[dict[str, Any]]) -> list[float]:
        """A slice of steps, at once; returns when each of them begins."""
        begins = [self.now + sum(walls[:number]) for number in range(len(walls))]
        layer = kind if kind == "cprofile" else None
        common = {"plan": 1, "phase": "train", "slice": self.slices}
        row = {
            **common,
            "kind": kind,
            "layer": layer,
            "mode": "timed" if layer else None,
            "round": 2,
            "first_step": self.steps,
            "steps": len(walls),
            "started_s": self.now,
            "wall_s": sum(walls),
            "counted_steps": len(walls),
            "counted_wall_s": sum(walls),
        }
        steps = [
            {**common, "step": self.steps + number, "started_s": begin, "wall_s": wall}
            for number, (begin, wall) in enumerate(zip(begins, walls, strict=True))
        ]
        own = {
            name: [{"slice": self.slices, **each} for each in rows] for name, rows in frames.items()
        }
        self.writer.write({"slices": [row], "steps": steps, **own})
        self.slices += 1
        self.steps += len(walls)
        self.now += sum(walls) + 0.001
        return begins

    def frame(self, stack: tuple[tuple[str, int, str], ...]) -> int | None:
        """The number of a stack of (file, line, function), whose functions begin at line 1."""
        parent = self.frame(stack[:-1]) if stack else None
        if not stack:
            return None
        if stack not in self.frames:
            self.frames[stack] = len(self.frames) + 1
            file, line, name = stack[-1]
            row = {"frame": self.frames[stack], "parent": parent, "file": file, "line": line}
            self.writer.write({"watch_frames": [{**row, "name": name, "function_line": 1}]})
        return self.frames[stack]

    def sample(
        self,
        t_s: float,
        *stack: tuple[str, int, str],
        weight: float = 1.0,
        grown: int = 0,
        region: str | None = None,
    ) -> None:
        """A sample of this stack; the resident set has grown since the last one."""
        self.rss += grown
        row = {"t_s": t_s, "frame": self.frame(stack), "region": region, "weight": weight}
        self.writer.write({"watch_samples": [{**row, "rss_bytes": self.rss}]})

    def done(self) -> Recorded:
        """The recording as it is read."""
        self.writer.close()
        return Recorded(self.folder)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path / "recording")


MAIN = (SCRIPT, 30, "<module>")
STEP = (SCRIPT, 20, "step")
FORWARD = (LIBRARY, 134, "forward")
SAVE = (SCRIPT, 12, "save")


def clean_of(walls: list[float]) -> Clean:
    return Clean(pd.DataFrame({"wall_s": walls}), 0, [])


# -- shares ----------------------------------------------------------------------------------------


def test_shares_are_of_the_time_and_counts_of_the_looks(made: Made) -> None:
    made.sample(0.5, MAIN, weight=6.0)
    made.sample(0.6, MAIN, STEP, weight=2.0)
    begins = made.slice("watch", [STEP_S] * 4)
    made.sample(begins[0] + 0.01, MAIN, STEP, FORWARD, weight=3.0)
    made.sample(begins[1] + 0.01, MAIN, STEP, weight=1.0)
    made.sample(begins[3] + STEP_S + 0.5, MAIN, SAVE, weight=5.0)
    rows = merged.watch_rows(made.done())
    shown = [
        (row["phase"], row["name"], row["samples"], row["self_share"], row["total_share"])
        for row in rows
    ]
    assert shown == [
        ("startup", "<module>", 2, 0.75, 1.0),
        ("startup", "step", 1, 0.25, 0.25),
        ("step", "forward", 1, 0.75, 0.75),
        ("step", "step", 2, 0.25, 1.0),
        ("step", "<module>", 2, 0.0, 1.0),
        ("other", "save", 1, 1.0, 1.0),
        ("other", "<module>", 1, 0.0, 1.0),
    ]
    assert {row["line"] for row in rows} == {1}


def test_a_function_that_calls_itself_counts_once(made: Made) -> None:
    begins = made.slice("watch", [STEP_S])
    made.sample(begins[0] + 0.01, MAIN, STEP, STEP, STEP)
    rows = {row["name"]: row for row in merged.watch_rows(made.done())}
    assert rows["step"]["total_share"] == 1.0
    assert rows["step"]["samples"] == 1


def test_steps_that_were_only_counted_are_steps_all_the_same(made: Made) -> None:
    """Of a very long run the steps are not written one by one, their slices are."""
    made.slice("clean", [STEP_S])
    begin = made.now
    made.slice("watch", [STEP_S] * 100)
    database = made.writer._database
    database.execute("DELETE FROM steps WHERE slice = 1")
    made.sample(begin + 1.0, MAIN, STEP)
    rows = merged.watch_rows(made.done())
    assert {row["phase"] for row in rows} == {"step"}


def test_growth_belongs_to_where_it_ended_and_a_pause_is_nobodys(made: Made) -> None:
    begins = made.slice("watch", [STEP_S] * 3)
    made.sample(begins[0] + 0.001, weight=0.0)
    made.sample(begins[0] + 0.010, MAIN, STEP, grown=5 * MIB)
    made.sample(begins[0] + 0.020, MAIN, STEP, FORWARD, grown=MIB)
    made.sample(begins[1] + 0.001, MAIN, STEP, grown=-2 * MIB)
    # What another layer's slice has taken meanwhile.
    made.sample(begins[1] + 0.002, weight=0.0)
    made.sample(begins[1] + 0.010, weight=0.0, grown=70 * MIB)
    made.sample(begins[1] + 0.015, MAIN, STEP, FORWARD, grown=2 * MIB)
    recorded = made.done()
    grown = {row["name"]: row["rss_bytes"] for row in merged.watch_rows(recorded)}
    assert grown == {"step": 3 * MIB, "forward": 3 * MIB, "<module>": None}
    assert merged.line_shares(recorded) == {(SCRIPT, 20): (1.0, 6 * MIB)}


def test_a_line_is_the_innermost_one_of_the_scripts_own_folder(made: Made) -> None:
    helper = ("/home/somebody/work/parts/data.py", 7, "load")
    elsewhere = ("/home/somebody/other/tool.py", 3, "run")
    made.sample(0.1, MAIN, FORWARD)
    begins = made.slice("watch", [STEP_S] * 5)
    made.sample(begins[0] + 0.01, MAIN, STEP, FORWARD)
    made.sample(begins[1] + 0.01, MAIN, helper, elsewhere)
    made.sample(begins[2] + 0.01, MAIN, helper, ("<string>", 1, "<module>"))
    # A thread's stack begins in Python's own files.
    threading = ("/usr/lib/python3.11/threading.py", 975, "run")
    made.sample(begins[3] + 0.01, threading, STEP, FORWARD)
    made.sample(begins[4] + 0.01, threading)
    recorded = made.done()
    shares = {line: share for line, (share, _) in merged.line_shares(recorded, "step").items()}
    assert shares == {(SCRIPT, 20): 0.4, ("/home/somebody/work/parts/data.py", 7): 0.4}
    assert merged.line_shares(recorded, "startup") == {(SCRIPT, 30): (1.0, None)}


def test_code_given_as_text_is_the_scripts_own(made: Made) -> None:
    text = ("<string>", 4, "<module>")
    begins = made.slice("watch", [STEP_S])
    made.sample(begins[0] + 0.01, text, ("<string>", 2, "work"), FORWARD)
    assert list(merged.line_shares(made.done())) == [("<string>", 2)]


def test_function_shares_have_the_keys_of_functions(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    made.sample(0.1, MAIN)
    begins = made.slice("watch", [STEP_S] * 2)
    made.sample(begins[0] + 0.01, MAIN, STEP)
    made.sample(begins[1] + 0.01, MAIN, STEP, FORWARD, weight=3.0)
    recorded = made.done()
    assert merged.function_shares(recorded) == {
        ("~/work/train.py", 1, "step"): 0.25,
        (LIBRARY, 1, "forward"): 0.75,
    }
    assert merged.function_shares(recorded, "startup") == {("~/work/train.py", 1, "<module>"): 1.0}


def test_samples_without_a_stack_count_as_time(made: Made) -> None:
    begins = made.slice("watch", [STEP_S] * 2)
    made.sample(begins[0] + 0.01)
    made.sample(begins[1] + 0.01, MAIN)
    assert merged.watch_rows(made.done())[0]["self_share"] == 0.5


def test_a_recording_without_a_watch_has_empty_tables(made: Made) -> None:
    made.slice("clean", [STEP_S] * 3)
    recorded = made.done()
    assert merged.watch_rows(recorded) == []
    assert merged.line_shares(recorded) == {}
    assert merged.function_shares(recorded) == {}
    assert merged.outlier_rows(recorded, clean_of([STEP_S] * 3)) == []
    said = merged.watch_facts(recorded, [])
    assert said["samples"] == 0
    assert said["rank_correlation"] is None
    assert "0 samples" in said["reason"]


# -- outliers --------------------------------------------------------------------------------------


def test_slow_steps_stand_out_against_the_clean_ones(made: Made) -> None:
    walls = [STEP_S] * 20
    walls[3], walls[7], walls[11] = 0.029, 0.031, 0.5
    begins = made.slice("watch", walls)
    for number in range(40):
        deeper = (STEP,) if number < 15 else (SAVE,)
        made.sample(begins[11] + 0.005 + number * 0.01, MAIN, *deeper)
    recorded = made.done()
    rows = merged.outlier_rows(recorded, clean_of([STEP_S] * 5))
    assert [row["index"] for row in rows] == [11, 7]
    assert rows[0]["factor"] == pytest.approx(25.0)
    assert rows[0]["samples"] == 40
    assert rows[0]["doing"] == "train.py:30 <module> > train.py:12 save"
    assert (rows[1]["samples"], rows[1]["doing"], rows[1]["rss_bytes"]) == (0, None, None)
    # Where clean steps differ that much among themselves it is nothing special.
    spread = [STEP_S * factor for factor in (0.2, 0.6, 1.0, 1.4, 1.8)]
    assert [row["index"] for row in merged.outlier_rows(recorded, clean_of(spread))] == [11]


def test_steps_of_other_slices_do_not_stand_out(made: Made) -> None:
    for kind in ("clean", "settle", "cprofile", "startup"):
        made.slice(kind, [STEP_S, 1.0, STEP_S])
    assert merged.outlier_rows(made.done(), clean_of([STEP_S] * 5)) == []


def test_without_clean_steps_memory_alone_stands_out(made: Made) -> None:
    begins = made.slice("watch", [STEP_S] * 20)
    for number, begin in enumerate(begins):
        made.sample(begin + 0.001, MAIN, STEP)
        made.sample(begin + 0.015, MAIN, STEP, grown=64 * MIB if number == 5 else 0)
    rows = merged.outlier_rows(made.done(), clean_of([]))
    assert [(row["index"], row["factor"], row["rss_bytes"]) for row in rows] == [
        (5, None, 64 * MIB)
    ]


def test_memory_taken_and_given_back_within_a_step_is_seen(made: Made) -> None:
    begins = made.slice("watch", [STEP_S] * 30)
    for number, begin in enumerate(begins):
        rare = 64 * MIB if number in (8, 21) else 0
        made.sample(begin + 0.001, MAIN, STEP)
        made.sample(begin + 0.010, MAIN, STEP, grown=rare)
        made.sample(begin + 0.019, MAIN, STEP, grown=-rare)
    rows = merged.outlier_rows(made.done(), clean_of([STEP_S] * 5))
    assert {(row["index"], row["rss_bytes"]) for row in rows} == {(8, 64 * MIB), (21, 64 * MIB)}


def test_what_most_steps_take_is_nothing_special(made: Made) -> None:
    begins = made.slice("watch", [STEP_S] * 30)
    for number, begin in enumerate(begins):
        takes = (40 + number % 3 + 60 * (number == 12)) * MIB
        made.sample(begin + 0.010, MAIN, STEP, grown=takes)
        made.sample(begin + 0.019, MAIN, STEP, grown=-takes)
    rows = merged.outlier_rows(made.done(), clean_of([STEP_S] * 5))
    assert [row["index"] for row in rows] == [12]


def test_growth_between_two_samples_goes_to_the_step_with_most_of_the_time(made: Made) -> None:
    """Steps far shorter than the interval: the one that took the memory took the time, too."""
    walls = [0.001] * 40
    walls[17] = 0.006
    begins = made.slice("watch", walls)
    made.sample(begins[0], weight=0.0)
    made.sample(begins[13], MAIN, STEP)
    made.sample(begins[20], MAIN, STEP, grown=64 * MIB)
    made.sample(begins[39], MAIN, STEP)
    rows = merged.outlier_rows(made.done(), clean_of([0.001] * 9))
    assert [(row["index"], row["rss_bytes"], row["samples"]) for row in rows] == [(17, 64 * MIB, 0)]


def test_growth_during_a_pause_is_no_steps(made: Made) -> None:
    first = made.slice("watch", [STEP_S] * 10)
    made.sample(first[9] + STEP_S, weight=0.0)
    made.slice("clean", [STEP_S] * 10)
    second = made.slice("watch", [STEP_S] * 10)
    made.sample(second[0] - 0.0001, weight=0.0, grown=500 * MIB)
    for begin in second:
        made.sample(begin + 0.01, MAIN, STEP)
    assert merged.outlier_rows(made.done(), clean_of([STEP_S] * 10)) == []


def test_where_the_watch_did_not_look_its_samples_are_not_counted_as_none(made: Made) -> None:
    made.slice("watch", [STEP_S, 1.0])
    [row] = merged.outlier_rows(made.done(), clean_of([STEP_S] * 5))
    assert (row["samples"], row["rss_bytes"], row["doing"]) == (None, None, None)


def test_many_outliers_are_cut_to_those_that_stand_out_most(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "MOST_ROWS", 5)
    begins = made.slice("watch", [STEP_S * (2 + number) for number in range(30)])
    made.sample(begins[0] + 0.001, weight=0.0)
    made.sample(begins[0] + 0.02, MAIN, STEP, grown=64 * MIB)
    for begin in begins[1:]:
        made.sample(begin + 0.001, MAIN, STEP)
    rows = merged.outlier_rows(made.done(), clean_of([STEP_S] * 5))
    assert [row["index"] for row in rows] == [29, 28, 27, 26, 0]


def test_what_it_was_doing_is_as_far_as_most_samples_agree(made: Made) -> None:
    begins = made.slice("watch", [STEP_S, 1.0])
    deep = [(LIBRARY, line, f"inner{line}") for line in range(6)]
    for number in range(9):
        leaf = (LIBRARY, 100 + number, "leaf")
        made.sample(begins[1] + 0.1 * number, MAIN, STEP, *deep, leaf, region="train/forward")
    rows = merged.outlier_rows(made.done(), clean_of([STEP_S] * 5))
    assert rows[0]["doing"] == (
        "[train/forward] train.py:30 <module> > train.py:20 step > … > linear.py:4 inner4 > "
        "linear.py:5 inner5"
    )


def test_the_rule_is_said_in_words() -> None:
    assert f"{watch.MOST_ROWS}" in watch.RULE
    assert f"{watch.DEVIATIONS:.0f} robust" in watch.RULE
    assert f"{watch.GROWN_BYTES // MIB} MiB" in watch.RULE


# -- against cProfile ------------------------------------------------------------------------------


def profiled(made: Made, own_s: dict[str, float], builtin_s: dict[str, float]) -> list[Any]:
    """A slice of cProfile, and the rows of `functions` that it gives."""
    functions = [
        {"file": SCRIPT, "line": 1, "name": name, "calls": 1, "self_s": self_s, "total_s": self_s}
        for name, self_s in own_s.items()
    ]
    calls = [
        {
            "caller_file": SCRIPT,
            "caller_line": 1,
            "caller_name": name,
            "callee_file": "~",
            "callee_line": 0,
            "callee_name": "<built-in conv2d>",
            "calls": 1,
            "self_s": self_s,
            "total_s": self_s,
        }
        for name, self_s in builtin_s.items()
    ]
    made.slice("cprofile", [STEP_S], functions=functions, calls=calls)
    return [{**row, "phase": "step", "file": SCRIPT} for row in functions]


def test_the_rank_correlation_is_spearmans_with_built_in_time_at_the_caller(made: Made) -> None:
    own = {name: 0.001 * (1 + place) for place, name in enumerate("abcdef")}
    # By its own time alone `a` would be last; with what it calls it is first.
    rows = profiled(made, own, {"a": 0.02})
    begins = made.slice("watch", [STEP_S] * 60)
    shares = {"a": 25, "f": 12, "e": 10, "c": 8, "d": 3, "b": 2}
    names = [name for name, count in shares.items() for _ in range(count)]
    for begin, name in zip(begins, names, strict=True):
        made.sample(begin + 0.01, (SCRIPT, 1, name))
    said = merged.watch_facts(made.done(), rows)
    order = sorted(own, key=lambda name: own[name] + 0.02 * (name == "a"))
    mine = sorted(shares, key=lambda name: shares[name])
    differences = [order.index(name) - mine.index(name) for name in own]
    by_hand = 1 - 6 * sum(each**2 for each in differences) / (6 * 35)
    assert said["rank_correlation"] == pytest.approx(by_hand)
    assert 0 < by_hand < 1
    assert (said["rank_functions"], said["reason"]) == (6, None)
    assert said["samples"] == 60
    assert said["watched_s"] == pytest.approx(60 * WATCH_INTERVAL_S)
    assert said["samples_by_phase"] == {"startup": 0, "step": 60, "other": 0}


def test_too_little_to_compare_says_so(made: Made) -> None:
    rows = profiled(made, {"a": 0.01, "b": 0.02}, {})
    begins = made.slice("watch", [STEP_S] * 60)
    for number, begin in enumerate(begins):
        made.sample(begin + 0.01, (SCRIPT, 1, "ab"[number % 2]))
    recorded = made.done()
    said = merged.watch_facts(recorded, rows)
    assert said["rank_correlation"] is None
    assert said["reason"] == "only 2 functions have a hundredth of the steps, 5 are needed"
    assert merged.watch_facts(recorded, [])["reason"] == "cProfile has no slice to compare with"


def test_functions_that_cprofile_cannot_see_are_left_out(made: Made) -> None:
    """The loop that was running before its slice has no row."""
    rows = profiled(made, {name: 0.01 * (1 + place) for place, name in enumerate("abcde")}, {})
    begins = made.slice("watch", [STEP_S] * 150)
    order = ["<module>"] * 135 + [*"abbcccddddeeeee"]
    for begin, name in zip(begins, order, strict=True):
        made.sample(begin + 0.01, (SCRIPT, 1, name))
    said = merged.watch_facts(made.done(), rows)
    assert said["rank_correlation"] == pytest.approx(1.0)
    assert said["rank_functions"] == 5


def test_thinning_is_told_as_the_layer_told_it(made: Made) -> None:
    text = "every 20 ms from 200 s on"
    made.writer.write({"layers": [{"name": "watch", "status": "recorded", "truncated": text}]})
    assert merged.watch_facts(made.done(), [])["thinning"] == text


# -- one real run ----------------------------------------------------------------------------------

PLANTED = """
    import sys
    import time

    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)


    kept = []


    def rare(number):
        if number in (130, 170):
            block = torch.ones(16 * 2**20)
            kept.extend([block] if number == 170 else [])
            return block.sum().item()
        return 0.0


    def save(number):
        if number == 190:
            time.sleep(0.3)


    def step(number):
        loss = net(torch.randn(64, 256)).pow(2).mean() + 0 * rare(number)
        optimizer.zero_grad()
        loss.backward()
        time.sleep(0.004)
        save(number)
        optimizer.step()
        return loss.item()


    for number in range(200):
        loss = step(number)
    print(loss.hex())
"""


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Recorded, str, str]:
    """A recording of 200 steps of which two take 64 MiB and one stands still."""
    folder = tmp_path_factory.mktemp("planted")
    script = folder / "script.py"
    script.write_text(textwrap.dedent(PLANTED), encoding="utf-8")
    command = [sys.executable, "-m", "profstack", "run", "-o", "recording"]
    command += ["--layers", "cprofile,watch", "--rounds", "2", "--final-steps", "10"]
    # Where the machine is so busy that the warm-up is not seen to end, no step is clean, and none
    # is slow beside one.
    for _ in range(3):
        done = subprocess.run(
            [*command, "--force", "--final-s", "0.05", "script.py"],
            cwd=folder,
            env=clean_environment(OMP_NUM_THREADS="1"),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        if clean_steps(Recorded(folder / "recording")).median_s is not None:
            break
    plain = subprocess.run(
        [sys.executable, "script.py"],
        cwd=folder,
        env=clean_environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        check=True,
    )
    return Recorded(folder / "recording"), done.stdout, plain.stdout


def test_rare_allocations_and_slow_steps_are_found(planted: tuple[Recorded, str, str]) -> None:
    recorded, printed, expected = planted
    assert printed == expected
    rows = {row["index"]: row for row in merged.outlier_rows(recorded, clean_steps(recorded))}
    # How long the early page takes decides which of them a slice of another layer had.
    kinds = recorded.steps.set_index("step")["kind"]
    watched = {number for number in (130, 170, 190) if kinds[number] == "watch"}
    assert len(watched) >= 2
    assert watched <= set(rows)
    rare = watched & {130, 170}
    for number in rare:
        assert rows[number]["factor"] > 1.5
        assert (rows[number]["rss_bytes"] or 0) <= 80 * 2**20
    # It is seen as far as it was there at a sample: the last one may find it half filled.
    assert 170 not in rare or rows[170]["rss_bytes"] >= 30 * 2**20
    assert any("rare" in (rows[number]["doing"] or "") for number in rare)
    if 190 in watched:
        assert rows[190]["samples"] > 10
        assert rows[190]["doing"].endswith(" save")
    taking = max(merged.line_shares(recorded, "step").items(), key=lambda item: item[1][1] or 0)
    assert Path(taking[0][0]).name == "script.py"
    assert PLANTED.splitlines()[taking[0][1] - 1].strip() == "block = torch.ones(16 * 2**20)"


def test_start_up_is_told_by_function_and_line(planted: tuple[Recorded, str, str]) -> None:
    recorded = planted[0]
    rows = [row for row in merged.watch_rows(recorded) if row["phase"] == "startup"]
    assert sum(row["self_share"] for row in rows) == pytest.approx(1.0)
    torch_s = max(row["total_share"] for row in rows if "torch" in row["file"])
    assert torch_s > 0.3
    shares = merged.line_shares(recorded, "startup")
    text = PLANTED.splitlines()
    by_line = {text[line - 1].strip(): share for (_, line), (share, _) in shares.items()}
    assert by_line["import torch"] > 0.2
    # But for what ran before there was a frame of the script's.
    assert 0.9 < sum(by_line.values()) <= 1.0


def test_the_watch_is_quiet_in_slices_of_others(planted: tuple[Recorded, str, str]) -> None:
    recorded = planted[0]
    slices = recorded.frames["slices"]
    samples_at = recorded.frames["watch_samples"].query("weight > 0")["t_s"]
    observed = slices[slices["kind"].isin(["clean", "cprofile"])]
    assert len(observed) > 3
    for row in observed.to_dict("records"):
        inside = samples_at.between(row["started_s"], row["started_s"] + row["wall_s"])
        assert not inside.any(), row
    watched = slices[slices["kind"] == "watch"]
    inside = samples_at.between(
        watched["started_s"].min(), (watched["started_s"] + watched["wall_s"]).max()
    )
    assert inside.sum() > 50


def test_the_layer_is_recorded_with_its_footprint(planted: tuple[Recorded, str, str]) -> None:
    layers = planted[0].frames["layers"].set_index("name")
    assert layers["status"]["watch"] == "recorded"
    assert 10_000 < layers["memory_bytes"]["watch"] < 2**24
    assert layers["technique"]["watch"] == "sampling"
