"""What `profstack try` has found of a made-up script."""

_ROW = {
    "summary": "make it so", "times_of": "step", "reason": None, "recommended": False,
    "before_s": 0.02, "after_s": 0.02, "ratio": 1.0, "ci95_low": 0.97, "ci95_high": 1.03,
    "processes": 3, "run_gain_s": None, "first_step_s": 0.1, "break_even_steps": None,
    "peak_rss_bytes": 400 << 20, "plain_peak_rss_bytes": 300 << 20, "peak_device_bytes": None,
    "plain_peak_device_bytes": None,
    "results": "equal", "largest_difference": 0.0, "file": None, "line": None, "diff": None,
    "edit": None,
}  # fmt: skip
DIFF = "--- a/train.py\n+++ b/train.py\n@@ -3 +3 @@\n-loader()\n+loader(num_workers=2)\n"


def trial(change, verdict, *findings, **more):
    """A row of one change, or of several that are joined by " + "."""
    names = [name.split("=")[0] for name in change.split(" + ")]
    own = {"change": change, "changes": names, "findings": [*findings], "verdict": verdict}
    return {**_ROW, **own, **more}


def tried():
    """A fresh report: one change gains, one breaks, one changes results; two gain more."""
    gain = {"after_s": 0.012, "ratio": 0.6, "ci95_low": 0.55, "ci95_high": 0.66}
    return {
        "schema_version": 1,
        "command": ["train.py"],
        "steps": 60,
        "floor": 0.25,
        "confidence": 0.9875,
        "plain_processes": 6,
        "plain_results": "equal",
        "digits_limit": 0.002,
        "seconds": 95.0,
        "ended": "each change is clear",
        "trials": [
            trial("workers=2", "gains", "data-starved", recommended=True, diff=DIFF, **gain),
            trial("eval-mode", "gains", results="different", reason="it changes results", **gain),
            trial("set-to-none", "same"),
            trial(
                "compile", "breaks", ratio=None, results=None, reason="no compiler (exit code 1)"
            ),
        ],
        "best": [trial("workers + fused", "gains", recommended=True, **{**gain, "ratio": 0.5})],
        "left_out": {"pin-memory": "it uses no GPU"},
    }
