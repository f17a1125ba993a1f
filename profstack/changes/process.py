"""A trial inside the measured process: make its change, note what the run shows, keep results.

`begin` is called when the script has imported torch, before its next line, and before the engine
puts its hooks on. What was found is written at the end of the process, as JSON beside the
recording.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import json
import os
import random
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypedDict

from profstack.changes.built_in import changes
from profstack.changes.compilation import repeated_block
from profstack.changes.contract import Run, Seen, Value, device_of
from profstack.changes.left_out import Evaluations
from profstack.changes.results import Fingerprint, nudge
from profstack.environment import peak_rss_bytes, usable_cores
from profstack.guard import (
    Guard,
    complain,
    is_scripts,
    replace,
    strip_frame,
    traced_as,
    unseen_by_dynamo,
)
from profstack.models import is_loss, parameter_count

FILE = "logs/trial.json"
# Calls of the outermost modules that are looked at, in which models are found.
_LOOKS = 64
# Modules that are kept to be known again; a script that makes a new one for each call has more.
_MOST_MODULES = 1_000


class TrialOptions(TypedDict):
    """What a process is to try: changes by name with their values; what it is to note."""

    changes: dict[str, Value | None]
    observe: bool
    seed: int


class Told(TypedDict):
    """What a process has found: where changes took hold, what it saw, its results."""

    held: dict[str, list[list[Any]]]
    seen: dict[str, Any] | None
    results: dict[str, list[Any]]
    failed: dict[str, str]
    peak_rss_bytes: int | None
    peak_device_bytes: int | None
    first_step_s: float | None


class Trial:
    """One process of a trial."""

    def __init__(self, folder: Path, torch: Any, options: TrialOptions) -> None:
        self._folder, self._torch, self._options = folder, torch, options
        self._runs: dict[str, Run] = {}
        self._failed: dict[str, str] = {}
        self._prints = Fingerprint(torch)
        self._observer = _Observer(torch) if options["observe"] else None
        self._known: dict[int, Any] = {}
        self._roots: set[int] = set()
        self._depth = 0
        self._looks = 0
        self._pid = os.getpid()

    def begin(self, when_imported: Callable[[str, Callable[[Any], None]], None]) -> None:
        """Seed the random streams, make the changes, and follow the model's calls."""
        torch = self._torch
        # A script that seeds its streams itself does so later, with the same effect as ever.
        torch.manual_seed(self._options["seed"])
        random.seed(self._options["seed"])
        when_imported("numpy", lambda numpy: numpy.random.seed(self._options["seed"]))
        known = changes()
        for name, value in self._options["changes"].items():
            run = Run(torch, value, {})
            self._runs[name] = run
            patch = known[name].patch
            try:
                if patch is not None:
                    patch(run)
                elif (holds := known[name].holds) is None or holds(value):
                    # What acts by the environment holds from the start of the process.
                    run.held[None] += 1
            except Exception as error:
                self._failed[name] = f"{type(error).__name__}: {error}"
            for module, change in run.awaited.items():
                when_imported(module, functools.partial(self._arrived, name, change))
        if self._observer is not None:
            with Guard(failed=lambda error: complain(f"trial: {error}")):
                self._observer.begin(when_imported)
        self._prints.begin()
        self._follow_calls()
        atexit.register(self._write)

    def _arrived(self, name: str, change: Callable[[Any], None], module: Any) -> None:
        """Make a change of a module that the script has imported; a defect ends the trial alone."""
        try:
            change(module)
        except Exception as error:
            self._failed[name] = f"{type(error).__name__}: {error}"

    def _follow_calls(self) -> None:
        """Look at outermost calls of modules until enough were seen: models are found there."""
        kind = self._torch.nn.Module
        original = kind.__call__
        restore: list[Callable[[], None]] = []

        @functools.wraps(original)
        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:
            # Without `restore` it is over: the engine's own wrapper may still lie around this one.
            if self._depth or not restore or self._torch.compiler.is_compiling():
                return original(module, *args, **kwargs)
            self._depth += 1
            try:
                with Guard(failed=lambda error: complain(f"trial: {error}")):
                    self._before(module)
                returned = original(module, *args, **kwargs)
                with Guard(failed=lambda error: complain(f"trial: {error}")):
                    # Transforms and metrics are modules, too.
                    if id(module) in self._roots:
                        self._looks += 1
                        self._prints.called((args, kwargs), returned)
                    if self._looks >= _LOOKS or len(self._known) > _MOST_MODULES:
                        restore.pop()()
                return returned
            except BaseException as error:
                strip_frame(error)
                raise
            finally:
                self._depth -= 1

        # Compiled code would be made anew when it goes away.
        hidden = traced_as(unseen_by_dynamo(self._torch, __call__), original)
        restore.append(replace(kind, "__call__", hidden))

    def _before(self, module: Any) -> None:
        """Make the changes of a model that is called for the first time."""
        if id(module) in self._known:
            return
        # Kept alive: another object would get the number of one that is gone.
        self._known[id(module)] = module
        if is_loss(module) or not parameter_count(module):
            return
        self._roots.add(id(module))
        if self._observer is not None:
            self._observer.root(module)
            # This run's times are not used, and its results tell how far last digits carry.
            nudge(self._torch, module)
        for name, run in self._runs.items():
            try:
                for change in run.at_root:
                    change(module)
                if run.root_hooks:
                    _wrap_forward(module, run)
            except Exception as error:
                if is_scripts(error):
                    raise
                self._failed[name] = f"{type(error).__name__}: {error}"

    def _write(self) -> None:
        """Write what was found; a forked process has nothing of its own to say."""
        if os.getpid() != self._pid:
            return
        told: Told = {
            "held": {name: _places(run) for name, run in self._runs.items()},
            "seen": asdict(self._observer.end()) if self._observer is not None else None,
            "results": self._prints.found,
            "failed": self._failed,
            "peak_rss_bytes": peak_rss_bytes(),
            "peak_device_bytes": self._device_bytes(),
            "first_step_s": None,
        }
        with Guard(failed=lambda error: complain(f"the trial is not written, {error}")):
            text = json.dumps(told, default=str)
            (self._folder / FILE).write_text(text, encoding="utf-8")

    def _device_bytes(self) -> int | None:
        cuda = self._torch.cuda
        return int(cuda.max_memory_allocated()) if cuda.is_initialized() else None


def _places(run: Run) -> list[list[Any]]:
    return [
        [place.file if place else None, place.line if place else None, count]
        for place, count in run.held.items()
    ]


def _wrap_forward(model: Any, run: Run) -> None:
    """Wrap the forward of a model, by its class: other objects of it are called as ever."""
    kind = type(model)
    calls = run.calls.setdefault(kind, {})
    original = kind.forward if not calls else kind.forward.__wrapped__
    call: Callable[..., Any] = functools.partial(original, model)
    for wrap in run.root_hooks:
        call = wrap(model, call)
    calls[id(model)] = call
    if len(calls) > 1:
        return

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = calls.get(id(self))
        return original(self, *args, **kwargs) if call is None else call(*args, **kwargs)

    kind.forward = forward


def model_facts(torch: Any, model: Any) -> dict[str, Any]:
    """Return what changes ask of a model, as `Seen.root` has it."""
    blocks = repeated_block(model)
    first = next(iter(model.parameters()), None)
    return {
        "class": type(model).__name__,
        "parameters": parameter_count(model) or 0,
        "dtype": str(first.dtype).removeprefix("torch.") if first is not None else None,
        "training": bool(model.training),
        "convolutions": sum(isinstance(each, torch.nn.Conv2d) for each in model.modules()),
        "blocks": len(blocks),
        "block": type(blocks[0]).__name__ if blocks else None,
        "attention": getattr(getattr(model, "config", None), "_attn_implementation", None),
    }


def _is_on(autocast: Any) -> bool:
    return bool(getattr(autocast, "_enabled", True))


class _Observer:
    """Notes what the script makes and calls, for changes to say whether they can apply."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self.seen = Seen(cores=usable_cores() or 1, torch=str(torch.__version__))
        self._evaluations = Evaluations(torch)
        self._run = Run(torch, None, {})
        self._begun = time.perf_counter()

    def begin(self, when_imported: Callable[[str, Callable[[Any], None]], None]) -> None:
        """Follow what is made and called."""
        torch, seen = self._torch, self.seen
        self._follow(torch.utils.data.DataLoader, self._loader)
        for kind in vars(torch.optim).values():
            if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer):
                self._follow(kind, self._optimizer)
        when_imported("torch.nn.parallel.distributed", self._distributed)
        self._evaluations.follow(self._evaluated)
        self._count(torch, "save", "save")
        self._count(torch, "set_num_interop_threads", "interop")
        self._count(torch, "compile", "compile", through=("torch",))
        self._count(torch.nn.Module, "compile", "compile", through=("torch",))
        self._count(torch.Tensor, "backward", "backward")
        self._count(torch.amp.autocast_mode.autocast, "__enter__", "autocast", when=_is_on)
        when_imported(
            "torch.utils.checkpoint", lambda module: self._count(module, "checkpoint", "checkpoint")
        )
        logger = sys.modules.get("logging")
        if logger is not None:
            self._count(logger.Logger, "_log", "logging", through=("logging",))
        when_imported(
            "torch.utils.tensorboard.writer",
            lambda module: self._count(module.SummaryWriter, "add_scalar", "logging"),
        )
        when_imported("transformers.generation.utils", self._generation)
        for kind in (torch.optim.Optimizer, torch.nn.Module):
            original = kind.zero_grad

            def zero_grad(self: Any, set_to_none: bool = True, original: Any = original) -> None:
                if not set_to_none:
                    seen.calls["zero_grad to zeros"] = seen.calls.get("zero_grad to zeros", 0) + 1
                original(self, set_to_none)

            kind.zero_grad = functools.wraps(original)(zero_grad)

    def _count(
        self,
        owner: Any,
        name: str,
        word: str,
        *,
        through: tuple[str, ...] = (),
        when: Callable[[Any], bool] | None = None,
    ) -> None:
        """Count calls of a function: those of the user's code alone where it may come `through`.

        `when` says of the object whether its call counts.
        """
        original, calls, run = getattr(owner, name), self.seen.calls, self._run

        @functools.wraps(original)
        def counted(*args: Any, **kwargs: Any) -> Any:
            is_own = not through or run.is_users_call(*through)
            if is_own and (when is None or when(args[0])):
                calls[word] = calls.get(word, 0) + 1
            return original(*args, **kwargs)

        setattr(owner, name, counted)

    def _follow(self, kind: type, note: Callable[[Any], None]) -> None:
        """Note each object of a class once it is made."""
        original: Any = kind.__init__  # type: ignore[misc]  # any class

        @functools.wraps(original)
        def __init__(made: Any, *args: Any, **kwargs: Any) -> None:
            original(made, *args, **kwargs)
            # A class's own __init__ calls that of its base. The recording has a wrapper of its own.
            outer = type(made).__init__
            innermost = inspect.unwrap(outer, stop=lambda each: each is __init__)
            if innermost is __init__ or innermost is outer:
                with Guard():
                    note(made)

        kind.__init__ = __init__  # type: ignore[misc]  # any class

    def _placed(self) -> dict[str, Any]:
        place = self._run.place(4)
        return {"file": place.file, "line": place.line} if place else {"file": None, "line": None}

    def _loader(self, made: Any) -> None:
        self.seen.loaders.append(
            {
                # Of numpy's numbers JSON makes texts.
                "num_workers": int(made.num_workers),
                "prefetch_factor": int(made.prefetch_factor) if made.prefetch_factor else None,
                "batch_size": made.batch_size,
                "pin_memory": bool(made.pin_memory),
                "persistent_workers": bool(made.persistent_workers),
                "map_style": not isinstance(made.dataset, self._torch.utils.data.IterableDataset),
                **self._placed(),
            }
        )

    def _optimizer(self, made: Any) -> None:
        bases = [
            kind.__name__
            for kind in type(made).__mro__
            if kind.__module__.startswith("torch.optim.")
        ]
        defaults = made.defaults
        self.seen.optimizers.append(
            {
                "name": type(made).__name__,
                "base": bases[0] if bases else None,
                "fused": bool(defaults.get("fused")),
                "foreach": bool(defaults.get("foreach")),
                **self._placed(),
            }
        )

    def _distributed(self, module: Any) -> None:
        def note(made: Any) -> None:
            names = ("static_graph", "gradient_as_bucket_view")
            self.seen.wrapped.append(
                {**{name: bool(getattr(made, name, False)) for name in names}, **self._placed()}
            )

        self._follow(module.DistributedDataParallel, note)

    def _generation(self, module: Any) -> None:
        mixin, calls = module.GenerationMixin, self.seen.calls
        original = mixin.generate

        @functools.wraps(original)
        def generate(model: Any, *args: Any, **kwargs: Any) -> Any:
            if not kwargs.get("use_cache", model.generation_config.use_cache):
                word = "generate without a cache"
                calls[word] = calls.get(word, 0) + 1
            return original(model, *args, **kwargs)

        mixin.generate = generate

    def root(self, model: Any) -> None:
        """Note a model that is called; the one with most parameters is the run's."""
        torch, size = self._torch, parameter_count(model) or 0
        self._evaluations.root(model)
        if any(isinstance(each, torch.jit.ScriptModule) for each in model.modules()):
            self.seen.calls["script"] = 1
        if torch.is_grad_enabled() and not torch.is_inference_mode_enabled():
            self.seen.calls["calls with gradients"] = 1
        if self.seen.root and size <= self.seen.root["parameters"]:
            return
        caller = self._run.users_frame(4)
        known = {**caller.f_globals, **caller.f_locals} if caller is not None else {}
        names = [name for name, value in known.items() if value is model]
        self.seen.device = device_of(model)
        self.seen.root = {
            **model_facts(torch, model),
            "name": names[0] if names else None,
            "file": caller.f_code.co_filename if caller is not None else None,
            "line": caller.f_lineno if caller is not None else None,
        }

    def _evaluated(self) -> bool:
        self.seen.calls["evaluation"] = self.seen.calls.get("evaluation", 0) + 1
        return False

    def end(self) -> Seen:
        """Return what was seen."""
        self.seen.interop = self._torch.get_num_interop_threads()
        self.seen.trains = bool(self.seen.calls.get("backward"))
        self.seen.threads = self._torch.get_num_threads()
        return self.seen


def begin(
    folder: Path,
    torch: Any,
    options: Mapping[str, Any],
    when_imported: Callable[[str, Callable[[Any], None]], None],
) -> None:
    """Begin the trial that the options of a run ask for."""
    wanted: TrialOptions = {
        "changes": dict(options["changes"]),
        "observe": bool(options["observe"]),
        "seed": int(options["seed"]),
    }
    Trial(folder, torch, wanted).begin(when_imported)
