"""One process's whole benchmark: the clean measurement, the parts asked for, the layers.

Figures are handed over after every part, so that a later part cannot lose them. An error in the
clean measurement is the workload's and is raised; an error in a part becomes a problem of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from profstack.bench.ablation import ablation
from profstack.bench.measure import Interrupted, Measurement, Policy, measure
from profstack.bench.mistakes import mistakes
from profstack.bench.results import Figures
from profstack.bench.subject import Subject, shapes_in_words
from profstack.bench.throughput import Options as SearchOptions
from profstack.bench.throughput import check as check_search
from profstack.bench.throughput import search
from profstack.bench.variants import compare
from profstack.capture.marks import marks_of
from profstack.capture.slices import Targets
from profstack.errors import ProfstackError
from profstack.guard import strip_frame
from profstack.launch.in_process import InProcess
from profstack.readers.flops import model_copies
from profstack.recording import Recording
from profstack.stats.blocks import PIPELINED, SYNCHRONISED
from profstack.stats.clock import Clock, device_state, round_state
from profstack.stats.summary import Summary, by_shape, median_interval, summarize
from profstack.storage.schema.report import ThroughputLimit, ThroughputRow
from profstack.units import format_seconds

BOTH = "both"
MODES = (SYNCHRONISED, PIPELINED, BOTH)
SAME_MODES = "there is no device to wait for: synchronised and pipelined are the same here"


@dataclass(frozen=True)
class BenchOptions:
    """The measurements to make, as plain data.

    `mode` is one of `MODES` and takes the place of the policy's. `compare` and `dtypes` are names;
    `memory_limit` is in bytes, and `max_batch` the largest batch tried.
    """

    mode: str = BOTH
    policy: Policy = field(default_factory=Policy)
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

    @classmethod
    def of_json(cls, data: Mapping[str, Any], process: int) -> BenchOptions:
        """Return the options from what `asdict` made of them, for the process of this number."""
        return cls(**{**data, "policy": Policy(**data["policy"]), "process": process})


@dataclass
class BenchRun:
    """One process's benchmark of one subject.

    `keep` is called with all figures so far whenever there are more; `tell` with a line for the
    reader. `result` are the figures, under the names they have in the report.
    """

    subject: Subject
    options: BenchOptions
    clock: Clock
    first_s: float | None = None
    keep: Callable[[Figures], None] = lambda result: None
    tell: Callable[[str], None] = lambda text: None

    def __post_init__(self) -> None:
        self._part_problems: list[str] = []
        self.result: Figures = {"part_problems": self._part_problems}
        self._warmup_s: Sequence[float] = ()

    def check(self) -> None:
        """Raise UsageError for a part that this subject cannot have, before anything is timed."""
        options = self.options
        if options.throughput:
            check_search(self.subject, options.dtypes, options.search, self._search_options())

    def clean(self) -> None:
        """Measure the clean time in the modes asked for.

        On Ctrl-C what was measured is kept before it is raised.
        """
        measured: dict[str, Measurement] = {}
        both, before = self.options.mode == BOTH, self._device_state()
        try:
            with self.subject.conditions():
                self._measure(SYNCHRONISED if both else self.options.mode, measured)
                # Without a device the two are one; a function may wake it in its first call only.
                if both and self.clock.has_device:
                    self._measure(PIPELINED, measured)
        except KeyboardInterrupt as stopped:
            if isinstance(stopped, Interrupted):
                measured[stopped.measured.policy.mode] = stopped.measured
            if measured:
                self._add_clean(measured, before)
            raise
        self._add_clean(measured, before)

    def _measure(self, mode: str, measured: dict[str, Measurement]) -> None:
        policy = replace(self.options.policy, mode=mode)
        first_s = next((one.first_s for one in measured.values()), self.first_s)
        measured[mode] = measure(self.subject.step, policy, self.clock, first_s=first_s)

    def _device_state(self) -> dict[str, object]:
        if not self.clock.has_device:
            return {"devices": None, "reason": "the benchmark uses no device but the CPU"}
        return device_state()

    def _add_clean(self, measured: Mapping[str, Measurement], before: dict[str, object]) -> None:
        head = next(iter(measured.values()))
        summary = summarize(head.series_s)
        self._warmup_s = head.warmup_s
        self.result.update(clean_figures(measured, summary, self.subject))
        self.result["device_state"] = round_state(before, self._device_state())
        self.keep(self.result)
        said = f"{format_seconds(summary.median)} a call"
        if summary.ci95_low is not None:
            low, high = map(format_seconds, (summary.ci95_low, summary.ci95_high))
            said += f" (95 % interval {low} to {high})"
        self.tell(f"{said}, {summary.n} samples, {head.policy.mode}")

    def parts(self) -> None:
        """Measure the other parts asked for, one after the other.

        What is compared between processes is measured in all of them, the rest in the first.
        """
        options, first = self.options, self.options.process == 0
        subject, policy, clock = self.subject, self.options.policy, self.clock
        if options.compare:
            names, rotate = list(options.compare), options.process
            self._part("compare", lambda: compare(subject, names, policy, clock, rotate=rotate))
        if options.mistakes and first:
            warmup_s = self._warmup_s
            self._part("mistakes", lambda: mistakes(subject, policy, clock, warmup_s=warmup_s))
        if options.ablation and first:
            self._part("ablation", lambda: ablation(subject, policy, clock))
        if options.throughput and first:
            self._part("throughput", self._throughput)

    def _search_options(self) -> SearchOptions:
        largest = self.options.max_batch
        largest = SearchOptions.max_batch if largest is None else largest
        return SearchOptions(largest, self.options.memory_limit)

    def _throughput(self) -> list[ThroughputRow]:
        rows, limits = search(
            self.subject,
            dtypes=self.options.dtypes,
            search=self.options.search,
            options=self._search_options(),
            clock=self.clock,
            tell=self.tell,
            keep=self._keep_throughput,
        )
        self._keep_throughput(rows, limits)
        return rows

    def _keep_throughput(self, rows: list[ThroughputRow], limits: list[ThroughputLimit]) -> None:
        """Keep the results so far of a search: it may take long and be ended early."""
        self.result["throughput"], self.result["throughput_limits"] = rows, limits
        self.keep(self.result)

    def _part(self, key: str, part: Callable[[], object]) -> None:
        """Measure one part and keep its rows; an error in it becomes a problem."""
        self.tell(f"{key} ...")
        try:
            self.result[key] = part()
        except Exception as error:
            said = str(error).splitlines()[0] if str(error) else "no message"
            kind = "" if isinstance(error, ProfstackError) else f"{type(error).__name__}: "
            self._part_problems.append(f"--{key} gave nothing: {kind}{said}")
        self.keep(self.result)


def clean_figures(
    measured: Mapping[str, Measurement], summary: Summary, subject: Subject
) -> Figures:
    """Return the figures of the clean measurement by their names in the report.

    Times are in seconds per call. `measured` is by mode: the first one gives the headline, of
    which `summary` is, and the other one its median with the interval.
    """
    head = next(iter(measured.values()))
    series, samples = head.series_s, head.samples
    batch = subject.batch_size
    cpu_s, wall_s = samples.cpu_and_wall_s()
    device_s = [each for each in samples.device_s if each is not None]
    # All samples of a benchmark have the same inputs; those of a function are unknown.
    shapes = shapes_in_words((subject.inputs, dict(subject.named_inputs)))
    figures: Figures = {
        "target": subject.request.spec if subject.request is not None else None,
        "mode": head.policy.mode,
        "clock": head.clock,
        **summary.columns(batch),
        "samples_s": series,
        "calls_per_sample": samples.calls,
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
        "host_median_s": median(samples.host_s) if samples.host_s else None,
        "device_median_s": median(device_s) if device_s else None,
        "batch_size": batch,
        "batch_size_is": subject.batch_size_is,
        # A function may switch gradients itself.
        "gradients": None if subject.model is None else subject.gradients,
        "training": subject.training,
        "training_layers": subject.training_layers,
        "by_shape": by_shape({shapes: series}) if shapes else [],
        "modes_note": None if samples.device_s else SAME_MODES,
    }
    for mode in (SYNCHRONISED, PIPELINED):
        of_mode = measured[mode].series_s if mode in measured else []
        low, high = (median_interval(of_mode) if of_mode else None) or (None, None)
        figures[f"{mode}_median_s"] = median(of_mode) if of_mode else None
        figures[f"{mode}_ci95_low_s"] = low
        figures[f"{mode}_ci95_high_s"] = high
    return figures


# Calls go on for so long at most, once every layer has had its first slice.
MAX_SECONDS = 60.0


def record_layers(
    subject: Subject, name: str, layers: Sequence[str], *, output: Path | None = None
) -> Recording:
    """Call the subject as often as the layers need, and return the recording.

    This follows the clean measurement in the same process: the benchmark's figures are written
    into this recording. `output` is a new folder, None for a temporary one. An error of the
    subject is raised again when the recording has ended.
    """
    import torch

    session = InProcess(name, list(layers), Targets())
    engine = session.begin(torch, None if output is None else str(output), force=False)
    marks = marks_of(engine)
    failed: BaseException | None = None
    try:
        step = subject.step
        with subject.conditions(), model_copies.given(step):
            # Each call is a step, until every planned slice is over or the time is.
            if marks.begin(object()) and not marks.repeat(step, MAX_SECONDS)[2]:
                session.stopped_by = "max_seconds"
                bound = f"the layers' calls ended after {MAX_SECONDS:g} s"
                session.note("bench-layers", f"{bound}, before all rounds were over")
    except BaseException as error:
        strip_frame(error)
        failed = error
        raise
    finally:
        marks.close(failed=failed is not None)
        recording = session.finish(type(failed) if failed is not None else None, False)
    return recording
