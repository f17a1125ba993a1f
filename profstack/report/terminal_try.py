"""What `profstack try` found, as text."""

from __future__ import annotations

from collections.abc import Iterator

from profstack.report.screen import printable
from profstack.storage.schema.trials import TrialReport, TrialRow
from profstack.units import format_bytes, format_seconds, format_share

_TIMED = {"step": "a step", "item": "an item", "run": "a step with all that lies between steps"}


def text(report: TrialReport) -> str:
    """Return the answer, the table, and the edits of what gains."""
    # The tabs of a diff are the file's.
    return "".join("\t".join(map(printable, line.split("\t"))) + "\n" for line in _lines(report))


def answer(report: TrialReport) -> str:
    """Return the first sentence: what gains most, or that nothing does."""
    rows = [*report["best"], *report["trials"]]
    gains = [row for row in rows if row["recommended"]]
    best = min(gains, key=lambda row: row["ratio"] or 1.0, default=None)
    if best is None:
        count = len(report["trials"])
        return f"None of {count} changes was shown to make a step faster beyond noise."
    names = " and ".join(best["changes"]) if best in report["best"] else best["change"]
    what = _TIMED[best["times_of"]]
    return f"{names}: {what} takes {_times(best)} ({_interval(best)})."


def _times(row: TrialRow) -> str:
    before, after = row["before_s"], row["after_s"]
    if before is None or after is None:
        return "an unknown time"
    return f"{format_seconds(after)} instead of {format_seconds(before)}"


def _interval(row: TrialRow) -> str:
    ratio, low, high = row["ratio"], row["ci95_low"], row["ci95_high"]
    if ratio is None:
        return "not known"
    percent = f"{100 * (ratio - 1):+.1f} %"
    if low is None or high is None:
        return percent
    return f"{percent}, {100 * (low - 1):+.1f} to {100 * (high - 1):+.1f}"


def _lines(report: TrialReport) -> Iterator[str]:
    yield answer(report)
    if report["plain_results"] is None:
        few = report["plain_processes"] == 1
        why = "the plain script ran once" if few else "there were no losses or outputs"
        yield f"Results were not compared: {why}."
    elif report["plain_results"] != "equal":
        yield (
            "Two plain runs with the same seed differ already: results can be compared to that "
            "extent alone."
        )
    yield ""
    yield f"{'change':<26}{'verdict':<9}{'step':<26}{'interval':<28}{'memory':<11}results"
    for row in [*report["trials"], *report["best"]]:
        name = " + ".join(row["changes"]) if row in report["best"] else row["change"]
        yield (
            f"{name[:25]:<26}{row['verdict']:<9}{_steps(row):<26}{_interval(row):<28}"
            f"{_memory(row):<11}{_results(row)}"
        )
        if row["reason"]:
            yield f"    {row['reason']}"
    floor = report["floor"]
    if floor is not None:
        yield (
            f"The plain script differs from itself by {format_share(floor)}: no less is told as a "
            "gain or a loss."
        )
    yield f"Results: a difference up to {report['digits_limit']:.1g} is one of the last digits."
    count, steps = report["plain_processes"], report["steps"]
    how = f"{count} plain processes of {steps} steps"
    if not count:
        how = f"In turn, in blocks of {steps} call{'s' if steps != 1 else ''}"
    yield f"{how}; {format_seconds(report['seconds'])} in all; ended because {report['ended']}."
    if report["left_out"]:
        yield f"Left out (try.json says why): {', '.join(report['left_out'])}."
    for row in report["trials"]:
        if row["recommended"] and (row["diff"] or row["edit"]):
            yield ""
            yield f"To keep {row['change']}:"
            yield from (row["diff"] or f"  {row['edit']}").rstrip("\n").split("\n")


def _steps(row: TrialRow) -> str:
    before, after = row["before_s"], row["after_s"]
    if before is None or after is None:
        return "-"
    of = {"step": "", "item": " (item)", "run": " (all)"}[row["times_of"]]
    return f"{format_seconds(before)} -> {format_seconds(after)}{of}"


def _results(row: TrialRow) -> str:
    apart = row["largest_difference"]
    return f"{row['results'] or '-'}{f' ({apart:.1g})' if apart else ''}"


def _memory(row: TrialRow) -> str:
    own, plain = row["peak_device_bytes"], row["plain_peak_device_bytes"]
    if not own or not plain:
        own, plain = row["peak_rss_bytes"], row["plain_peak_rss_bytes"]
    if own is None or plain is None:
        return "-"
    return f"{'+' if own >= plain else '-'}{format_bytes(abs(own - plain))}"
