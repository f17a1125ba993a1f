"""Requests of an inference, and the tokens of those that generate text.

A request is a step of a run that does not train: a call of the model, or of `generate`. Times are
of steps that no layer watched, from the end of the warm-up on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from profstack.analysis.clean_steps import UNOBSERVED, Clean, timed_steps
from profstack.storage.reader import Recorded, nullable
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
    times = steps["wall_s"].astype(float)
    p50, p90, p99 = np.quantile(times, [0.5, 0.9, 0.99], method="higher").tolist()
    return {
        "count": len(times),
        "mean_s": float(times.mean()),
        "p50_s": p50,
        "p90_s": p90,
        "p99_s": p99,
        "max_s": float(times.max()),
        "by_length": _by_length(steps, _generations(recorded, steps)),
    }


def tokens(recorded: Recorded, clean: Clean) -> Tokens | None:
    """Return the figures of generated text; None where no call of `generate` was seen."""
    made = _generations(recorded, _unwatched(recorded, clean))
    made = made[made["new_tokens"].notna()]
    if not len(made):
        return None
    wall_s, sequences = made["wall_s"].astype(float), made["sequences"].astype(float)
    prompts, added = made["prompt_tokens"].astype(float), made["new_tokens"].astype(float)
    first = made["first_token_s"].astype(float)
    # Of each later token: the rest of a call over the tokens that came in it.
    later = ((wall_s - first) / (added - 1))[added > 1].dropna()
    return {
        "generations": len(made),
        "sequences": float(sequences.median()),
        "prompt_tokens": nullable(prompts.median()),
        "new_tokens": float(added.median()),
        "new_tokens_per_s": float((sequences * added).sum() / wall_s.sum()),
        "first_token_p50_s": nullable(first.median()),
        "first_token_p90_s": nullable(first.quantile(0.9)),
        "later_token_s": nullable(later.median()),
        "cached": _agreed(made["cached"]),
        "can_end": _agreed(made["can_end"]),
    }


def _agreed(column: pd.Series[Any]) -> bool | None:
    """Return what all calls have that say it; None where they differ."""
    values = column.dropna().unique().tolist()
    return bool(values[0]) if len(values) == 1 else None


def _unwatched(recorded: Recorded, clean: Clean) -> pd.DataFrame:
    steps = timed_steps(recorded.steps)
    is_warm = steps["step"] >= clean.warm_from
    chosen: pd.DataFrame = steps[steps["kind"].isin(UNOBSERVED) & is_warm]
    return chosen


def _generations(recorded: Recorded, steps: pd.DataFrame) -> pd.DataFrame:
    """Return the calls of `generate` in these steps."""
    made = recorded.frames["generations"]
    chosen: pd.DataFrame = made[made["step"].isin(set(steps["step"]))]
    return chosen


def _by_length(steps: pd.DataFrame, made: pd.DataFrame) -> list[RequestsByLength]:
    """Return the requests by the length of what they were given: the prompt, else the shape."""
    prompts = made.dropna(subset=["prompt_tokens"]).set_index("step")["prompt_tokens"]
    lengths = steps["step"].map(prompts[~prompts.index.duplicated()])
    words = lengths.map(lambda each: f"{each:.0f} tokens", na_action="ignore")
    words = words.where(lengths.notna(), steps["shape"])
    groups = steps["wall_s"].astype(float).groupby(words).agg(["count", "median"])
    largest = groups.sort_values("count", ascending=False, kind="stable").head(_MOST_LENGTHS)
    return [
        {"length": str(length), "count": int(count), "p50_s": float(median)}
        for length, count, median in largest.itertuples()
    ]
