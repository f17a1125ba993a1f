"""Findings of the whole run: both sides of each limit, and what the advice saves."""

from types import SimpleNamespace

import pandas as pd

from profstack.findings import rules
from profstack.findings.run_costs import run_costs
from tests.support.findings import TRAIN, report_of
from tests.support.tables import cases, near, of


def found(part, wall_s, share, *, compiled_s=0.0, count=50):
    known = {"file": TRAIN, "line": 7, "name": "work", "by": "samples"}
    rows = [{"part": part, "wall_s": wall_s, "share": share, **known}]
    rows.append({**rows[0], "part": "profstack", "share": None, "wall_s": 99.0})
    frames = {"compilations": pd.DataFrame({"wall_s": [compiled_s]})}
    report = report_of(parts={"run_bar": rows, "step": {"count": count}})
    return run_costs(SimpleNamespace(frames=frames), report)


@cases(
    "part rule least_s saved",
    ("evaluation", rules.EVALUATION_COST, 1.0, 0.5),
    ("checkpoints and saving", rules.SAVING_COST, 1.0, 0.5),
    ("logging and callbacks", rules.LOGGING_COST, 0.5, 0.9),
    ("start-up and imports", rules.SLOW_START, 30.0, None),
    ("model and data set-up", rules.SLOW_START, 3.0, None),
    ("first step and compilation", rules.COMPILATION_COST, 5.0, None),
    ("shutdown", rules.SLOW_SHUTDOWN, 10.0, None),
)
def test_a_part_is_found_from_its_share_and_its_seconds_on(part, rule, least_s, saved):
    compiled = {"compiled_s": 0.5 * least_s}
    (told,) = found(part, least_s, rule.threshold, **compiled)
    assert of(told, "slug run_s run_gain_s gain_s file line layers") == near(
        rule.slug, least_s, saved and saved * least_s, None, TRAIN, 7, ["watch"]
    )
    assert told["severity"] == ("high" if rule.threshold >= 0.2 else "medium")
    assert " work" in told["title"]
    assert not found(part, 0.99 * least_s, rule.threshold, **compiled)
    assert not found(part, least_s, 0.99 * rule.threshold, **compiled)
    assert not found(part, least_s, rule.threshold, count=0, **compiled)
    # A first step may be long for other reasons than its compilation.
    is_found = bool(found(part, least_s, 0.9, compiled_s=0.49 * least_s))
    assert is_found is (rule is not rules.COMPILATION_COST)
