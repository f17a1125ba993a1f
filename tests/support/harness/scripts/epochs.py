"""In a thread: evaluation around epochs and checkpoints; then a student is trained."""

import probe

probe.first_line()

import threading
from pathlib import Path

import torch
from torch import nn


def evaluate(model, data, labels):
    model.eval()
    with torch.no_grad():
        parts = zip(data.split(16), labels.split(16), strict=True)
        losses = [nn.functional.cross_entropy(model(x), y) for x, y in parts]
    model.train()
    print("eval", torch.stack(losses).mean().item().hex())


def train_teacher(data, labels):
    model = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2))
    model.append(nn.Linear(64, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    evaluate(model, data, labels)
    for epoch in range(6):
        for batch in torch.randperm(128).split(16):
            loss = nn.functional.cross_entropy(model(data[batch]), labels[batch])
            probe.descend(loss, optimizer)
        evaluate(model, data, labels)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, f"runs/checkpoint-{epoch}.pt")
        torch.save(model, f"runs/whole-{epoch}.pt")
    return model


def main():
    probe.seed(6)
    Path("runs").mkdir()
    data, labels = torch.randn(128, 20), torch.randint(3, (128,))
    teacher = train_teacher(data, labels).requires_grad_(False).eval()
    student = nn.Sequential(nn.Linear(20, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
    for _ in range(40):
        batch = data[torch.randperm(128)[:16]]
        probe.descend((student(batch) - teacher(batch)).pow(2).mean(), optimizer)
    loaded = torch.load("runs/checkpoint-3.pt")
    print(sorted(loaded["optimizer"]["state"]), loaded["model"]["0.bias"].sum().item().hex())
    whole = torch.load("runs/whole-3.pt", weights_only=False)
    print(whole, whole.eval()(torch.ones(1, 20)).sum().item().hex())
    probe.last_step(teacher=teacher, student=student)


thread = threading.Thread(target=main)
thread.start()
thread.join()
