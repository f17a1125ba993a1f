"""ranks.js: the sentence, bars on one scale, the heat map, the table, and what the header says."""

import pytest

from tests.support.browser import column, texts
from tests.support.lab import page_of, records_of
from tests.support.rank_reports import of_ranks

MAP = "#rank-steps .heat"


def told(lab):
    """What the heat map's readout says."""
    return lab.all("#rank-steps .heat-read")[0]


def test_bars_are_on_one_scale_and_name_own_time_and_waits(lab):
    report = of_ranks(3, missing=(2,))
    # Rank 0 takes half as long as the straggler, part by part.
    for part in report["tables"]["rank_parts"]:
        part["time_s"] *= 0.5 if part["rank"] == 0 else 1
    lab.view(page_of(report), "ranks")
    assert lab.all("#rank-sentence .verdict") == [report["verdict"]["sentence"]]
    assert "2 ranks of 3 with a report; without: 2." in lab.all("#rank-sentence .quiet")[0]
    assert lab.all(".rank-row .composition", "one.style.width") == ["50%", "100%"]
    widths = "[...one.children].map((each) => parseFloat(each.style.width))"
    own = lab.all(".rank-row .stack", widths)
    assert own == [pytest.approx([22, 78]), pytest.approx([88, 12])]
    figures = ["50.0 ms own 11.0 ms, waits 39.0 ms", "50.0 ms own 44.0 ms, waits 6.00 ms"]
    assert lab.all(".rank-figures")[:2] == figures
    ways = lab.all(".rank-row.straggler .rank-name a", "one.getAttribute('href')")
    assert ways == ["./rank-00001/report.html"]
    # A rank without a report has its reason.
    assert lab.all(".rank-row:nth-child(3)") == ["rank 2it left no report– own –, waits –"]


def test_collectives_have_the_wait_for_the_last_rank_beside_the_transfer(lab):
    report = of_ranks(2)
    lab.view(page_of(report), "ranks")
    assert {*lab.all("#meeting-table td")} > {"586 KiB", "16.5 ms", "2.00 ms", "75 %"}
    [lead] = lab.all("#meeting-lead")
    assert "Rank 1 comes last in 75 % of the collectives" in lead
    assert "they may be 40.0 µs apart" in lead
    report["ranks"]["collectives"] = None
    lab.view(page_of(report), "ranks")
    assert "No step that all ranks recorded" in lab.all("#meeting-lead")[0]
    report["tables"]["collectives"] = []
    lab.view(page_of(report), "ranks")
    assert lab.all("#rank-collectives") == []


def test_what_differs_most_among_ranks_is_first_with_its_rank(lab):
    report = of_ranks(3)
    lab.view(page_of(report), "ranks")
    rows = lab.all("#work-table tbody tr", "[...one.cells].map((cell) => cell.textContent)")
    assert [row[:5] for row in rows] == [
        ["aten::mm", "operator", "9.00 ms", "13.0 ms", "1"],
        ["Net.body", "module", "6.00 ms", "16.0 ms", "1"],
    ]
    # Of many ranks few have a page: the others are no way anywhere.
    for row in report["tables"]["ranks"]:
        row["folder"] = None if row["rank"] == 0 else row["folder"]
    report["tables"]["rank_work"] = []
    lab.view(page_of(report), "ranks")
    assert lab.all("#rank-work") == []
    assert lab.all(".rank-row .rank-name > a") == ["rank 1", "rank 2"]


def test_the_map_has_a_colour_for_each_figure_and_is_read_by_keys(lab):
    lab.view(page_of(of_ranks(2, steps=4)), "ranks")
    # Square roots of 1, 4, 9 and 16 parts of the largest on 12 levels; a rank not late is as 0.
    found = lab.all(f"{MAP} path", "[one.dataset.level, one.getAttribute('d')]")
    levels = {level: path.split("v")[0] for level, path in found}
    assert [*levels] == ["0", "3", "6", "8", "11"]
    assert (levels["0"], levels["11"]) == ("M0 0h4", "M3 1h1")
    assert lab.all("#rank-steps .span-ends span") == ["0 s", "12.0 ms", "48.0 ms"]
    assert told(lab) == "Most: rank 1, steps 26 to 27: late by 48.0 ms."
    event = "new KeyboardEvent('keydown', {key: '%s'})"
    press = f"document.querySelector('{MAP}').dispatchEvent({event})"
    seen = []
    for key in ("ArrowLeft", "ArrowLeft", "ArrowUp", "ArrowUp", "Home"):
        lab.js(f"({press % key}, 0)")
        seen.append(told(lab))
    last = "rank 1, steps 26 to 27: late by 48.0 ms."
    never = "rank 0, steps 24 to 25: late by 0 s."
    assert seen == [last, "rank 1, steps 24 to 25: late by 27.0 ms.", never, never, last]
    lab.press("#rank-steps", "CPU")
    assert lab.all("#rank-steps > div:not(.choice)") == ["Nothing to draw: too short to read."]
    lab.press("#rank-steps", "step")
    # Above the shortest step: 50 ms are no more than where the colours begin.
    assert lab.all("#rank-steps .span-ends span")[::2] == ["50.0 ms", "50.3 ms"]


def test_many_ranks_are_one_screen_and_the_straggler_is_named(lab):
    lab.view(page_of(of_ranks(64, straggler=41)), "ranks")
    assert lab.all(f"{MAP} svg", "one.getAttribute('height')") == [str(64 * 9)]
    named = lab.all(".heat-names span")
    assert "rank 41" in named
    assert not {"rank 40", "rank 42"} & {*named}
    # The latest in sight, in the order of ranks; the others are folded.
    shown = lab.all(".rank-rows > .rank-row .rank-name > a")
    assert shown == [f"rank {rank}" for rank in (41, *range(49, 64))]
    assert len(lab.all(".rank-rows details .rank-row")) == 48


def test_of_very_many_ranks_the_latest_of_each_group_is_drawn(lab):
    page = page_of(of_ranks(1024, straggler=515, steps=3))
    lab.view(page, "ranks")
    # Ranks are the later the higher their number, but for the straggler.
    drawn = [one["rank"] for one in records_of(page, "rank_steps")[::3]]
    assert drawn == [515 if rank == 519 else rank for rank in range(7, 1024, 8)]
    assert lab.all(f"{MAP} svg", "one.getAttribute('viewBox')") == ["0 0 3 128"]


def test_the_table_and_the_header_lead_to_the_ranks(opened):
    page = opened(of_ranks(3, straggler=2), at="ranks")
    assert texts(page, "#status .which") == ["figures of rank 2 of 3; all ranks: Ranks"]
    assert [one.rstrip("#") for one in column(page, "#rank-table", 1)] == ["2", "1", "0"]
    row = "[...document.querySelectorAll('#rank-table tbody tr:first-child a')]"
    ways = page.evaluate(f"{row}.map((one) => one.getAttribute('href'))")
    assert ways == ["./rank-00002/report.html", "#ranks/2", "#source/train.py%3A61"]
    # A rank's own page leads back.
    own = of_ranks(3, straggler=2) | {"ranks": None}
    page = opened(own, at="")
    assert texts(page, "#status .which") == ["rank 2 of 3, all ranks"]
    way = page.evaluate("document.querySelector('.which a').getAttribute('href')")
    assert way == "./../report.html"
    # Of a launch in which it alone recorded there is no page of all.
    alone = own | {"run": own["run"] | {"recorded_ranks": 1}}
    assert texts(opened(alone, at=""), "#status .which") == ["rank 2 of 3"]
