"""The example that measures one convolution by every counter and clock there is."""

import re

from tests.support.processes import CHECKOUT
from tests.support.recorded_runs import report_of

HEIGHT, WIDTH = 40, 56
# Six outputs over three channels and 5 x 5 neighbours, a multiply-add being two operations.
FLOP = 2 * 6 * HEIGHT * WIDTH * 3 * 25


def test_the_tools_in_the_script_go_before_profstacks_own_and_agree(run_profstack, tmp_path):
    script = CHECKOUT / "examples" / "convolution_counters.py"
    done = run_profstack(["run", "-o", "rec", script, "--size", HEIGHT, WIDTH, "--repeats", 8])
    output = done.stdout
    told = {name.strip(): text for name, text in re.findall(r"(?m)^(.{16}) (.*)$", output)}
    for name in ("by hand", "FlopCounterMode", "flops-profiler"):
        assert told[name].startswith(f"{FLOP:,} FLOP"), output
        assert told[name].endswith("(as by hand)")
    # Named twice: once for its time, once for its count.
    assert len(re.findall(r"(?m)^torch\.profiler ", output)) == 2
    assert f"{FLOP:,} FLOP" in told["torch.profiler"]
    for name in ("clock", "cProfile"):
        assert re.match(r"\d+\.\d{3} ms", told[name]), output
    assert re.search(r"the blur is avg_pool2d's to \d\.\de-0[5-9]", output)
    assert "thop" in told
    report = report_of(tmp_path / "rec")
    assert report["step"]["rule"] == "module"
    assert "Filters.convolution" in {row["path"] for row in report["tables"]["modules"]}
    assert report["benchmark"]["median_s"] > 0
