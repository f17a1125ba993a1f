"""Fed to `python -`; also the text given to `python -c`."""

import probe

probe.first_line()

import sys

import torch

probe.seed(11)
print(__name__, globals().get("__file__"), sys.argv, repr(sys.path[0]))
model = torch.nn.Linear(10, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
steps = 0
for _ in range(50):
    loss = model(torch.randn(8, 10)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
    steps += 1
probe.last_step(model=model, optimizer=optimizer)
print("steps", steps)
