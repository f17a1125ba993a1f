"""The script profiles itself with cProfile; its own counts must stay complete."""

import probe

probe.first_line()

import cProfile
import pstats

import torch


def train_step(model, optimizer):
    loss = model(torch.randn(8, 10)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())


probe.seed(24)
model = torch.nn.Linear(10, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
steps = 0
profile = cProfile.Profile()
profile.enable()
for _ in range(50):
    train_step(model, optimizer)
    steps += 1
profile.disable()
for (file, _line, name), (_, calls, *_) in sorted(pstats.Stats(profile).stats.items()):
    if file == __file__ or file.endswith(("linear.py", "sgd.py")):
        print(name, calls)
probe.last_step(model=model, optimizer=optimizer)
print("steps", steps)
