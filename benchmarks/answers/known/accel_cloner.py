"""Clone the behaviour of a scripted driver from its recordings with accelerate.

The recordings hold what a car saw (range scans and speed) and how the driver
steered.  A network is trained to steer in the same way; a run log in JSON
lines is kept for the dashboard.
"""
import argparse
import json
import math
import os
import tempfile
import time

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def drive(moments, beams, seed=26):
    """Observations and (steering, throttle) of the scripted driver."""
    generator = torch.Generator().manual_seed(seed)
    angle = torch.linspace(-math.pi / 2, math.pi / 2, beams)
    bend = torch.randn(moments, 1, generator=generator) * 0.5
    width = torch.rand(moments, 1, generator=generator) * 3 + 2
    scan = width / (0.2 + (angle - bend).abs().sin().abs())
    scan = scan.clamp(max=20) + torch.randn(moments, beams, generator=generator) * 0.2
    speed = torch.rand(moments, 1, generator=generator)
    steering = torch.tanh(2 * bend + 0.3 * torch.sin(5 * bend))
    throttle = torch.sigmoid(width - 3 - 2 * speed)
    return torch.cat([scan / 20, speed], dim=1), torch.cat([steering, throttle], dim=1)


class DriverNet(nn.Module):
    def __init__(self, inputs, hidden=512, layers=3):
        super().__init__()
        sizes = [inputs] + [hidden] * layers
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(layers))
        self.out = nn.Linear(hidden, 2)

    def forward(self, x):
        for linear, norm in zip(self.hidden, self.norms):
            x = F.elu(norm(linear(x)))
        return self.out(x)


class RunLog:
    """JSON lines with the loss and, now and then, distributions of the weights."""

    def __init__(self, path, histogram_every, bins=64):
        self.file = open(path, "w")
        self.histogram_every = histogram_every
        self.bins = bins

    def distribution(self, tensor):
        counts, edges = np.histogram(tensor.detach().cpu().numpy(), bins=self.bins)
        return {"counts": counts.tolist(), "low": float(edges[0]), "high": float(edges[-1])}

    def write(self, step, loss, model):
        record = {"step": step, "loss": loss, "time": time.time()}
        if step % self.histogram_every == 0:
            record["weights"] = {name: self.distribution(p)
                                 for name, p in model.named_parameters()}
            record["gradients"] = {name: self.distribution(p.grad)
                                   for name, p in model.named_parameters()}
        self.file.write(json.dumps(record) + "\n")

    def close(self):
        self.file.close()


def train(accelerator, model, optimizer, loader, log, steps):
    step = 0
    start = time.perf_counter()
    while step < steps:
        for observed, actions in loader:
            step += 1
            loss = F.smooth_l1_loss(model(observed), actions)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            log.write(step, loss.item(), accelerator.unwrap_model(model))
            if step % 100 == 0:
                accelerator.print(f"step {step}: loss {loss.item():.4f} "
                                  f"({time.perf_counter() - start:.1f} s)")
            if step == steps:
                break


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=12_000)
    parser.add_argument("--beams", type=int, default=127)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--histogram-every", type=int, default=1)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    if args.mended:
        args.histogram_every = 250
    set_seed(0)
    accelerator = Accelerator(cpu=True)
    observed, actions = drive(args.moments, args.beams)
    loader = DataLoader(TensorDataset(observed, actions), batch_size=args.batch_size,
                        shuffle=True, drop_last=True)
    model = DriverNet(observed.shape[1])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with tempfile.TemporaryDirectory() as folder:
        log = RunLog(os.path.join(folder, "run.jsonl"), args.histogram_every)
        train(accelerator, model, optimizer, loader, log, args.steps)
        log.close()


if __name__ == "__main__":
    main()
