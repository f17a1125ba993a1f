"""The data of a comparison's page: names of views, cut tables, what changed most, the picture."""

import json
import re

import pytest

from profstack.report import compare_page
from profstack.report.page_tables import MOST_ROWS
from profstack.report.trees import change_picture
from tests.support.comparisons import change, comparison, large, table, table_row


def plain(made):
    """The part of the page that is not compressed."""
    page = compare_page.render(made)
    return json.loads(re.search(r'id="page-data">(.*?)</script>', page, re.DOTALL)[1]), page


def test_each_table_is_a_view_of_its_own_and_what_changed_most_is_not_noise():
    rows = [
        table_row(str(at), change(1.0, 1.0 + at, told))
        for at, told in enumerate((None, True, False, None, True, True, False))
    ]
    names = ("overview", "Start-up!", "start up", "modules")
    tables = [table(name, name, "s", rows) for name in names]
    data, page = plain(comparison(tables=[*tables, table("none", "None", "s", [])]))
    tops = data["overview"]["tops"]
    views = [top["view"] for top in tops]
    assert views == ["overview-overview", "start-up", "start-up-start-up", "modules", "none"]
    assert [f'id="view-{view}"' in page for view in views] == [True] * 4 + [False]
    # Neither noise, nor what does not differ.
    assert [row["key"] for row in tops[0]["rows"]] == ["5", "4", "3"]
    assert (tops[-1]["rows"], tops[-1]["reason"]) == ([], "not recorded on both sides")
    rules = data["overview"]["rules"]
    assert [rule["slug"] for rule in rules] == ["data-starved"]


@pytest.mark.parametrize("more", [0, 1])
def test_a_long_table_is_cut_and_says_so(more):
    rows = [table_row(str(at), change(0.0, 1.0 / (at + 1))) for at in range(MOST_ROWS + more)]
    made = compare_page._page_table("a", table("a", "A", "items/s", rows, left_out=1 - more))
    units = {column.key: column.unit for column in made.columns}
    assert [units[key] for key in ("key", "before", "ratio", "line", "beyond_noise")] == [
        "text", "rate", "count", "plain", "flag"]  # fmt: skip
    assert (len(made.rows), made.total) == (MOST_ROWS, MOST_ROWS + more)
    cut = f"{MOST_ROWS:,} of {MOST_ROWS + 1:,} rows are on this page (the largest differences); "
    wanted = [
        "1 of both sides with next to no difference is not listed.",
        f"{cut}all are in compare.json.",
    ]
    assert made.left_out == wanted[more]
    reasons = {column.key: column.reason for column in made.columns}
    assert (reasons["low"], reasons["after"]) == ("one recording a side", None)


@pytest.mark.parametrize("most", [40, 1_000])
def test_the_picture_keeps_the_sums_of_both_sides(most):
    rows = large(300, 1, 1)["tables"][0]["rows"]
    rows[3]["change"] |= {"before": None, "difference": None, "beyond_noise": True}
    rows[5]["change"]["beyond_noise"] = None
    made = change_picture(rows, most)
    figures = {metric.key: sum(metric.own) for metric in made.metrics}
    sides = [(row["change"]["before"] or 0, row["change"]["after"] or 0) for row in rows]
    told = [after - before for (before, after), row in zip(sides, rows, strict=True)
            if row["change"]["beyond_noise"] is not False]  # fmt: skip
    assert figures == pytest.approx({
        "larger": sum(map(max, sides)), "before": sum(before for before, _ in sides),
        "after": sum(after for _, after in sides), "changed": sum(told),
    })  # fmt: skip
    assert ("rest" in made.kinds) == (most < 300)
    assert change_picture([]) is None
