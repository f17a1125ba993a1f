"""`Session`, `benchmark()` and `try_()`: profstack inside a program or a notebook.

It is the engine of `profstack run` without a child: it watches the process it is in, and only
while it is open. Its recording lies in a temporary folder unless another one is given.
"""

from __future__ import annotations

import functools
import html
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from profstack import layer
from profstack.bench import results
from profstack.bench.measure import Policy
from profstack.bench.run import BOTH, MODES, BenchOptions, BenchRun, record_layers
from profstack.bench.subject import Subject, leading_dimension, of_model
from profstack.bench.try_calls import try_calls
from profstack.capture.loops import BeginAt
from profstack.capture.run import device_facts, torch_facts
from profstack.capture.slices import Targets
from profstack.errors import ProfstackError, RecordingError, UsageError
from profstack.guard import Guard, complain, is_scripts, strip_frame
from profstack.launch import child
from profstack.launch.in_process import InProcess, ProgramFolder, name_page
from profstack.launch.other_runs import announced
from profstack.launch.peaks import keep_peaks
from profstack.models import in_training
from profstack.readers.flops import model_copies as flopcopies
from profstack.recording import Recording
from profstack.report import terminal_try
from profstack.report.files import write_report
from profstack.stats.clock import Clock
from profstack.storage.vocabulary import READ, STATED

if TYPE_CHECKING:
    from profstack.capture.marks import Marks
    from profstack.storage.schema.trials import TrialReport

Item = TypeVar("Item")


class LoopSteps(Generic[Item]):
    """The loop of `Session.steps`: the items of an iterable, each with a step of its own."""

    def __init__(self, marks: Marks | None, iterable: Iterable[Item], place: object) -> None:
        self._marks = marks
        self._iterable = iterable
        self._place = place

    def __len__(self) -> int:
        if isinstance(self._iterable, Sized):
            return len(self._iterable)
        raise TypeError(f"{type(self._iterable).__name__} has no length")

    def __iter__(self) -> Iterator[Item]:
        marks = self._marks
        if marks is None or not marks.begin(self._place):
            yield from self._iterable
            return
        cut = True
        try:
            for item in self._iterable:
                held = [item]
                del item
                # Not held here, so that the batch is freed when the step lets go of it.
                yield held.pop()
                marks.ended()
            cut = False
        except Exception as error:
            # An error of the loader: errors of the loop's body do not pass here.
            strip_frame(error)
            raise
        finally:
            marks.end(cut=cut)


Function = TypeVar("Function", bound=Callable[..., Any])

# Calls of `run` go on for so long at most, once every layer has had its first slice.
MAX_SECONDS = 60.0


class Session:
    """Measures what its steps do, with every layer, and gives a `Recording`.

        with Session("train") as session:
            for batch in session.steps(loader):
                train(batch)
        session.recording.frames["modules"]

    `layers` are the layers to observe with (default: all, "none": clean steps alone); `output` is
    the folder of the recording (default: a temporary one, which goes when the recording does;
    `recording.save()` copies it), and is only replaced with `force`. `targets` say how much is
    measured; `max_seconds` is the time in seconds after which `run` stops repeating a call. Without
    `keep_source` the recording holds no text of the program's own files, so that it and its page
    can be given to others. With `sync` it waits for the device after every clean step, as
    `profstack run --sync` does. `begin_at` is the step at which slices begin, or a region's name or
    `file.py:LINE`: then only steps made there count. With
    `memory_by="memory_profiler"` memory_profiler measures memory by line beside profstack.

    Without `steps` and `run` the session finds steps by itself, as `profstack run` does. Inside
    `profstack run` or another session it records nothing of its own: it marks steps there, and its
    `recording` is that one's as it stands. With PROFSTACK=0 in the environment it does nothing.

    Raises UsageError for a name that is no text and for unknown layers, and RecordingError for a
    folder in use.
    """

    def __init__(
        self,
        name: str = "session",
        *,
        layers: Sequence[str] | None = None,
        output: str | os.PathLike[str] | None = None,
        force: bool = False,
        targets: Targets | None = None,
        max_seconds: float = MAX_SECONDS,
        keep_source: bool = True,
        sync: bool = False,
        begin_at: int | str | None = None,
        memory_by: str = layer.OWN_TRACER,
    ) -> None:
        if callable(name):
            raise UsageError(
                f"a session's name is text, not a {type(name).__name__}",
                next_step='with Session("name") as session: session.run(model, inputs)',
            )
        self.name = name
        self._layers = layer.pick(layers)
        layer.check_memory_by(memory_by, self._layers)
        self._sync, self._memory_by = sync, memory_by
        self._begin_at = _begin_at(begin_at)
        self._output = None if output is None else os.fspath(output)
        self._force = force
        self._targets = targets if targets is not None else Targets()
        self._max_seconds = max_seconds
        self._keep_source = keep_source
        self._state = "new"
        self._process = os.getpid()
        self._marks: Marks | None = None
        self._own: InProcess | None = None
        self._announced = ExitStack()
        self._recording: Recording | None = None
        self._problem: str | None = None

    # -- a part of a program ---------------------------------------------------------------------

    def __enter__(self) -> Session:
        if self._state != "new":
            raise UsageError(
                f"the session {self.name!r} has been used", next_step="make another Session"
            )
        self._process = os.getpid()
        if os.environ.get("PROFSTACK") == "0":
            self._state, self._problem = "open", "PROFSTACK=0 switched profstack off"
            return self
        import torch

        from profstack.capture.marks import marks_of

        around = child.engine()
        if around is None and child.is_armed():
            self._problem = "profstack run could not measure this process"
        elif around is None:
            own = InProcess(
                self.name,
                self._layers,
                self._targets,
                keep_source=self._keep_source,
                sync=self._sync,
                begin_at=self._begin_at,
                memory_by=self._memory_by,
            )
            try:
                around = own.begin(torch, self._output, force=self._force)
                self._own = own
                self._announced.enter_context(announced())
            except Exception as problem:
                if isinstance(problem, ProfstackError) or is_scripts(problem):
                    raise
                # A defect of ours: the program goes on unmeasured.
                self._fail(problem)
        else:
            complain(f"session {self.name!r} marks the steps of the run it is in")
            self._recording = Recording(around.folder, still_written=True)
        if around is not None:
            self._marks = marks_of(around)
            self._marks.entered()
        self._state = "open"
        return self

    def _fail(self, problem: BaseException) -> None:
        self._problem = f"{type(problem).__name__}: {problem}"
        complain(f"the session {self.name!r} has no recording, {self._problem}")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._state = "over"
        self._announced.close()
        if self._process != os.getpid():
            # A child process forked inside: the recording is its parent's.
            return
        own, self._own = self._own, None
        marks, self._marks = self._marks, None
        # The program has done its work: the loss of its figures must not end it.
        with Guard(failed=self._fail):
            if own is None and marks is not None:
                marks.left()
            elif own is not None and marks is not None:
                marks.close(failed=kind is not None)
                self._recording = own.finish(kind, self._output is not None)

    @property
    def recording(self) -> Recording:
        """The recording. Raises RecordingError while the session is open, or if it failed."""
        if self._recording is not None:
            return self._recording
        where = f"session {self.name!r}"
        if self._problem is not None:
            raise RecordingError(f"no recording: {self._problem}", where=where)
        raise RecordingError(
            "no recording yet",
            where=where,
            next_step="it is there after the end of 'with Session(...) as session:'",
        )

    def steps(self, iterable: Iterable[Item]) -> LoopSteps[Item]:
        """Return the items of `iterable`, each with what the loop does with it as one step.

        A step begins where its item is asked for, so that waiting for a loader belongs to it. A
        loop entered again, as in the next epoch, goes on with the same measurement. The iteration
        that leaves the loop by `break` counts, but has no time: its end is unknown. While the
        session marks steps `profstack.step()` ends none, neither inside such a loop nor between
        two.
        """
        self._check_open("steps")
        frame = sys._getframe(1)
        return LoopSteps(self._marks, iterable, (frame.f_code, frame.f_lineno))

    def run(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function or a model as often as the layers need; each call is a step.

        Returns the last call's result. A model is called as it is: in its own mode, with gradients
        on or off as they are here; the recording's warnings say which. An error in it ends this
        and is raised again. A session can `run` several things: its report is of the one with most
        steps. Inside a step it is one call.
        """
        self._check_open("run")
        if not callable(function) or inspect.iscoroutinefunction(function):
            raise UsageError(
                f"run calls functions and models, not {function!r}",
                next_step="for a coroutine: mark steps with steps() or profstack.step()",
            )
        marks = self._marks
        try:
            if marks is None or not marks.begin(object()):
                return function(*args, **kwargs)
            call = functools.partial(function, *args, **kwargs)
            with flopcopies.given(call):
                what, how = _how_called(call.func)
                result, calls, in_time = marks.repeat(call, self._max_seconds)
        except BaseException as error:
            strip_frame(error)
            raise
        if self._own is not None:
            text = f"run called {what} {calls} times{how}"
            if not in_time:
                text += f", and ended after {self._max_seconds:g} s, before all rounds were over"
                self._own.stopped_by = "max_seconds"
            self._own.note("session-run", text)
        return result

    def __call__(self, function: Function) -> Function:
        """Decorate a function, which runs in this session.

        While the session is open each call of the function is a step. Else the first call opens
        the session and closes it at its end, and finds steps by itself; further calls run as they
        are.
        """
        if inspect.iscoroutinefunction(function):
            raise UsageError(
                f"a session decorates functions, not {function!r}",
                next_step="for a coroutine: with Session(...) inside it",
            )

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._state == "new":
                with self:
                    return function(*args, **kwargs)
            if self._state == "open" and self._marks is not None:
                return self._marks.call(function, functools.partial(function, *args, **kwargs))
            return function(*args, **kwargs)

        return call  # type: ignore[return-value]  # it takes and gives what the function does

    def _check_open(self, method: str) -> None:
        if self._state != "open":
            raise UsageError(
                f"the session {self.name!r} is not open",
                next_step=f"with Session(...) as session: session.{method}(...)",
            )

    def report(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write the page of the recording to a file or into a folder; return the file.

        Without `path` it is `NAME.html` in the working folder.
        """
        return self.recording.report(path)

    def _repr_html_(self) -> str | None:
        """Return the recording's answer, in a notebook; None while there is none."""
        return self._recording._repr_html_() if self._recording is not None else None

    def __repr__(self) -> str:
        return f"<Session {self.name!r}, {self._state}>"


def _begin_at(value: int | str | None) -> BeginAt:
    if value is None:
        return BeginAt()
    main = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    try:
        return BeginAt.parse(value, ".", os.path.dirname(main))
    except ValueError as error:
        step = 'Session(begin_at=200), "train.py:12" or the name of a region'
        raise UsageError(f"begin_at: {error}", next_step=step) from None


def _how_called(function: Any) -> tuple[str, str]:
    """Name what `run` calls, and its state, for the reader."""
    import torch

    if not isinstance(function, torch.nn.Module):
        return getattr(function, "__qualname__", type(function).__name__), ""
    changes = ", in train mode, in which calls may change its buffers"
    mode = changes if in_training(function) else ", in eval mode"
    keeps = " and with gradients on: each call keeps what a backward pass would need"
    gradients = keeps if torch.is_grad_enabled() else " and with gradients off"
    return type(function).__name__, mode + gradients


# -- `profstack.benchmark(...)`: the benchmark of a model or a function that a program holds -----
#
# It is `profstack bench` without a process of its own: what the program has done before (its
# caches, its heap, its threads) is in the figures, and there is no spread between processes.


def benchmark(
    target: Any,
    /,
    *inputs: Any,
    named_inputs: Mapping[str, Any] | None = None,
    name: str | None = None,
    gradients: bool = False,
    batch_size: int | None = None,
    mode: str = BOTH,
    warmup: int | None = None,
    repeat: int | None = None,
    target_interval: float | None = None,
    max_seconds: float | None = None,
    collect: bool = False,
    mistakes: bool = False,
    ablation: bool = False,
    compare: Sequence[str] = (),
    throughput: bool = False,
    search: str = "binary",
    dtypes: Sequence[str] = (),
    memory_limit: int | None = None,
    max_batch: int | None = None,
    layers: Sequence[str] | None = None,
    output: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> Recording:
    """Measure a model or a function called with these inputs, and give the recording.

    A model is called in its own mode, without gradients unless `gradients`; a function as it is.
    `batch_size` is what one call takes in where the inputs do not tell. `mode` is `synchronised`,
    `pipelined` or `both`; `warmup` and `repeat` are fixed counts, else the data decide, until the
    interval of the median reaches no further than `target_interval` (a fraction, 0.01 by default)
    or `max_seconds` (10) are over; `collect` leaves the garbage collector on. `mistakes`,
    `ablation`, `compare`, `throughput`, `search`, `dtypes`, `memory_limit` (bytes) and `max_batch`
    ask for more, as the options of `profstack bench` do. `layers` are those to record with after
    the clean measurement (default: all; an empty list for none). `output` is the folder (default: a
    temporary one, which goes with the recording; `recording.save()` copies it).

    Raises UsageError for arguments that make no sense and inside a measured run, RecordingError
    for a folder in use, and what the target raises as it is.
    """
    if mode not in MODES:
        raise UsageError(f"no mode {mode!r}", next_step=f"give one of {', '.join(MODES)}")
    limits = {"warmup": warmup, "repeat": repeat, "target": target_interval, "max_s": max_seconds}
    asked = BenchOptions(
        mode=mode,
        policy=_policy(limits, collect=collect),
        mistakes=mistakes,
        ablation=ablation,
        compare=list(compare),
        throughput=throughput,
        search=search,
        dtypes=list(dtypes),
        memory_limit=memory_limit,
        max_batch=max_batch,
    )
    subject = _subject(target, inputs, named_inputs, name, gradients, batch_size)
    chosen = [] if layers is not None and not layers else layer.pick(layers)
    if os.environ.get("PROFSTACK") == "0":
        raise UsageError("PROFSTACK=0 switches profstack off", next_step="unset it to measure")
    if child.is_armed():
        raise UsageError(
            "a benchmark inside a measured run would measure its observers",
            next_step="run the program by itself, or leave the session first",
        )
    where = None if output is None else os.fspath(output)
    folder = ProgramFolder(f"bench-{subject.name}", where, force=force)
    return _measured(BenchRun(subject, asked, Clock()), subject, chosen, folder)


def _policy(limits: Mapping[str, float | None], *, collect: bool) -> Policy:
    """Return the policy with the limits that were given; raise UsageError for one below 0."""
    given: dict[str, Any] = {key: each for key, each in limits.items() if each is not None}
    for key, value in given.items():
        if not value > 0:
            raise UsageError(f"{key} is {value}", next_step="give a number above 0")
    if "max_s" in given:
        given["max_warmup_s"] = given["max_s"]
    return Policy(**given, collect=collect)


def _measured(
    run: BenchRun, subject: Subject, layers: list[str], folder: ProgramFolder
) -> Recording:
    """Measure a subject, then record it with the layers; write what was measured into a folder."""
    try:
        run.check()
        run.clean()
        run.parts()
        if layers:
            record_layers(subject, subject.name, layers, output=folder.path / results.LAYERS)
    except BaseException as error:
        if folder.is_temporary:
            folder.remove()
        else:
            # What was measured is kept where the user wanted it.
            _write_benchmark(folder, run, layers, f"{type(error).__name__}: {error}")
        raise
    page = _write_benchmark(folder, run, layers, None)
    if not folder.is_temporary:
        name_page(page)
    return folder.recording()


def _write_benchmark(
    folder: ProgramFolder, run: BenchRun, layers: list[str], error: str | None
) -> Path:
    """Make one recording of what was measured; return its page."""
    import torch

    figures = run.result if run.result.get("median_s") is not None else None
    fact = results.join_results([{"figures": figures, "error": error}], [1 if error else 0])
    has_layers = results.take_layers(folder.path)
    folder.write_run(run.subject.name, folder.times(), torch_facts(torch) | device_facts(torch))
    why = "the benchmark ended before its layers began" if layers else "none was asked for"
    names = [] if has_layers else layer.layer_names()
    results.write_figures(folder.path, fact, dict.fromkeys(names, why))
    keep_peaks(folder.path, measure=has_layers and "torch" in layers)
    return write_report(folder.path)


def _subject(
    target: Any,
    inputs: tuple[Any, ...],
    named_inputs: Mapping[str, Any] | None,
    name: str | None,
    gradients: bool,
    batch_size: int | None,
) -> Subject:
    import torch

    if isinstance(target, torch.nn.Module):
        return of_model(
            target, inputs, named_inputs, name=name, gradients=gradients, batch_size=batch_size
        )
    if not callable(target) or isinstance(target, type) or inspect.iscoroutinefunction(target):
        raise UsageError(
            f"benchmark measures models and functions, not {target!r}",
            next_step="give a model with its inputs, or a function that does the work",
        )
    named = dict(named_inputs or {})
    read = leading_dimension((inputs, named))
    return Subject(
        name or str(getattr(target, "__name__", type(target).__name__)),
        functools.partial(target, *inputs, **named) if inputs or named else target,
        gradients=gradients,
        batch_size=read if batch_size is None else batch_size,
        batch_size_is=STATED if batch_size is not None else READ if read is not None else None,
        why_no_batches="a function's inputs are its own business: give a model with its inputs",
    )


# Changes of a model or a function ---------------------------------------------------------------


class Tried:
    """What `try_` has found; it shows itself as text."""

    def __init__(self, report: TrialReport) -> None:
        self._report = report

    def to_dict(self) -> TrialReport:
        """Return the report, as `profstack try --json` prints it."""
        return self._report

    def __repr__(self) -> str:
        return terminal_try.text(self._report).rstrip("\n")

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"


def try_(
    target: Any,
    /,
    *inputs: Any,
    named_inputs: Mapping[str, Any] | None = None,
    changes: Sequence[str] | None = None,
    budget: float = 60.0,
    seed: int = 0,
) -> Tried:
    """Try changes of a model or a function called with these inputs, and say what each gains.

    It is called in turn, plain and with one change at a time (autocast, compiling, threads,
    `channels_last`, inference mode, ...), for `budget` seconds in all; each change is undone, but
    not what a function does by itself: one that trains a model has trained it.
    `changes` are names of those to try (default: all that can apply). Results are compared from
    the random streams of `seed`. A model is called in its own mode, with gradients as they are set.

    Raises UsageError for an unknown change or what cannot be called, and inside a measured run;
    what the target raises is raised as it is.
    """
    if child.is_armed():
        raise UsageError(
            "try_() measures nothing inside 'profstack run'",
            next_step="run the script as python SCRIPT, or give it to 'profstack try'",
        )
    return Tried(
        try_calls(target, inputs, named_inputs or {}, names=changes, budget_s=budget, seed=seed)
    )
