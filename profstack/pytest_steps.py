"""The steps that a test measures or locks: limits, kept times, locks, and the table at the end.

Times of a test are kept in `.profstack/times/`, which git ignores: they are of one machine. Locks
are in `.profstack/locks/`, to be committed. `profstack.pytest_plugin` imports this module when a
test asks for one of its fixtures.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, cast

import pytest

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

    from profstack.compare.kept_times import KeptChange, KeptTime
    from profstack.lock.facts import CountedRun, Facts, Value

FOLDER, TIMES, LOCKS = ".profstack", "times", "locks"
_SECONDS = 2.0
# Calls before the counting, and those that each layer counts.
_WARMUP, _COUNTED = 3, 3
# From this share of waiting for a core on a time is disturbed, likewise where other programs use
# this share of all cores: they slow a core that is shared with none, by its caches, its clock and
# its other thread.
_CROWDED, _BUSY = 0.1, 0.25
# A disturbed time breaks a limit from so many times the limit on.
_DISTURBED_FACTOR = 4.0
# CPU time of other programs below this is the rounding of the system's clock, seconds.
_LEAST_OTHERS_S = 0.05


class Row(TypedDict):
    """A line of the table at the end: plain values, which workers of xdist can send."""

    test: str
    median_s: float | None
    ci95_low_s: float | None
    ci95_high_s: float | None
    waited_share: float
    others_share: float
    before_s: float | None
    change: str
    result: str


@dataclass(frozen=True)
class MeasuredStep:
    """The time of a step in seconds per call; None where nothing was measured.

    `waited_share` is the share of the time in which a thread had no core to run on, `others_share`
    the share of all cores' time that other programs used: on a machine with other work the time
    says little.
    `change` is the ratio to the last kept state with its interval (`ratio`, `low`, `high`); None
    where this machine has none. `flop` and `syncs` are counted where a limit asks for them.
    """

    median_s: float | None
    ci95_low_s: float | None = None
    ci95_high_s: float | None = None
    samples: int = 0
    waited_share: float = 0.0
    others_share: float = 0.0
    change: KeptChange | None = None
    flop: float | None = None
    syncs: float | None = None

    @property
    def disturbed(self) -> str:
        """Why the time says nothing of the code; empty where it does."""
        return disturbance(self.waited_share, self.others_share)

    @property
    def doubt(self) -> float:
        """How many times as long as undisturbed the step may have taken, waiting left out."""
        return _DISTURBED_FACTOR if self.disturbed else 1.0


def disturbance(waited_share: float, others_share: float) -> str:
    """Return in words that other programs made a time longer; empty where they did not."""
    if waited_share > _CROWDED:
        return f"a thread waited for a core for {100 * waited_share:.0f} % of the time"
    if others_share > _BUSY:
        return f"other programs used {100 * others_share:.0f} % of the cores"
    return ""


_FINE, _BROKEN, _UNCLEAR = "", "broken", "cannot tell"
_XDIST = "workers of xdist disturb each other: measure with -n 0"


class Steps:
    """The work of the fixtures for one test.

    `marker` is the name of the marker, `arguments` what its limits are; `rows` are the table's.
    """

    def __init__(
        self,
        request: pytest.FixtureRequest,
        marker: str,
        arguments: Mapping[str, str],
        rows: list[Row],
    ) -> None:
        self._arguments, self._rows = arguments, rows
        self._config = request.config
        self._test: str = request.node.nodeid
        self._limits = _marker_arguments(request.node, marker, arguments)
        self._used = 0
        self._folder = request.config.rootpath / FOLDER
        # Set in the workers of xdist.
        count = getattr(request.config, "workerinput", {}).get("workercount", 1)
        self._has_neighbours = count > 1

    def _name(self) -> str:
        """Return a name for this use: that of the test, with a number from the second one on."""
        self._used += 1
        return self._test if self._used == 1 else f"{self._test}#{self._used}"

    def measure(self, step: Callable[..., Any], /, *args: Any, **kwargs: Any) -> MeasuredStep:
        """Measure a step, add it to the table, and fail the test where a limit is broken."""
        __tracebackhide__ = True
        name, call = self._name(), functools.partial(step, *args, **kwargs)
        if self._config.getoption("profstack_off"):
            call()
            return MeasuredStep(None)
        path = self._folder / TIMES / self._file(name, ".json")
        with _failing():
            from profstack.compare import kept_times

            kept = kept_times.read(path)
        measured = self._measured(call, kept)
        broken, unclear = self._over_limits(measured)
        if not broken and self._counting:
            flop, syncs = self._counts(call)
            measured = dataclasses.replace(measured, flop=flop, syncs=syncs)
            broken = self._over_counts(measured)
        result = _BROKEN if broken else _UNCLEAR if unclear else _FINE
        if self._config.getoption("profstack_save") and not broken:
            if not self._has_neighbours:
                self._write(path, kept_times.text(name, [*kept, self._as_kept(measured)]))
            result = f"{result} {'not ' * self._has_neighbours}saved".strip()
        self._add(name, measured, result)
        if unclear and self._config.getoption("profstack_strict"):
            broken += unclear
        if broken:
            pytest.fail(_printable("; ".join(broken)), pytrace=False)
        return measured

    def _measured(self, call: Callable[[], Any], kept: Sequence[KeptTime]) -> MeasuredStep:
        """Measure a call, once more where it was disturbed or breaks a limit; return the faster."""
        first = self._time(call, kept)
        if not first.disturbed and not self._over_limits(first)[0]:
            return first
        return min(first, self._time(call, kept), key=lambda each: each.median_s or 0.0)

    def _time(self, call: Callable[[], Any], kept: Sequence[KeptTime]) -> MeasuredStep:
        """Measure a call as `profstack bench` does."""
        from profstack.bench.measure import Policy, measure
        from profstack.compare.kept_times import change_of
        from profstack.environment import others_cpu_s, run_delays_s

        seconds = float(self._limits.get("seconds", _SECONDS))
        fixed = {name: self._limits[name] for name in ("warmup", "repeat") if name in self._limits}
        delays, others_s, began = run_delays_s(), others_cpu_s(), time.perf_counter()
        summary = measure(call, Policy(max_s=seconds, max_warmup_s=seconds, **fixed)).summary()
        took = time.perf_counter() - began
        others_s = others_cpu_s() - others_s
        waited = [each - delays.get(thread, 0.0) for thread, each in run_delays_s().items()]
        found = MeasuredStep(
            summary.median,
            summary.ci95_low,
            summary.ci95_high,
            samples=summary.n,
            waited_share=min(max(waited, default=0.0) / took, 1.0),
            others_share=(
                min(others_s / took / (os.cpu_count() or 1), 1.0)
                if others_s > _LEAST_OTHERS_S
                else 0.0
            ),
        )
        change = change_of(kept, self._as_kept(found))
        return dataclasses.replace(found, change=change)

    def _as_kept(self, measured: MeasuredStep) -> KeptTime:
        from profstack.storage.folder import iso

        environment = _environment(self._config.rootpath)
        machine = [str(environment.get(name)) for name in ("cpu", "usable_cores")]
        commit = environment.get("commit")
        state = (
            None if commit is None else f"{commit}{'+' * (environment.get('changed') is not False)}"
        )
        return {
            "machine": ", ".join([*machine, *_devices()]),
            "saved_at": iso(time.time()),
            "commit": state,
            "median_s": measured.median_s or 0.0,
            "ci95_low_s": measured.ci95_low_s,
            "ci95_high_s": measured.ci95_high_s,
            "waited_share": measured.waited_share,
        }

    @property
    def _counting(self) -> bool:
        return bool(self._limits.keys() & {"max_flop", "max_syncs"})

    def _over_counts(self, measured: MeasuredStep) -> list[str]:
        """Return the limits of counts that are broken, in words."""
        values = {"max_flop": measured.flop, "max_syncs": measured.syncs}
        return [
            f"{self._arguments[name]}: {self._limits[name]:g}, counted {value:g}"
            for name, value in values.items()
            if name in self._limits and value is not None and value > self._limits[name]
        ]

    def _over_limits(self, measured: MeasuredStep) -> tuple[list[str], list[str]]:
        """Return limits of time that are broken, and those that cannot be judged, in words."""
        broken: list[str] = []
        unclear: list[str] = []
        for found in (self._over_limit(measured), self._slower(measured)):
            if found is not None:
                is_broken, words = found
                if is_broken and not self._has_neighbours:
                    broken.append(words)
                else:
                    why = _XDIST if self._has_neighbours else measured.disturbed
                    unclear.append(f"cannot tell: {words}{f'; {why}' if why else ''}")
        return broken, unclear

    def _over_limit(self, measured: MeasuredStep) -> tuple[bool, str] | None:
        from profstack.units import format_seconds

        most, middle = self._limits.get("max_s"), measured.median_s
        if most is None or middle is None or (measured.ci95_high_s or middle) <= most:
            return None
        words = f"the step takes {format_seconds(middle)}, the limit is {format_seconds(most)}"
        # Without waiting for a core it would have been faster.
        least = (measured.ci95_low_s or middle) * (1.0 - measured.waited_share) / measured.doubt
        return least > most, words

    def _slower(self, measured: MeasuredStep) -> tuple[bool, str] | None:
        given = self._limits.get("compare", self._config.getoption("profstack_compare"))
        if given is None:
            return None
        from profstack.units import format_seconds

        limit, change = share_of(given), measured.change
        if change is None:
            return False, "this machine has no kept time: keep one with --profstack-save"
        if change.high <= 1.0 + limit:
            return None
        figures = f"{format_seconds(change.before_s)} -> {format_seconds(measured.median_s)}"
        interval = f"{_percent(change.low)} to {_percent(change.high)}"
        words = f"step {_percent(change.ratio)} ({interval}) against the kept time, {figures}"
        return change.low / measured.doubt > 1.0 + limit, f"{words}; the limit is {100 * limit:g} %"

    # -- exact numbers -----------------------------------------------------------------------------

    def lock(self, step: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        """Compare a step with its lock, or write that; fail the test where they differ."""
        __tracebackhide__ = True
        name, call = self._name(), functools.partial(step, *args, **kwargs)
        if self._config.getoption("profstack_off"):
            call()
            return
        path = self._folder / LOCKS / self._file(name, ".lock")
        with _failing():
            if self._config.getoption("profstack_lock"):
                self._write_lock(name, path, call)
                return
            words = self._differences(name, path, call)
        if words:
            pytest.fail(_printable(words), pytrace=False)

    def _write_lock(self, name: str, path: Path, call: Callable[[], Any]) -> None:
        from profstack.lock import lockfile

        seen: list[Facts] = []
        for _ in range(2):
            with self._counted(call) as run:
                seen.append(_facts(run))
                made = _made(name, run)
        facts, unstable = lockfile.merged(seen)
        self._write(path, lockfile.text_of(lockfile.Lock(made, facts, unstable)))

    def _differences(self, name: str, path: Path, call: Callable[[], Any]) -> str:
        """Return what differs from the lock, in words; empty where nothing does."""
        from profstack.errors import RecordingError
        from profstack.lock import lockfile, text
        from profstack.lock.differences import Comparison, compare
        from profstack.lock.meaning import explain
        from profstack.lock.places import Sources

        if not path.is_file():
            step = "write it with --profstack-lock and commit it"
            raise RecordingError("there is no lock of this step", where=name, next_step=step)
        lock = lockfile.read(path)
        with self._counted(call) as run:
            now = _facts(run)
            found = compare(lock, now, _made(name, run))
            if not found.differences:
                return ""
            with self._counted(call) as second:
                again = _facts(second)
            rows = [row for row in found.differences if again.get(row.key, 0) == row.now]
            if not rows:
                return ""
            causes, left = explain(rows, lock.facts, now, run, Sources(run, path))
        shown = os.path.relpath(path, self._config.rootpath)
        agreed = Comparison(rows, found.compared, found.notes)
        words = text.answer(name, shown, agreed, causes, left, whole=False)
        return f"{words}\n\nIf this is meant, write the lock again: pytest --profstack-lock"

    @contextmanager
    def _counted(self, call: Callable[[], Any]) -> Iterator[CountedRun]:
        """Count what calls of a step do; the recording is there inside the `with` block."""
        from profstack.launch.counted_run import Counting, count_calls
        from profstack.lock.facts import CountedRun

        with tempfile.TemporaryDirectory(prefix="profstack-") as base:
            folder = Path(base) / "counted"
            count_calls(call, self._test, folder, Counting(_WARMUP, _COUNTED))
            yield CountedRun(folder, str(self._config.rootpath))

    def _counts(self, call: Callable[[], Any]) -> tuple[float, float]:
        """Return operations and synchronisations of a step."""
        with _failing(), self._counted(call) as run:
            facts = _facts(run)
        return _sum(facts, "step", _is_flop), _sum(facts, _SYNCS, _waits)

    # -- files and rows ----------------------------------------------------------------------------

    @staticmethod
    def _file(name: str, ending: str) -> str:
        from profstack.compare.kept_times import file_name

        return file_name(name, ending)

    def _write(self, path: Path, content: str) -> None:
        """Write a file at once: a reader sees the old one or the new one."""
        from profstack.report.html import replace_text

        path.parent.mkdir(parents=True, exist_ok=True)
        ignore = self._folder / ".gitignore"
        if not ignore.exists():
            replace_text(
                ignore, f"# Times are of one machine. Locks are to be committed.\n{TIMES}/\n"
            )
        replace_text(path, content)

    def _add(self, name: str, measured: MeasuredStep, result: str) -> None:
        change = measured.change
        words = ""
        if change is not None:
            words = f"{_percent(change.low)} to {_percent(change.high)}"
        self._rows.append(
            {
                "test": name,
                "median_s": measured.median_s,
                "ci95_low_s": measured.ci95_low_s,
                "ci95_high_s": measured.ci95_high_s,
                "waited_share": measured.waited_share,
                "others_share": measured.others_share,
                "before_s": change.before_s if change else None,
                "change": words,
                "result": result,
            }
        )


def _marker_arguments(
    node: pytest.Item, marker_name: str, arguments: Mapping[str, str]
) -> dict[str, Any]:
    """Return the limits of a test; those of its class and module count where it has none."""
    found: dict[str, Any] = {}
    for marker in node.iter_markers(marker_name):
        unknown = sorted(marker.kwargs.keys() - arguments.keys())
        if marker.args or unknown:
            what = ", ".join(map(repr, (*marker.args, *unknown)))
            known = ", ".join(arguments)
            raise pytest.UsageError(f"{node.nodeid}: mark.profstack has no {what}; it has {known}")
        found = {**marker.kwargs, **found}
    try:
        share_of(found.get("compare", 0.0))
    except ValueError:
        words = f"compare={found['compare']!r} is no share; write '5%' or 0.05"
        raise pytest.UsageError(f"{node.nodeid}: {words}") from None
    return found


def share_of(value: object) -> float:
    """Return a share written as '5%' or 0.05; raise ValueError for anything else."""
    words = str(value).strip()
    share = float(words[:-1]) / 100.0 if words.endswith("%") else float(words)
    if not 0.0 <= share < 1e6:
        raise ValueError(words)
    return share


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f} %" if ratio < 10 else f"{ratio:.0f} times"


@functools.cache
def _environment(root: Path) -> Mapping[str, object]:
    from profstack.environment import environment_facts

    return environment_facts(root)


def _devices() -> list[str]:
    """Return the GPU, where the tests use one."""
    import sys

    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return []
    return [str(torch.cuda.get_device_name())]


@contextmanager
def _failing() -> Iterator[None]:
    """Fail the test with an error of profstack in one line."""
    __tracebackhide__ = True
    from profstack.errors import ProfstackError

    try:
        yield
    except ProfstackError as error:
        raise pytest.fail.Exception(_printable(str(error)), pytrace=False) from None


def _printable(text: str) -> str:
    """Return text of several lines without escape sequences: names may hold anything."""
    from profstack.report.screen import printable

    return "\n".join(map(printable, text.split("\n")))


# -- the table at the end --------------------------------------------------------------------------


def print_table(terminalreporter: TerminalReporter, rows: Sequence[Row]) -> None:
    """Print the table of what was measured."""
    from profstack.report.screen import Screen, fitting, short_name
    from profstack.units import format_seconds

    terminalreporter.section("profstack: steps")
    writer = terminalreporter._tw
    screen = Screen(writer.fullwidth, writer.hasmarkup)
    rows = sorted(rows, key=lambda row: row["test"])
    figures = [
        (
            *(format_seconds(row["median_s"]), _reach(row), format_seconds(row["before_s"])),
            *(row["change"], row["result"]),
        )
        for row in rows
    ]
    heads = ("step", "95 %", "kept", "change", "")
    # Names have what the figures leave; their ends tell them apart.
    widths = [max(map(len, column)) + 2 for column in zip(heads, *figures, strict=True)]
    names = [short_name(row["test"], screen.width - sum(widths)) for row in rows]
    cells = [
        (name, *each[:-1], _coloured(each[-1])) for name, each in zip(names, figures, strict=True)
    ]
    screen.table([("test", "l"), *((head, "r") for head in heads)], cells)
    disturbed = [
        why for row in rows if (why := disturbance(row["waited_share"], row["others_share"]))
    ]
    if disturbed:
        screen.line(f"{len(disturbed)} of {len(rows)} were disturbed: {disturbed[0]}")
    terminalreporter.write(fitting(screen.text(), getattr(writer._file, "encoding", None)))


def _coloured(result: str) -> tuple[str, str]:
    return result, "red" if result.startswith(_BROKEN) else ""


def _reach(row: Row) -> str:
    """Return how far the interval reaches from the median, in percent of it."""
    low, high, middle = row["ci95_low_s"], row["ci95_high_s"], row["median_s"]
    if low is None or high is None or not middle:
        return ""
    share = 100 * max(high - middle, middle - low) / middle
    return f"±{share:.{1 if share < 10 else 0}f} %"


# -- facts of a step -------------------------------------------------------------------------------

_SYNCS = "synchronisations"
# Calls that wait for a device though no operator says so where everything is on the CPU.
_WAITING_CALLS = (".cpu()", ".tolist()", "torch.synchronize()")


def _facts(run: CountedRun) -> Facts:
    """Return the facts of a step less those that depend on what other tests left in the process.

    These are the peak of memory, in which their tensors are alive, and what was compiled before.
    """
    from profstack.lock.facts import COMPILE, MEMORY, read_facts

    return {
        key: value
        for key, value in read_facts(run).items()
        if key.section != COMPILE and not (key.section == MEMORY and key.name.startswith("peak"))
    }


def _made(name: str, run: CountedRun) -> dict[str, int | str | list[str]]:
    """Return with what a step was counted, and how."""
    environment = cast("Mapping[str, Any]", run.facts.get("environment") or {})
    return {
        "script": name,
        "arguments": [],
        "torch": str(environment.get("torch", "")).partition("+")[0],
        "device": str(environment.get("device", "cpu")),
        "threads": int(environment.get("torch_threads") or 0),
        "cpu": str(run.facts.get("cpu_capability") or ""),
        "warmup": _WARMUP,
        "steps": _COUNTED,
    }


def _is_flop(name: str) -> bool:
    return name in ("forward_flop", "backward_flop")


def _waits(name: str) -> bool:
    return not name.endswith("()") or name in _WAITING_CALLS


def _sum(facts: Facts, section: str, counts: Callable[[str], bool]) -> float:
    """Return the sum of the facts of a section whose name counts, per step."""
    return sum(
        _per_step(value)
        for key, value in facts.items()
        if key.section == section and not key.of and counts(key.name)
    )


def _per_step(value: Value) -> float:
    """Return a fact as a number: `1 in 3 steps` is a third."""
    if isinstance(value, int):
        return float(value)
    total, _, steps = value.removesuffix(" steps").partition(" in ")
    return int(total) / int(steps)
