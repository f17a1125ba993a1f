"""Engines for tests: real training, or steps of a virtual clock under made-up layers."""

import gc
import sys
import threading
import weakref
from types import SimpleNamespace
from typing import ClassVar

import torch
from torch import nn
from torch.optim import optimizer as optimizers

from profstack import layer
from profstack.capture import (
    arming,
    engine,
    hooks,
    marks,
    run_limits,
    step_events,
    step_log,
    user_regions,
)
from profstack.capture.observers import Observers
from profstack.capture.run import make_plan
from profstack.capture.slices import SlicePlan, Targets, watch
from profstack.layer import Description, Listener, Mode, SliceData, Wrapper
from profstack.storage.folder import Writer, create_folder, facts_of, read_tables

# Small ones, for steps that take no time worth a word.
TARGETS = Targets(3, 0.0, 3, 2, 4, 0.0, settle_s=0.0)


def milli(*times):
    return [each * 1e-3 for each in times]


def observed(steps, min_s=0.0, layer="alpha", number=2):
    return SlicePlan(layer, ((layer, "timed"),), number, steps, min_s)


def elsewhere(work, *arguments):
    thread = threading.Thread(target=work, args=arguments)
    thread.start()
    thread.join()


class VirtualTime:
    """Time that passes when a test says so; `cpu` is the process's."""

    def __init__(self, monkeypatch):
        self.now, self.cpu = 100.0, 7.0
        now = lambda: self.now  # noqa: E731
        clock = SimpleNamespace(perf_counter=now, time=now, process_time=lambda: self.cpu)
        for module in (engine, run_limits, arming, marks):
            monkeypatch.setattr(module, "time", clock)
        for module in (engine, step_log):
            monkeypatch.setattr(module, "_process_time", clock.process_time)
        for module in (engine, hooks, step_log, step_events):
            monkeypatch.setattr(module, "_perf_counter", clock.perf_counter)
        monkeypatch.setattr(user_regions, "perf_counter", clock.perf_counter)

    def wait(self, wall_s, cpu_s=None):
        self.now += wall_s
        self.cpu += wall_s * 0.75 if cpu_s is None else cpu_s

    def taken(self, *keys):
        """Calls and time of the regions of the slice, which ends a moment later, by their paths."""
        rows = user_regions.take(self.now + 1e-9)
        found = [(row["calls"], round(row["wall_s"], 6)) for row in rows]
        names = [tuple(row[key] for key in keys) if keys else row["path"] for row in rows]
        assert len({*names}) == len(names)
        return dict(zip(names, found, strict=True))


def table(folder, name):
    columns, rows = read_tables(folder)[name]
    return [dict(zip(columns, row, strict=True)) for row in rows]


class Hears(Listener):
    def __init__(self):
        self.heard = []

    def enter(self, kind, name, module=None):
        self.heard.append(f"+{kind} {name} {type(module).__name__}")

    def leave(self, kind, name):
        self.heard.append(f"-{kind} {name}")

    def step_ended(self, number):
        self.heard.append(f"ended {number}")

    def step_begun(self, number):
        self.heard.append(f"begun {number}")


def noted(name):
    return lambda self, *arguments: self.note(name, *arguments)


class Alpha(Wrapper):
    """Notes what is asked of it; what it saw is the number of the slice's steps, less those cut."""

    name = "alpha"
    occupies = frozenset({"a"})
    modes = (Mode("timed"), Mode("count", 1, 1, turn=3, steps=2))
    description = Description("sampling", "a made-up tool", "", "", "", "")

    def __init__(self):
        super().__init__()
        self.asked, self.contexts, self.raises = [], [], {}
        self.busy = self.limit = self.heard = None

    def note(self, name, *arguments):
        self.asked.append((name, *arguments))
        if name in self.raises:
            raise self.raises[name]

    def of(self, name):
        return [each[1:] for each in self.asked if each[0] == name]

    def busy_reason(self, mode):
        self.note("busy_reason", mode)
        return self.busy

    def step_limit(self):
        return self.limit

    def listener(self):
        self.note("listener")
        return self.heard

    def start(self, context):
        self.contexts.append(context)
        self.note("start", context.index)

    stop, abandon, close = map(noted, ("stop", "abandon", "close"))
    hand_over = noted("hand_over")

    def take(self, stamps, modules, left_out=()):
        self.note("take", list(stamps), set(left_out))
        row = {"slice": self.contexts[-1].index, "file": self.name}
        return SliceData({"functions": [{**row, "calls": len(stamps) - 1 - len(left_out)}]})

    def take_startup(self, tool, folder):
        self.note("take_startup", tool)
        return SliceData({"notes": [{"slug": "startup", "text": str(tool)}]})

    def finish(self, folder):
        self.note("finish", folder)
        return []


class Beta(Alpha):
    """One that can leave out steps, and may not begin where it has ended."""

    name, occupies = "beta", frozenset({"b"})
    modes = (Mode("timed"), Mode("shared", 0, 0))
    cuts, restarts = True, False


class Behind(Alpha):
    name, background, modes = "behind", True, (Mode("timed", 0, 0),)
    resume, pause = noted("resume"), noted("pause")

    def flush(self):
        self.note("flush")
        return SliceData(notes=[("flushed", f"{len(self.of('flush'))}")])


def made_up_layers(monkeypatch):
    for kind in (Alpha, Beta, Behind):
        monkeypatch.setitem(layer.ON_REQUEST, kind.name, f"{__name__}:{kind.__name__}")


class Bench:
    """An engine in a folder of its own; `plan` are its slices, else those of its targets."""

    def __init__(self, folder, layers, *, targets=TARGETS, plan=None, **options):
        self.folder = create_folder("train", str(folder), force=False)
        self.writer = Writer(self.folder)
        self.observers = Observers(list(layers), self.writer)

        def slices():
            return make_plan(list(layers), targets) if plan is None else iter([*plan, watch(9)])

        options = {"live_optimizers": Training.living, "wait_for_page": False, **options}
        self.engine = engine.Engine(torch, self.observers, slices, targets, **options)

    def wrapper(self, name):
        return self.observers.layers[name].wrapper

    def table(self, name):
        return table(self.folder, name)

    steps = property(lambda self: sorted(self.table("steps"), key=lambda row: row["step"]))
    slices = property(lambda self: self.table("slices"))
    kinds = property(lambda self: [(row["kind"], row["steps"]) for row in self.slices])

    @property
    def story(self):
        """All slices, with a letter for each step: its flag, or a dot; `+` is behind the last."""
        steps = [(row["slice"], row["flags"][:1] or ".") for row in self.steps]
        words = [
            f"{row['kind']} {''.join(each for number, each in steps if number == row['slice'])}"
            for row in self.slices
        ]
        last = self.slices[-1]["slice"]
        return ", ".join(words) + "".join(f" +{each}" for number, each in steps if number > last)

    layers = property(lambda self: {row["name"]: row for row in self.table("layers")})
    notes = property(lambda self: [row["slug"] for row in self.table("notes")])
    facts = property(lambda self: facts_of(read_tables(self.folder)))


class Net(nn.Module):
    def forward(self, x):
        return x


class VirtualOptimizer:
    def step(self):
        for hook in list(optimizers._global_optimizer_pre_hooks.values()):
            hook(self, (), {})
        for hook in list(optimizers._global_optimizer_post_hooks.values()):
            hook(self, (), {})


class VirtualTraining:
    """Steps of virtual time whose calls and optimizer steps go through the real hooks."""

    def __init__(self, time):
        self.time, self.net, self.optimizer = time, Net(), VirtualOptimizer()
        self.batch = torch.zeros(5, 3)

    def living(self):
        return frozenset([id(self.optimizer)])

    def step(self, wall_s, wait_s=0.001, cpu_s=None, batches=None):
        cpu_s = wall_s * 0.75 if cpu_s is None else cpu_s
        self.time.wait(wait_s, 0.0)
        if batches is not None:
            next(batches)
        self.net(self.batch)
        self.time.wait(wall_s - wait_s, cpu_s)
        self.optimizer.step()

    def run(self, walls_s):
        for wall_s in walls_s:
            self.step(wall_s)

    def play(self, script, one=None):
        """Steps of so many milliseconds; `e` evaluates, `u` is `profstack.step()`."""
        for word in script.split():
            if word == "e":
                self.evaluate()
            elif word == "u":
                one.engine.events.user_step()
            else:
                self.step(float(word) * 1e-3)

    def evaluate(self):
        self.net.eval()
        self.net(self.batch)
        self.net.train()


class Training:
    """A tiny training whose losses tell any difference.

    Optimizers of other tests may still live in this process, so the engine is told of these.
    """

    optimizers: ClassVar = weakref.WeakSet()

    @classmethod
    def living(cls):
        return frozenset(map(id, cls.optimizers))

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.optimizers.add(self.optimizer)
        self.losses = []

    def step(self):
        self.optimizer.zero_grad()
        loss = self.model(torch.randn(8, 4)).pow(2).mean()
        loss.backward()
        self.losses.append(loss.item().hex())
        self.optimizer.step()

    def run(self, steps):
        for _ in range(steps):
            self.step()
        return self


def patched():
    """Everything of torch and the interpreter that the engine or a wrapper may change."""
    return [
        *(nn.Module.__call__, nn.Sequential.__call__, *map(vars(Net).get, ("__call__", "train"))),
        *(torch.autograd.backward, torch.autograd.grad, torch._C._autograd._profiler_enabled()),
        *(torch.autograd.profiler._prepare_profiler, gc.isenabled(), user_regions._on),
        *(len(optimizers._global_optimizer_pre_hooks), sys.getprofile(), sys.gettrace()),
        len(optimizers._global_optimizer_post_hooks),
    ]
