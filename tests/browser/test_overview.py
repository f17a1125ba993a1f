"""overview.js: the header, the verdict, the cards, the bar of the step, findings and warnings."""

import pytest

from tests.support.lab import changed, run_page
from tests.support.tables import rows_of

RUN = run_page()


def test_the_first_card_has_its_interval_and_the_run_is_divided(lab):
    lab.view(RUN, "overview")
    mark = RUN["facts"]["benchmark"]
    times = [mark[name] for name in ("median_s", "ci95_low_s", "ci95_high_s")]
    card = lab.all("#benchmark-cards .card")[0]
    assert [one in card for one in lab.values("T.dom.formatSeconds", times)] == [True] * 3
    known = {"file": "/app/train.py", "line": 7, "name": "evaluate", "by": "samples"}
    nothing = {"file": None, "line": None, "name": None, "by": "clock"}
    parts = ("steps", 6.0, 0.75), ("evaluation", 2.0, 0.25)
    rows = rows_of("part wall_s share", *parts, **known)
    rows += rows_of("part wall_s share", ("profstack", 1.0, None), **nothing)
    page = changed(RUN, overview__run_bar=rows, facts__run__duration_s=9.0)
    lab.draw(page, "T.overview.drawRunBar", "#run-bar")
    assert lab.all("#run-bar .piece") == ["steps 75 %", "evaluation 25 %"]
    items = ["steps6.00 s75 %", "evaluation2.00 s25 %evaluate, …/app/train.py:7"]
    assert lab.all("#run-bar li") == items
    told = "the program's own 8.00 s; profstack added 1.00 s to make 9.00 s"
    assert told in lab.all("#run-bar")[0]
    lab.draw(changed(RUN, overview__run_bar=[]), "T.overview.drawRunBar", "#overview")
    assert lab.all("#run-bar, #run-bar-title") == []


def test_pieces_of_the_bar_are_as_wide_as_their_part(lab):
    seconds = {
        "forward": 0.0505, "backward": 0.0075, "loss": 0.0076, "idle": 0.0035, "other": 0.0036,
        "data wait": 0.0273, "Python": 0.0, "not attributed": -0.02,
    }  # fmt: skip
    parts = rows_of("name seconds", *seconds.items(), share=None, link=None)
    parts[0] |= {"link": "modules/Net", "share": 0.9, "is": "clean"}
    parts[1] |= {"link": "nowhere/x"}
    bar = {"median_s": 0.1, "parts": parts, "reason": "why", "note": "so"}
    lab.draw(changed(RUN, overview__step_bar=bar), "T.overview.drawStepBar", "#step-bar")
    of_each = "[parseFloat(one.style.flexGrow), one.textContent, one.getAttribute('href')]"
    pieces = lab.all("#step-bar .piece", of_each)
    # A name has room in more than 7.5 % of the bar, a share in more than 3.5 %.
    whole = sum(value for value in seconds.values() if value > 0)
    texts = ["forward 90 %", "7.5 %", "loss 7.6 %", "", "3.6 %", "data wait 27 %"]
    assert pieces == [
        [pytest.approx(value / whole, rel=1e-4), text, "#modules/Net" if at == 0 else None]
        for at, (value, text) in enumerate(zip(seconds.values(), texts, strict=False))
    ]
    items = [
        "forward50.5 ms90 %", "backward7.50 ms7.5 %", "loss7.60 ms7.6 %", "idle3.50 ms3.5 %",
        "other3.60 ms3.6 %", "data wait27.3 ms27 %", "not attributed−20.0 ms-20 %",
    ]  # fmt: skip
    assert lab.all("#step-bar li") == items, "a part of no time is not listed"
    kinds = lab.all("#step-bar .figure", "one.title.split('\\n')[1].split(':')[0]")
    assert kinds == ["clean", *["calibrated"] * 6]


def test_the_verdict_has_its_tests_and_a_finding_leads_to_its_place(lab):
    rows = [{"test": "t", "share": 0.5}, {"on": True}, {"x": 7}]
    verdict = {"sentence": "It is so.", "slug": "s", "evidence": rows}
    verdict |= {"action": "Do <that>.", "sureness": "likely"}
    lab.draw(changed(RUN, facts__verdict=verdict), "T.overview.drawVerdict")
    assert lab.all("#verdict .evidence li") == ["on yes", "x 7"]
    assert lab.all("#verdict .action") == ["Next: Do <that>."]
    lab.view(RUN, "overview")
    drawn = "(given) => T.dom.el('p', {}, T.overview.findingPlace({slug: 's', ...given}))"
    given, whole = {"file": "train.py", "line": 61}, {"file": "train.py"}
    led = lab.values(f"(given) => ({drawn})(given).querySelector('a').hash", [given, whole])
    assert led == ["#source/train.py%3A61", "#source/train.py"]


# What a row of evidence says, and its figures.
ROWS = {
    "wait 250 ms": {"wait_s": 0.25}, "rate 2.00 k": {"rate_per_s": 2000},
    "share of the time 25 %": {"time_share": 0.25}, "grown 2.00 KiB": {"grown_bytes": 2048},
    "on yes": {"on": True}, "x 12345": {"x": 12345},
    "…/b/c.py:3, n 1": {"file": "a/b/c.py", "line": 3, "n": 1},
    "…/b/c.py, k 2": {"file": "a/b/c.py", "k": 2}, "t, k 1": {"text": "t", "k": 1},
}  # fmt: skip


def test_evidence_has_units_by_its_names(lab):
    words = "(row) => T.dom.el('p', {}, T.overview.evidenceRow(row)).textContent"
    assert lab.values(words, ROWS.values()) == list(ROWS)
    ranks = "T.overview.whichRank({ranks: {kind, shown: 2, count: 3, world_size: 8}})"
    every = {"process": "process 2 of 3; all of them", "rank": "rank 2 of 8; all ranks"}
    lab.check(f"(kind) => T.dom.el('p', {{}}, ...{ranks}).textContent.slice(11, -7)", every)
    way = "(link) => T.overview.evidenceWay(link)?.getAttribute('href')"
    lab.check(way, {"modules/Net.a": "#modules/Net.a", "nowhere/x": None})
