"""The whole training happens in a thread that is not the main one."""

import probe

probe.first_line()

import threading

import torch


def train():
    model = torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.ReLU(), torch.nn.Linear(20, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(60):
        loss = model(torch.randn(8, 10)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item().hex())
        counted.append(1)


probe.seed(21)
counted = []
worker = threading.Thread(target=train)
worker.start()
worker.join()
probe.last_step()
print("steps", len(counted))
