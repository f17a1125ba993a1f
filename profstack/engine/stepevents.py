"""From what the hooks report to step boundaries: on one thread, by one rule, errors kept in.

Everything a hook calls ends here. An event either ends a step under the rule that stands, or is
a candidate handed to the step finder until a rule is found; events of other threads than the
one that trains are none of our business.
"""

from __future__ import annotations

import time
import weakref
from _thread import get_ident
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from profstack.engine.keeper import EVAL, Keeper, StopRun
from profstack.evaluation import in_training
from profstack.interrupts import is_scripts
from profstack.regions import Named
from profstack.steps import Found, StepFinder

_perf_counter = time.perf_counter


class StepEvents:
    """The sink of the hooks. `waiting` is true from a boundary to the step's first activity."""

    def __init__(
        self,
        keeper: Keeper,
        live_optimizers: Callable[[], frozenset[int]],
        forced: str | None,
    ) -> None:
        self.keeper = keeper
        self._live_optimizers = live_optimizers
        self.finder = StepFinder(live_optimizers, forced)
        self.rule: str | None = None
        self.done = False
        self.waiting = True
        # Whether the ends of module calls matter: while searching, and where calls are steps.
        self.follows_calls = True
        self.follows_backward = True
        self.thread: int | None = None
        # False where the first call of a step is not looked for: its wait is not known then.
        self.waits = True
        self.activity: float | None = None
        self.flags = 0
        self.shape: Any = None
        self.backward_seen = False
        # Whether the steps of the rule that stands train.
        self._trains = False
        self._first: float | None = None
        self._first_training: float | None = None
        self._first_module: weakref.ref[Any] | None = None
        self._backward_at = 0.0
        # Modules seen training under this rule: in eval mode they are evaluated. A teacher or a
        # frozen part never trains and is a part of every step.
        self._trained: set[int] = set()
        self.evaluating = False
        self._optimizer: int | None = None
        self._followed: weakref.ref[Any] | None = None
        self._candidate: weakref.ref[Any] | None = None
        # Optimizers whose step is being taken, the outermost first.
        self._stepping: list[int] = []
        self._inner: set[int] = set()
        # All steps up to when the finder was last told how often the optimizer followed stepped.
        self._told = 0
        self._boundary = keeper.boundary
        self._generating = False
        # Asked at each call of `profstack.step()` whether it ends a step.
        self.on_word: Callable[[], bool] | None = None

    def begin_step(self) -> None:
        """Forget what is known of the step that has ended."""
        self.activity = None
        self.shape = None
        self.flags = 0
        self.waiting = self.waits

    def start_over(self, rule: str) -> None:
        """Other work begins, with a step that begins now; from here on only `rule` ends steps."""
        self.finder = StepFinder(self._live_optimizers, rule)
        self.rule = None
        self.thread = get_ident()
        self.follows_calls = self.follows_backward = self.waits = True
        self.backward_seen = self.evaluating = False
        self._first_module = self._optimizer = self._followed = self._candidate = None
        self._trained.clear()
        self._stepping.clear()
        self.begin_step()
        self._first = self._first_training = _perf_counter()

    def follow(self, found: Found) -> None:
        """From now on the rule that was found ends steps, on the thread it was found on."""
        self.thread = get_ident()
        if self.rule is not None:
            self._trained.clear()
        self._trains = found.rule == "optimizer" or self.backward_seen
        self.rule = found.rule
        self.follows_calls = found.rule == "module"
        # Which of the two it is decides the phase of a next plan, too.
        self.follows_backward = found.rule != "optimizer"
        self._optimizer = found.source if found.rule == "optimizer" else None
        self._followed = self._candidate
        self.backward_seen = False

    @property
    def followed_optimizer(self) -> Callable[[], Any] | None:
        """A reference to the optimizer whose step ends steps; None under every other rule."""
        return self._followed if self.rule == "optimizer" else None

    def first_module(self) -> Any:
        """The module that was called first, as long as it lives."""
        return self._first_module() if self._first_module is not None else None

    @property
    def open_ended(self) -> bool:
        """Whether steps begin at module calls, so that nothing tells the end of the last one."""
        return self.rule == "module" and not self.finder.inference

    # -- what the hooks report -------------------------------------------------------------

    def first_activity(self, module: Any, args: Any, kwargs: Any) -> None:
        """The first module call or backward pass since the last boundary."""
        if self.thread is not None and get_ident() != self.thread:
            return
        self.activity = _perf_counter()
        self.waiting = False
        if self._first is None:
            self._first = self.activity
            if not self.done:
                self._guarded(self.keeper.begun)
        if module is not None:
            if self._first_module is None:
                self._first_module = weakref.ref(module)
            value = args[0] if args else next(iter(kwargs.values()), None)
            self.shape = getattr(value, "shape", None)

    def call_started(self, module: Any, named: Named) -> None:
        """An outermost module call begins."""
        if self.done or named.is_loss or self._foreign():
            return
        self.evaluating = not in_training(module)
        if not self.evaluating:
            self._trained.add(named.module_id)
            if self._first_training is None:
                self._first_training = _perf_counter()
        disturbs = self.evaluating and named.module_id in self._trained
        begins = self.open_ended
        if disturbs and not begins:
            self.flags |= EVAL
        if self.follows_calls and not (self.rule is None and self._generating):
            self._guarded(self._call_started, named)
        if disturbs and begins:
            # This call begins the step it belongs to: the one before has ended only now.
            self.flags |= EVAL

    def evaluated(self, named: Named | None) -> None:
        """A root in eval mode was called while ranges are emitted."""
        if named is not None and named.module_id in self._trained:
            self.flags |= EVAL
            self.keeper.attention()

    def call_ended(self, module: Any, named: Named) -> None:
        """An outermost module call has returned."""
        if self.done or named.is_loss or self._foreign():
            return
        if (self.rule is None and not self._generating) or self.rule == "module":
            self._guarded(self._call_ended, named)

    def backward_started(self) -> None:
        """A backward pass begins."""
        self._backward_at = _perf_counter()
        self.backward_seen = True

    def backward_ended(self) -> None:
        """A backward pass has returned; one inside `Optimizer.step` is part of that."""
        if self.done or self._foreign() or self._stepping:
            return
        if self.rule == "backward":
            self._guarded(self.keeper.boundary)
        elif self.rule is None:
            self._guarded(self._backward_candidate)

    def optimizer_started(self, optimizer: Any) -> None:
        """An `Optimizer.step` begins."""
        if not self._foreign():
            self._leave(optimizer)
            self._stepping.append(id(optimizer))

    def optimizer_ended(self, optimizer: Any) -> None:
        """An `Optimizer.step` has returned; the hot path of most runs."""
        if self.done:
            return
        if id(optimizer) == self._optimizer and get_ident() == self.thread:
            if self._stepping:
                self._leave(optimizer)
                if self._stepping:
                    return
            followed = self._followed
            if followed is not None and followed() is not optimizer:
                # Another one lies where the old one lay.
                self.finder.forget_optimizers()
                self._guarded(self._optimizer_ended, optimizer)
                return
            try:
                self._boundary()
            except BaseException as error:
                if self._is_for_script(error):
                    raise
        elif not self._foreign():
            self._leave(optimizer)
            # One inside another is part of its step. Starts are not told of in every slice.
            if self._stepping:
                self._inner.add(id(optimizer))
            elif id(optimizer) not in self._inner:
                self._guarded(self._optimizer_ended, optimizer)

    def look(self) -> None:
        """A step has ended that was not told of, and it is time to look at the slice."""
        if not self.done:
            flags, self.flags = self.flags, 0
            self._guarded(self.keeper.quick_ended, flags)

    def _leave(self, optimizer: Any) -> None:
        """The optimizer's step is over, also one that an exception ended without a word."""
        key = id(optimizer)
        if key in self._stepping:
            del self._stepping[self._stepping.index(key) :]

    def generate_started(self) -> None:
        """An outermost `generate` of a language model begins: the calls inside are no steps."""
        if not self._foreign():
            self._generating = True

    def generate_ended(self, *, completed: bool) -> None:
        """An outermost `generate` of a language model has returned or raised."""
        if self._foreign():
            return
        self._generating = False
        if completed and not self.done:
            self._guarded(self._ended, "generate", self.finder.generate)

    def user_step(self) -> None:
        """`profstack.step()` was called; who marks steps otherwise may say that it ends none."""
        if not (self.done or self._foreign()) and (self.on_word is None or self.on_word()):
            self.marked()

    def marked(self) -> None:
        """A step has ended, by somebody's own word."""
        if not (self.done or self._foreign()):
            self._guarded(self._ended, "step", self.finder.user_step)

    # -- what becomes of it ------------------------------------------------------------------

    def _call_started(self, named: Named) -> None:
        now = _perf_counter()
        if self.rule is None:
            self._adopt(self.finder.call_started(named.module_id, named.parameters or 0, now), now)
        elif named.module_id == self.finder.source and not self.finder.inference:
            self.keeper.boundary()
            # The wait before this call belongs to the step that has just ended.
            self.waiting = False

    def _call_ended(self, named: Named) -> None:
        now = _perf_counter()
        if self.rule is None:
            self._adopt(self.finder.call_ended(named.module_id, now), now)
        elif named.module_id == self.finder.source and self.finder.inference:
            self.keeper.boundary()

    def _backward_candidate(self) -> None:
        now = _perf_counter()
        self._adopt(self.finder.backward_ended(self._backward_at, now), now)

    def conclude(self) -> Found | None:
        """The script has ended: the rule that what was seen of it speaks for, if none stands."""
        if self.rule is not None:
            return None
        return self.finder.conclude(self._began(_perf_counter()))

    def _optimizer_ended(self, optimizer: Any) -> None:
        key = id(optimizer)
        self._candidate = weakref.ref(optimizer)
        now = _perf_counter()
        if self.rule == "optimizer":
            self.finder.cycles_ended(self.keeper.total_steps() - self._told)
        try:
            self._adopt(self.finder.optimizer_step(key, now, self._began(now)), now)
        finally:
            self._told = self.keeper.total_steps()

    def _ended(self, rule: str, find: Callable[[float, float], Found | None]) -> None:
        if self.rule == rule:
            self.keeper.boundary()
        else:
            now = _perf_counter()
            found = find(now, self._began(now))
            if found is not None and rule == "step" and self.rule is not None:
                # What ends here was counted by the rule before: this one begins with the next.
                found = replace(found, first_start=now, past_ends=())
                self.backward_seen = self.backward_seen or self._trains
            self._adopt(found, now)

    def _began(self, now: float) -> float:
        """When the step that ends now began: at the last boundary, or at the first training."""
        last = self.keeper.last_boundary()
        if last is not None:
            return last
        if self._first_training is not None:
            return self._first_training
        return self._first if self._first is not None else now

    def _adopt(self, found: Found | None, now: float) -> None:
        if found is not None:
            self.keeper.adopt(found, now)

    def _foreign(self) -> bool:
        """Whether the event comes from another thread than the one whose steps are measured."""
        return self.thread is not None and get_ident() != self.thread

    def _guarded(self, action: Callable[..., None], *arguments: Any) -> None:
        try:
            action(*arguments)
        except BaseException as error:
            if self._is_for_script(error):
                raise

    def _is_for_script(self, error: BaseException) -> bool:
        """Whether the script gets the error; whatever was not raised on purpose ends the rest.

        A signal's handler may have raised in the midst of a switch: nobody knows what stands.
        """
        if isinstance(error, StopRun):
            return True
        scripts = is_scripts(error)
        self.keeper.disarm(error)
        return scripts
