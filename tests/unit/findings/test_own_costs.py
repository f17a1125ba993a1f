"""The script's own code beside the model: from which share on, and what says more of it."""

from types import SimpleNamespace

import pytest

from profstack.analysis.call_sites import CallSite
from profstack.findings import own_costs as module
from profstack.findings import rules
from profstack.findings.step_cut import Cut
from tests.support import findings as made
from tests.support.findings import LOADER, MS, STEP_S, TRAIN, call, function, links, report_of
from tests.support.recordings import Sampled
from tests.support.tables import cases, near, of, rows_of

LIMIT = rules.OWN_CODE_COST.threshold


def site(share, name="average", part="other", hottest=0.6):
    lines = {(TRAIN, 43, name or "fit"): hottest * share, (TRAIN, 44, "mix"): 0.3 * share}
    return CallSite(TRAIN, 40, name, part, share, lines)


@pytest.fixture
def found(monkeypatch):
    def found(*sites, findings=(), **tables):
        unseen = SimpleNamespace(of=lambda phase: [])
        monkeypatch.setattr(module, "watched", lambda recorded: unseen)
        parts = {"sources": [{"file": TRAIN, "text": "\n" * 42 + "  a += b\n"}]}
        report = report_of(parts=parts, **tables)
        return module.own_costs(None, report | {"findings": list(findings)}, sites)

    return found


def test_the_places_with_most_time_are_found_down_to_a_tenth_of_the_step(found):
    told, line, *_ = found(site(0.31), site(0.2, name=None), site(0.15, part="forward"))
    expected = ["own-code-cost", "high", None, TRAIN, 40]
    assert of(told, "slug severity gain_s file line") == expected
    # The evidence is about the heaviest line, the finding about the function that holds it.
    figures = of(told["evidence"][0], "step_share clean_s line")
    assert figures == near(0.31, 0.31 * STEP_S, 43)
    assert (links(told), "'a += b' takes 20 %" in line["title"]) == ([f"source/{TRAIN}:43"], True)
    assert [each["line"] for each in found(site(LIMIT), site(0.99 * LIMIT))] == [40]
    assert len(found(*[site(0.2)] * 5)) == 3
    # Where no line has half of it, the function that it calls again and again is named.
    rows = [function("average", 1 * MS, line=40), function("mix", 1 * MS, line=70)]
    again = "mix (train.py:70) 8 times"
    for hottest, calls, words in ((0.4, 8, again), (0.4, 7.9, ""), (0.6, 9, "")):
        edges = [call(*rows, 2 * MS, calls=calls)]
        (one,) = found(site(0.2, hottest=hottest), functions=rows, calls=edges)
        assert ("It calls" in one["advice"], words in one["advice"]) == (bool(words), True)
    least = rules.DATA_STARVED.threshold
    assert len(found(site(least, part="data wait"), site(0.99 * least, part="data wait"))) == 1


@cases("inner_ms deepest_ms calls line", "1.6 1.3 1 72; 1.6 1.2 1 61; 1.5 1.5 1 None; 1.6 1.3 8 61")
def test_what_the_watch_sees_on_a_later_line_is_named_by_cprofile(
    found, inner_ms, deepest_ms, calls, line
):
    # The site's function calls another, that a third; four fifths of a time is all of it.
    names = (("average", 2.0, 40), ("pick", inner_ms, 60), ("draw", deepest_ms, 70))
    rows = [function(name, 0.1 * MS, ms * MS, line=at) for name, ms, at in names]
    edges = [
        call(*rows[:2], inner_ms * MS, calls=1.0),
        call(*rows[1:], deepest_ms * MS, calls=calls),
    ]
    lines = [made.line(at, f"x{at}", python_s=MS) for at in (61, 72)]
    for each in lines:
        each["reason"] = None
    (one,) = found(site(0.2), functions=rows, calls=edges, lines=lines)
    assert one["line"] == 40
    assert one["evidence"][0]["line"] == (line or 43)
    assert one["layers"] == ["cprofile" if line else "watch"]
    # Where the watch saw that very function its line counts.
    seen = site(0.2)
    seen.lines = {(TRAIN, 99, "draw"): 0.2}
    (same,) = found(seen, functions=rows, calls=edges, lines=lines)
    assert (same["evidence"][0]["line"] == 99) is (line in (72, None))


def test_without_samples_a_line_that_calls_a_library_is_known_by_cprofile(monkeypatch):
    monkeypatch.setattr(module, "watched", lambda recorded: SimpleNamespace(of=lambda phase: []))
    text = (
        "for epoch in range(9):\n"
        "  for x in data:\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
        "    if step % 2:\n"
        "      job.save_state()  # not job.load(\n"
        "    norm(x, norm(y))\n"
        "    norm(y)\n"
        "  job.report()\n"
    )

    def lines(text=text, work=0.0, own=False, calls=0.3, file="/lib/job.py", name="save_state",
              at=4, loads=False):  # fmt: skip
        save = function(name, 0.1 * STEP_S, 0.5 * STEP_S, file=file, line=3, calls=calls)
        save |= {"own": own, "calibrated_s": 0.08 * STEP_S}
        back = function("backward", work * STEP_S, file="/torch/_tensor.py", line=5)
        zero = function("zero_grad", 0.01 * STEP_S, file="/torch/optim/optimizer.py", line=5)
        rows = [save, back | {"own": False}, zero | {"own": False}]
        edges = [call(save, back, work * STEP_S), call(save, zero, 0.01 * STEP_S)]
        if loads:
            batch = function("__next__", 0.3 * STEP_S, file=LOADER) | {"own": False}
            rows.append(batch)
            edges.append(call(save, batch, 0.3 * STEP_S))
        of_step = [("(optimizer)", 1, 0.1), ("(optimizer)", at, 0.2), ("Net", 9, 0.9)]
        of_step = rows_of("module line python_s", *of_step, file=TRAIN, operator_s=0.0)
        parts = {"sources": [{"file": TRAIN, "text": text}], "findings": []}
        tables = {"functions": rows, "calls": edges, "module_lines": of_step}
        found = module.own_costs(None, report_of(parts=parts, **tables))
        assert all(each["layers"] == ["cprofile"] for each in found)
        return [(each["line"], each["evidence"][0]["step_share"]) for each in found]

    assert lines() == [(6, pytest.approx(0.4))]
    assert len(lines(work=0.249)) == 1
    # Work of the model's, the user's own, what is rare, and what has no one line in the loop.
    for changes in (
        {"work": 0.25}, {"own": True, "calls": 0.4}, {"own": None}, {"calls": 0.29},
        {"name": "norm"}, {"name": "load"}, {"name": "report"}, {"text": None}, {"at": 10},
        {"file": "/lib/torch/nn/functional.py"}, {"text": "x = 1"}, {"text": "for"},
        {"loads": True},
    ):  # fmt: skip
        assert lines(**changes) == [], changes


def test_no_place_has_more_of_the_step_than_its_part_or_than_its_line_has(monkeypatch):
    def shares(wait, after, *sites, python_s=None, has_loader=False):
        monkeypatch.setattr(module, "call_sites", lambda recorded: list(sites))
        functions = {(TRAIN, 40, "after")}
        cut = Cut(STEP_S, torch=True, wait=wait, after_step=after, has_loader=has_loader)
        cut.python, cut.other, cut.loss = 0.03, 0.02, 0.01
        cut.after = SimpleNamespace(functions=functions)
        row = {"file": TRAIN, "line": 40, "python_s": python_s, "operator_s": 0.0}
        tables = {"lines": [row], "functions": [], "calls": []}
        return [each.share for each in module.seen_sites(None, {"tables": tables}, cut)]

    assert shares(0.2, 0.1, site(0.4, "after"), site(0.25)) == near(0.25, 0.1)
    assert shares(0.2, 0.1, site(0.4), site(0.4, part="data wait")) == near(0.36, 0.2)
    assert shares(0.2, 0.1, site(0.4), has_loader=True) == near(0.4)
    assert shares(None, 0.0, site(0.4)) == near(0.4)
    # The torch layer follows every line.
    for python_s, kept in ((0.5 * 0.4 * STEP_S, True), (0.49 * 0.4 * STEP_S, False), (None, True)):
        assert shares(0.9, 0.0, site(0.4, name=None), python_s=python_s) == near(*[0.4] * kept)
    made = site(0.4, "after")
    shares(0.2, 0.1, made)
    assert sum(made.lines.values()) == pytest.approx(0.1 * 0.9)


def test_what_never_lets_the_interpreter_go_is_seen_by_cprofile_alone(monkeypatch):
    # Made in most steps, half of the step; made in few; and one of which the watch has seen half.
    draw = function("draw", 0.1 * STEP_S, 0.5 * STEP_S, line=70, calls=0.5)
    rare = function("rare", 0.1 * STEP_S, 0.6 * STEP_S, line=80, calls=0.49)
    seen = function("average", 0.1 * STEP_S, 0.3 * STEP_S, line=40, calls=1.0)
    report = report_of(functions=[draw, rare, seen], calls=[])

    def sites(watched, **more):
        monkeypatch.setattr(module, "call_sites", lambda recorded: [site(watched)])
        cut = Cut(STEP_S, torch=True, wait=0.9, **more)
        return [(one.name, one.share) for one in module.seen_sites(None, report, cut)]

    scale = draw["calibrated_s"] / draw["self_s"]
    by_profile = [("draw", pytest.approx(0.5 * scale)), ("average", pytest.approx(0.3 * scale))]
    # Long calls are seen by the watch.
    call_s, known = 0.5 * scale * STEP_S / 0.5, module._UNSEEN_S
    for limit_s, names in ((0.99 * call_s, ["average"]), (1.01 * call_s, ["draw", "average"])):
        monkeypatch.setattr(module, "_UNSEEN_S", limit_s)
        assert [name for name, _ in sites(0.0)] == names
    monkeypatch.setattr(module, "_UNSEEN_S", known)
    seen_half = [by_profile[0], ("average", pytest.approx(0.151 * scale))]
    assert sites(0.151 * scale) == seen_half
    assert sites(0.149 * scale) == by_profile
    assert sites(0.0, after_step=0.0)[0] == by_profile[0]


@cases("slug line gain_ms part is_told", ("python-hot-spot", 40, 1.5, "other", False),
       ("python-hot-spot", 40, 1.4, "other", True), ("python-hot-spot", 41, 3.0, "other", True),
       ("small-operators", 43, None, "other", False), ("memory-growth", 40, 3.0, "other", True),
       ("data-starved", 9, None, "data wait", False),
       ("data-starved", 9, None, "other", True))  # fmt: skip
def test_what_another_finding_explains_is_left_to_it(found, slug, line, gain_ms, part, is_told):
    other = {"slug": slug, "file": TRAIN, "line": line, "gain_s": gain_ms and gain_ms * MS}
    assert bool(found(site(0.3, part=part), findings=[other])) is is_told


QUEUE, POOL = (f"/opt/lib/python3.11/{name}.py" for name in ("queue", "concurrent/futures/thread"))
RUN, WORK = ("/w/serve.py", 9, "<module>"), ("/w/serve.py", 20, "score")


@cases("waits share", (30, 0.3), (29, None), (60, 0.6))
def test_a_thread_waits_for_work_where_none_of_the_users_code_runs(tmp_path, waits, share):
    made = Sampled(tmp_path / "rec")
    made.begins("clean", [0.01] * 20)
    made.even(100)
    for number in range(100):
        # The user's own wait in a queue, and a pool's work, are no wait for work.
        stacks = ((POOL, 70, "run"), WORK), ((QUEUE, 171, "get"), RUN)[::-1], ((POOL, 83, "wait"),)
        stack = stacks[2 if number < waits else number % 2]
        made.sample(made.now - 0.9 + 0.008 * number, *stack)
    report = report_of(parts={"sources": []}) | {"findings": []}
    told = [each for each in module.own_costs(made.recorded(), report) if "waits" in each["slug"]]
    assert [each["evidence"][0]["step_share"] for each in told] == near(*([share] if share else []))
