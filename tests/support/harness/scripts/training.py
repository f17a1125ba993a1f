"""No main guard: trainings of many kinds, each with an optimizer of its own; the last one fails.

It shows what it can see of itself, uses profilers of its own, and sets what can be set, which must
stay as set.
"""

import probe

probe.first_line()

import asyncio
import cProfile
import gc
import os
import pickle
import pstats
import sys
import threading
import traceback
import warnings
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "2"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 2)

    def forward(self, x):
        return self.layer(x).relu()


class Faulty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, fail):
        ctx.fail = fail
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        if ctx.fail:
            raise ArithmeticError("a gradient nobody can take")
        return gradient * 2, None


def train_step():
    probe.descend(net(torch.randn(8, 16)).pow(2).mean(), optimizer)


def print_events(profiler):
    for row in sorted(profiler.key_averages(), key=lambda row: row.key):
        print("event", row.key, row.count)


def train_with_own_profilers():
    own = cProfile.Profile()
    own.enable()
    for _ in range(20):
        train_step()
    own.disable()
    for (file, _line, name), (_, calls, *_) in sorted(pstats.Stats(own).stats.items()):
        if file == __file__ or file.endswith(("linear.py", "rmsprop.py")):
            print(name, calls)
    plan = schedule(skip_first=2, wait=3, warmup=2, active=4, repeat=2)
    how = {"activities": [ProfilerActivity.CPU], "on_trace_ready": print_events}
    with profile(schedule=plan, **how) as profiler:
        for _ in range(30):
            train_step()
            profiler.step()
    for epoch in range(20):
        with record_function(f"epoch {epoch}"):
            for _ in range(2 + epoch % 5):
                with record_function("step"):
                    train_step()
        # Brings damage to light near where it is done.
        if epoch % 6 == 0:
            gc.collect()


def evaluate(model, data, labels):
    model.eval()
    with torch.no_grad():
        parts = zip(data.split(16), labels.split(16), strict=True)
        losses = [nn.functional.cross_entropy(model(x), y) for x, y in parts]
    model.train()
    print("eval", torch.stack(losses).mean().item().hex())


def train_with_checkpoints():
    Path("runs").mkdir()
    data, labels = torch.randn(128, 20), torch.randint(3, (128,))
    model = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2))
    model.append(nn.Linear(64, 3))
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(4):
        evaluate(model, data, labels)
        for batch in torch.randperm(128).split(16):
            probe.descend(nn.functional.cross_entropy(model(data[batch]), labels[batch]), sgd)
        torch.save([model.state_dict(), sgd.state_dict()], f"runs/checkpoint-{epoch}.pt")
        torch.save(model, f"runs/whole-{epoch}.pt")
    loaded, state = torch.load("runs/checkpoint-2.pt")
    print(sorted(state["state"]), loaded["0.bias"].sum().item().hex())
    whole = torch.load("runs/whole-2.pt", weights_only=False)
    print(whole, whole.eval()(torch.ones(1, 20)).sum().item().hex())


def score():
    judge = nn.Linear(10, 1).requires_grad_(False)
    while not stop.wait(0.001):
        scores.append(judge(torch.ones(1, 10)).shape)


async def train_by_closures(model, lbfgs):
    """Each step calls the model several times, beside another task and a thread with a model."""

    def closure(x):
        lbfgs.zero_grad()
        loss = (model(x) - x.pow(2).sum(1, keepdim=True)).pow(2).mean()
        loss.backward()
        print("closure", loss.item().hex())
        return loss

    async def tick():
        while True:
            ticks.append(1)
            await asyncio.sleep(0)

    ticks = []
    ticker = asyncio.create_task(tick())
    for _ in range(30):
        x = torch.randn(16, 8)
        probe.count((lbfgs.step(lambda x=x: closure(x)).item().hex(), len(ticks)))
        await asyncio.sleep(0)
    ticker.cancel()


def train_until_it_fails():
    """Errors in backward are caught and shown; the last one, in the forward pass, is not."""
    for step, line in enumerate(sys.stdin):
        warnings.warn("the same warning each step", stacklevel=1)
        x = torch.tensor([float(word) for word in line.split()]) + numpy.random.randn(1)
        loss = Faulty.apply(last(x), step % 20 == 9).pow(2).mean()
        descent.zero_grad()
        try:
            loss.backward()
        except ArithmeticError:
            traceback.print_exc()
        descent.step()
        probe.count((loss.item().hex(), gc.isenabled()))


print(__name__, __spec__, __package__, sys.argv, Net.__module__, Net.__qualname__)
print(pickle.loads(pickle.dumps(Net)) is Net, sys.modules["__main__"].Net is Net)
print("threads", torch.get_num_threads())
probe.seed(9)
net = Net()
optimizer = torch.optim.RMSprop(net.parameters())
train_with_own_profilers()
train_with_checkpoints()
curve = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
stop, scores = threading.Event(), []
helper = threading.Thread(target=score)
helper.start()
while not scores:
    stop.wait(0.001)
# Now that the judge has drawn its numbers: later ones are the training's alone.
probe.seed(23)
asyncio.run(train_by_closures(curve, torch.optim.LBFGS(curve.parameters(), lr=0.1, max_iter=5)))
stop.set()
helper.join()

torch.use_deterministic_algorithms(True)
torch.backends.cudnn.deterministic = True
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
torch.autograd.set_detect_anomaly(False)
warnings.simplefilter("once", UserWarning)
gc.disable()
gc.set_threshold(500, 7, 7)
sys.setswitchinterval(0.004)
sys.setprofile(None)
threading.setprofile(None)
seen = []
last = nn.Linear(3, 1)
descent = torch.optim.Adam(last.parameters(), lr=1e-3)
torch.nn.modules.module.register_module_forward_pre_hook(lambda *_: seen.append(1))
last.register_forward_hook(lambda *_: seen.append(2))
descent.register_step_post_hook(lambda *_: seen.append(3))
try:
    train_until_it_fails()
finally:
    print("hook calls", len(seen), "order", seen[:6], torch.get_num_threads())
    probe.last_step(net=net, optimizer=optimizer, last=last, descent=descent)
