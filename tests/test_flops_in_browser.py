"""The page's table of counters as a browser shows it: side by side, and why they differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from data_full_report import full
from data_report import row
from page_browser import EXECUTABLE, Browser, column, pages, texts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(EXECUTABLE is None, reason="there is no Chromium on this machine"),
]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Browser]]:
    """Opens the page of a report; at the end nothing may be broken."""
    with pages(tmp_path) as open_page:
        yield open_page


def test_counters_stand_beside_one_another_with_the_reasons(
    opened: Callable[..., Browser],
) -> None:
    report = full()
    counters = report["tables"]["flops"]
    for one in counters[:2]:
        one["causal_forward_flop"] = one["forward_flop"] - 1_160_000
        one["causal_backward_flop"] = one["backward_flop"] - 2_900_000
    why = "forward 1.017 times the record: +90 k of work that it leaves out (relu 90 k)"
    counters[1]["difference"], counters[2]["difference"] = "the same", why
    note = "fvcore has no figures: <b>it</b> raises RuntimeError"
    counters.append(row("flops", counter="fvcore", note=note))
    page = opened(report)
    assert column(page, "#flop-counters", 1)[2:] == ["flops-profiler", "fvcore"]
    headings = texts(page, "#flop-counters thead th")
    assert [heading.split("\n")[0] for heading in headings] == [
        *("counter", "forward FLOP", "backward FLOP", "forward, masked", "backward, masked"),
        *("forward MAC", "without a formula", "their share of time", "why not"),
    ]
    assert column(page, "#flop-counters", 4)[2:] == ["–", "–"]
    assert column(page, "#flop-counters", 9) == ["–", "–", "–", note]
    assert texts(page, "#flop-differences li") == [
        "recorded_shapes against the record: the same",
        f"flops-profiler against the record: {why}",
    ]
    said = texts(page, "#flop-lead")[0]
    assert "counts dense" in said
    assert column(page, "#flop-counters", 4)[0] in said
    assert column(page, "#flop-counters", 5)[0] in said


def test_without_causal_attention_the_page_says_nothing_of_it(
    opened: Callable[..., Browser],
) -> None:
    page = opened(full(), "flops")
    assert "causal" not in texts(page, "#flop-lead")[0]
    assert "forward, masked" not in " ".join(texts(page, "#flop-counters thead th"))
