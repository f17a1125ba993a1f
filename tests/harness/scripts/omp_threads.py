"""OMP_NUM_THREADS set by the script before torch is imported must still count."""

import probe

probe.first_line()

import os

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch

probe.seed(19)
print("threads", torch.get_num_threads())
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
steps = 0
for _ in range(50):
    loss = model(torch.randn(64, 64)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
    steps += 1
probe.last_step(model=model, optimizer=optimizer)
print("steps", steps, torch.get_num_threads())
