"""A teacher is trained to the end; only then a student is made, with its own optimizer."""

import probe

probe.first_line()

import torch
from torch import nn


def train(model, target, count):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(count):
        x = torch.randn(32, 16)
        optimizer.zero_grad()
        loss = (model(x) - target(x)).pow(2).mean()
        loss.backward()
        optimizer.step()
        print(loss.item().hex())
    return count


probe.seed(7)
teacher = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
steps = train(teacher, lambda x: x[:, :4].sin(), 50)
teacher.requires_grad_(False).eval()
student = nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4))
steps += train(student, teacher, 40)
probe.last_step(teacher=teacher, student=student)
print("steps", steps)
