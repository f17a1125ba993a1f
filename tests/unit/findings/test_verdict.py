"""The verdict: its rule on made-up shares, its sentences, and why it may be unclear."""

import json

import pytest

from profstack.analysis.call_sites import CallSite
from profstack.findings import reading, rules
from profstack.findings.next_step import sureness_words
from profstack.findings.rules import VERDICT_RULES
from profstack.findings.step_bar import DeviceCut
from profstack.findings.step_cut import Cut, IoTime
from profstack.findings.verdict import decide, measures, verdict
from profstack.report import files
from profstack.storage.vocabulary import WAIT
from tests.support.findings import MS, STEP_S, TRAIN, call, function, line, report_of, row
from tests.support.overview import finding
from tests.support.recordings import Run, module_times, operator
from tests.support.recordings import module as module_row
from tests.support.tables import cases, missing, near, of, rows_of

LIMITS = {rule.slug: rule.threshold for rule in VERDICT_RULES}
SLUGS = [*LIMITS]


def shares(**known):
    """Shares of all tests by slug: those that are named, and none of the others."""
    named = {f"{name}-bound": share for name, share in known.items()}
    assert named.keys() <= LIMITS.keys()
    return dict.fromkeys(SLUGS, 0.0) | named


@cases(
    "slug margin known",
    "input .1 input=.4,python=.2; balanced .05 input=.22,compute=.35; io .05 io=.35,python=.3",
    "communication .03 communication=.33; balanced .1 launch=.3,memory=.3",
    # One that is no candidate does not narrow the margin; the next candidate does.
    "memory .15 memory=.55,compute=.3; input .41 input=.71,python=.39",
    "compute .01 input=.35,compute=.41; python .19 input=.41,python=.6",
    # From its threshold on a test is the verdict.
    "input 0 input=.3; balanced .001 input=.299; io 0 io=.3; communication 0 communication=.3",
    "python 0 python=.4; balanced .001 python=.399; launch 0 launch=.4; balanced .001 launch=.399",
    "compute 0 compute=.4; memory 0 memory=.4; balanced .001 io=.299; balanced .001 memory=.399",
    # Python and small operators are one cause where neither alone is.
    "overhead .01 python=.3,launch=.21; balanced .1 python=.3,launch=.19; launch .1 launch=.5",
    "balanced .001 communication=.299; balanced .001 compute=.399",
)
def test_the_largest_share_beyond_its_threshold_is_the_verdict(slug, margin, known):
    slug = slug if slug == "balanced" else f"{slug}-bound"
    assert decide(shares(**known)) == (slug, pytest.approx(margin), None)


@cases(
    "known idle slug words",
    ({"python": 0.2, "compute": None, "memory": None}, 0.0, "unclear", "up to 80 % "),
    ({"python": 0.2, "compute": None, "memory": None}, 0.41, "balanced", ""),
    ({"python": 0.2, "compute": None, "memory": None}, 0.39, "unclear", "up to 41 % "),
    # It could be 48 %, or 47.
    ({"python": 0.52, "compute": None}, 0.0, "python-bound", "up to 48 % "),
    ({"python": 0.53, "compute": None}, 0.0, "python-bound", ""),
    # What reads files is in the wait or in Python, unless that is not known either.
    ({"input": 0.4, "io": None}, 0.0, "input-bound", ""),
    ({"input": 0.4, "io": None, "python": None}, 0.0, "input-bound", "reading and writing"),
)
def test_what_is_not_known_counts_as_what_it_could_be(known, idle, slug, words):
    found, margin, why = decide(shares(**known), idle)
    assert (found, why is None, missing(why or "", words)) == (slug, not words, [])
    assert not words or margin is None


def cut_of(**changes):
    known = {"wait": 0.05, "python": 0.3, "io": 0.02, "small": 0.19, "small_calls": 70.0}
    known |= {"communication": 0.03, "communication_name": "gloo:x", "io_time": IoTime(0.0)}
    return Cut(**{"median_s": STEP_S, "torch": True, "scale": 0.9, **known, **changes})


BOUNDS = {"compute_s": 2 * MS, "memory_s": 1 * MS, "overhead_s": 0.5 * MS, "unknown_s": 0.25 * MS}
POINTS = [("step", "step", None, 9 * MS), ("operator", "aten::mm in Net", "compute", 1 * MS)]
POINTS += [("operator", "aten::bmm in Net", "compute", 2 * MS)]
POINTS += [("module", "Net", "compute", 8 * MS), ("operator", "aten::add in Net", "memory", MS)]
SAME = {"moved_bytes": 18e6, "flop_per_s": 4e9, "dtype": "float32"}
ROOFLINE = {"points": rows_of("kind name bound seconds", *POINTS, **SAME), "bounds": BOUNDS}
ROOFLINE["mfu"] = rows_of("source value", ("stated", 0.1), ("measured", 0.4))


def measured(cut, device=None, lines=ROOFLINE, **tables):
    """The measures by the first parts of their slugs."""
    found = measures(report_of(parts={"roofline": lines}, **tables), cut, device)
    assert found.keys() == LIMITS.keys()
    return {slug.removesuffix("-bound"): each for slug, each in found.items()}


def test_on_the_host_the_measures_are_the_cuts_shares():
    found = measured(cut_of())
    known = {"input": 0.05, "io": 0.02, "communication": 0.03, "python": 0.3, "launch": 0.19}
    known |= {"compute": 0.18, "memory": 0.09}
    assert {name: each.share for name, each in found.items()} == pytest.approx(known)
    assert found["launch"].facts == pytest.approx({"calls": 70.0, "call_s": 1.9 * MS / 70})
    expected = {"below_limits_share": 0.045, "limit_unknown_share": 0.0225}
    expected |= {"peak_share": 0.4, "flop_per_s": 4e9}
    assert found["compute"].facts == pytest.approx(expected)
    assert found["memory"].facts == pytest.approx({"bytes_per_s": 2e9})
    links = {"input": "modules/(wait)", "communication": "ranges/gloo:x"}
    links |= {"compute": "operators/aten::bmm", "memory": "operators/aten::add"}
    assert {name: found[name].link for name in links} == links
    # Without a roofline its measures are not known, without the torch layer all but the wait.
    found = measured(cut_of(), lines=None)
    assert (found["compute"].share, bool(found["memory"].reason)) == (None, True)
    assert measured(cut_of(median_s=1 * MS))["compute"].share == 1.0
    found = measured(cut_of(torch=False, torch_reason="why", wait=0.4))
    assert (found.pop("input").share, {each.reason for each in found.values()}) == (0.4, {"why"})


@cases("data io python launch changes",
       # Of the host's work without waits, 0.9, a third is Python.
       ".1 0 .1 .2 io=0.,idle=.03,in_waits=.02; .06 .04 .15 .15 io=.04,python=.455",
       "0 .25 .075 .075 io=.25,python=.35; 0 .4 0 0 io=.9,python=.35",
       ".1 None .3 0 io=None,python=.95; .1 0 0 .3 io=0.,wait=1.")  # fmt: skip
def test_on_a_device_idle_time_is_divided_as_the_hosts_time(data, io, python, launch, changes):
    found = measured(cut_of(**changes), DeviceCut(0.1, 0.3, {}, 0.07, "nccl"))
    known = {"input": data, "io": io, "python": python, "launch": launch, "communication": 0.07}
    shares = {name: each.share for name, each in found.items()}
    assert shares == pytest.approx(known | {"compute": 0.2, "memory": 0.1})
    links = (found["communication"].link, found["launch"].link)
    assert links == ("kernels/nccl", "ranges/gaps")


def test_causes_have_places_in_the_script():
    fetch = function("fetch", 0.0, file="/lib/torch/utils/data/_utils/fetch.py")
    times = {"__getitem__": (1, 4, 20), "collate": (1, 2, 30), "walk": (3, 9, 40)}
    rows = [function(name, own * MS, all_ * MS, line=at) for name, (own, all_, at) in times.items()]
    save = row("functions", **function("save", 0.0, line=9))
    ran = [("aten::mm", 3.0), ("aten::add", 2.0), ("aten::add", 2.0), ("autograd::x", 99.0)]
    tables = {"functions": rows, "calls": [call(fetch, rows[0]), call(fetch, rows[1])]}
    tables["operators"] = rows_of("name calls", *ran)
    found = measured(cut_of(has_loader=True, io_time=IoTime(1.0, save, None)), **tables)
    names = [found[name].name for name in ("input", "io", "python")]
    assert (names, found["input"].place["line"]) == (["__getitem__", "save", "walk"], 20)
    links = [f"python/{TRAIN}:9:save", f"python/{TRAIN}:40:walk", "operators/aten::add"]
    assert [found[name].link for name in ("io", "python", "launch")] == links


# 2.8 of 8.3 ms are a third.
@cases("wanted number", ".4 35; .57 None; .285 35; .28 None; None None; 0. None")
def test_the_line_of_a_wait_takes_about_as_long_outside_the_models_work(wanted, number):
    times = {26: (0.5, 2.9), 35: (2.8, 0.0), 38: (0.6, 1.5)}
    lines = [line(at, python_s=a * MS, operator_s=b * MS) for at, (a, b) in times.items()]
    lines += [line(40, python_s=9 * MS, own=False), line(41, python_s=None, operator_s=9 * MS)]
    owners = {26: "Net", 35: "(wait)", 38: "Net"}
    owned = [{**each, "module": owners.get(each["line"])} for each in lines]
    report = report_of(lines=lines, module_lines=owned)
    for cut, slug in ((cut_of(wait=wanted), "input"), (cut_of(wait=None, io=wanted), "io")):
        place = measures(report, cut, None)[f"{slug}-bound"].place
        assert (place and place["line"]) == number
    # Without knowing whose the lines' time is none is told: the longest may be the model's.
    assert reading.line_outside_work(report_of(lines=lines), wanted) is None


def judged(cut=None, device=None, **benchmark):
    parts = {"roofline": ROOFLINE, "benchmark": benchmark, "step_bar": None}
    return verdict(report_of(parts=parts), cut or cut_of(wait=0.4), device)


def test_the_verdict_has_a_row_for_every_test():
    found = judged(cut_of(wait=0.4, io=None, io_time=IoTime(None, reason="no profile")))
    assert of(found, "slug margin") == near("input-bound", 0.1)
    assert found["sentence"].startswith("Input-bound: 40 % of a clean step of 10.0 ms")
    rows, names = found["evidence"], "input python launch compute memory communication io"
    assert [each["test"] for each in rows] == [f"{name}-bound" for name in names.split()]
    for each in rows:
        time = each["share"] and each["share"] * STEP_S
        assert of(each, "threshold_share time_s") == near(LIMITS[each["test"]], time)
    assert of(rows[-1], "share reason") == [None, "no profile"]
    assert (rows[0]["link"], rows[5]["name"]) == ("modules/(wait)", "gloo:x")


def test_what_is_known_too_little_of_is_unclear():
    for n, words in ((5, None), (4, "4 clean steps, and 5 are"), (1, "1 clean step, ")):
        found = judged(n=n)
        assert found["slug"] == ("unclear" if words else "input-bound")
        assert not missing(found["sentence"], words or "")
        assert bool(found["evidence"]) is (words is None)
    known = {"torch": False, "torch_reason": "the layer slowed it"}
    found = judged(cut_of(**known, torch_step="longer steps help", wait=0.25))
    assert found["slug"] == "unclear"
    assert not missing(found["sentence"], "the layer slowed it", "25 %", "longer steps help")
    assert judged(cut_of(**known, wait=0.9))["slug"] == "input-bound"
    # Waiting for other ranks explains 0.03 of the thread's idle time.
    found = judged(cut_of(wait=0.05, idle=0.48))
    assert of(found, "slug margin") == ["unclear", None]
    assert "for 45 % of a clean step" in found["sentence"]
    assert judged(cut_of(wait=0.05, idle=0.3))["slug"] == "balanced"


@cases("wait low high sureness", ".36 9 10.9 certain; .34 9 10.9 likely; .36 9 11.1 likely",
       ".36 8.9 10.9 likely; .299 9 10.9 hint; .36 None None likely")  # fmt: skip
def test_a_verdict_is_certain_beyond_the_noise_of_the_run(wait, low, high, sureness):
    low, high = low and low * MS, high and high * MS
    found = judged(cut_of(wait=wait), ci95_low_s=low, ci95_high_s=high)
    assert found["sureness"] == sureness
    assert (found["action"] == VERDICT_RULES[0].remedy) is (sureness != "hint")
    known = {"ci95_low_s": low, "ci95_high_s": high}
    told = sureness_words(report_of(parts={"verdict": found, "benchmark": known}))
    reason = found["sureness_reason"] or ""
    assert told.startswith(rules.SURENESS[sureness])
    assert bool(reason) is told.lower().endswith(f" {reason}.".lower()) is (sureness != "certain")


@cases("words wait python n no_core_ms peaks",
    ("29 clean steps", 0.5, 0.1, 29, 0.4, True), ("differ among", 0.5, 0.1, 30, 0.4, True),
    ("during 6 % of it other work had the cores", 0.5, 0.1, 29, 0.6, True),
    ("python-bound weighs about as much (46 %)", 0.5, 0.46, 29, 0.6, True),
    ("counts from 30 % on", 0.33, 0.1, 29, 0.6, True),
    ("up to 48 % of the step could be arithmetic or memory traffic: the machine's", 0.5, 0.0, 29,
     0.6, False),
)  # fmt: skip
def test_one_reason_says_why_a_cause_is_no_surer(words, wait, python, n, no_core_ms, peaks):
    mark = {"n": n, "ci95_low_s": 5 * MS, "ci95_high_s": 12 * MS}
    parts = {"roofline": ROOFLINE if peaks else None, "benchmark": mark, "step_bar": None}
    parts["processes"] = {"no_core_s": no_core_ms * MS, "step_s": 10 * MS}
    known = {"wait": wait, "python": python, "small": 0.0, "communication": 0.0}
    found = verdict(report_of(parts=parts), cut_of(**known), None)
    assert (found["sureness"], words in found["sureness_reason"]) == ("likely", True)
    assert words not in found["sentence"]


def test_beside_a_finding_the_verdict_names_no_other_place():
    rows = [function("walk", 9 * MS, line=40)]
    for number, is_named in ((40, True), (41, False)):
        report = report_of(parts={"roofline": ROOFLINE, "step_bar": None}, functions=rows)
        known = {"gain_s": 3 * MS, "file": TRAIN, "line": number, "gain_reason": "of 4 ms"}
        report["findings"] = [finding("x", "known", **known)]
        told = verdict(report, cut_of(python=0.6), None, [SITE])
        gain = "That saves about 3.00 ms of each step. Of 4 ms."
        assert told["action"] == f"Begin at train.py:{number}: Mend it. {gain}"
        assert ("train.py:40" in told["sentence"]) is is_named


def test_the_largest_gain_is_the_first_thing_to_do_else_what_the_operators_allow():
    names = rows_of("name calls", ("aten::convolution", 3.0), ("aten::_softmax", 0.0))
    modules = rows_of("path self_s", ("Net.a", 2 * MS), ("Net.b", 3 * MS), ("(x)", 9 * MS))
    parts = {"environment": {"torch_threads": 1, "usable_cores": 4}}
    parts["step"] = {"count": 9, "batch_size": 8}
    parts["step_bar"] = {"parts": [
        {"name": "backward", "seconds": 5 * MS, "share": 0.5},
        {"name": "not attributed", "seconds": 9 * MS, "share": 0.9},
        {"name": "forward", "seconds": 4 * MS, "share": 0.4}]}  # fmt: skip
    slow = finding("x", "slow", severity="low", file=TRAIN, line=7)
    slow["advice"] = "Do a.b less. It is 3.5. And more."
    usual = "Try, one at a time: a larger batch, channels_last for the convolutions, bfloat16 by "
    usual += "torch.autocast, torch.compile, torch.set_num_threads(4)."
    lever = "Begin at train.py:7: Do a.b less. That saves about 310 µs of each step. It is 3.5."
    # What is named first is what the verdict is sure of, within the noise of the run.
    for gain_ms, action, begin, sureness in (
        (None, usual, "Balanced", "hint"), (0.29, usual, "Balanced", "hint"),
        (0.31, f"{lever} And more.", "slow: mending that should save most. The ", "likely"),
    ):  # fmt: skip
        report = report_of(parts=parts, operators=names, modules=modules)
        found = slow | {"gain_s": gain_ms and gain_ms * MS}
        report["findings"] = [found | {"title": "less", "gain_s": None}, found]
        told = verdict(report, cut_of(communication=0.06), None)
        assert of(told, "action sureness") == [action, sureness]
        assert told["sentence"].startswith(begin)


SITE = CallSite(TRAIN, 7, "forward", "forward", 0.15)
COST, OF_RUN = rules.OWN_CODE_COST.slug, {"gain_s": None, "file": TRAIN, "line": 3}


@cases("slug more gain",
    (COST, {"evidence": [{"step_share": 0.62}]}, "It is about 6.20 ms of each step."),
    (COST, {"evidence": [{"step_share": 0.58}]}, None),
    ("slow-start", {"run_s": 0.62}, "It is about 620 ms of the run."),
    ("slow-start", {"run_s": 0.58}, None),
    ("slow-start", {"run_s": 9.0, "file": None}, None),
    ("slow-start", {"run_s": 0.9, "run_gain_s": 0.62, "run_gain_is": "at most"},
     "It is about 900 ms of the run. At most 620 ms of it can go."),
    ("slow-start", {"run_s": 0.9, "run_gain_s": 0.58, "run_gain_is": "at most"}, None),
    ("evaluation-cost", {"run_s": 0.9, "run_gain_s": 0.31}, "That saves about 310 ms of the run."),
)  # fmt: skip
def test_half_of_what_the_scripts_own_code_takes_counts_against_known_gains(slug, more, gain):
    # Of 100 steps of 10 ms that wait and compute, 0.3 s could be gained by the other finding.
    bar = [{"part": "steps", "wall_s": 0.7}, {"part": "waiting for data", "wall_s": 0.3}]
    known = finding("x", "known", severity="low", gain_s=3 * MS)
    found = known | OF_RUN | {"slug": slug, "title": "own", **more}
    report = report_of(parts={"run_bar": bar, "step_bar": None})
    report["findings"] = [known, found]
    told = verdict(report, cut_of(), None, [SITE])
    words = f"Begin at train.py:3: Mend it. {gain}"
    assert told["action"] == (words if gain else "Mend it. That saves about 3.00 ms of each step.")
    of_run = bool(gain) and slug != COST
    most = "" if of_run else ": mending that should save most"
    assert told["sentence"].startswith(f"{'own' if gain else 'known'}{most}. ")
    assert (". In its steps: " in told["sentence"]) is of_run


@cases("seen traced_ms gain told", (0.15, 9, None, "1.50 ms, 15 %) is train.py:7."),
       (0.149, 2.0, None, "2.00 ms, 20 %) is train.py:9."), (0.149, 1.49, None, ""),
       (0.36, 3.5, 3.7, ""), (0.33, 9, 2, ""), (0.149, 8, None, ""),
       (0.34, 9, 3.3, "3.40 ms, 34 %) is train.py:7."))  # fmt: skip
def test_the_models_heaviest_line_by_the_watch_or_by_the_torch_layer(seen, traced_ms, gain, told):
    columns, at = "module python_s operator_s backward_s", {"file": TRAIN, "line": 9}
    beside = (0.03 if traced_ms == 8 else 0.019) * traced_ms * MS
    inside = ("Net", MS, (traced_ms + 3) * MS, 4 * MS), ("(x)", beside, 0, 0)
    tables = {"lines": [line(9, python_s=10 * MS)], "module_lines": rows_of(columns, *inside, **at)}
    slices = [{"kind": "watch" if seen > 0.149 else "clean"}]
    parts = {"roofline": ROOFLINE, "step_bar": None, "slices": slices}
    report = report_of(parts=parts, **tables)
    slow = finding("x", "known", **OF_RUN | {"gain_s": (gain or 0) * MS})
    report["findings"] = [slow] * bool(gain)
    site = CallSite(TRAIN, 7, "f", "forward", seen)
    said = verdict(report, cut_of(), None, [site])["sentence"]
    assert said.partition("heaviest line (")[2] == told


def test_of_a_script_without_steps_the_share_of_operators_is_told():
    tables = {"modules": rows_of("path self_s", ("(x)", 3.0), ("Net", 1.0))}
    tables["operators"] = rows_of("name self_s", ("aten::mm", 0.4), ("aten::add", 0.6))
    parts = {"step": {"rule": "whole"}, "environment": {"torch": "2"}}
    found = verdict(report_of(step_s=None, parts=parts, **tables), None, None)
    assert (found["slug"], "25 % of its 4.00 s" in found["sentence"]) == ("unclear", True)


# An imported trace: four uneven steps of 40 ms in all, by module `Net`, the wait, and operators.
TRACE = [8e-3, 9e-3, 11e-3, 12e-3]


def traced(folder, wait_s, forward_s):
    run = Run(folder)
    run.writer.facts({"imports": [{"file": "trace.json", "format": "torch.profiler trace"}]})
    run.write({"modules": [module_row(1, "Net")]})
    rows = [operator("aten::mm", 4, 0.025, module_id=1, outermost=4)]
    times = [module_times(1, 4, forward_s), module_times(WAIT, 4, wait_s)]
    run.torch(TRACE, mode="timed", frames={"module_times": times, "operators": rows})
    run.layers(torch="recorded")
    run.finish(ended=False, run={"script": None, "argv": [], "run": {}})
    return json.loads(files.text(files.complete_report(folder)))


def test_an_imported_trace_is_judged_by_its_own_steps(tmp_path):
    report = traced(tmp_path, 0.014, 0.026)
    mark, found = report["benchmark"], report["verdict"]
    assert (mark["mode"], mark["n"], mark["median_s"]) == ("profiled", 4, pytest.approx(10e-3))
    assert (found["slug"], found["sureness"]) == (rules.INPUT, "likely")
    words = "Input-bound: 35 % of a step of 10.0 ms under the profiler "
    assert found["sentence"].startswith(words)
    # How much the profiler slowed the steps is not known, and nothing is told at another speed.
    (net,) = [each for each in report["tables"]["modules"] if each["path"] == "Net"]
    assert net["calibrated_s"] == pytest.approx(0.026 / 4)
    assert [each["slug"] for each in report["warnings"]] == ["profiled-steps"]
