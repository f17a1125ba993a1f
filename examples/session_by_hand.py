"""`profstack.Session` by hand: measure a part of a program instead of a whole script.

A small recurrent network learns which of two tones a noisy wave holds. First the training is
measured, with its steps marked by `session.steps` and two regions named in it; then the trained
model's inference, which `session.run` repeats as often as the layers need.

    python examples/session_by_hand.py
    python examples/session_by_hand.py --output tones
"""

import argparse
import math
from collections.abc import Iterator

import torch
from torch import nn

import profstack

BATCH, LENGTH, HIDDEN = 32, 64, 48


class Tones(nn.Module):
    """A GRU over the wave and a linear layer on its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(1, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, 2)

    def forward(self, waves: torch.Tensor) -> torch.Tensor:
        _, last = self.recurrent(waves)
        return self.head(last[0])


def batches(count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Clean waves with their tone; making them is the loader's work, and each step waits for it."""
    time = torch.linspace(0.0, 2.0 * math.pi, LENGTH)
    for _ in range(count):
        tones = torch.randint(0, 2, (BATCH,))
        phases = 2.0 * math.pi * torch.rand(BATCH, 1)
        waves = torch.sin((3.0 + 2.0 * tones[:, None]) * time + phases)
        yield waves[:, :, None], tones


@profstack.region("add noise")
def noisy(waves: torch.Tensor) -> torch.Tensor:
    """A decorated function is a region at each call."""
    return waves + 0.3 * torch.randn_like(waves)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--output", help="folder to save both recordings in")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    model = Tones()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    loss_function = nn.CrossEntropyLoss()
    right = 0

    with profstack.Session("training") as training:
        for waves, tones in training.steps(batches(options.steps)):
            waves = noisy(waves)
            optimizer.zero_grad()
            answers = model(waves)
            loss_function(answers, tones).backward()
            with profstack.region("update"):
                optimizer.step()
            right = int((answers.argmax(1) == tones).sum())
    print(f"right in the last batch: {right} of {BATCH}")

    model.eval()
    waves = torch.randn(BATCH, LENGTH, 1)
    with profstack.Session("inference", max_seconds=2) as inference, torch.inference_mode():
        answers = inference.run(model, waves)
    print(f"answers: {tuple(answers.shape)}")

    for recording in (training.recording, inference.recording):
        print(recording)
        # Plain pandas: every table of the page is a data frame, its times are per step.
        modules = recording.frames["modules"]
        print(modules[["path", "calls", "forward_s", "backward_s"]].head(4).to_string(index=False))
        if options.output:
            print(f"saved: {recording.save(f'{options.output}/{recording.name}')}")
    regions = training.recording.frames["regions"]
    print(regions[["path", "calls", "wall_s"]].to_string(index=False))


if __name__ == "__main__":
    main()
