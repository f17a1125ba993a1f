"""The data of a comparison's page: names of views, cut tables, what changed most."""

import json
import re

import pytest

from profstack.report import compare_page
from profstack.report.page_tables import MOST_ROWS
from tests.support.comparisons import change, comparison, table, table_row


def test_each_table_is_a_view_of_its_own_and_what_changed_most_is_not_noise():
    rows = [
        table_row(str(at), change(1.0, 1.0 + at, told))
        for at, told in enumerate((None, True, False, None, True, True, False))
    ]
    names = ("overview", "Start-up!", "start up", "modules")
    tables = [table(name, name, "s", rows) | {"rows": rows} for name in names]
    made = comparison(tables=[*tables, table("none", "None", "s", [])])
    page = compare_page.render(made)
    data = json.loads(re.search(r'id="page-data">(.*?)</script>', page, re.DOTALL)[1])
    tops = data["overview"]["tops"]
    views = [top["view"] for top in tops]
    assert views == ["overview-overview", "start-up", "start-up-start-up", "modules", "none"]
    assert [f'id="view-{view}"' in page for view in views] == [True] * 4 + [False]
    # Neither noise, nor what does not differ.
    assert [row["key"] for row in tops[0]["rows"]] == ["5", "4", "3"]
    assert (tops[-1]["rows"], tops[-1]["reason"]) == ([], "not recorded on both sides")


@pytest.mark.parametrize("more", [0, 1])
def test_a_long_table_is_cut_and_says_so(more):
    rows = [table_row(str(at), change(0.0, 1.0 / (at + 1))) for at in range(MOST_ROWS + more)]
    made = compare_page._page_table("a", table("a", "A", "items/s", rows, left_out=1 - more))
    assert (len(made.rows), made.total) == (MOST_ROWS, MOST_ROWS + more)
    cut = f"{MOST_ROWS:,} of {MOST_ROWS + 1:,} rows are on this page (the largest differences); "
    cut += "all are in compare.json."
    less = "1 of both sides with next to no difference is not listed."
    assert made.left_out == (cut if more else less)
