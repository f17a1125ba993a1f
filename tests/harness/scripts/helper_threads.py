"""Training in the main thread while helper threads prepare batches and run a model of theirs."""

import probe

probe.first_line()

import queue
import threading

import torch


def prepare(batches, wanted):
    generator = torch.Generator().manual_seed(22)
    for _ in range(wanted):
        batches.put(torch.randn(8, 10, generator=generator))


def score(stop, scores):
    judge = torch.nn.Linear(10, 1).requires_grad_(False)
    while not stop.wait(0.001):
        scores.append(judge(torch.ones(1, 10)).shape)


probe.seed(22)
model = torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.ReLU(), torch.nn.Linear(20, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches, stop, scores = queue.Queue(4), threading.Event(), []
threads = [
    threading.Thread(target=prepare, args=(batches, 60), name="prepare"),
    threading.Thread(target=score, args=(stop, scores), name="score"),
]
for thread in threads:
    thread.start()
steps = 0
for _ in range(60):
    loss = model(batches.get()).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
    steps += 1
stop.set()
for thread in threads:
    thread.join()
print("helper scored", bool(scores))
probe.last_step(model=model, optimizer=optimizer)
print("steps", steps)
