"""The comparison of two sides: every field of compare.json and what it means.

The names are a contract with programs that read compare.json. Each side is one recording or
several of the same program; `before` is the first side, `after` the second. A figure that is not
known is null, with a reason beside it.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from profstack.storage.schema.column import Figure, Text, Whole

ChangeSlug = Literal["faster", "slower", "same", "unclear"]
# The bar that a part belongs to.
Bar = Literal["step", "run"]
# between processes: the recordings' own; this machine: from earlier comparisons and benchmarks on
# it; assumed: nothing is known of this machine, and a wide spread is supposed.
SpreadSource = Literal["between processes", "this machine", "assumed"]


class Change(TypedDict):
    """One figure on both sides."""

    before: Annotated[Figure, "value of the first side, the mean of its recordings"]
    after: Annotated[Figure, "value of the second side"]
    difference: Annotated[Figure, "after less before"]
    low: Annotated[Figure, "low end of the difference's 95 % interval; null without one"]
    high: Annotated[Figure, "high end of the difference's 95 % interval; null without one"]
    ratio: Annotated[Figure, "after over before; null where before is 0 or either is not known"]
    beyond_noise: Annotated[
        bool | None, "whether the difference is more than noise; null where that is not known"
    ]
    reason: Annotated[Text, "why a value or the interval is null"]


class ComparisonVerdict(TypedDict):
    """The answer: faster, slower, the same, or not to be told."""

    slug: Annotated[ChangeSlug, "unclear: the recordings do not suffice; the sentence says why"]
    sentence: Annotated[str, "the answer with its size, its interval and what explains it"]
    action: Annotated[str, "what to do next; empty where nothing is to be done"]
    figure: Annotated[
        Literal["step", "run", "none"], "what is compared: the clean step, or the whole run"
    ]
    before_s: Annotated[
        Figure,
        "time of the first side: the mean of its recordings' medians, of six and more without the "
        "fastest and the slowest fifth",
    ]
    after_s: Annotated[Figure, "time of the second side"]
    ratio: Annotated[Figure, "after_s over before_s"]
    ci95_low: Annotated[Figure, "low end of the ratio's 95 % interval"]
    ci95_high: Annotated[Figure, "high end of the ratio's 95 % interval"]
    spread: Annotated[SpreadSource | None, "what the interval is made from; null without one"]
    floor: Annotated[
        Figure, "smallest change of the ratio that these recordings can tell, such as 0.05"
    ]
    reason: Annotated[Text, "why there is no ratio or no interval"]


class PartPlace(TypedDict):
    """A place that explains the change of a part."""

    file: Annotated[Text, "file; null where none is known"]
    line: Annotated[Whole, "line in that file, on the second side where it has one"]
    cause: Annotated[Text, "what changed there, in a few words; null where it is not known"]


class PartChange(TypedDict):
    """A part of the step, or of the run: all parts add up to the difference."""

    of: Annotated[Bar, "the bar that it is a part of"]
    name: Annotated[str, "name of the part, as in the bar"]
    before_s: Annotated[float, "its time on the first side; 0 where that side has no such part"]
    after_s: Annotated[float, "its time on the second side"]
    difference_s: Annotated[float, "after_s less before_s"]
    low_s: Annotated[
        Figure,
        "low end of the difference's interval; it holds in 95 % of cases for all parts of the bar "
        "together; null without one",
    ]
    high_s: Annotated[Figure, "high end of the difference's 95 % interval"]
    beyond_noise: Annotated[
        bool | None, "whether the difference is more than noise; null where that is not known"
    ]
    file: Annotated[Text, "file of the first of `places`; null where none is known"]
    line: Annotated[Whole, "line of the first of `places`"]
    cause: Annotated[Text, "cause of the first of `places`"]
    places: Annotated[
        list[PartPlace], "at most three places that explain it, the largest change first"
    ]


class Inequality(TypedDict):
    """Something that was not equal on both sides, said before any figure."""

    slug: Annotated[str, "short name: commit, argv, torch, threads, device, load, batch-size ..."]
    text: Annotated[str, "what differs, and what that means for the comparison"]
    before: Annotated[Text, "value of the first side"]
    after: Annotated[Text, "value of the second side"]
    severity: Annotated[
        Literal["high", "low"], "high: the figures are of other work or of another machine"
    ]


class TableRow(TypedDict):
    """A row of a table, matched on both sides."""

    key: Annotated[str, "module path, operator with shapes, function or line: what it is"]
    status: Annotated[
        Literal["both", "moved", "gone", "new"],
        "moved: matched though path, file or line changed; gone or new: no partner",
    ]
    was: Annotated[Text, "its key on the first side where that is another; null else"]
    file: Annotated[Text, "source file on the second side, on the first where it is gone"]
    line: Annotated[Whole, "line in that file"]
    calls_before: Annotated[Figure, "calls per step on the first side"]
    calls_after: Annotated[Figure, "calls per step on the second side"]
    change: Annotated[Change, "the figure by which the table is sorted"]


class ComparedTable(TypedDict):
    """One table, both sides matched, sorted by what each row adds to the difference."""

    name: Annotated[str, "table of report.json, or throughput, memory, start-up ..."]
    title: Annotated[str, "its heading"]
    unit: Annotated[Literal["s", "bytes", "flop", "count", "items/s"], "unit of the changes"]
    rows: Annotated[list[TableRow], "rows, the largest absolute difference first"]
    left_out: Annotated[int, "rows of both sides with next to no difference that are not listed"]
    reason: Annotated[Text, "why there are no rows"]


class ComparedFinding(TypedDict):
    """A finding or a warning that one side alone has."""

    kind: Annotated[Literal["finding", "warning"], "what it is"]
    status: Annotated[Literal["gone", "new"], "gone: the first side's alone; new: the second's"]
    slug: Annotated[str, "rule that fired"]
    title: Annotated[str, "what is wrong"]
    file: Annotated[Text, "source file; null where there is none"]
    line: Annotated[Whole, "line in that file"]


class GateResult(TypedDict):
    """A rule of `--fail-if`, and what came of it."""

    rule: Annotated[str, "the rule as it was written"]
    result: Annotated[
        Literal["kept", "broken", "unclear"], "unclear: the limit is within the noise"
    ]
    change: Annotated[Change, "the figure that the rule is about"]
    text: Annotated[str, "the result in words, with the place where one is known"]
    file: Annotated[Text, "file to point at; null where none is known"]
    line: Annotated[Whole, "line in that file"]


class SideFacts(TypedDict):
    """One side: what was compared."""

    label: Annotated[str, "what it is called: the folder, the revision or the command"]
    folders: Annotated[list[str], "its recordings"]
    script: Annotated[Text, "script, module or session"]
    commit: Annotated[Text, "commit of the script's repository"]
    recordings: Annotated[int, "number of recordings"]
    steps: Annotated[int, "clean steps of all of them"]
    medians_s: Annotated[list[float], "clean median of each recording"]


class Comparison(TypedDict):
    """Everything compare.json holds."""

    schema_version: Annotated[Literal[1], "raised where a field changes its meaning"]
    profstack_version: Annotated[str, "version of profstack that wrote it"]
    measured: Annotated[
        Text, "how the recordings were made; null where they were given, not measured"
    ]
    before: SideFacts
    after: SideFacts
    verdict: ComparisonVerdict
    answers: Annotated[
        list[ComparisonVerdict], "the answers for the step and for the run; verdict is one of them"
    ]
    inequalities: Annotated[list[Inequality], "what was not equal, the most severe first"]
    parts: Annotated[
        list[PartChange],
        "parts of the step, then of the run; those of one bar add up to its difference",
    ]
    tables: Annotated[list[ComparedTable], "tables side by side"]
    findings: Annotated[list[ComparedFinding], "findings and warnings gone and new"]
    gates: Annotated[list[GateResult], "rules of --fail-if; empty without any"]
