"""The example that measures one convolution by every counter and clock there is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import CHECKOUT, RunProfstack, clean_environment

SCRIPT = str(CHECKOUT / "examples" / "convolution_counters.py")
HEIGHT, WIDTH = 40, 56
# Six outputs over three channels and 5 x 5 neighbours, a multiply-add being two operations.
FLOP = 2 * 6 * HEIGHT * WIDTH * 3 * 25
SIZE = ("--size", str(HEIGHT), str(WIDTH), "--repeats", "8")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}

pytestmark = pytest.mark.slow


def check(output: str) -> None:
    """Every counter agrees with the count by hand, and every clock gave a time."""
    lines = dict(re.findall(r"^(.{16}) (.*)$", output, re.MULTILINE))
    told = {name.strip(): text for name, text in lines.items()}
    for name in ("by hand", "FlopCounterMode", "flops-profiler"):
        assert told[name].startswith(f"{FLOP:,} FLOP"), output
        assert told[name].endswith("(as by hand)")
    # Named twice: once for its time, once for its count.
    assert len(re.findall(r"^torch\.profiler ", output, re.MULTILINE)) == 2
    assert f"{FLOP:,} FLOP" in told["torch.profiler"]
    for name in ("clock", "cProfile"):
        assert re.match(r"\d+\.\d{3} ms", told[name]), output
    assert re.search(r"the blur is avg_pool2d's to \d\.\de-0[5-9]", output)
    assert "thop" in told


def test_every_counter_agrees(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, *SIZE],
        cwd=tmp_path,
        env=clean_environment(**ONE_THREAD),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    check(done.stdout)


def test_the_tools_in_the_script_go_before_profstacks_own(
    run_profstack: RunProfstack, tmp_path: Path
) -> None:
    done = run_profstack(["run", "-o", "rec", SCRIPT, *SIZE], env=ONE_THREAD)
    assert done.returncode == 0, done.stderr
    check(done.stdout)
    report = json.loads((tmp_path / "rec" / "report.json").read_text(encoding="utf-8"))
    assert report["step"]["rule"] == "module"
    paths = {row["path"] for row in report["tables"]["modules"]}
    assert "Filters.convolution" in paths
    assert report["benchmark"]["median_s"] > 0
