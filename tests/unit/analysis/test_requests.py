"""Latencies of requests by length, and the figures of generated text."""

import statistics

import pytest

from profstack.analysis.clean_steps import clean_steps
from profstack.analysis.requests import requests, tokens
from tests.support.recordings import Run
from tests.support.tables import near, of

WALLS = [0.010, 0.030, 0.020, 0.050, 0.040, 0.070, 0.060, 0.090, 0.080, 0.100, 0.110]


def served(folder):
    """Calls of `generate`, the later ones on longer prompts; a layer watched the last one."""
    run = Run(folder, "generate", "eval")
    run.clean(10, wall=0.01)
    first = run.steps
    run.slice("clean", WALLS)
    run.torch([9.0])
    rows = [
        {"step": first + n, "wall_s": wall, "first_token_s": wall / 4, "sequences": 2,
         "prompt_tokens": 8 if n < 7 else 16, "new_tokens": 5 + n, "cached": 1, "can_end": n > 3}
        for n, wall in enumerate([*WALLS, 9.0])
    ]  # fmt: skip
    rows[1] |= {"first_token_s": None, "cached": None}
    run.writer.write({"generations": rows})
    run.close()
    recorded = run.recorded()
    return recorded, clean_steps(recorded), rows[:-1]


def test_half_take_no_longer_and_99_of_100(tmp_path):
    recorded, clean, _ = served(tmp_path / "rec")
    times = sorted([0.01] * 10 + WALLS)
    found = requests(recorded, clean)
    # Eleven of 21 are at the median or below, 19 at the ninth decile, and all at the last one.
    expected = near(21, times[10], times[18], times[20], 0.11, statistics.fmean(times))
    assert of(found, "count p50_s p90_s p99_s max_s mean_s") == expected
    lengths = {row["length"]: (row["count"], row["p50_s"]) for row in found["by_length"]}
    assert lengths["8 tokens"] == (7, pytest.approx(0.04))
    assert lengths["16 tokens"] == (4, pytest.approx(0.095))


def test_tokens_are_counted_over_the_time_of_their_calls(tmp_path):
    recorded, clean, rows = served(tmp_path / "rec")
    found = tokens(recorded, clean)
    added = [row["new_tokens"] for row in rows]
    known = [row for row in rows if row["first_token_s"]]
    first = statistics.median(row["first_token_s"] for row in known)
    later = statistics.median(0.75 * row["wall_s"] / (row["new_tokens"] - 1) for row in known)
    names = "sequences prompt_tokens new_tokens cached can_end first_token_p50_s later_token_s"
    assert of(found, names) == near(2, 8, statistics.median(added), True, None, first, later)
    assert found["generations"] == 11
    assert found["new_tokens_per_s"] == pytest.approx(2 * sum(added) / sum(WALLS))
