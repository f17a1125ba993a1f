"""What a benchmark found, as the figures of the report's `benchmark`."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from profstack.benchmark.blocks import PIPELINED, SYNCHRONISED
from profstack.benchmark.measure import Measured
from profstack.benchmark.statistics import median_interval, summarize
from profstack.benchmark.subject import Subject

SAME_MODES = "there is no device to wait for: synchronised and pipelined are the same here"


def figures(measured: Mapping[str, Measured], subject: Subject) -> dict[str, Any]:
    """The figures of one process, by their names in the report; times in seconds per call.

    `measured` is by mode. The first one gives the headline and all of the statistics; of the
    other there is the median with its interval.
    """
    head = next(iter(measured.values()))
    series = head.series_s
    summary = summarize(series)
    batch = subject.batch_size
    cpu_s, wall_s = head.samples.cpu_and_wall_s()
    return {
        "target": subject.spec,
        "mode": head.policy.mode,
        "clock": head.clock,
        **summary.columns(batch),
        "samples_s": series,
        "calls_per_sample": head.samples.calls,
        "first_step_s": head.first_s,
        "warmup_s": head.warmup_s,
        "warmup_steps": head.warmup.steps,
        "warmup_settled": head.warmup.settled,
        "warmup_reason": head.warmup.reason,
        "stopped_by": head.stopped_by,
        "target_interval": None if head.policy.repeat is not None else head.policy.target,
        "garbage": head.policy.garbage,
        "cpu_mean_s": cpu_s,
        "cpu_wall_s": wall_s,
        "host_median_s": _median(head.samples.host_s),
        "device_median_s": _median([one for one in head.samples.device_s if one is not None]),
        "batch_size": batch,
        "batch_size_is": subject.batch_size_is,
        # A function has gradients as it pleases, and nobody has looked.
        "gradients": None if subject.model is None else subject.gradients,
        "training": subject.training,
        "training_layers": subject.training_layers,
        "by_shape": _by_shape(subject, series),
        **_both_modes(measured, head),
    }


def _both_modes(measured: Mapping[str, Measured], head: Measured) -> dict[str, Any]:
    """The median of each mode that was measured, and in words why one is missing."""
    found: dict[str, Any] = {"modes_note": None}
    for mode in (SYNCHRONISED, PIPELINED):
        series = measured[mode].series_s if mode in measured else None
        interval = median_interval(series) if series else None
        low, high = interval or (None, None)
        found[f"{mode}_median_s"] = _median(series or [])
        found[f"{mode}_ci95_low_s"] = low
        found[f"{mode}_ci95_high_s"] = high
    if not head.samples.device_s:
        found["modes_note"] = SAME_MODES
    return found


def by_shape(times_s: Mapping[str, list[float]]) -> list[dict[str, Any]]:
    """Step times by the shapes of the inputs, the commonest shape first."""
    rows = []
    for shape, series in sorted(times_s.items(), key=lambda each: -len(each[1])):
        low, high = median_interval(series) or (None, None)
        figures = {"median_s": _median(series), "ci95_low_s": low, "ci95_high_s": high}
        rows.append({"shape": shape, "n": len(series), **figures})
    return rows


def _by_shape(subject: Subject, series: list[float]) -> list[dict[str, Any]]:
    """All samples of a benchmark have the same inputs; of a function nobody knows them."""
    from profstack.benchmark.inputs import shapes_in_words

    shapes = shapes_in_words((subject.inputs, dict(subject.named_inputs)))
    return by_shape({shapes: series}) if shapes else []


def _median(values: list[float]) -> float | None:
    return float(median(values)) if values else None
