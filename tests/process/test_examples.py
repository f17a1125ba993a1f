"""Each example runs as it is under `profstack run`, is counted, and no fault is found in it."""

import re

import pytest

from profstack.findings.rules import RULES
from tests.support.processes import CHECKOUT
from tests.support.recorded_runs import report_of, steps_in

# How each is run, by what its steps are found, a module that the report must name, and findings
# that may be made: an unfused optimizer hangs on the machine, a GRU goes element by element, and
# the last is made to wait for data that Python draws.
ATTENTION = "GPT2LMHeadModel.transformer.h.0.attn.c_attn"
UNFUSED, WAITS = "unfused-optimizer", "data-starved python-hot-spot"
RUNS = [
    ("train_digits.py --epochs 2", "optimizer", "ConvNet.features.0.0", UNFUSED),
    ("two_layer_net.py", "module", "Sequential.2", ""),
    ("small_transformer.py --steps 30 --layers 2 --width 64", "optimizer", ATTENTION, UNFUSED),
    ("resnet18_inference.py --size 64", "module", "ResNet18.layer4.1.conv2", ""),
    ("nvtx_markers.py --steps 60", "optimizer", "Adder.recurrent", f"{UNFUSED} small-operators"),
    ("slow_loader.py --epochs 2 --size 32", "optimizer", "Sequential.2", WAITS),
]
# What tells of the machine, or of a run that is kept short for the tests.
OF_THE_RUN = {"too-short-or-noisy", "warmup-never-settles"}
THRESHOLDS = {rule.slug: rule.threshold for rule in RULES}


def is_fault(found, median_s):
    """Whether a finding would be made on any machine.

    One from a share of the step may be the machine's, unless half of the step could go; all of the
    whole run are shares of a run that is kept short.
    """
    if found["run_s"] is not None:
        return False
    return not THRESHOLDS[found["slug"]] or (found["gain_s"] or 0.0) > median_s / 2


@pytest.mark.parametrize(("words", "rule", "module", "allowed"), RUNS)
def test_an_example_is_counted(tmp_path, run_profstack, words, rule, module, allowed):
    done = run_profstack(["run", "-o", "rec", *f"{CHECKOUT}/examples/{words}".split()])
    report = report_of(tmp_path / "rec")
    # The example's own count is the last line of its output.
    assert done.stdout.splitlines()[-1] == f"steps: {steps_in(report)}"
    assert (steps_in(report) > 0, report["step"]["rule"]) == (True, rule)
    for row in report["layers"]:
        # Nobody listens to NVTX here.
        assert row["status"] == ("emitted" if row["name"] == "nvtx" else "recorded"), row
    assert module in {row["path"] for row in report["tables"]["modules"]}
    median_s = report["benchmark"]["median_s"]
    assert median_s > 0
    faults = [each for each in report["findings"] if is_fault(each, median_s)]
    told = {each["slug"]: each["title"] for each in faults}
    assert {slug: told[slug] for slug in told.keys() - OF_THE_RUN - set(allowed.split())} == {}
    assert [row for row in report["warnings"] if row["slug"] == "findings-failed"] == []


HEIGHT, WIDTH = 40, 56
# Six outputs over three channels and 5 x 5 neighbours, a multiply-add being two operations.
FLOP = 2 * 6 * HEIGHT * WIDTH * 3 * 25


def test_the_tools_in_the_script_go_before_profstacks_own_and_agree(run_profstack, tmp_path):
    script = CHECKOUT / "examples" / "convolution_counters.py"
    done = run_profstack(["run", "-o", "rec", script, "--size", HEIGHT, WIDTH, "--repeats", 40])
    output = done.stdout
    told = {name.strip(): text for name, text in re.findall(r"(?m)^(.{16}) (.*)$", output)}
    for name in ("by hand", "FlopCounterMode", "flops-profiler"):
        assert told[name].startswith(f"{FLOP:,} FLOP"), output
        assert told[name].endswith("(as by hand)")
    # Named twice: once for its time, once for its count.
    assert len(re.findall(r"(?m)^torch\.profiler ", output)) == 2
    assert f"{FLOP:,} FLOP" in told["torch.profiler"]
    report = report_of(tmp_path / "rec")
    assert report["step"]["rule"] == "module"
    assert "Filters.convolution" in {row["path"] for row in report["tables"]["modules"]}
    assert report["benchmark"]["median_s"] > 0
