"""Writes checkpoints and a log as it goes, and loads the last one back."""

import probe

probe.first_line()

import json
from pathlib import Path

import torch

probe.seed(32)
Path("runs").mkdir()
model = torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.ReLU(), torch.nn.Linear(20, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
steps = 0
with open("runs/log.jsonl", "w") as log:
    for step in range(50):
        loss = model(torch.randn(8, 10)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item().hex())
        steps += 1
        log.write(json.dumps({"step": step, "loss": loss.item()}) + "\n")
        if step % 20 == 19:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, f"runs/checkpoint-{step}.pt")
            torch.save(model, f"runs/whole-{step}.pt")
loaded = torch.load("runs/checkpoint-39.pt")
print(sorted(loaded["optimizer"]["state"]), loaded["model"]["0.bias"].sum().item().hex())
whole = torch.load("runs/whole-39.pt", weights_only=False)
print(whole, whole(torch.ones(1, 10)).item().hex())
probe.last_step(model=model, optimizer=optimizer)
print("steps", steps)
