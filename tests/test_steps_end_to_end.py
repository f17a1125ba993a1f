"""What a user gets for scripts of few, many, endless or no steps, for signals, ranks and errors.

Every test starts `python -m profstack run` on a real script and reads the report it leaves.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import RunProfstack, clean_environment
from harness.runner import report_of, without_own_lines

LAYERS = {"cprofile": "functions", "torch": "operators"}

TRAIN = """
import atexit, sys, time
import torch

def main(wanted, pause=0.0):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    done = 0
    try:
        while done != wanted:
            optimizer.zero_grad()
            model(torch.randn(4, 8)).pow(2).mean().backward()
            optimizer.step()
            done += 1
            print("step", done, flush=True)
            time.sleep(pause)
    finally:
        print("finally", done, flush=True)

atexit.register(print, "atexit", flush=True)
main(*map(float, sys.argv[1:]))
"""


@pytest.fixture
def train(tmp_path: Path) -> Path:
    """A training script: the number of steps (-1: endless) and seconds to sleep in each."""
    return write(tmp_path, TRAIN)


def write(folder: Path, text: str, name: str = "train.py") -> Path:
    """A script in `folder`."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def layers_of(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The report's layers by name."""
    return {row["name"]: row for row in report["layers"]}


def steps_in(report: dict[str, Any]) -> int:
    """Steps of all phases."""
    return sum((report["step"]["counts_by_phase"] or {}).values())


def check_layers(report: dict[str, Any]) -> set[str]:
    """Every layer has data, or says why not and what fills it; returns those with data."""
    filled = set()
    for name, table in LAYERS.items():
        row = layers_of(report)[name]
        if row["status"] == "recorded":
            assert report["tables"][table], f"{name} is recorded and {table} is empty"
            filled.add(name)
        else:
            assert row["status"] == "empty", row
            assert row["reason"]
            assert row["command"], row
            assert not report["tables"][table]
    return filled


# -- few steps ---------------------------------------------------------------------------------


def test_eight_steps_give_every_layer_data(
    run_profstack: RunProfstack, train: Path, tmp_path: Path
) -> None:
    done = run_profstack(["run", "-o", "rec", train, "8"])
    assert done.returncode == 0, done.stderr
    report = report_of(tmp_path / "rec")
    assert report["status"] == "complete"
    assert report["step"]["rule"] == "optimizer"
    assert steps_in(report) == 8
    assert check_layers(report) == set(LAYERS)
    assert report["tables"]["modules"]
    assert len(report["benchmark"]["samples_s"]) >= 1
    assert (tmp_path / "rec" / "report.html").stat().st_size > 10_000


@pytest.mark.parametrize("steps", [1, 3])
def test_a_starved_layer_says_so_and_names_the_command_that_fills_it(
    run_profstack: RunProfstack, train: Path, tmp_path: Path, steps: int
) -> None:
    done = run_profstack(["run", "-o", "rec", train, str(steps)])
    assert done.returncode == 0, done.stderr
    report = report_of(tmp_path / "rec")
    assert steps_in(report) == steps
    empty = set(LAYERS) - check_layers(report)
    page = (tmp_path / "rec" / "report.html").read_text(encoding="utf-8")
    # Each is a run of its own.
    for name in sorted(empty)[:2]:
        command = layers_of(report)[name]["command"]
        words = shlex.split(command)
        assert words[:2] == ["profstack", "run"], command
        assert command in page or json.dumps(command)[1:-1] in page
        again = run_profstack(["run", "-o", f"filled-{name}", *words[2:]])
        assert again.returncode == 0, again.stderr
        assert layers_of(report_of(tmp_path / f"filled-{name}"))[name]["status"] == "recorded"


def test_a_script_without_steps_is_measured_whole(
    run_profstack: RunProfstack, tmp_path: Path
) -> None:
    script = write(
        tmp_path,
        """
        import torch

        def work(count):
            return sum(float((torch.ones(32, 32) @ torch.ones(32, 32)).sum()) for _ in range(count))

        if __name__ == "__main__":
            print(work(50))
        """.replace("\n        ", "\n"),
    )
    done = run_profstack(["run", "-o", "rec", script])
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{50 * 32.0**3}\n"
    report = report_of(tmp_path / "rec")
    assert report["step"]["rule"] == "whole"
    assert check_layers(report) == set(LAYERS)
    names = {row["name"] for row in report["tables"]["functions"]}
    assert "work" in names
    products = [row for row in report["tables"]["operators"] if row["name"] == "aten::matmul"]
    assert sum(row["calls"] for row in products) == 50


def test_a_step_of_minutes_is_not_waited_for(
    run_profstack: RunProfstack, train: Path, tmp_path: Path
) -> None:
    done = run_profstack(["run", "-o", "rec", train, "4", "0.9"])
    assert done.returncode == 0, done.stderr
    report = report_of(tmp_path / "rec")
    assert steps_in(report) == 4
    # Without the start of torch, which takes what the machine makes of it.
    assert sum(row["wall_s"] for row in report["tables"]["steps"]) < 4 * 0.9 + 30


# -- ending early ------------------------------------------------------------------------------


def test_max_steps_ends_the_script_as_an_exit_would(
    run_profstack: RunProfstack, train: Path, tmp_path: Path
) -> None:
    done = run_profstack(["run", "-o", "rec", "--max-steps", "12", train, "-1"], timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-2].startswith("finally")
    assert lines[-1] == "atexit"
    report = report_of(tmp_path / "rec")
    assert steps_in(report) == 12
    assert report["run"]["stopped_by"] == "max_steps"
    assert report["run"]["exit_code"] == 0


def test_max_steps_caught_twice_lets_the_script_go_on(
    run_profstack: RunProfstack, tmp_path: Path
) -> None:
    stubborn = TRAIN.replace(
        "            optimizer.step()\n",
        "            try:\n"
        "                optimizer.step()\n"
        "            except SystemExit as exit:\n"
        "                print('caught', type(exit).__mro__[1].__name__, exit.code)\n",
    )
    script = write(tmp_path, stubborn)
    done = run_profstack(["run", "-o", "rec", "--max-steps", "10", script, "40"], timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("caught SystemExit 0") == 2
    assert "finally 40" in done.stdout
    report = report_of(tmp_path / "rec")
    assert report["run"]["stopped_by"] == "max_steps"
    assert 10 <= steps_in(report) <= 11


def test_max_seconds_ends_the_script(
    run_profstack: RunProfstack, train: Path, tmp_path: Path
) -> None:
    done = run_profstack(
        ["run", "-o", "rec", "--max-seconds", "3", train, "-1", "0.01"], timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "finally" in done.stdout
    report = report_of(tmp_path / "rec")
    assert report["run"]["stopped_by"] == "max_seconds"
    assert steps_in(report) > 0


@pytest.mark.parametrize(("rule", "factor"), [("backward", 2), ("module", 2), ("optimizer", 1)])
def test_step_by_overrides_the_rule(
    run_profstack: RunProfstack, tmp_path: Path, rule: str, factor: int
) -> None:
    twice = TRAIN.replace(
        "            optimizer.step()\n",
        "            model(torch.randn(4, 8)).pow(2).mean().backward()\n"
        "            optimizer.step()\n",
    )
    script = write(tmp_path, twice)
    done = run_profstack(["run", "-o", "rec", "--step-by", rule, script, "20"])
    assert done.returncode == 0, done.stderr
    report = report_of(tmp_path / "rec")
    assert report["step"]["rule"] == rule
    assert steps_in(report) == 20 * factor


def test_a_user_step_wins(run_profstack: RunProfstack, tmp_path: Path) -> None:
    told = TRAIN.replace("done += 1\n", "done += 1\n            profstack.step()\n")
    script = write(tmp_path, "import profstack\n" + told)
    done = run_profstack(["run", "-o", "rec", script, "20"])
    assert done.returncode == 0, done.stderr
    report = report_of(tmp_path / "rec")
    assert report["step"]["rule"] == "step"
    assert steps_in(report) == 20


# -- signals -----------------------------------------------------------------------------------


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    """`python -m profstack run -o rec WORDS`, left running; returns once a few steps are done."""
    run = subprocess.Popen(
        [sys.executable, "-m", "profstack", "run", "-o", "rec", *words],
        cwd=folder,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    for line in run.stdout:
        if line.startswith("step 15"):
            break
    return run


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on(train: Path, tmp_path: Path, number: signal.Signals) -> None:
    run = start(tmp_path, str(train), "-1", "0.02")
    run.send_signal(number)
    output, errors = run.communicate(timeout=60)
    # By Ctrl-C python ends as by the signal itself: only then does a shell end its loop.
    ended = -number if number == signal.SIGINT else 128 + number
    assert run.returncode == ended, errors
    assert ("finally" in output) is (number == signal.SIGINT)
    assert ("KeyboardInterrupt" in errors) is (number == signal.SIGINT)
    report = report_of(tmp_path / "rec")
    assert report["run"]["signal"] == number
    assert report["run"]["exit_code"] is None
    assert report["status"] != "complete"
    assert steps_in(report) > 0


def test_ctrl_c_ends_a_shells_loop_too(tmp_path: Path) -> None:
    write(tmp_path, "import time\nprint('begun', flush=True)\ntime.sleep(5)\n")
    loop = "for i in 1 2; do $0 -m profstack run -o rec$i train.py; done"
    # A shell of its own session: the signal goes to all of it, as from a terminal.
    shell = subprocess.Popen(
        ["bash", "-c", loop, sys.executable],
        cwd=tmp_path,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert shell.stdout is not None
    assert shell.stdout.readline() == "begun\n"
    os.killpg(shell.pid, signal.SIGINT)
    output, errors = shell.communicate(timeout=60)
    assert "begun" not in output
    assert errors.count("KeyboardInterrupt") == 1
    assert "Wrote rec1" in errors
    assert shell.returncode == -signal.SIGINT


def test_a_shell_sees_an_interrupted_script_as_130(tmp_path: Path) -> None:
    write(tmp_path, "raise KeyboardInterrupt\n")
    done = subprocess.run(
        ["bash", "-c", "$0 -m profstack run -o rec train.py; echo $?", sys.executable],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "130\n"


SIGNALLED_AT_THE_END = """
from profstack.launch import child
finish = child._engine.finish

def interrupted(number=int(sys.argv.pop())):
    import os
    os.kill(os.getpid(), number)
    finish()

child._engine.finish = interrupted
main("""


@pytest.mark.parametrize(("number", "ended"), [(signal.SIGTERM, 143), (signal.SIGINT, 0)])
def test_a_signal_waits_until_the_recording_is_closed(
    run_profstack: RunProfstack, tmp_path: Path, number: signal.Signals, ended: int
) -> None:
    script = write(tmp_path, TRAIN.replace("\nmain(", SIGNALLED_AT_THE_END))
    done = run_profstack(["run", "-o", "rec", script, "20", "0", str(int(number))])
    assert done.returncode == ended, done.stderr
    events = (tmp_path / "rec" / "logs" / "progress.jsonl").read_text()
    assert '"finished"' in events
    assert "incomplete" not in done.stderr
    assert steps_in(report_of(tmp_path / "rec")) == 20


def test_the_scripts_own_handler_decides(tmp_path: Path) -> None:
    handler = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\nmain("
    script = write(tmp_path, TRAIN.replace("\nmain(", "\n" + handler))
    run = start(tmp_path, str(script), "-1", "0.02")
    run.terminate()
    output, errors = run.communicate(timeout=60)
    assert run.returncode == 5, errors
    assert "finally" in output
    assert "atexit" in output
    assert report_of(tmp_path / "rec")["run"]["exit_code"] == 5


def test_a_killed_script_leaves_a_report(train: Path, tmp_path: Path) -> None:
    text = train.read_text().replace(
        'print("step", done, flush=True)',
        'print("step", done, flush=True)\n            done == 40 and __import__("os").kill('
        '__import__("os").getpid(), 9)',
    )
    run = start(tmp_path, str(write(tmp_path, text)), "-1", "0.01")
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 128 + 9, errors
    report = report_of(tmp_path / "rec")
    assert report["run"]["signal"] == 9
    assert report["status"] != "complete"
    assert steps_in(report) > 0


def test_the_script_outlives_a_killed_parent(train: Path, tmp_path: Path) -> None:
    text = train.read_text() + "\nopen('ended', 'w').close()\n"
    run = start(tmp_path, str(write(tmp_path, text)), "60", "0.02")
    run.kill()
    assert run.wait(timeout=30) == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while not (tmp_path / "ended").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert (tmp_path / "ended").exists()
    assert (tmp_path / "rec" / "recording.sqlite").exists()


# -- ranks -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rank", "ranks", "folder"),
    [
        ("1", (), None),
        ("0", (), "rank-00000"),
        ("7", ("--ranks", "all"), "rank-00007"),
    ],
)
def test_only_the_ranks_asked_for_record(
    run_profstack: RunProfstack,
    train: Path,
    tmp_path: Path,
    rank: str,
    ranks: tuple[str, ...],
    folder: str | None,
) -> None:
    done = run_profstack(
        ["run", *ranks, "-o", "rec", train, "10"], env={"RANK": rank, "WORLD_SIZE": "8"}
    )
    assert done.returncode == 0, done.stderr
    assert "finally 10" in done.stdout
    recorded = sorted(path.name for path in tmp_path.glob("rec/*"))
    assert recorded == ([folder] if folder else [])
    if folder is None:
        assert "profstack" not in done.stderr
    else:
        report = report_of(tmp_path / "rec" / folder)
        assert (report["run"]["rank"], report["run"]["world_size"]) == (int(rank), 8)
        assert steps_in(report) == 10


@pytest.mark.parametrize(
    ("rank", "size", "ranks", "said"),
    [
        ("0", "2", "7", "profstack: no rank 7 among 0 and 1 (--ranks 7)\n"),
        ("0", "8", "0,9,8", "profstack: no rank 8, 9 among 0 to 7 (--ranks 0,9,8)\n"),
        ("1", "2", "7", ""),
        ("0", "8", "7", ""),
    ],
)
def test_ranks_that_are_not_there_are_named_by_the_first(
    run_profstack: RunProfstack, tmp_path: Path, rank: str, size: str, ranks: str, said: str
) -> None:
    script = write(tmp_path, "print('ran')\n")
    done = run_profstack(
        ["run", "--ranks", ranks, "-o", "rec", script], env={"RANK": rank, "WORLD_SIZE": size}
    )
    assert done.stdout == "ran\n"
    assert done.stderr.startswith(said)
    assert ("no rank" in done.stderr) is bool(said)


def test_a_launchers_script_is_not_what_is_measured(
    run_profstack: RunProfstack, train: Path, tmp_path: Path
) -> None:
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
    done = run_profstack(["run", "-o", "rec", *launch, train, "3"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("finally 3") == 2
    advice = "write torchrun --nproc-per-node N --no-python profstack run --ranks all"
    # Before it begins: afterwards the run has been in vain.
    assert advice in done.stderr.splitlines()[0]
    (said,) = [one for one in report_of(tmp_path / "rec")["warnings"] if one["slug"] == "launcher"]
    assert advice in said["text"]


def test_a_launcher_starts_profstack_in_every_rank(train: Path, tmp_path: Path) -> None:
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python"]
    run = [sys.executable, "-m", "profstack", "run", "-q", "--ranks", "all", "-o", "rec"]
    done = subprocess.run(
        [sys.executable, *launch, *run, train, "20"],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        assert steps_in(report_of(tmp_path / "rec" / f"rank-{rank:05d}")) == 20


def test_profstack_0_switches_it_off(
    run_profstack: RunProfstack, train: Path, tmp_path: Path
) -> None:
    done = run_profstack(["run", "-o", "rec", train, "3"], env={"PROFSTACK": "0"})
    assert done.returncode == 0
    assert done.stderr == ""
    assert "finally 3" in done.stdout
    assert not (tmp_path / "rec").exists()


# -- how it ended --------------------------------------------------------------------------------

ENDINGS = {
    "1 +": (
        "it ended with SyntaxError",
        "it ended with SyntaxError before it imported torch",
    ),
    "print()": (None, "the script never imported torch"),
    "raise SystemExit(3)": (None, "the script never imported torch"),
    "import os; os._exit(5)": ("it ended with exit code 5", "before it imported torch"),
    "import os; os.kill(os.getpid(), 15)": ("it was ended by SIGTERM", "before it imported torch"),
    "import torch; raise ValueError": ("it ended with ValueError", "and was measured as a whole"),
    "import os, torch; os._exit(5)": ("at once, as by os._exit: what was open is lost", "Unclear"),
}


@pytest.mark.parametrize("text", list(ENDINGS))
def test_a_run_says_how_it_ended(run_profstack: RunProfstack, tmp_path: Path, text: str) -> None:
    done = run_profstack(["run", "-o", "rec", write(tmp_path, text + "\n")])
    partial, verdict = ENDINGS[text]
    report = report_of(tmp_path / "rec")
    assert verdict in report["verdict"]["sentence"]
    if partial is None:
        assert (report["status_reason"], report["status"] == "failed") == (None, False)
        return
    assert partial in report["status_reason"]
    shown = " ".join((done.stderr + run_profstack(["show", "rec"]).stdout).split())
    assert f": {report['status_reason']}" in shown


# -- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("nowhere.py",),
        (".",),
        (),
        ("--layers", "cprofile,sundial", "train.py", "1"),
        ("--max-steps", "0", "train.py", "1"),
        ("--step-by", "moonlight", "train.py", "1"),
        ("-o", "train.py/rec", "train.py", "1"),
        ("-o", "/proc/profstack", "train.py", "1"),
        ("--no-such-option", "train.py", "1"),
    ],
    ids=lambda words: "_".join(words) or "nothing",
)
def test_bad_input_is_told_in_one_line(
    run_profstack: RunProfstack, train: Path, words: tuple[str, ...]
) -> None:
    done = run_profstack(["run", *words], timeout=60)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("usage:")]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("profstack"), done.stderr
    assert "Traceback" not in done.stderr


def test_an_output_that_exists_is_not_overwritten(
    run_profstack: RunProfstack, train: Path, tmp_path: Path
) -> None:
    (tmp_path / "rec").mkdir()
    (tmp_path / "rec" / "mine.txt").write_text("mine")
    done = run_profstack(["run", "-o", "rec", train, "1"], timeout=60)
    assert done.returncode == 2
    assert "--force" in done.stderr
    assert [path.name for path in (tmp_path / "rec").iterdir()] == ["mine.txt"]


def plain(script: Path) -> subprocess.CompletedProcess[str]:
    """The script under plain python."""
    return subprocess.run(
        [sys.executable, script.name],
        cwd=script.parent,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "text",
    [
        "def broken(:\n    pass\n",
        "import torch\nraise ValueError('before the first step')\n",
        "raise ValueError('before torch')\n",
        "import sys\nsys.exit('a word of goodbye')\n",
    ],
    ids=["syntax", "before_first_step", "before_torch", "exit_with_words"],
)
def test_the_scripts_own_error_is_its_own(
    run_profstack: RunProfstack, tmp_path: Path, text: str
) -> None:
    script = write(tmp_path, text)
    expected = plain(script)
    done = run_profstack(["run", "-o", "rec", script.name], timeout=60)
    if done.returncode == 2:
        assert done.stderr.startswith("profstack: ")
        assert len(done.stderr.splitlines()) == 1
        return
    assert done.returncode == expected.returncode == 1
    assert without_own_lines(done.stderr.encode()) == expected.stderr.encode()


def test_a_missing_module_is_told_by_python_itself(
    run_profstack: RunProfstack, tmp_path: Path
) -> None:
    done = run_profstack(["run", "-m", "no.such.module"], timeout=60)
    assert done.returncode == 1
    first, *others = done.stderr.splitlines()
    assert "no.such.module" in first
    assert all(line.startswith(("profstack: ", "Wrote ")) for line in others)


def test_an_error_in_training_leaves_a_report_of_what_was_seen(
    run_profstack: RunProfstack, tmp_path: Path
) -> None:
    script = write(tmp_path, TRAIN.replace("done += 1", "done += 1\n            1 / (20 - done)"))
    done = run_profstack(["run", "-o", "rec", script, "100"])
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    report = report_of(tmp_path / "rec")
    assert report["run"]["exit_code"] == 1
    assert steps_in(report) == 20
    assert check_layers(report) == set(LAYERS)


# -- speaking ----------------------------------------------------------------------------------


def test_progress_and_summary_go_to_standard_error_alone(
    run_profstack: RunProfstack, train: Path, tmp_path: Path
) -> None:
    done = run_profstack(["run", train, "12"])
    assert done.stdout == plain_output(train, "12")
    lines = done.stderr.splitlines()
    assert lines[-1].startswith("Wrote ")
    assert Path(tmp_path / lines[-1].removeprefix("Wrote ")).is_file()
    assert [path.name for path in (tmp_path / "profstack-runs").iterdir()] == ["train-0001"]
    quiet = run_profstack(["run", "-q", train, "12"])
    assert quiet.stdout == done.stdout
    assert without_own_lines(quiet.stderr.encode()) == b""
    assert "profstack:" not in quiet.stderr
    names = sorted(path.name for path in (tmp_path / "profstack-runs").iterdir())
    assert names == ["train-0001", "train-0002"]


def plain_output(script: Path, *arguments: str) -> str:
    """What the script prints under plain python."""
    return subprocess.check_output(
        [sys.executable, script, *arguments], env=clean_environment(), text=True
    )


def test_importing_profstack_in_a_plain_run_changes_nothing(train: Path, tmp_path: Path) -> None:
    script = write(
        tmp_path, "import profstack, sys\nprofstack.step()\nprint('torch' in sys.modules)\n"
    )
    assert plain(script).stdout == "False\n"
