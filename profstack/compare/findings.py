"""What was found on each side: which findings are of the side, and not of one recording's chance.

A finding is the same where its rule, and its module or the function around its line, are. One that
came or went with a part of the step or the run explains it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from profstack.compare.places import MODEL, MOST_PLACES, WAITS, Found, Places
from profstack.compare.sides import Side
from profstack.findings import rules
from profstack.storage.schema.comparison import ComparedFinding
from profstack.storage.schema.report import Report

Key = tuple[object, ...]

# Findings that say why something takes its time, and the parts that they are about; without any, it
# is the part whose place is theirs.
_REASONS: Mapping[str, tuple[str, ...]] = {
    rule.slug: parts
    for rule, parts in (
        (rules.FORCED_SYNCHRONISATION, ()),
        (rules.HOST_TO_DEVICE_COPY, ()),
        (rules.SMALL_OPERATORS, ()),
        (rules.TENSORS_FROM_LISTS, ()),
        (rules.UNFUSED_OPTIMIZER, ("optimizer",)),
        (rules.DENSE_EMBEDDINGS, ("optimizer",)),
        (rules.ZERO_GRAD_TO_ZEROS, ("optimizer",)),
        (rules.GRAD_IN_INFERENCE, ("forward",)),
        (rules.PADDING, MODEL),
        (rules.IGNORED_TARGETS, MODEL),
        (rules.CALLED_AGAIN, MODEL),
        (rules.CONSTANT_INPUT, MODEL),
        (rules.GATHERED_ROWS, MODEL),
        (rules.PARAMETRIZED_AT_INFERENCE, ("forward",)),
        (rules.UNUSED_GRADIENTS, ("backward",)),
        (rules.EXCHANGED_TOO_OFTEN, ("backward",)),
        (rules.DOUBLE_PRECISION, MODEL),
        (rules.NO_KV_CACHE, ("forward",)),
        (rules.NO_END_TOKEN, ("forward",)),
        (rules.BATCHNORM_TRAINING_AT_INFERENCE, ("forward",)),
        (rules.FLOAT32_MATMUL_WITHOUT_TF32, MODEL),
        (rules.RECOMPILATIONS, ("forward", "first step and compilation")),
        (rules.GRAPH_BREAKS, ("forward",)),
        (rules.WAITS_FOR_WORK, WAITS),
        (rules.WORKER_STARTS, (*WAITS, "waiting for data")),
        (rules.IMPORT_COST, ("start-up and imports",)),
    )
}
# Findings that say where something takes its time: used where no line or function is known.
_COSTS: Mapping[str, tuple[str, ...]] = {
    rule.slug: parts
    for rule, parts in (
        (rules.DATA_STARVED, (*WAITS, "waiting for data")),
        (rules.OWN_CODE_COST, ("after the step",)),
        (rules.PYTHON_HOT_SPOT, ("Python",)),
        (rules.EVALUATION_COST, ("evaluation",)),
        (rules.SAVING_COST, ("checkpoints and saving",)),
        (rules.LOGGING_COST, ("logging and callbacks",)),
        (rules.RUN_CODE_COST, ("other",)),
        (rules.SLOW_START, ("start-up and imports", "model and data set-up")),
        (rules.COMPILATION_COST, ("first step and compilation",)),
    )
}
_TITLES = {rule.slug: rule.title for rule in rules.RULES}

# A layer of another status cannot have seen anything.
_RAN = {"recorded", "emitted", "empty"}


@dataclass
class _Seen:
    """A finding or warning: the recordings that have it, and the layers that it is from."""

    finding: ComparedFinding
    recordings: set[int]
    layers: set[str]


class SideFindings:
    """The findings and warnings of one side; `which` is 0 for the first side."""

    def __init__(self, side: Side, which: int, places: Places) -> None:
        self._seen: dict[tuple[Key, int], _Seen] = {}
        self._ran = [_layers(report) for report in side.reports]
        for number, report in enumerate(side.reports):
            times: Counter[Key] = Counter()
            for key, finding, layers in _of_report(report, which, places):
                self._add((key, times[key]), number, finding, layers & self._ran[number])
                times[key] += 1

    def _add(
        self, key: tuple[Key, int], number: int, finding: ComparedFinding, layers: set[str]
    ) -> None:
        seen = self._seen.setdefault(key, _Seen(finding, set(), set()))
        seen.finding = finding
        seen.recordings.add(number)
        seen.layers |= layers

    def _is_usual(self, seen: _Seen) -> bool:
        """Return whether half of the recordings that could have a finding have it."""
        could = [number for number, ran in enumerate(self._ran) if seen.layers <= ran]
        return len(seen.recordings) >= len({*could, *seen.recordings}) / 2

    def __contains__(self, key: Key) -> bool:
        """Return whether any recording has a finding."""
        return (key, 0) in self._seen

    def usual(self) -> Iterator[tuple[Key, ComparedFinding]]:
        """Yield what most recordings have, each rule once in a module or function."""
        for (key, time), seen in self._seen.items():
            if time == 0 and self._is_usual(seen):
                yield key, seen.finding

    def count(self) -> int:
        """Return the number of findings that most recordings have, without warnings."""
        findings = (seen for seen in self._seen.values() if seen.finding["kind"] == "finding")
        return sum(map(self._is_usual, findings))


def gone_and_new(sides: Sequence[SideFindings]) -> Iterator[ComparedFinding]:
    """Yield findings that most of one side's recordings have, and none of the other's."""
    before, after = sides
    for key, finding in before.usual():
        if key not in after:
            yield {**finding, "status": "gone"}
    for key, finding in after.usual():
        if key not in before:
            yield {**finding, "status": "new"}


def explained(
    part: str,
    difference_s: float,
    found: Sequence[Found],
    findings: Sequence[ComparedFinding],
    places: Places,
) -> list[Found]:
    """Return the places of a part with the findings that came or went with it as their causes.

    New findings explain what takes longer, those that are gone what takes less.
    """
    status, which = ("new", 1) if difference_s > 0 else ("gone", 0)
    result = list(found)
    for each in findings:
        slug = each["slug"]
        if each["kind"] != "finding" or each["status"] != status:
            continue
        if slug in _REASONS:
            title = _TITLES[slug]
            words = title[0].lower() + title[1:] + (", gone" if status == "gone" else "")
            is_part = part in _REASONS[slug]
            at = _place_of(each, which, result, places)
            if at is None and is_part and result and (part == "optimizer" or not each["file"]):
                at = 0
            if at is None and is_part:
                result.insert(0, Found(each["file"], each["line"], words))
            elif at is not None:
                old = result[at].cause
                # What an optimizer's options say is more than any finding.
                if not old or part != "optimizer":
                    result[at] = result[at]._replace(cause=f"{old}: {words}" if old else words)
        elif not result and part in _COSTS.get(slug, ()):
            result.append(Found(each["file"], each["line"], None))
    return result[:MOST_PLACES]


def _place_of(
    finding: ComparedFinding, which: int, found: Sequence[Found], places: Places
) -> int | None:
    """Return which of the places is a finding's; None where none is."""
    file, line = finding["file"], finding["line"]
    if file is None or line is None:
        return None
    lines = [(which, (file, line))]
    if which == 0 and (now := places.sources.line(file, line)) is not None:
        lines.append((1, now))
    for at, each in enumerate(found):
        if each.file is not None and each.line is not None:
            place = each.file, each.line
            if any(places.is_one_place(side, own, place) for side, own in lines):
                return at
    return None


def _layers(report: Report) -> set[str]:
    return {str(row["name"]) for row in report["layers"] if row["status"] in _RAN}


def _of_report(
    report: Report, which: int, places: Places
) -> Iterator[tuple[Key, ComparedFinding, set[str]]]:
    """Yield what tells a finding from others, the finding, and the layers that it is from."""
    for each in report["findings"]:
        place = each["module"] or _function_around(each["file"], each["line"], which, places)
        found: ComparedFinding = {
            "kind": "finding",
            "status": "new",
            "slug": each["slug"],
            "title": each["title"],
            "file": each["file"],
            "line": each["line"],
        }
        yield ("finding", each["slug"], place), found, set(each["layers"])
    for warning in report["warnings"]:
        told: ComparedFinding = {
            "kind": "warning",
            "status": "new",
            "slug": warning["slug"],
            "title": warning["text"],
            "file": None,
            "line": None,
        }
        yield ("warning", warning["slug"]), told, set()


def _function_around(file: str | None, line: int | None, which: int, places: Places) -> object:
    if file is None or line is None:
        return None
    there = places.sources.files.get(file, file) if which == 0 else file
    return there, places.sources.function_at(which, file, line)
