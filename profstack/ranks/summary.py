"""What is known of some ranks together, made to be put together in any order and grouping.

A summary of one rank is made where its files are; several become one, whichever comes first. Counts
and sums are whole numbers (times in nanoseconds), and quantiles come from the bins of a DDSketch
(Masson, Rim and Lee 2019), whose counts add up exactly: a tree of any shape gives the same result.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from profstack.ranks.collectives import Call
from profstack.ranks.rank import Rank
from profstack.storage.schema.rank_rows import RankWorkRow
from profstack.storage.schema.report import Report

# A quantile is off by this share of it at most.
ACCURACY = 0.01
_NS = 1e9
# The bin of 0, which has no logarithm; those of whole nanoseconds are 0 and more.
_ZERO = -1
# A summary is smaller, unfolded.
_MOST_BYTES = 256 << 20
# What a file of a summary begins with: one of another version is made anew.
_HEAD = b"profstack summary 2\n"


class Spread(msgspec.Struct):
    """How one time differs among ranks, in whole nanoseconds.

    `least` and `most` are the smallest and the largest, each with its rank, of several the lowest.
    `bins` counts the times by the bins of a DDSketch.
    """

    count: int = 0
    total: int = 0
    least: tuple[int, int] | None = None
    most: tuple[int, int] | None = None
    bins: dict[int, int] = msgspec.field(default_factory=dict)

    @classmethod
    def of(cls, times_s: Iterable[float], rank: int) -> Spread:
        """Return the times of one rank, in seconds; one below 0 counts as 0."""
        times = [max(round(seconds * _NS), 0) for seconds in times_s]
        if not times:
            return cls()
        from ddsketch import LogarithmicMapping

        bins, mapping = defaultdict[int, int](int), LogarithmicMapping(ACCURACY)
        for time in times:
            bins[mapping.key(time) if time else _ZERO] += 1
        return cls(len(times), sum(times), (min(times), rank), (max(times), rank), dict(bins))

    def take(self, other: Spread) -> None:
        """Add the times of another one."""
        self.count += other.count
        self.total += other.total
        for key, count in other.bins.items():
            self.bins[key] = self.bins.get(key, 0) + count
        if other.least is not None:
            self.least = min(self.least or other.least, other.least)
        if other.most is not None:
            self.most = max(
                self.most or other.most, other.most, key=lambda pair: (pair[0], -pair[1])
            )

    @property
    def mean_s(self) -> float | None:
        """Mean in seconds; None of no times."""
        return self.total / self.count / _NS if self.count else None

    def quantile_s(self, share: float) -> float | None:
        """Return a quantile in seconds, to within `ACCURACY` of it; None of no times."""
        # A run of one process needs none of it.
        from ddsketch import DDSketch, LogarithmicMapping

        if self.least is None or self.most is None:
            return None
        sketch, mapping = DDSketch(ACCURACY), LogarithmicMapping(ACCURACY)
        for key, count in sorted(self.bins.items()):
            sketch.add(0.0 if key == _ZERO else mapping.value(key), count)
        found = float(sketch.get_quantile_value(share) or 0.0)
        # The ends are known exactly.
        return min(max(found, self.least[0]), self.most[0]) / _NS


def _longest_lowest(pair: tuple[int, int]) -> tuple[int, int]:
    return pair[0], -pair[1]


class Summary(msgspec.Struct):
    """Some ranks: each one's record and collectives, and how their times differ.

    `work` has the times per step of what ranks did, by kind (module, operator) and name, `steps`
    the times of their warm steps, `left_out` why files could not be read, by their names.
    """

    ranks: dict[int, Rank] = msgspec.field(default_factory=dict)
    calls: dict[int, list[Call]] = msgspec.field(default_factory=dict)
    work: dict[str, dict[str, Spread]] = msgspec.field(default_factory=dict)
    steps: Spread = msgspec.field(default_factory=Spread)
    left_out: dict[str, str] = msgspec.field(default_factory=dict)

    @classmethod
    def of(cls, rank: Rank, report: Report, calls: Iterable[Call]) -> Summary:
        """Return the summary of one rank."""
        work = {
            kind: {name: Spread.of([seconds], rank.number) for name, seconds in times.items()}
            for kind, times in (("module", _modules(report)), ("operator", _operators(report)))
        }
        times = [step.wall_s for step in rank.warm.values() if step.wall_s is not None]
        called = list(calls)
        own = {rank.number: called} if called else {}
        return cls({rank.number: rank}, own, work, Spread.of(times, rank.number))

    def rows(self) -> Iterator[RankWorkRow]:
        """Yield what ranks did, with how their times differ; what differs most first."""
        found = [
            _row(kind, name, spread)
            for kind, named in self.work.items()
            for name, spread in named.items()
        ]
        yield from sorted(
            found, key=lambda row: (-(row["more_s"] or 0.0), row["kind"], row["name"])
        )

    def encoded(self) -> bytes:
        """Return the summary as the bytes of a file."""
        return _HEAD + zlib.compress(msgspec.msgpack.encode(self), 1)


def decoded(data: bytes) -> Summary | None:
    """Return the summary in a file; None of another version, or of what is none."""
    if not data.startswith(_HEAD):
        return None
    try:
        unpacked = zlib.decompressobj()
        text = unpacked.decompress(data[len(_HEAD) :], _MOST_BYTES)
        return msgspec.msgpack.decode(text, type=Summary) if unpacked.eof else None
    except (zlib.error, msgspec.MsgspecError):
        return None


def together(summaries: Iterable[Summary]) -> Summary:
    """Return one summary of several, which stay as they are; each rank is in one of them."""
    whole = Summary()
    for each in summaries:
        whole.ranks |= each.ranks
        whole.calls |= each.calls
        whole.left_out |= each.left_out
        whole.steps.take(each.steps)
        for kind, named in each.work.items():
            known = whole.work.setdefault(kind, {})
            for name, spread in named.items():
                known.setdefault(name, Spread()).take(spread)
    return whole


def _modules(report: Report) -> Mapping[str, float]:
    """Return the time of each module in a step, children included."""
    rows = report["tables"]["modules"]
    return {row["path"]: row["calibrated_s"] for row in rows if row["calibrated_s"] is not None}


def _operators(report: Report) -> Mapping[str, float]:
    """Return the own time of each operator in a step, over all shapes."""
    times: dict[str, float] = defaultdict(float)
    for row in report["tables"]["operators"]:
        if row["calibrated_s"] is not None:
            times[row["name"]] += row["calibrated_s"]
    return times


def _row(kind: str, name: str, spread: Spread) -> RankWorkRow:
    middle = spread.quantile_s(0.5)
    most_s, most_rank = (spread.most[0] / _NS, spread.most[1]) if spread.most else (None, None)
    return {
        "kind": kind,
        "name": name,
        "ranks": spread.count,
        "mean_s": spread.mean_s,
        "middle_s": middle,
        "most_s": most_s,
        "most_rank": most_rank,
        "more_s": most_s - middle if most_s is not None and middle is not None else None,
    }
