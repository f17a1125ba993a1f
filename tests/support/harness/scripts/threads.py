"""LBFGS, whose step calls the model several times, inside an event loop.

Beside it are another task, and a helper thread with a model.
"""

import probe

probe.first_line()

import asyncio
import threading

import torch


def score():
    judge = torch.nn.Linear(10, 1).requires_grad_(False)
    while not stop.wait(0.001):
        scores.append(judge(torch.ones(1, 10)).shape)


def closure(x):
    def evaluate():
        optimizer.zero_grad()
        loss = (model(x) - x.pow(2).sum(1, keepdim=True)).pow(2).mean()
        loss.backward()
        print("closure", loss.item().hex())
        return loss

    return evaluate


async def train():
    async def tick():
        while True:
            ticks.append(1)
            await asyncio.sleep(0)

    ticks = []
    ticker = asyncio.create_task(tick())
    for _ in range(40):
        loss = optimizer.step(closure(torch.randn(16, 8)))
        probe.count((loss.item().hex(), len(ticks)))
        await asyncio.sleep(0)
    ticker.cancel()


probe.seed(5)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=5)
stop, scores = threading.Event(), []
helper = threading.Thread(target=score)
helper.start()
while not scores:
    stop.wait(0.001)
# Now that the judge has drawn its numbers: later ones are the training's alone.
probe.seed(23)
asyncio.run(train())
stop.set()
helper.join()
print("helper scored", bool(scores))
probe.last_step(model=model, optimizer=optimizer)
