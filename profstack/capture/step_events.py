"""Turn what the hooks report into step boundaries: on one thread, by one rule.

Everything a hook calls ends here, errors included. An event either ends a step under the rule in
use, or goes to the step finder until a rule is found. Events of other threads than the one that
trains are ignored.
"""

from __future__ import annotations

import time
import weakref
from _thread import get_ident
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any

from profstack.capture.loops import NEW_LOOP
from profstack.capture.module_names import ModuleInfo
from profstack.capture.step_log import EVAL, StopRun
from profstack.capture.step_rules import StepFinder, StepRule
from profstack.guard import is_scripts
from profstack.models import in_training

if TYPE_CHECKING:
    from profstack.capture.engine import Engine

_perf_counter = time.perf_counter
# Whether the model that trains is in evaluation, as far as is known: the watch's samples say so.
evaluates = False


class StepEvents:
    """Takes the events of the hooks; every method returns quickly and raises nothing of ours.

    `waiting` is true from a boundary to the step's first activity. A boundary, a rule or an error
    goes on to the engine.
    """

    def __init__(
        self, engine: Engine, live_optimizers: Callable[[], frozenset[int]], forced: str | None
    ) -> None:
        self._engine = engine
        self._boundary = engine.boundary
        self._live_optimizers = live_optimizers
        self.done = False
        # Whether the steps of the rule in use train.
        self._trains = False
        self._first: float | None = None
        self._first_training: float | None = None
        self._backward_at = 0.0
        self._inner: set[int] = set()
        # Optimizers whose step is being taken, the outermost first.
        self.stepping: list[int] = []
        # All steps up to when the finder was last given the steps of the optimizer it follows.
        self._steps_reported = 0
        self._generating = False
        # Begin of the outermost `generate`, whose it is, calls of that very model in it (an encoder
        # and a draft model are called too), and when the second one began.
        self._generate_at, self._generates, self._generate_calls = 0.0, 0, 0
        self._first_token_at: float | None = None
        # Whether a call of `profstack.step()` ends a step; None for always.
        self.accepts_step: Callable[[], bool] | None = None
        self._forget(forced)

    def _forget(self, forced: str | None) -> None:
        """Begin without a rule; only `forced` may be found, or any where it is None."""
        self.finder = StepFinder(self._live_optimizers, forced)
        self.rule: str | None = None
        self.thread: int | None = None
        # Whether the ends of module calls matter: while searching, and where calls are steps.
        self.follows_calls = self.follows_backward = True
        # False where the first call of a step is not looked for: its wait is not known then.
        self.waits = True
        # Whether the calls of all models are seen, and whether by these another one than the one
        # whose calls are steps comes first: a wrapper of its class alone would see the wait for it.
        self.sees_all, self.others_first = True, False
        self._begins = 0
        self.backward_seen = self.evaluating = False
        self._first_module: weakref.ref[Any] | None = None
        # Modules seen training under this rule: in eval mode they are evaluated. A teacher or a
        # frozen part never trains and is a part of every step.
        self._trained: set[int] = set()
        self._optimizer: int | None = None
        # A reference to the optimizer whose step ends steps; None under every other rule.
        self.followed_optimizer: weakref.ref[Any] | None = None
        # Whether a loop makes its optimizer anew, so that no one object ends its steps; and the
        # number of steps at which the one that is followed began.
        self.made_anew, self._followed_at = False, 0
        # Optimizers that have stepped, one of which may be followed, by their address.
        self._candidates: dict[int, weakref.ref[Any]] = {}
        self.stepping.clear()
        self.begin_step()

    def begin_step(self) -> None:
        """Forget what is known of the step that has ended."""
        self.activity: float | None = None
        # When torch's DataLoader was first asked in the step's wait, and the time in its asks.
        self.asked: float | None = None
        self.loader_s = 0.0
        self.shape: Any = None
        self.flags = 0
        self.waiting = self.waits

    def start_over(self, rule: str) -> None:
        """Begin other work, with a step that begins now; from here on only `rule` ends steps."""
        self._forget(rule)
        self.thread = get_ident()
        self._first = self._first_training = _perf_counter()

    def follow(self, rule: StepRule) -> None:
        """Let the rule that was found end steps, on the thread it was found on."""
        global evaluates
        evaluates = False
        self.thread = get_ident()
        by_optimizer = rule.name == "optimizer"
        # A new optimizer of the same model goes on with what was seen of it.
        if self.rule is not None and not (by_optimizer and self.rule == "optimizer"):
            self._trained.clear()
        self._trains = by_optimizer or self.backward_seen
        self.rule = rule.name
        self.follows_calls = rule.name == "module"
        # Which of the two it is decides the phase of a next plan, too.
        self.follows_backward = not by_optimizer
        self._optimizer = rule.source if by_optimizer else None
        # The one whose step told the rule need not be the one that ends the cycle.
        self.followed_optimizer = self._candidates.get(rule.source or 0) if by_optimizer else None
        self.backward_seen = False
        self.made_anew, self._followed_at = False, self._engine.log.total

    def first_module(self) -> Any:
        """Return the module that was called first, as long as it lives."""
        return self._first_module() if self._first_module is not None else None

    @property
    def open_ended(self) -> bool:
        """Whether steps begin at module calls, so that nothing tells the end of the last one."""
        return self.rule == "module" and not self.finder.inference

    @property
    def counts_calls(self) -> bool:
        """Whether each call of a module is a step: its state of gradients tells loops apart."""
        return self.rule == "module" and self.finder.inference

    # -- what the hooks report -------------------------------------------------------------

    def first_activity(self, module: Any, args: Any, kwargs: Any) -> None:
        """Take the first module call or backward pass since the last boundary."""
        if self.thread is not None and get_ident() != self.thread:
            return
        self.activity = _perf_counter()
        self.waiting = False
        if self._first is None:
            self._first = self.activity
            if not self.done:
                self.guarded(self._engine.begin_discovery)
        if module is not None:
            self._begins = id(module)
            if self.first_module() is None:
                with suppress(TypeError):
                    self._first_module = weakref.ref(module)
            # A mask grows with what a cache holds, and is no input.
            inputs = (value for name, value in kwargs.items() if "mask" not in name)
            value = args[0] if args else next(inputs, None)
            self.shape = getattr(value, "shape", None)

    def batch_asked(self, asked: float) -> None:
        """Take the return of a DataLoader's `__next__`, asked before the step's first activity."""
        if self.thread is not None and get_ident() != self.thread:
            return
        # A data set may call a model, which ends the wait, and end the step before, too.
        if asked < self._engine.log.last:
            return
        if self.asked is None:
            self.asked = asked
        self.loader_s += (self.activity or _perf_counter()) - asked

    def call_started(self, module: Any, named: ModuleInfo) -> None:
        """Take the start of an outermost module call."""
        global evaluates
        if self.done or named.is_loss or self._foreign():
            return
        if self.sees_all and id(module) == self._begins:
            self.others_first = self.finder.source not in (None, named.module_id)
            self._begins = 0
        if self._generating and id(module) == self._generates:
            self._generate_calls += 1
            if self._generate_calls == 2:
                self._first_token_at = _perf_counter()
        self.evaluating = not in_training(module)
        if not self.evaluating:
            evaluates = False
            self._trained.add(named.module_id)
            if self._first_training is None:
                self._first_training = _perf_counter()
        disturbs = self.evaluating and named.module_id in self._trained
        begins = self.open_ended
        evaluates = evaluates or disturbs
        if disturbs and not begins:
            self.flags |= EVAL
        if self.follows_calls and not (self.rule is None and self._generating):
            self.guarded(self._call_started, named)
        if disturbs and begins:
            # This call begins the step it belongs to: the one before has ended only now.
            self.flags |= EVAL

    def switched(self, module: Any, named: ModuleInfo | None) -> None:
        """Take a root that was switched to training, or to evaluation, by `train` or `eval`."""
        global evaluates
        if not in_training(module):
            self.evaluated(named)
        elif named is not None and named.module_id in self._trained:
            evaluates = False

    def evaluated(self, named: ModuleInfo | None) -> None:
        """Take the call of a root in eval mode while ranges are emitted."""
        global evaluates
        if named is not None and named.module_id in self._trained:
            evaluates = True
            self.flags |= EVAL
            self._engine.attention()

    def call_ended(self, module: Any, named: ModuleInfo) -> None:
        """Take the return of an outermost module call."""
        if self.done or named.is_loss or self._foreign():
            return
        if (self.rule is None and not self._generating) or self.rule == "module":
            self.guarded(self._call_ended, named)

    def backward_started(self) -> None:
        """Take the start of a backward pass."""
        self._backward_at = _perf_counter()
        self.backward_seen = True

    def backward_ended(self) -> None:
        """Take the return of a backward pass; one inside `Optimizer.step` is part of that."""
        if self.done or self._foreign() or self.stepping:
            return
        if self.rule == "backward":
            self.guarded(self._engine.boundary)
        elif self.rule is None:
            self.guarded(self._backward_ended)

    def optimizer_started(self, optimizer: Any) -> None:
        """Take the start of an `Optimizer.step`."""
        if not self._foreign():
            self.leave(optimizer)
            self.stepping.append(id(optimizer))

    def optimizer_ended(self, optimizer: Any) -> None:
        """Take the return of an `Optimizer.step`; the hot path of most runs."""
        if self.done:
            return
        if id(optimizer) == self._optimizer and get_ident() == self.thread:
            if self.stepping:
                self.leave(optimizer)
                if self.stepping:
                    return
            followed = self.followed_optimizer
            if followed is not None and followed() is not optimizer:
                self.guarded(self._optimizer_ended, optimizer)
                return
            try:
                self._boundary()
            except BaseException as error:
                if self._is_for_script(error):
                    raise
        elif not self._foreign():
            self.leave(optimizer)
            # One inside another is part of its step. Starts are not reported in every slice.
            if self.stepping:
                self._inner.add(id(optimizer))
            elif id(optimizer) not in self._inner:
                self.guarded(self._optimizer_ended, optimizer)

    def look(self) -> None:
        """Look at the slice: a step has ended whose end was only stamped."""
        if not self.done:
            flags, self.flags = self.flags, 0
            self.guarded(self._engine.quick_ended, flags)

    def elsewhere(self, frame: FrameType) -> None:
        """Take a step whose end was only stamped, made elsewhere than the one before."""
        if not self.done:
            self.guarded(self._engine.elsewhere, frame, 0)

    def begin_loop(self) -> str:
        """Begin with the steps of another loop; return their phase."""
        global evaluates
        trains = self.backward_seen or (self._trains and not self.counts_calls)
        if not trains:
            self._trained.clear()
            evaluates = False
        self.backward_seen = False
        return "train" if trains else "eval" if self.evaluating else "other"

    def leave(self, optimizer: Any) -> None:
        """Forget that the optimizer is stepping, also one whose step an exception ended."""
        key = id(optimizer)
        if key in self.stepping:
            del self.stepping[self.stepping.index(key) :]

    def generate_started(self, model: Any) -> None:
        """Take the start of an outermost `generate`: the calls inside are no steps."""
        if not self._foreign():
            self._generating, self._generates = True, id(model)
            self._generate_at, self._generate_calls = _perf_counter(), 0
            self._first_token_at = None

    def generate_ended(self, tokens: dict[str, int | None] | None, *, completed: bool) -> None:
        """Take the end of an outermost `generate`, by return or by an error."""
        if self._foreign():
            return
        self._generating = False
        if completed and not self.done:
            begun, first = self._generate_at, self._first_token_at
            first_s = None if first is None else first - begun
            self._engine.log.generated(_perf_counter() - begun, first_s, tokens or {})
            self.guarded(self._ended, "generate")

    def user_step(self) -> None:
        """Take a call of `profstack.step()`; it ends no step where a session marks them."""
        if self.done or self._foreign():
            return
        if self.accepts_step is None or self.accepts_step():
            self.marked()

    def marked(self) -> None:
        """End a step that the program marks itself."""
        if not (self.done or self._foreign()):
            self.guarded(self._ended, "step")

    # -- to the engine -----------------------------------------------------------------------

    def _call_started(self, named: ModuleInfo) -> None:
        now = _perf_counter()
        if self.rule is None:
            self._adopt(self.finder.call_started(named.module_id, named.parameters or 0, now), now)
        elif named.module_id == self.finder.source and not self.finder.inference:
            self._engine.boundary()
            # The wait before this call belongs to the step that has just ended.
            self.waiting = False

    def _call_ended(self, named: ModuleInfo) -> None:
        now = _perf_counter()
        if self.rule is None:
            self._adopt(self.finder.call_ended(named.module_id, now), now)
        elif named.module_id == self.finder.source and self.finder.inference:
            self._engine.boundary()

    def _backward_ended(self) -> None:
        now = _perf_counter()
        self._adopt(self.finder.backward_ended(self._backward_at, now), now)

    def conclude(self) -> StepRule | None:
        """Return the most likely rule of a script that has ended, if none was found before."""
        return self.finder.conclude(self._began(_perf_counter()))

    def _optimizer_ended(self, optimizer: Any) -> None:
        key, now = id(optimizer), _perf_counter()
        if self._is_made_anew():
            self.made_anew = True
            self.finder.replaced(self._optimizer or 0, key)
            self._optimizer, self._followed_at = key, self._engine.log.total
            self.followed_optimizer = self._candidates[key] = weakref.ref(optimizer)
            self._engine.boundary()
            return
        known = self._candidates.get(key)
        if known is not None and known() is not optimizer and self._follows_none():
            # Another one lies where the old one lay. Where the followed one lives it is one of its
            # cycle, made anew in each: meta-learning's inner optimizers.
            self.finder.forget(key)
        self._candidates[key] = weakref.ref(optimizer)
        if self.rule == "optimizer":
            self.finder.cycles_ended(self._engine.log.total - self._steps_reported)
        try:
            self._adopt(self.finder.optimizer_step(key, now, self._began(now)), now)
        finally:
            self._steps_reported = self._engine.log.total

    def _is_made_anew(self) -> bool:
        """Return whether the loop makes its optimizer anew for each step, or for two.

        One that made more steps is that of a fold, or of a task: another one begins another.
        """
        made = self._engine.log.total - self._followed_at
        is_gone = self.rule == "optimizer" and self._follows_none()
        return is_gone and made < NEW_LOOP and self._engine.is_in_loop()

    def _follows_none(self) -> bool:
        """Return whether no optimizer that lives is followed."""
        return self.followed_optimizer is None or self.followed_optimizer() is None

    def _ended(self, rule: str) -> None:
        if self.rule == rule:
            self._engine.boundary()
            return
        now = _perf_counter()
        found = self.finder.ended(rule, now, self._began(now))
        if found is not None and rule == "step" and self.rule is not None:
            # The step that ends was counted by the rule before: this one begins with the next.
            found = replace(found, first_start=now, past_ends=())
            self.backward_seen = self.backward_seen or self._trains
        self._adopt(found, now)

    def _began(self, now: float) -> float:
        """Return when the step that ends now began: at the last boundary or the first training."""
        if self.rule is not None:
            return self._engine.log.last
        begun = self._first if self._first_training is None else self._first_training
        return now if begun is None else begun

    def _adopt(self, found: StepRule | None, now: float) -> None:
        if found is not None:
            self._engine.adopt(found, now)

    def _foreign(self) -> bool:
        """Return whether the event comes from another thread than the one that is measured."""
        return self.thread is not None and get_ident() != self.thread

    def guarded(self, action: Callable[..., None], *arguments: Any) -> None:
        """Act; an error of profstack's own ends the recording and goes no further."""
        # No `Guard`: this runs at calls of modules, and `StopRun` passes all the same.
        try:
            action(*arguments)
        except BaseException as error:
            if self._is_for_script(error):
                raise

    def _is_for_script(self, error: BaseException) -> bool:
        """Return whether the error passes to the script; all but `StopRun` end the recording.

        A signal's handler may have raised in the midst of a switch: the state is unknown then.
        """
        if isinstance(error, StopRun):
            return True
        scripts = is_scripts(error)
        self._engine.disarm(error)
        return scripts
