"""Comparisons of made-up recordings: the answer, its interval, parts that add up, and places."""

import copy
import math
import random
import re
import statistics

import pytest

from profstack.compare import gates, noise
from profstack.compare.comparison import compare
from profstack.compare.noise import remember_spread
from profstack.compare.places import Places
from profstack.compare.sides import Side
from profstack.compare.tables import one_sided
from profstack.report import files, terminal_compare
from profstack.stats.processes import student_quantile
from tests.support.reports import build, completed, rows

PARTS = {"data wait": 0.7e-3, "forward": 1.1e-3, "backward": 0.83e-3, "optimizer": 0.29e-3}
RUN = {"start-up and imports": 3.1, "steps": 5.3, "other": 0.4, "profstack": 2.2}
# With a slower wait for data.
SLOW = {**PARTS, "data wait": 2.2e-3}
TEXT = "def train():\n    batch = load()\n    batch = batch.sort()\n    evaluate()\n"
_MADE = completed(build(), files.schema())


@pytest.fixture(autouse=True)
def _no_store(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def recording(scale=1.0, *, parts=PARTS, run=RUN, number=0, **changed):
    """A report whose step and run have these parts, all of them multiplied by `scale`."""
    report = copy.copy(_MADE)
    step_s = scale * sum(parts.values())
    bars = [{"name": name, "seconds": scale * seconds, "share": 0.1, "link": None, "is": "clean"}
            for name, seconds in parts.items()]  # fmt: skip
    runs = [{"part": name, "wall_s": seconds * (scale if name == "steps" else 1.0), "share": None,
             "by": "clock", "file": "/a/train.py", "line": 4, "name": name, "functions": []}
            for name, seconds in run.items()]  # fmt: skip
    report["benchmark"] = {**report["benchmark"], "median_s": step_s,
        "ci95_low_s": 0.995 * step_s, "ci95_high_s": 1.005 * step_s, "n": 90}  # fmt: skip
    report["step_bar"] = {"median_s": step_s, "time_line": "host", "parts": bars, "reason": None}
    report["run"] = {**report["run"], "id": f"run-{number}"}
    return {**report, "run_bar": runs, "sources": [{"file": "/a/train.py", "text": TEXT}],
            **changed}  # fmt: skip


def side(label, *scales, **how):
    reports = [recording(scale, number=f"{label}{at}", **how) for at, scale in enumerate(scales)]
    return Side(label, reports)


def steady(label, **how):
    """A side of three recordings that hardly differ."""
    return side(label, 0.999, 1.0, 1.001, **how)


def noisy(rng, scale, count, spread=0.015):
    return [scale * rng.lognormvariate(0, spread) for _ in range(count)]


@pytest.mark.parametrize("counts", [(1, 1), (7, 5)])
def test_parts_add_up_to_the_last_digit_also_as_they_are_printed(counts):
    rng = random.Random(sum(counts))
    sides = []
    for label, count in zip("ab", counts, strict=True):
        reports = [recording(parts={name: value * rng.uniform(0.5, 1.5) for name, value in
                                    PARTS.items()}) for _ in range(count)]  # fmt: skip
        sides.append(Side(label, reports))
    sides[1].reports[0]["step_bar"]["parts"][0]["name"] = "making the batch"
    found = compare(*sides)
    step = found["answers"][0]
    parts = [part for part in found["parts"] if part["of"] == "step"]
    assert sum(part["before_s"] for part in parts) == step["before_s"]
    assert sum(part["after_s"] for part in parts) == step["after_s"]
    assert sum(part["difference_s"] for part in parts) == step["after_s"] - step["before_s"]
    shown = r"[* ] (data|making|forward|backward|optimizer|together)"
    lines = terminal_compare.text(found).splitlines()
    listed = [line[2:].rsplit(maxsplit=3) for line in lines if re.match(shown, line)]
    for column in (1, 2, 3):
        figures = [round(1e4 * float(re.sub(r" .*", "", cells[column]))) for cells in listed[:6]]
        assert sum(figures[:-1]) == figures[-1], listed


def test_a_speed_up_is_faster_and_intervals_of_parts_hold_together():
    found = compare(side("a", 0.98, 1.0, 1.01), side("b", 0.79, 0.8, 0.82))
    assert (found["verdict"]["slug"], found["verdict"]["action"]) == ("faster", "")
    whole = found["verdict"]["ci95_high"] - found["verdict"]["ci95_low"]
    for part in (part for part in found["parts"] if part["of"] == "step"):
        # Each part is slower or faster by the same factor: only the confidence is another.
        assert (part["high_s"] - part["low_s"]) / part["before_s"] > 1.5 * whole


@pytest.mark.parametrize(("scale", "slug"), [(1.1, "unclear"), (0.9, "unclear"), (1.6, "slower")])
def test_single_recordings_on_an_unknown_machine_tell_only_what_no_machine_differs_by(scale, slug):
    verdict = compare(side("a", 1.0), side("b", scale))["verdict"]
    assert (verdict["slug"], verdict["spread"]) == (slug, "assumed")
    # Student's factor at six degrees of freedom, 5 % a process.
    assert verdict["floor"] == pytest.approx(0.191, abs=0.01)
    assert ("19 %" in verdict["sentence"]) == (slug == "unclear")


def test_the_spread_of_earlier_comparisons_serves_single_recordings():
    rng = random.Random(2)
    known = [noisy(rng, 1, 6, 0.01) for _ in range(2)]
    remember_spread([side(name, *each) for name, each in zip("xy", known, strict=True)])
    verdict = compare(side("a", 1.0), side("b", 1.1))["verdict"]
    assert (verdict["slug"], verdict["spread"]) == ("slower", "this machine")
    # What is assumed of any machine counts three tenths of a process more.
    deviations = [statistics.stdev(map(math.log, each)) for each in known]
    squares = 5 * sum(each**2 for each in deviations) + 0.3 * noise.ASSUMED.deviation**2
    found = noise.stored_spread(side("a", 1.0).first).prior
    assert found == noise.Prior(pytest.approx(math.sqrt(squares / 10.3)), 10.0)
    other = noise.stored_spread(recording(script="another.py")).prior
    assert other == noise.Prior(found.deviation, 4.0)
    # The same recordings again say no more.
    remember_spread([side("x", *noisy(rng, 1, 6, 0.3))])
    assert compare(side("a", 1.0), side("b", 1.1))["verdict"] == verdict


def test_the_spread_of_the_other_side_serves_a_single_recording():
    scales = (0.97, 1.0, 1.03, 1.01)
    verdict = compare(side("a", *scales), side("b", 1.12))["verdict"]
    logs = [math.log(scale) for scale in scales]
    # The medians' own intervals of 1 % from end to end count, too.
    deviation = math.hypot(statistics.stdev(logs), 0.0025)
    reach = student_quantile(0.95, 3) * deviation * (1 + 1 / 4) ** 0.5
    assert verdict["floor"] == pytest.approx(math.expm1(reach), rel=1e-6)
    assert (verdict["slug"], verdict["spread"]) == ("slower", "between processes")


def test_waiting_for_a_core_widens_the_interval_and_is_said():
    busy = {**_MADE["processes"], "step_s": 0.003, "no_core_s": 0.0006}
    calm, loud = (
        compare(side("a", 1.0), side("b", 1.0, **how)) for how in ({}, {"processes": busy})
    )
    assert loud["verdict"]["floor"] > 1.5 * calm["verdict"]["floor"]
    assert [each["slug"] for each in loud["inequalities"]] == ["disturbed"]
    assert calm["inequalities"] == []


def _tables(name, columns, *figures, **same):
    """Tables of a report of which one has these rows."""
    return {"tables": {**_MADE["tables"], name: rows(name, columns, *figures, **same)}}


def _line_times(*seconds):
    same = {"file": "/a/train.py", "own": True, "operator_s": 0.0}
    made = _tables("lines", "line python_s", *enumerate(seconds, 2), **same)
    made["tables"]["module_lines"] = []
    return made


@pytest.mark.parametrize(("lines", "places"), [
    ((1e-4, 1.7e-3), "train.py:3 batch = batch.sort()"),
    # A fifth of the difference is a place of its own, less is none.
    ((4.1e-4, 1.2e-3), "train.py:3 batch = batch.sort(); train.py:2 batch = load()"),
    ((3.9e-4, 1.2e-3), "train.py:3 batch = batch.sort()"),
    # No line explains three tenths.
    ((5.4e-4, 5.4e-4), None),
])  # fmt: skip
def test_the_first_line_names_part_and_places_and_gives_the_rest(lines, places):
    before = steady("a", **_line_times(1e-4, 1e-4))
    after = steady("b", parts=SLOW, **_line_times(*lines))
    sentence = compare(before, after)["verdict"]["sentence"]
    assert sentence.startswith("step 2.92 -> 4.42 ms (+51 %")
    assert sentence.endswith(": data wait +1.50" + (f" ({places})" if places else ""))


@pytest.mark.parametrize(("share", "is_most"), [(0.51, True), (0.49, False)])
def test_where_no_part_is_beyond_noise_the_place_of_the_most_is_named(share, is_most):
    def apart(label, wait_s, forward_s, lines):
        """The step is steady; how much of it is which part is not known well."""
        reports = []
        for number, moved in enumerate((-1.2e-3, 0.0, 1.2e-3)):
            parts = {"data wait": wait_s + moved, "forward": forward_s - moved}
            one = _line_times(*lines)
            reports.append(recording(1.0, parts=parts, number=f"{label}{number}", **one))
        return Side(label, reports)

    before = apart("a", 1.5e-3, 2.5e-3, (1e-4, 1e-4))
    after = apart("b", 1.5e-3 + share * 2e-3, 2.5e-3 + (1.0 - share) * 2e-3, (1e-4, 1.2e-3))
    sentence = compare(before, after)["verdict"]["sentence"]
    assert sentence.startswith("step 4.00 -> 6.00 ms (+50 %")
    named = f"mostly data wait +{share * 2:.2f} (train.py:3 batch = batch.sort())"
    assert (named in sentence) is is_most
    assert sentence.endswith("no part by itself is beyond noise")


def finding(slug, line, *layers):
    return {"slug": slug, "title": slug, "module": None, "file": "/a/train.py", "line": line,
            "layers": list(layers)}  # fmt: skip


def _with_findings(*found):
    return {"findings": [finding(*each) for each in found], "warnings": []}


def _causes(found):
    return {(part["of"], part["name"]): [(each["line"], each["cause"]) for each in part["places"]]
            for part in found["parts"] if part["beyond_noise"]}  # fmt: skip


@pytest.mark.parametrize("forward", [True, False])
def test_a_finding_that_comes_or_goes_with_a_part_is_its_cause(forward):
    waiting = {**RUN, "waiting for data": 0.4}
    slow = {"parts": {**SLOW, "optimizer": 0.7e-3},
            "run": {**waiting, "waiting for data": 3.2}}  # fmt: skip
    sides = [
        steady("a", run=waiting, **_line_times(1e-4, 1e-4), **_with_findings()),
        steady("b", **slow, **_line_times(1e-4, 1.7e-3), **_with_findings(
            ("forced-synchronisation", 3), ("unfused-optimizer", 4), ("module-dominates", 2))),
    ]  # fmt: skip
    causes = _causes(compare(*(sides if forward else reversed(sides))))
    gone = "" if forward else ", gone"
    line = (3, f"batch = batch.sort(): values are asked for during the step{gone}")
    assert causes["step", "data wait"] == [line]
    assert causes["step", "optimizer"] == [
        (4, f"the optimizer goes through its tensors operator by operator{gone}")]  # fmt: skip
    # One cause for one thing.
    assert causes["run", "waiting for data"] == [line]


def test_lines_of_a_block_are_one_place_with_its_head():
    text = "def f(x):\n    for _ in range(9):\n        x = x.sort()\n    y = x.flip()\n"
    sources = [{"file": "/a/train.py", "text": text}]
    places = Places(*(side(name, 1.0, sources=sources) for name in "ab"))
    one, file = places.is_one_place, "/a/train.py"
    pairs = [(2, 3), (3, 3), (1, 3), (2, 4), (3, 4)]
    assert [one(1, (file, first), (file, second)) for first, second in pairs] == [
        *(True, True, True, False, False)]  # fmt: skip
    assert not one(1, (file, 2), ("/a/other.py", 3))


def _modules(*given):
    """Modules by path, type, forward seconds, and the line that calls them."""
    made = _tables("modules", "path type forward_s", *[each[:3] for each in given], backward_s=0.0)
    lines = [(path, line, seconds) for path, _, seconds, line in given if line]
    same = {"file": "/a/train.py", "python_s": 0.0, "backward_s": 0.0}
    made["tables"]["module_lines"] = rows("module_lines", "module line operator_s", *lines, **same)
    return made


def test_modules_that_one_line_calls_are_one_place_and_new_ones_are_said_by_the_outermost():
    kept = [("Net", "Net", 1.1e-3, None), ("Net.0", "Linear", 1.1e-3, 2)]
    new = [("Net", "Net", 2.6e-3, None), ("Net.0", "Linear", 1.1e-3, 2)]
    for at, seconds in (("1", 0.7e-3), ("2", 0.8e-3)):
        new += [(f"Net.{at}", "Block", seconds, 3), (f"Net.{at}.first", "Mish", seconds, 3)]
    before = steady("a", **_modules(*kept))
    slow = {**PARTS, "forward": 2.6e-3}
    after = steady("b", parts=slow, **_modules(*new))
    assert _causes(compare(before, after))["step", "forward"] == [(3, "Net.2 and 1 more, new")]
    assert Places(before, after).module_place("Net.2") == ("/a/train.py", 3)


@pytest.mark.parametrize(("part", "changed", "slug", "severity"), [
    ("environment", {"torch_threads": 4}, "threads", "high"),
    ("environment", {"commit": "77aa"}, "commit", "low"),
    ("step", {"batch_size": 128}, "batch-size", "high"),
    ("step", {"count": 17}, "steps", "low"),
    (None, {"argv": ["train.py", "--fast"]}, "argv", "high"),
    (None, {"script": "/other/train2.py"}, "script", "high"),
    ("launching", {"operators": 900.0}, "operators", "low"),
])  # fmt: skip
def test_what_differs_is_said_and_nothing_else(part, changed, slug, severity):
    known = {"environment": {"torch_threads": 2}, "launching": {"operators": 500.0}}
    base = {name: {**_MADE[name], **known.get(name, {})} for name in ("environment", "launching")}
    new = changed if part is None else {part: {**base.get(part, _MADE[part or ""]), **changed}}
    found = compare(side("a", 1.0, **base), side("b", 1.0, **{**base, **new}))["inequalities"]
    assert [(each["slug"], each["severity"]) for each in found] == [(slug, severity)]
    assert found[0]["before"] != found[0]["after"]


def test_a_built_in_function_has_no_place_and_next_to_nothing_is_not_told():
    def tables(*functions):
        same = {"phase": "step", "file": "~", "line": 0, "own": False}
        return _tables("functions", "name calibrated_s", *functions, **same)

    whole = sum(PARTS.values())
    before = tables(("unary", 1e-8), ("small", 1e-8))
    after = tables(("unary", 0.006 * whole), ("small", 0.0045 * whole))
    found = compare(steady("a", **before), steady("b", **after))
    told = {each["key"]: each for each in _table(found, "functions")["rows"]}
    assert told["unary (built-in)"]["change"]["beyond_noise"] is True
    assert told["small (built-in)"]["change"]["beyond_noise"] is False
    assert {(each["file"], each["line"]) for each in told.values()} == {(None, None)}


def test_rows_without_a_partner_are_listed_and_the_largest_difference_is_first():
    def tables(*functions):
        same = {"phase": "step", "file": "/x/site-packages/lib.py", "own": False}
        return _tables("functions", "line name calls calibrated_s", *functions, **same)

    before = tables((1, "kept", 2.0, 4e-4), (9, "old", 1.0, 1e-9), (20, "even", 1.0, 3e-4))
    after = tables((3, "kept", 5.0, 9e-4), (30, "fresh", 3.0, 2e-9), (21, "even", 1.0, 3e-4))
    table = _table(compare(side("a", 1.0, **before), side("b", 1.0, **after)), "functions")
    found = [(each["key"], each["status"]) for each in table["rows"]]
    assert found == [("kept", "moved"), ("fresh", "new"), ("old", "gone")]
    kept = table["rows"][0]
    assert (kept["calls_before"], kept["calls_after"]) == (2.0, 5.0)
    assert kept["change"]["difference"] == pytest.approx(5e-4)
    assert table["left_out"] == 1


def _operators(*figures):
    return _tables("operators", "name shapes calls calibrated_s", *figures)["tables"]


def _table(found, name):
    return next(each for each in found["tables"] if each["name"] == name)


@pytest.mark.parametrize("which", ["first", "second"])
def test_what_one_side_did_not_record_is_not_gone(which):
    sides = [side("a", 1.0, 1.01, tables=_operators(("mm", "", 2.0, 4e-4))),
             side("b", 1.0, 1.02, tables=_operators())]  # fmt: skip
    found = compare(*(sides if which == "second" else reversed(sides)))
    for name in ("operators", "operator_calls"):
        table = _table(found, name)
        reason = f"the {which} side did not record it"
        assert (table["rows"], table["left_out"], table["reason"]) == ([], 0, reason)
    [said] = one_sided(found["tables"])
    assert said.endswith(f"the {which} side did not record it: Operators; Calls of operators.")


def test_a_recording_without_a_figure_counts_in_no_mean_of_it():
    before = side("a", 1.0, 1.02, 0.98, 1.0, tables=_operators(("mm", "", 2.0, 5e-4)))
    after = side("b", 1.0, 1.02, 0.98, 1.0, tables=_operators(("mm", "", 2.0, 6e-4)))
    none = {**_MADE["benchmark"], "median_s": None}
    # One without operators and steps, one that has operators and not this one.
    after.reports[1] |= {"tables": _operators(), "benchmark": none}
    after.reports[2] |= {"tables": _operators(("add", "", 2.0, 3e-4))}
    assert after.kept.tolist() == pytest.approx([1 / 3, 0, 1 / 3, 1 / 3])
    found = compare(before, after)
    told = {each["key"]: each["change"] for each in _table(found, "operators")["rows"]}
    assert [told[key]["after"] for key in ("mm", "add")] == pytest.approx([4e-4, 1e-4])
    # From nothing there is no ratio.
    assert (told["add"]["before"], told["add"]["reason"]) == (0.0, "the first side has none")
    assert told["mm"]["reason"] is None
    told = {each["key"]: each["change"] for each in _table(found, "times")["rows"]}
    assert told["step"]["after"] == pytest.approx(2.98 / 3 * sum(PARTS.values()))


def test_rows_of_a_table_leave_out_their_own_extremes():
    # The outlier is in the recording with the middle step.
    times = (4e-4, 4.1e-4, 9e-3, 4.2e-4, 4.3e-4, 4.4e-4)
    scales = (0.97, 0.98, 1.0, 1.01, 1.02, 1.03)
    before, after = side("a", *scales), side("b", *scales)
    for report, seconds in zip(before.reports, times, strict=True):
        report["tables"] = _operators(("mm", "", 2.0, seconds))
    for report in after.reports:
        report["tables"] = _operators(("mm", "", 2.0, 9e-4))
    change = _table(compare(before, after), "operators")["rows"][0]["change"]
    assert (change["before"], change["beyond_noise"]) == (pytest.approx(4.25e-4), True)


def test_a_finding_counts_where_half_of_the_recordings_that_could_see_it_have_it():
    ran = [{"name": "clean", "status": "recorded"}, {"name": "torch", "status": "recorded"}]
    first = [finding("deep", 2, "torch"), finding("rare", 3, "clean", "other")]
    layers = [ran, [ran[0], {**ran[1], "status": "skipped"}], ran[:1]]
    seen = [[*first, first[0]], [finding("often", 3, "clean")], [finding("often", 4, "clean")]]
    reports = [
        recording(layers=each, findings=found, warnings=[])
        for each, found in zip(layers, seen, strict=True)
    ]
    # The same rule in the same function, at another line, is the same finding.
    before = side("a", 1.0, 1.0, 1.0, layers=ran[:1], findings=[finding("gone", 3),
                  finding("often", 2)], warnings=[])  # fmt: skip
    rules = gates.parse_all(["findings > 2", "findings > 3"])
    found = compare(before, Side("b", reports), rules=rules)
    told = [(each["status"], each["slug"]) for each in found["findings"]]
    assert told == [("gone", "gone"), ("new", "deep")]
    # Twice in one function is two findings.
    assert [each["result"] for each in found["gates"]] == ["broken", "kept"]


def test_nothing_to_compare_is_unclear_with_a_reason():
    none = {"benchmark": {**_MADE["benchmark"], "median_s": None}, "run_bar": []}
    reports = [{**recording(), **none} for _ in range(2)]
    verdict = compare(Side("a", reports[:1]), Side("b", reports[1:]))["verdict"]
    assert (verdict["slug"], verdict["figure"], verdict["ratio"]) == ("unclear", "none", None)
    assert verdict["reason"]
