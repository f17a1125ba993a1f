"""Search for the largest batch that runs, and measure the rate of the sizes on the way.

There is one search for each data type, tried where the subject is: on a device in this process, on
a CPU in processes of its own. Sizes are doubled until one is refused. Between the last that ran and
the first that did not the largest is found by halving, or, in a linear search, by adding one at a
time from the beginning. Both end with a size that ran and the next larger one that did not. Every
size that ran, in powers of two, and the largest itself are timed, each in the state of memory that
a fresh start has.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from time import monotonic
from typing import Any, Final, cast

from profstack.bench import batch_trial
from profstack.bench.batch_trial import ENDED, FAILED, MEASURED, REFUSED, WORKED, Probe, Trial
from profstack.bench.fresh_process import FreshProcess
from profstack.bench.subject import Request, Subject
from profstack.errors import UsageError
from profstack.stats.clock import Clock
from profstack.storage.schema.report import ThroughputLimit, ThroughputRow
from profstack.units import format_seconds

BINARY: Final = "binary"
LINEAR: Final = "linear"

# The knee is the smallest measured batch with this part of the highest measured rate: larger ones
# gain little.
KNEE_SHARE = 0.9
KNEE_RULE = (
    f"the knee is the smallest measured batch with {100 * KNEE_SHARE:.0f} % of the highest rate"
)
# How often the largest size is made smaller when it runs, but not while it is timed.
_TRIES = 4
# Of a process's last line so much is shown.
_LONGEST_WORDS = 200
_LINE_EVERY_S = 5.0


@dataclass(frozen=True)
class Options:
    """How far and how long to search.

    `max_batch` is the largest size tried. `memory_limit_bytes` is what a batch may take in
    addition to the loaded model; None means, on a CPU, 80 % of the memory that is available then,
    and on a device all of it. `trial` says how one size is timed. On a CPU a process may take
    `patience_s` to load the target or to try one size before it is ended. No further size of a
    data type is tried after `max_search_s`.
    """

    max_batch: int = 65536
    memory_limit_bytes: int | None = None
    trial: Trial = field(default_factory=Trial)
    patience_s: float = 180.0
    max_search_s: float = 900.0


def knee(measured: Sequence[Probe]) -> Probe | None:
    """Return the smallest batch with 90 % of the highest rate, None without a rate."""
    rated = [one for one in measured if one.items_per_s is not None]
    enough = KNEE_SHARE * max((one.items_per_s or 0.0 for one in rated), default=0.0)
    fast = (one for one in rated if (one.items_per_s or 0.0) >= enough)
    return min(fast, key=lambda one: one.batch_size, default=None)


# -- probers: on a device in this process, on a CPU in processes of their own
# A device's allocator refuses a request and continues. On a CPU the system grants more than it has
# and then kills a process: there a process under a memory limit tries, and its end is a result too.
#
# A prober tries batch sizes of one subject in one floating-point type. `attempt` tries one size, as
# if it were the first; `walk` tries size after size without timing, up to the first that does not
# run. `memory_limit_bytes` are the bytes that a probe may take, if known (after the first attempt,
# for some); `dtype` is the type that is tried, if there is one; `about` says what the figures of
# memory mean.


@dataclass
class DeviceProber:
    """Tries in this process, on the device that the subject is on."""

    make: batch_trial.Maker
    dtype: str | None
    memory: batch_trial.DeviceMemory
    memory_limit_bytes: int | None
    trial: Trial
    clock: Clock
    about: str = "peak memory is what the device's allocator had given out, the model included"

    def attempt(self, batch_size: int, *, timed: bool) -> Probe:
        """Try one size, then return its memory to the device."""
        return batch_trial.attempt(
            self.make, batch_size, self.trial, self.clock, self.memory, timed=timed
        )

    def walk(self, first: int, last: int) -> Generator[Probe, None, None]:
        """Try size after size, up to the first that does not run."""
        for batch_size in range(first, last + 1):
            probe = self.attempt(batch_size, timed=False)
            yield probe
            if not probe.worked:
                return


@contextmanager
def limited_device(
    kind: str, limit_bytes: int | None
) -> Iterator[tuple[batch_trial.DeviceMemory, int | None]]:
    """Let the current device's allocator allocate at most so much in addition.

    Yields the device's memory and the bytes that are then free for a batch, if known. Raises
    UsageError for a kind of device whose allocator takes no limit.
    """
    import torch

    module: Any = getattr(torch, kind, None)
    memory = batch_trial.DeviceMemory(module)
    allow: Any = getattr(module, "set_per_process_memory_fraction", None)
    # It returns the free and the total bytes of the current device.
    ask: Any = getattr(module, "mem_get_info", None)
    if limit_bytes is not None and (allow is None or ask is None):
        raise UsageError(
            f"--memory-limit: torch sets no limit for {kind}",
            next_step="leave it out: the search ends where the device's memory does",
        )
    memory.clear()
    if limit_bytes is None:
        yield memory, int(ask()[0]) if ask is not None else None
        return
    held = module.memory_reserved()
    # Older versions of torch cannot return the limit: assume that there is none.
    before = getattr(module, "get_per_process_memory_fraction", lambda: 1.0)()
    allow(min(before, (held + limit_bytes) / ask()[1]))
    try:
        yield memory, limit_bytes
    finally:
        allow(before)


@dataclass
class ChildProber:
    """Tries each size in a fresh process that may take so much memory above the loaded target.

    Without `limit_bytes` the first process may take a share of the memory that is available once
    it has loaded the target, and all others as much. A process without an answer after
    `patience_s` (and the trial's own time) is killed. Raises UsageError where no memory limit can
    be set.
    """

    request: Request
    dtype: str | None
    trial: Trial
    limit_bytes: int | None
    patience_s: float

    def __post_init__(self) -> None:
        self.memory_limit_bytes, self._wanted = self.limit_bytes, self.dtype
        counted = "memory is counted on top of the process with the model loaded: the limit"
        if self.limit_bytes is None:
            counted += f", {100 * batch_trial.SHARE:.0f} % of what was available then"
        self.about = f"{counted}, and the peak"
        self._patience_s = self.patience_s + self.trial.measure_s + self.trial.warmup_s

    def attempt(self, batch_size: int, *, timed: bool) -> Probe:
        """Try one size in a process of its own."""
        with closing(self._tried(batch_size, batch_size, timed=timed)) as answers:
            return next(answers)

    def walk(self, first: int, last: int) -> Generator[Probe, None, None]:
        """Try size after size, up to the first that does not run in a fresh process.

        Many sizes share a process, which saves its start. A size that is refused there, where
        earlier ones may have fragmented the memory, is tried again as the first of another process.
        """
        while first <= last:
            begun_at = first
            with closing(self._tried(first, last, timed=False)) as answers:
                for probe in answers:
                    if probe.worked:
                        yield probe
                        first = probe.batch_size + 1
                    elif probe.batch_size == begun_at or probe.status != REFUSED:
                        yield probe
                        return

    def _tried(self, first: int, last: int, *, timed: bool) -> Generator[Probe, None, None]:
        """Yield one process's results: the sizes that ran, then the one that did not."""
        import torch

        task = {
            "request": asdict(self.request),
            "dtype": self._wanted,
            "trial": asdict(self.trial),
            "sizes": [first, last],
            "timed": timed,
            "threads": torch.get_num_threads(),
            "allowance_bytes": self.memory_limit_bytes,
            "give_up_s": math.ceil(2 * self._patience_s),
        }
        ready = None
        with FreshProcess(batch_trial.__name__, task) as child:
            while first <= last:
                answer = child.answer(self._patience_s)
                if answer is None:
                    yield self._post_mortem(child, first, is_loaded=ready is not None)
                    return
                if "no_limit" in answer:
                    raise UsageError(
                        f"the largest batch on a CPU is looked for under a memory limit, but "
                        f"{answer['no_limit']}",
                        next_step="state one (--memory-limit 4GiB) or search on Linux",
                    )
                if "failed" in answer:
                    yield Probe(first, FAILED, f"the target was not loaded: {answer['failed']}")
                    return
                if ready is None:
                    ready = answer["ready"]
                    self.memory_limit_bytes, self.dtype = ready["allowance_bytes"], ready["dtype"]
                    continue
                probe = Probe(**answer["probe"])
                yield probe
                if not probe.worked:
                    return
                first += 1

    def _post_mortem(self, child: FreshProcess, batch_size: int, *, is_loaded: bool) -> Probe:
        """Return the result for the size at which a process ended without an answer."""
        code = child.exit_code()
        if code is None:
            reason = f"no answer after {format_seconds(self._patience_s)}: the process was ended"
            return Probe(batch_size, ENDED, reason)
        words = child.last_words()[:_LONGEST_WORDS]
        said = f": {words}" if words else ""
        known = {one.value: one.name for one in signal.Signals}
        by = known.get(-code, f"signal {-code}") if code < 0 else f"exit code {code}"
        if not is_loaded:
            return Probe(batch_size, FAILED, f"the target was not loaded ({by}){said}")
        if code < 0:
            hint = " (so does the system when memory is short)" if code == -signal.SIGKILL else ""
            reason = f"its process was killed by {by}{hint}{said}"
            return Probe(batch_size, REFUSED, reason, certain=batch_trial.says_no_memory(words))
        reason = f"its process ended with {by} and without an answer{said}"
        return Probe(batch_size, REFUSED if batch_trial.says_no_memory(words) else FAILED, reason)


Prober = DeviceProber | ChildProber


# -- the search ---------------------------------------------------------------


@dataclass
class Search:
    """The search in one data type: the sizes tried, and the reason of its end."""

    linear: bool
    options: Options
    tell: Callable[[str], None]
    keep: Callable[[Search], None]
    dtype: str | None
    is_over: bool = False
    # Set when the search begins.
    _prober: Prober = field(init=False)

    def __post_init__(self) -> None:
        self._reported_at, self._until = 0.0, monotonic() + self.options.max_search_s
        self._probes: list[Probe] = []
        self._stopper: Probe | None = None
        # Largest size that ran, smallest that did not.
        self._worked, self._not = 0, self.options.max_batch + 1
        self._stopped_by: str | None = None
        self._limit_bytes = self.options.memory_limit_bytes
        self._notes: list[str] = []

    def run(self, prober: Prober) -> None:
        """Find the largest batch and time the sizes on the way."""
        self._prober = prober
        self.tell(f"{prober.dtype or 'as it is'}: looking for the largest batch")
        if self.linear:
            with closing(prober.walk(1, self.options.max_batch)) as walk:
                for probe in walk:
                    if not self._take(probe) or self._is_late():
                        break
            size = 1
            while size < self._worked:
                self._timed(size)
                size *= 2
        else:
            self._double()
            while self._not - self._worked > 1 and not self._is_late():
                # Halve the range between a size that ran and one that memory refused.
                if self._stopper is None or self._stopper.status != REFUSED:
                    break
                self._take(prober.attempt((self._worked + self._not) // 2, timed=False))
        self._time_largest()
        self._notes.append(prober.about)

    def stop(self, probe: Probe) -> None:
        """Note the size that did not run."""
        self._not, self._stopper = probe.batch_size, probe

    def rows(self) -> list[ThroughputRow]:
        """Return rows of the measured sizes and those that did not run, by batch size."""
        shown = [one for one in self._probes if one.status != WORKED]
        if self._stopper is not None and self._stopper not in shown:
            shown.append(self._stopper)
        rows = [asdict(one) for one in sorted(shown, key=lambda one: one.batch_size)]
        for row in rows:
            del row["certain"]
            # For the report a size that took too long has failed.
            row["status"] = FAILED if row["status"] == ENDED else row["status"]
        return [cast(ThroughputRow, {"dtype": self.dtype, **row}) for row in rows]

    def limits(self) -> ThroughputLimit:
        """Return the search's row of `benchmark.throughput_limits`."""
        measured = [one for one in self._probes if one.status == MEASURED]
        bend = knee(measured)
        best = max(measured, key=lambda one: one.items_per_s or 0.0, default=None)
        first, last = self._worked + 1, self._not - 1
        has_stopped = self._stopper is not None or self._stopped_by is not None
        is_open = first <= last and (has_stopped or not self.is_over)
        untried = [f"batches of {first} to {last} were not tried"] if is_open else []
        return {
            "dtype": self.dtype,
            "search": LINEAR if self.linear else BINARY,
            "largest_batch": self._worked or None,
            "limited_by": self._limited_by(),
            "memory_limit_bytes": self._limit_bytes,
            "knee_batch": bend.batch_size if bend else None,
            "knee_items_per_s": bend.items_per_s if bend else None,
            "max_items_per_s": best.items_per_s if best else None,
            "max_batch": best.batch_size if best else None,
            "note": "; ".join([*untried, *self._notes, KNEE_RULE]),
        }

    def _double(self) -> None:
        """Double the size, timing each, until one does not run."""
        size = 1
        while self._worked < self.options.max_batch and not self._is_late():
            if not self._take(self._prober.attempt(size, timed=True)):
                return
            size = min(2 * size, self.options.max_batch)

    def _time_largest(self) -> None:
        """Time the largest size, or a smaller one where timing it needs more memory."""
        done = {one.batch_size for one in self._probes if one.status == MEASURED}
        largest, most = self._worked, max(done, default=0)
        for _ in range(_TRIES):
            if self._worked <= most:
                return
            probe = self._timed(self._worked)
            if probe.worked:
                return
            self._notes = [f"batches up to {largest} ran a few times, but not while timed"]
            self.stop(probe)
            self._worked = max(most, self._worked - max(1, self._worked // 16))
        self._worked = most

    def _timed(self, size: int) -> Probe:
        probe = self._prober.attempt(size, timed=True)
        # Do not show the size twice.
        self._probes = [one for one in self._probes if one.batch_size != size]
        self._probes.append(probe)
        self._report(probe)
        return probe

    def _take(self, probe: Probe) -> bool:
        """Add an attempt; return whether the size ran."""
        # Smaller batches ran, and the library fails so when memory is short, too.
        if probe.status == FAILED and not probe.certain and self._worked:
            probe.status = REFUSED
        self._probes.append(probe)
        if probe.worked:
            self._worked = probe.batch_size
        else:
            self.stop(probe)
        self._report(probe)
        return probe.worked

    def _report(self, probe: Probe) -> None:
        """Keep and print results so far; in a linear search a line every few seconds."""
        self.dtype = self.dtype or self._prober.dtype
        self._limit_bytes = self._prober.memory_limit_bytes
        walks = self.linear and probe.status == WORKED
        if walks and monotonic() - self._reported_at < _LINE_EVERY_S:
            return
        self.keep(self)
        self._reported_at = monotonic()
        rate = f", {probe.items_per_s:.4g} items/s" if probe.items_per_s is not None else ""
        why = f": {probe.reason}" if probe.reason and not probe.worked else ""
        self.tell(f"batch of {probe.batch_size}: {probe.status}{rate}{why}")

    def _is_late(self) -> bool:
        if self._stopped_by is None and monotonic() > self._until:
            bound = format_seconds(self.options.max_search_s)
            self._stopped_by = f"the search's time bound of {bound}"
        return self._stopped_by is not None

    def _limited_by(self) -> str | None:
        size = self._not
        if not self.is_over:
            return "the search was ended before it was over"
        if self._stopped_by is not None and self._not - self._worked > 1:
            return self._stopped_by
        if self._stopper is None:
            return f"the largest size to try: no batch above {self.options.max_batch} was tried"
        if self._stopper.status == REFUSED:
            # A process may be killed and a library fail for other reasons.
            what = "memory: " if self._stopper.certain else ""
            return f"{what}a batch of {size} was refused ({self._stopper.reason})"
        if self._stopper.status == ENDED:
            return f"time: a batch of {size} gave {self._stopper.reason}"
        return f"an error at a batch of {size}: {self._stopper.reason}"


def search(
    subject: Subject,
    *,
    dtypes: Sequence[str] = (),
    search: str = BINARY,
    options: Options | None = None,
    clock: Clock | None = None,
    tell: Callable[[str], None] | None = None,
    keep: Callable[[list[ThroughputRow], list[ThroughputLimit]], None] | None = None,
) -> tuple[list[ThroughputRow], list[ThroughputLimit]]:
    """Return rows for `benchmark.throughput` and `benchmark.throughput_limits` of the report.

    `dtypes` are names of floating-point types to convert model and inputs to, none for the ones
    they have; `search` is `binary` or `linear`; `tell` is called with lines about the sizes, and
    `keep` with rows and limits so far as these change. On a device sizes are tried in this process,
    and the model is afterwards as it was; on a CPU in processes that load `subject.request` anew.
    An error of the model becomes a row and is never raised.

    Raises UsageError where the subject has no other batch sizes, for a type that torch has not, and
    where the search needs another process or a memory limit and cannot have it.
    """
    options = options or Options()
    check(subject, dtypes, search, options)
    clock, tell = clock or Clock(), tell or (lambda line: None)
    rows: list[ThroughputRow] = []
    limits: list[ThroughputLimit] = []

    def so_far(one: Search) -> None:
        """Hand over the results so far of a search that is going on."""
        if keep is not None:
            keep([*rows, *one.rows()], [*limits, one.limits()])

    # Each type once, in the order given.
    for dtype in dict.fromkeys(dtypes) or (None,):
        one = Search(search == LINEAR, options, tell, so_far, dtype)
        try:
            with _prober(subject, dtype, options, clock) as prober:
                one.run(prober)
        except UsageError:
            raise
        except Exception as error:
            # The model cannot be converted, or there is no memory to.
            one.stop(batch_trial.probe_of_error(error, 1))
        except BaseException:
            # Ctrl-C, for example.
            so_far(one)
            raise
        one.is_over = True
        rows += one.rows()
        limits.append(one.limits())
    return rows, limits


@contextmanager
def _prober(
    subject: Subject, dtype: str | None, options: Options, clock: Clock
) -> Iterator[Prober]:
    """Yield the prober for the subject's device; restore device and model in the end."""
    kind, limit = batch_trial.device_kind(subject), options.memory_limit_bytes
    if kind == "cpu":
        assert subject.request is not None
        yield ChildProber(subject.request, dtype, options.trial, limit, options.patience_s)
        return
    borrowed = batch_trial.borrowed(subject, dtype)
    with borrowed as make, limited_device(kind, limit) as (memory, allowed):
        known = dtype or batch_trial.own_dtype(subject)
        yield DeviceProber(make, known, memory, allowed, options.trial, clock)


def check(subject: Subject, dtypes: Sequence[str], search: str, options: Options) -> None:
    """Raise UsageError for arguments that `search` would refuse, without trying anything."""
    if search not in (BINARY, LINEAR):
        raise UsageError(f"--search {search} is not known", next_step="give binary or linear")
    if options.max_batch < 1:
        raise UsageError("the largest batch to try must be at least 1", next_step="give 1 or more")
    limit = options.memory_limit_bytes
    if limit is not None and limit <= 0:
        raise UsageError("--memory-limit must be more than nothing", next_step="try 1GiB")
    if subject.of_batch is None:
        raise UsageError(
            f"--throughput needs other batch sizes: "
            f"{subject.why_no_batches or 'the target makes its own inputs'}",
            where=subject.request.spec if subject.request is not None else subject.name,
            next_step="name a factory of (model, inputs), with a parameter batch_size if the batch "
            "is not the inputs' leading dimension",
        )
    for name in dtypes:
        batch_trial.check_dtype(name)
    if batch_trial.device_kind(subject) == "cpu" and subject.request is None:
        raise UsageError(
            "on a CPU a batch is tried in a process of its own, which cannot load this target",
            where=subject.name,
            next_step="put it into a file and give 'profstack bench file.py:function'",
        )
