"""Requests of an inference, and the tokens of those that generate text.

A request is a step of a run that does not train: a call of the model, or of `generate`. Times are
of steps that no layer watched, from the end of the warm-up on.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

import numpy as np

from profstack.analysis.clean_steps import UNOBSERVED, Clean, timed_steps
from profstack.storage.reader import Recorded, Row, grouped, known
from profstack.storage.schema.report import Requests, RequestsByLength, Tokens

# Fewer have no percentile worth the name.
_FEWEST = 5
# Lengths that get a row of their own.
_MOST_LENGTHS = 8


def requests(recorded: Recorded, clean: Clean) -> Requests | None:
    """Return the latencies of the requests; None for a run that trains, or of too few."""
    steps = _unwatched(recorded, clean)
    if recorded.phase in (None, "train") or recorded.rule == "whole" or len(steps) < _FEWEST:
        return None
    times = known(steps, "wall_s")
    p50, p90, p99 = np.quantile(times, [0.5, 0.9, 0.99], method="higher").tolist()
    return {
        "count": len(times),
        "mean_s": fmean(times),
        "p50_s": p50,
        "p90_s": p90,
        "p99_s": p99,
        "max_s": max(times),
        "by_length": _by_length(steps, _generations(recorded, steps)),
    }


def tokens(recorded: Recorded, clean: Clean) -> Tokens | None:
    """Return the figures of generated text; None where no call of `generate` was seen."""
    made = _generations(recorded, _unwatched(recorded, clean))
    made = [row for row in made if row["new_tokens"] is not None]
    if not made:
        return None
    first = known(made, "first_token_s")
    # Of each later token: the rest of a call over the tokens that came in it.
    later = [
        (row["wall_s"] - row["first_token_s"]) / (row["new_tokens"] - 1)
        for row in made
        if row["first_token_s"] is not None and row["new_tokens"] > 1
    ]
    tokens_made = sum((row["sequences"] or 0) * row["new_tokens"] for row in made)
    return {
        "generations": len(made),
        "sequences": float(median(known(made, "sequences"))),
        "prompt_tokens": _median(known(made, "prompt_tokens")),
        "new_tokens": float(median(known(made, "new_tokens"))),
        "new_tokens_per_s": tokens_made / sum(known(made, "wall_s")),
        "first_token_p50_s": _median(first),
        "first_token_p90_s": float(np.quantile(first, 0.9)) if first else None,
        "later_token_s": _median(later),
        "cached": _agreed(known(made, "cached")),
        "can_end": _agreed(known(made, "can_end")),
    }


def _median(values: Sequence[float]) -> float | None:
    return float(median(values)) if values else None


def _agreed(values: Sequence[int]) -> bool | None:
    """Return what all calls have that say it; None where they differ."""
    return bool(values[0]) if len(set(values)) == 1 else None


def _unwatched(recorded: Recorded, clean: Clean) -> list[Row]:
    timed = timed_steps(recorded.steps)
    return [row for row in timed if row["kind"] in UNOBSERVED and row["step"] >= clean.warm_from]


def _generations(recorded: Recorded, steps: Sequence[Row]) -> list[Row]:
    """Return the calls of `generate` in these steps."""
    numbers = {row["step"] for row in steps}
    return [row for row in recorded.table("generations") if row["step"] in numbers]


def _by_length(steps: Sequence[Row], made: Sequence[Row]) -> list[RequestsByLength]:
    """Return the requests by the length of what they were given: the prompt, else the shape."""
    prompted = (row for row in reversed(made) if row["prompt_tokens"] is not None)
    words = {row["step"]: f"{row['prompt_tokens']} tokens" for row in prompted}
    given = ({**row, "length": words.get(row["step"], row["shape"])} for row in steps)
    groups = sorted(grouped((row for row in given if row["length"] is not None), "length").items())
    largest = sorted(groups, key=lambda group: -len(group[1]))[:_MOST_LENGTHS]
    return [
        {"length": length, "count": len(rows), "p50_s": median(known(rows, "wall_s"))}
        for (length,), rows in largest
    ]
