"""Training inside an event loop, with another task taking turns at every step."""

import probe

probe.first_line()

import asyncio

import torch


async def train(ticks):
    model = torch.nn.Linear(10, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = 0
    for _ in range(60):
        loss = model(torch.randn(8, 10)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item().hex(), len(ticks))
        steps += 1
        await asyncio.sleep(0)
    probe.last_step(model=model, optimizer=optimizer)
    return steps


async def tick(ticks):
    while True:
        ticks.append(1)
        await asyncio.sleep(0)


async def main():
    ticks = []
    ticker = asyncio.create_task(tick(ticks))
    steps = await train(ticks)
    ticker.cancel()
    print("steps", steps)


probe.seed(23)
asyncio.run(main())
