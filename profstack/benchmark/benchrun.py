"""What one process of a benchmark does: the clean measurement first, then the parts asked for.

Each part that is done is handed over at once, so that what comes after it cannot lose it. An error
in the clean measurement is the workload's and is raised; one in a part is told in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from profstack.benchmark.ablation import ablation
from profstack.benchmark.blocks import PIPELINED, SYNCHRONISED
from profstack.benchmark.clock import Clock
from profstack.benchmark.devicestate import device_state, round_state
from profstack.benchmark.figures import figures
from profstack.benchmark.largestbatch import Options as SearchOptions
from profstack.benchmark.measure import Interrupted, Measured, Policy, measure
from profstack.benchmark.mistakes import mistakes
from profstack.benchmark.subject import Subject
from profstack.benchmark.throughput import check as check_search
from profstack.benchmark.throughput import search
from profstack.benchmark.variants import compare
from profstack.errors import ProfstackError
from profstack.units import format_seconds

BOTH = "both"
MODES = (SYNCHRONISED, PIPELINED, BOTH)


@dataclass(frozen=True)
class Asked:
    """What is to be measured besides the clean time, as plain data.

    `policy` are the fields of `Policy` that differ from its own; `mode` is one of `MODES`.
    `compare`, `dtypes` are names; `memory_limit` is in bytes, and `max_batch` the largest tried.
    """

    mode: str = BOTH
    policy: Mapping[str, Any] = field(default_factory=dict)
    mistakes: bool = False
    ablation: bool = False
    compare: Sequence[str] = ()
    throughput: bool = False
    search: str = "binary"
    dtypes: Sequence[str] = ()
    memory_limit: int | None = None
    max_batch: int | None = None
    # The number of this process: variants are compared in another order in each.
    process: int = 0

    def as_json(self) -> dict[str, Any]:
        """The same as plain data; `Asked(**data)` takes it again."""
        return asdict(self)


class BenchRun:
    """One process's benchmark of one subject.

    `keep` is called with all figures so far whenever there are more; `tell` with a line for the
    reader. `result` are the figures, under the names they have in the report.
    """

    def __init__(
        self,
        subject: Subject,
        asked: Asked,
        clock: Clock,
        *,
        first_s: float | None = None,
        keep: Callable[[dict[str, Any]], None] = lambda result: None,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.subject = subject
        self.asked = asked
        self.clock = clock
        self.result: dict[str, Any] = {"part_problems": []}
        self._first_s = first_s
        self._keep = keep
        self._tell = tell

    def check(self) -> None:
        """Raise UsageError for a part that this subject cannot have, before anything is timed."""
        asked = self.asked
        if asked.throughput:
            check_search(self.subject, asked.dtypes, asked.search, self._search_options())

    def clean(self) -> dict[str, Any]:
        """Measure the clean time in the modes asked for.

        On Ctrl-C what was measured is kept before it is raised.
        """
        measured: dict[str, Measured] = {}
        both = self.asked.mode == BOTH
        before = self._state()
        try:
            with self.subject.conditions():
                self._measure(SYNCHRONISED if both else self.asked.mode, measured)
                # Without a device the two are one; a function may wake it in its first call only.
                if both and self.clock.has_device:
                    self._measure(PIPELINED, measured)
        except KeyboardInterrupt as stopped:
            if isinstance(stopped, Interrupted):
                measured[stopped.measured.policy.mode] = stopped.measured
            if measured:
                self._take(measured, before)
            raise
        self._take(measured, before)
        return self.result

    def _measure(self, mode: str, measured: dict[str, Measured]) -> None:
        policy = Policy(**{**self.asked.policy, "mode": mode})
        first_s = next((one.first_s for one in measured.values()), self._first_s)
        measured[mode] = measure(self.subject.step, policy, self.clock, first_s=first_s)

    def _state(self) -> dict[str, Any]:
        """The state of the device that is used."""
        if not self.clock.has_device:
            return {"devices": None, "reason": "the benchmark uses no device but the CPU"}
        return device_state()

    def _take(self, measured: Mapping[str, Measured], before: dict[str, Any]) -> None:
        self.result.update(figures(measured, self.subject))
        self.result["device_state"] = round_state(before, self._state())
        self._keep(self.result)
        self._tell(_headline(self.result))

    def parts(self) -> dict[str, Any]:
        """Everything that was asked for besides, one part after the other.

        What is compared between processes is measured in all of them, the rest in the first.
        """
        asked, wanted = self.asked, (self.subject, Policy(**self.asked.policy), self.clock)
        first = asked.process == 0
        if asked.compare:
            self._part("compare", lambda: self._compare(wanted[1]))
        if asked.mistakes and first:
            warmup_s = self.result.get("warmup_s") or ()
            self._part("mistakes", lambda: mistakes(*wanted, warmup_s=warmup_s))
        if asked.ablation and first:
            self._part("ablation", lambda: ablation(*wanted))
        if asked.throughput and first:
            self._part("throughput", self._throughput)
        return self.result

    def _compare(self, policy: Policy) -> list[dict[str, Any]]:
        names, number = list(self.asked.compare), self.asked.process
        return compare(self.subject, names, policy, self.clock, rotate=number)

    def _search_options(self) -> SearchOptions:
        options = SearchOptions(memory_limit_bytes=self.asked.memory_limit)
        if self.asked.max_batch is not None:
            options = replace(options, max_batch=self.asked.max_batch)
        return options

    def _throughput(self) -> list[dict[str, Any]]:
        rows, limits = search(
            self.subject,
            dtypes=self.asked.dtypes,
            search=self.asked.search,
            options=self._search_options(),
            clock=self.clock,
            tell=self._tell,
            keep=self._keep_throughput,
        )
        self._keep_throughput(rows, limits)
        return rows

    def _keep_throughput(self, rows: list[dict[str, Any]], limits: list[dict[str, Any]]) -> None:
        """What there is of a search, which may take long and be ended before it is over."""
        self.result["throughput"], self.result["throughput_limits"] = rows, limits
        self._keep(self.result)

    def _part(self, key: str, part: Callable[[], list[dict[str, Any]]]) -> None:
        """Measure one part and keep what it gives; an error in it is told in its place."""
        self._tell(f"{key} ...")
        try:
            self.result[key] = part()
        except Exception as error:
            said = str(error).splitlines()[0] if str(error) else "no message"
            kind = "" if isinstance(error, ProfstackError) else f"{type(error).__name__}: "
            self.result["part_problems"].append(f"--{key} gave nothing: {kind}{said}")
        self._keep(self.result)


def _headline(result: Mapping[str, Any]) -> str:
    """The clean time with its interval, in one line."""
    low, high = result["ci95_low_s"], result["ci95_high_s"]
    said = f"{format_seconds(result['median_s'])} a call"
    if low is not None:
        said += f" (95 % interval {format_seconds(low)} to {format_seconds(high)})"
    return f"{said}, {result['n']} samples, {result['mode']}"
