"""Start and end the engine in the measured process.

Called by `child` when the script has imported torch, and at the interpreter's exit. The options
of the run are in a file that the parent wrote into the recording's folder.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypedDict, cast

from profstack import layer as profstack_layer
from profstack.capture.engine import Engine
from profstack.capture.loops import BeginAt
from profstack.capture.module_names import ModuleNames
from profstack.capture.observers import Observers
from profstack.capture.run_limits import Limits
from profstack.capture.slices import (
    LayerMode,
    Observing,
    SlicePlan,
    Targets,
    counting_plan,
    plan,
    watch,
)
from profstack.capture.threads import made_by_multiprocessing
from profstack.code_owner import Places, script_folder
from profstack.environment import under_nsys
from profstack.guard import Guard, complain, delay_signals
from profstack.layer import Mode, Wrapper
from profstack.models import direct_instances, with_subclasses
from profstack.privacy import presentable_argv
from profstack.readers.watch import Sampler
from profstack.storage.folder import (
    Writer,
    append_event,
    create_process_folder,
    iso,
    read_run,
    run_times,
    write_run,
)
from profstack.storage.vocabulary import undefined_profile

OPTIONS = "logs/options.json"


class CaptureOptions(TypedDict):
    """The steps of a run for Nsight Systems alone: those before its slice, and its own."""

    warmup: int
    steps: int


class CountOptions(TypedDict):
    """The steps of a run that counts: those that go by first, and those that each layer sees."""

    warmup: int
    steps: int


class RunOptions(TypedDict, total=False):
    """The options of a run; `targets` are the fields of `Targets`."""

    layers: list[str]
    left_out: dict[str, str]
    targets: dict[str, Any]
    step_by: str | None
    max_steps: int | None
    max_seconds: float | None
    startup: str | None
    budget: float
    lockstep: bool
    followed: bool
    # Whether the script itself is a rank of a launch, and the rule that the user asked for.
    launched: bool
    asked_step_by: str | None
    whole: bool
    sparing: bool
    sync: bool
    memory_by: str
    source: bool
    capture: CaptureOptions
    counting: CountOptions
    begin_at: dict[str, Any] | None
    # What a process of `profstack try` changes.
    trial: dict[str, Any]


def read_options(folder: Path) -> RunOptions:
    """Return the options of the run, as the parent wrote them."""
    return cast(RunOptions, json.loads((folder / OPTIONS).read_text(encoding="utf-8")))


def live_optimizers() -> frozenset[int]:
    """Return identities of all optimizers alive, found without touching any other object."""
    from torch.optim import Optimizer

    # One that only passes steps on (accelerate's, lightning's) was never made by Optimizer's own
    # __init__, which hooks the class: the optimizer inside reports its steps.
    kinds: list[Any] = with_subclasses((Optimizer,))
    kinds = [kind for kind in kinds if getattr(kind.step, "hooked", False)]
    return frozenset(map(id, direct_instances(*kinds)))


def layer_modes(layers: list[str]) -> list[LayerMode]:
    """Return the layers with the modes that take part in rounds, in the order of their turns."""
    modes = [(layer, mode) for layer, _, mode in _modes(layers) if mode.last_round]
    return sorted(modes, key=lambda each: each[1].turn)


def _modes(layers: list[str]) -> Iterator[tuple[str, type[Wrapper], Mode]]:
    """Yield every mode of the layers; none of a broken layer, which `Observers` reports."""
    for layer in layers:
        kind = None
        with Guard():
            kind = profstack_layer.load(layer)
        if kind is not None:
            for mode in kind.modes:
                yield layer, kind, mode


def shared_modes(layers: list[str], mode: str = "shared") -> Observing:
    """Return the layers that can observe one slice together, in the order in which they start.

    They have that mode, and do not occupy the same thing.
    """
    having = [each for each in _modes(layers) if each[2].name == mode]
    chosen: list[str] = []
    occupied: frozenset[str] = frozenset()
    for layer, kind, each in sorted(having, key=lambda each: each[2].turn):
        occupies = kind.occupies if each.occupies is None else each.occupies
        if not occupies & occupied:
            chosen.append(layer)
            occupied |= occupies
    return tuple((layer, mode) for layer in chosen)


def make_plan(
    layers: list[str],
    targets: Targets,
    capture: CaptureOptions | None = None,
    counting: CountOptions | None = None,
) -> Iterator[SlicePlan]:
    """Return the slices of one plan.

    With `capture` they are those of a run for Nsight Systems alone, with `counting` those of a run
    that counts.
    """
    if counting is not None:
        return counting_plan(targets, warmup=counting["warmup"], steps=counting["steps"])
    if capture is not None:
        return capture_plan(layers, targets, warmup=capture["warmup"], steps=capture["steps"])
    modes = layer_modes(layers)
    if under_nsys():
        # A capture range ends with the first slice: that must not be a single cold step.
        modes = [
            (layer, replace(mode, first_round=max(2, mode.first_round))) for layer, mode in modes
        ]
    return plan(modes, targets, shared_modes(layers))


def capture_plan(
    layers: list[str], targets: Targets, *, warmup: int, steps: int
) -> Iterator[SlicePlan]:
    """Yield the slices of a run for Nsight Systems alone: `steps` steps after `warmup` others.

    Where no layer can observe them they go by unobserved, and the plan is over after them too.
    """
    observers = tuple((layer, mode.name) for layer, mode in layer_modes(layers)[:1])
    yield SlicePlan("settle", (), 1, warmup, prepares=observers)
    yield SlicePlan(observers[0][0] if observers else "clean", observers, 2, steps, targets.slice_s)
    yield watch(2)


def start_engine(
    path: str,
    torch: Any,
    tools: Mapping[str, object],
    origin: float,
    begun: float,
    release: Callable[[], None],
    ended: Callable[[], None] = lambda: None,
) -> Engine | None:
    """Arm the engine; None when this process is not to be measured.

    `tools` run since the script's first line, by layer; `begun` is when torch arrived. `release` is
    called when the recording ends: no further import is waited for. `ended` comes after it.
    """
    folder = Path(path)
    options = read_options(folder)
    layers = list(options["layers"])
    targets = Targets(**options["targets"])
    capture, counting = options.get("capture"), options.get("counting")
    ends_by = "nsys" if capture is not None else "counted" if counting is not None else None
    writer = Writer(folder, keep_source=bool(options.get("source", True)))
    memory_by = options.get("memory_by", profstack_layer.OWN_TRACER)
    observers = Observers(layers, writer, options.get("left_out"), memory_by)
    engine = Engine(
        torch,
        observers,
        lambda: make_plan(layers, targets, capture, counting),
        targets,
        live_optimizers=live_optimizers,
        step_by=options["step_by"],
        limits=Limits(options["max_steps"], options["max_seconds"], by_plan=ends_by),
        # Nobody writes an early page of a process that the script started.
        wait_for_page=not options["lockstep"] and not options.get("followed"),
        origin=origin,
        # Ranks keep in step by counts of steps, and not by time.
        budget=None if options["lockstep"] else options.get("budget"),
        begin_at=BeginAt(**(options.get("begin_at") or {})),
    )
    for slug, text in profstack_layer.nsys_notes():
        observers.log.note(slug, text, "nvtx")
    engine.log.synchronised = bool(options.get("sync"))
    engine.log.sparing = bool(options.get("sparing"))
    writer.facts({"environment": torch_facts(torch), "synchronised": engine.log.synchronised})
    if counting is not None:
        writer.facts({"cpu_capability": torch.backends.cpu.get_cpu_capability()})
    engine.tools.update(tools)
    try:
        engine.begin(whole=shared_modes(layers, "whole") if options["whole"] else ())
    except BaseException:
        # It would never be ended.
        engine.abandon()
        raise
    writer.facts({"arming": [begun - origin, time.perf_counter() - origin]})
    _finish_at_exit(engine, release, ended)
    return engine


def _finish_at_exit(engine: Engine, release: Callable[[], None], ended: Callable[[], None]) -> None:
    """End the recording once, when this process ends; its forks let go of it."""
    measured = [os.getpid()]

    def finish() -> None:
        if os.getpid() in measured:
            measured.clear()
            delay_signals(lambda: finish_engine(engine, release))
            ended()

    atexit.register(finish)
    for package in ("multiprocessing", "multiprocess"):
        process = sys.modules.get(f"{package}.process")
        if getattr(process, "_parent_process", None) is not None:
            # Such a process may end without what is registered for its interpreter's exit.
            sys.modules[f"{package}.util"].Finalize(None, finish, exitpriority=-1)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=engine.abandon)


_AFTER_PROFILER = (
    "the process was forked from one in which torch's profiler had been on, which may hang in it"
)


def start_followed(
    root: str,
    torch: Any,
    origin: float,
    release: Callable[[], None],
    rank_facts: Callable[..., Mapping[str, int]],
    *,
    after_profiler: bool,
) -> Engine | None:
    """Arm the engine in a process that the script started; None where there are too many.

    `origin` is when it began, `rank_facts` gives its rank and the number of ranks. With
    `after_profiler` it gets no layer torch.
    """
    begun = time.perf_counter()
    folder = create_process_folder(Path(root))
    if folder is None:
        return None
    options = read_options(Path(root))
    layers, left_out = list(options["layers"]), dict(options.get("left_out") or {})
    if after_profiler and "torch" in layers:
        layers.remove("torch")
        left_out["torch"] = _AFTER_PROFILER
    rank = rank_facts(launched=options.get("launched", False))
    lockstep = rank.get("world_size", 1) > 1
    begin_at, asked = options.get("begin_at") or {}, options.get("asked_step_by")
    targets = Targets(**options["targets"])
    changed: RunOptions = {
        "layers": layers,
        "left_out": left_out,
        "targets": asdict(targets.in_lockstep() if lockstep else targets),
        "lockstep": lockstep,
        "followed": True,
        "whole": False,
        # What the script's own text says, and places in it, are not of other programs.
        "step_by": None if asked == "none" else asked,
        "begin_at": begin_at if begin_at.get("step") is not None else None,
        # They are for the script, which these processes do not end.
        "max_steps": None,
        "max_seconds": None,
    }
    (folder / OPTIONS).write_text(json.dumps({**options, **changed}), encoding="utf-8")
    started = time.time() - (begun - origin)
    words = presentable_argv([word for word in getattr(sys, "argv", ()) if isinstance(word, str)])
    about = {
        "script": words[0] if words else None,
        "argv": words,
        "in_process": True,
        "begun_clock_s": origin,
        "environment": read_run(Path(root)).get("environment", {}),
    }
    write_run(folder, {**about, "run": {"started_at": iso(started), **rank}})

    def ended() -> None:
        times = run_times(started, time.perf_counter() - origin)
        with Guard():
            write_run(folder, {**about, "run": {**times, **rank}})

    sparing = bool(options.get("sparing"))
    tools = {"watch": Sampler(origin, sparing=sparing)} if "watch" in layers else {}
    return start_engine(str(folder), torch, tools, origin, begun, release, ended)


def torch_facts(torch: Any) -> dict[str, object]:
    """Return facts about torch, known in the measured process; no device is initialised for them.

    `device` is the one the script used, so it is known at the end of the run alone.
    """
    return {
        "torch": str(torch.__version__),
        "torch_git": str(torch.version.git_version),
        "torch_threads": torch.get_num_threads(),
        "cuda": torch.version.cuda,
    }


def device_facts(torch: Any) -> dict[str, object]:
    """Return the device that the script has used by now, and a GPU's name and precision."""
    # `is_available` is not called: it initialises a driver that no fork survives.
    if torch.cuda.is_initialized():
        return {"device": "cuda", "gpu": torch.cuda.get_device_name(), **_tf32_facts(torch)}
    other = torch.backends.mps.is_available() and torch.mps.current_allocated_memory() > 0
    return {"device": "mps" if other else "cpu", "gpu": None}


def _tf32_facts(torch: Any) -> dict[str, bool]:
    """Return whether numbers stored as float32 are multiplied as TF32 by now, if known."""
    found = {}
    for name, backend, part in (
        ("tf32_products", torch.backends.cuda.matmul, None),
        ("tf32_convolutions", torch.backends.cudnn, "conv"),
    ):
        # Which of both ways of asking may be used depends on how the script chose it: torch
        # raises for one that was set the other way. The newer one answers to both.
        with contextlib.suppress(RuntimeError):
            newer = getattr(backend, part, None) if part else backend
            precision = getattr(newer, "fp32_precision", None)
            found[name] = backend.allow_tf32 if precision is None else precision == "tf32"
    return found


def finish_engine(engine: Engine, release: Callable[[], None]) -> None:
    """End the recording; an error in here becomes one line and goes no further."""
    try:
        writer, ending = engine.log.writer, time.perf_counter() - engine.log.origin
        _note_uncaught(writer)
        torch = engine.hooks.torch
        environment = {**torch_facts(torch), **device_facts(torch)}
        facts = {"environment": environment, "processes_made": made_by_multiprocessing()}
        writer.facts({**facts, "worker_starts": engine.hooks.worker_starts.facts()})
        # Over already where the script went on after it was asked to end.
        engine.finish()
        writer.facts({"finishing": [ending, time.perf_counter() - engine.log.origin]})
        writer.close()
        release()
        append_event(engine.folder, {"event": "finished", "stopped_by": engine.stopped_by})
    except Exception as error:
        complain(f"the recording is incomplete, {type(error).__name__}: {error}")


def _note_uncaught(writer: Writer) -> None:
    """Note an error that ended the script, which the interpreter has printed, and its remedy.

    Its place is the innermost of the script's own lines.
    """
    kind, trace = getattr(sys, "last_type", None), getattr(sys, "last_traceback", None)
    if kind is None:
        # A process of `multiprocessing` ends its recording while its error is on its way.
        kind, error, trace = sys.exc_info()
        if isinstance(error, SystemExit):
            kind = type(error.__context__ or error) if error.code else None
    if kind is None:
        return
    facts: dict[str, object] = {"uncaught": kind.__name__}
    if remedy := undefined_profile(getattr(sys, "last_value", None)):
        facts["remedy"] = remedy
    is_own = Places.of(script_folder()).is_own
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if is_own(file):
            facts["uncaught_at"] = [file, trace.tb_lineno]
        trace = trace.tb_next
    writer.facts(facts)


def record_without_torch(path: str, tools: Mapping[str, object], origin: float) -> None:
    """Record a script that never imported torch, measured whole by what ran from its start."""
    from profstack.capture.step_log import StepLog
    from profstack.stats.clock import Clock

    folder = Path(path)
    try:
        options = read_options(folder)
        writer = Writer(folder)
        observers = Observers(options["layers"], writer, options.get("left_out"))
        _note_uncaught(writer)
        log = StepLog(writer, Clock(), origin)
        for name, state in observers.layers.items():
            if state.wrapper is not None and name not in tools:
                state.end("skipped", "nothing to observe in the script: it never imported torch")
        # Without cProfile only the watch has seen it, if it was to be watched.
        observing = (("cprofile", "whole"),) if "cprofile" in tools else ()
        planned = SlicePlan("whole" if observing else "watch", observing, 0, 1)
        log.begin_plan("whole", "other")
        log.begin_slice(planned, since_origin=True)
        log.stamp()
        observers.hand_over(tools)
        observers.start(planned, log.next_slice, 1)
        observers.stop()
        log.end_slice(planned, observers.take(log.stamps(), {}), 0.0)
        observers.finish()
        log.finish(ModuleNames())
        writer.close()
        append_event(folder, {"event": "finished", "stopped_by": None})
    except Exception as error:
        complain(f"the recording is incomplete, {type(error).__name__}: {error}")
