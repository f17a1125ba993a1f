"""Mark the parts of a training loop for Nsight Systems with NVTX ranges.

A recurrent network learns to add up the numbers of a sequence that carry a mark. Each step has a
range with its number, and inside it one for loading, forward, backward and the optimizer's step.
Without a listener the markers cost next to nothing, so they may stay in the script:

    python examples/nvtx_markers.py --steps 200

Nsight Systems listens. Its options come before the program; what comes after the script is the
script's own:

    nsys profile --trace=nvtx,cuda,osrt --sample=none --cpuctxsw=none \\
        --output=markers --force-overwrite=true \\
        python examples/nvtx_markers.py --steps 200
    nsys stats --report nvtx_sum markers.nsys-rep

(`--trace=nvtx` alone where there is no GPU; the report is called `nvtxsum` up to nsys 2022. An nsys
of 2022 takes the ranges of nvtx up to 0.2.11 only: `pip install nvtx==0.2.11`.)

The same under profstack marks every module's call by its path as well, in a domain of its own, in
some slices of steps; `--slice-steps` makes them longer:

    nsys profile --trace=nvtx,cuda,osrt --sample=none --cpuctxsw=none \\
        --output=markers --force-overwrite=true \\
        python -m profstack run --slice-steps 20 examples/nvtx_markers.py --steps 200

    python -m profstack import markers.nsys-rep --into profstack-runs/nvtx_markers-0001

In one command, profstack measures the script with every layer it has, runs it again under nsys
until some warm steps are captured, and puts what nsys saw on the same page:

    python -m profstack run --nsys examples/nvtx_markers.py --steps 200

Without nsys, profstack measures the script with every layer it has:

    python -m profstack run examples/nvtx_markers.py --steps 200
"""

import argparse

import nvtx
import torch
from torch import nn

DOMAIN = "nvtx_markers"


class Adder(nn.Module):
    """A GRU over the sequence, and a layer that reads the sum off its last state."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.recurrent = nn.GRU(2, width, batch_first=True)
        self.read_out = nn.Linear(width, 1)

    def forward(self, sequences: torch.Tensor) -> torch.Tensor:
        states, _ = self.recurrent(sequences)
        return self.read_out(states[:, -1]).squeeze(1)


def load(batch_size: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences of (number, mark) pairs, and for each the sum of its two marked numbers."""
    numbers = torch.rand(batch_size, length)
    marks = torch.zeros(batch_size, length)
    places = torch.stack([torch.randperm(length)[:2] for _ in range(batch_size)])
    marks.scatter_(1, places, 1.0)
    return torch.stack((numbers, marks), dim=2), (numbers * marks).sum(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--length", type=int, default=20, help="numbers in a sequence")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--every", type=int, default=50, help="print the loss this often")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Adder(options.width).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    criterion = nn.MSELoss()

    steps = 0
    for step in range(options.steps):
        with nvtx.annotate(f"step {step}", domain=DOMAIN, payload=step):
            with nvtx.annotate("load", color="yellow", domain=DOMAIN):
                sequences, sums = load(options.batch_size, options.length)
                sequences, sums = sequences.to(device), sums.to(device)
            with nvtx.annotate("forward", color="blue", domain=DOMAIN):
                loss = criterion(model(sequences), sums)
            with nvtx.annotate("backward", color="red", domain=DOMAIN):
                optimizer.zero_grad()
                loss.backward()
            with nvtx.annotate("optimizer", color="green", domain=DOMAIN):
                optimizer.step()
        steps += 1
        if step % options.every == 0 or step == options.steps - 1:
            print(f"step {step:4d}: loss {loss.item():.6f}")
    print(f"steps: {steps}")


if __name__ == "__main__":
    main()
