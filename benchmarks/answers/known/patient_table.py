"""Tries several settings of a network that foresees which patients return to hospital."""

from __future__ import annotations

import argparse
import math
import random
from dataclasses import dataclass
from itertools import pairwise, product

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Setting:
    """What is tried."""

    width: int
    rate: float
    dropout: float


@dataclass(frozen=True)
class Table:
    """Features and labels of the patients, for training and for the score."""

    features: Tensor
    labels: Tensor
    held_features: Tensor
    held_labels: Tensor


def visits_of(patient: int, chance: random.Random) -> list[tuple[int, float, float]]:
    """Return the days, pulses and doses of the visits of a patient."""
    pulse = chance.gauss(75, 10)
    return [
        (
            day * 30 + chance.randrange(30),
            pulse + chance.gauss(0, 5),
            (patient % 7) * chance.random(),
        )
        for day in range(chance.randrange(8, 16))
    ]


def describe(visits: list[tuple[int, float, float]]) -> list[float]:
    """Return the features of a patient."""
    days = [visit[0] for visit in visits]
    gaps = [after - before for before, after in pairwise(days)]
    row = [len(visits) / 10, sum(gaps) / len(gaps) / 30, max(gaps) / 30]
    for column in (1, 2):
        values = [visit[column] for visit in visits]
        mean = sum(values) / len(values)
        spread = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
        row += [mean / 50, spread / 10, max(values) / 50, min(values) / 50, values[-1] / 50]
    return row


def build_table(count: int) -> Table:
    """Build the table from the visits of all patients."""
    chance = random.Random(29)
    rows, labels = [], []
    for patient in range(count):
        row = describe(visits_of(patient, chance))
        rows.append(row)
        labels.append(float(row[8] + row[2] + chance.gauss(0, 0.1) > 1.55))
    features, truth = torch.tensor(rows), torch.tensor(labels)
    features = (features - features.mean(0)) / features.std(0)
    cut = count * 4 // 5
    return Table(features[:cut], truth[:cut], features[cut:], truth[cut:])


def make_model(inputs: int, setting: Setting) -> nn.Sequential:
    """Make the network of a setting."""
    return nn.Sequential(
        nn.Linear(inputs, setting.width),
        nn.ReLU(),
        nn.Dropout(setting.dropout),
        nn.Linear(setting.width, setting.width),
        nn.ReLU(),
        nn.Linear(setting.width, 1),
        nn.Flatten(0),
    )


def run_trial(table: Table, setting: Setting, steps: int) -> float:
    """Train with a setting and return the accuracy on the patients held out."""
    torch.manual_seed(0)
    model = make_model(table.features.shape[1], setting)
    optimizer = torch.optim.AdamW(model.parameters(), lr=setting.rate)
    for _ in range(steps):
        picks = torch.randint(0, len(table.labels), (1024,))
        logits = model(table.features[picks])
        loss = nn.functional.binary_cross_entropy_with_logits(logits, table.labels[picks])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.inference_mode():
        guesses = model(table.held_features) > 0
    return (guesses == table.held_labels.bool()).float().mean().item()


class Search:
    """Tries all settings one after the other."""

    def __init__(self, patients: int, steps: int, mended: bool) -> None:
        self.patients = patients
        self.steps = steps
        self.table = build_table(patients) if mended else None

    def objective(self, setting: Setting) -> float:
        """Return the score of a setting."""
        table = self.table or build_table(self.patients)
        return run_trial(table, setting, self.steps)

    def run(self) -> tuple[Setting, float]:
        """Return the best setting and its score."""
        scores = {}
        for width, rate, dropout in product((192, 256), (1e-3, 4e-3), (0.0, 0.1, 0.2)):
            setting = Setting(width, rate, dropout)
            scores[setting] = self.objective(setting)
            print(f"{setting}: {scores[setting]:.4f}")
        best = max(scores, key=lambda setting: scores[setting])
        return best, scores[best]


def main() -> None:
    """Search for the best setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--patients", type=int, default=25_000)
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    best, score = Search(args.patients, args.steps, args.mended).run()
    print(f"best {best} with {score:.4f}")


if __name__ == "__main__":
    main()
