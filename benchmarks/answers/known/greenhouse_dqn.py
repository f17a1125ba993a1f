"""Learns to heat and air greenhouses from logged days with an offline deep Q-network."""

from __future__ import annotations

import argparse
import copy

import numpy as np
import torch
from torch import Tensor, nn

HEAT = np.array([0.0, 0.0, 0.8, 1.6, 0.0], dtype=np.float32)
AIR = np.array([0.0, 0.5, 0.0, 0.0, 1.0], dtype=np.float32)
ACTIONS = len(HEAT)
SENSORS = 5


class Greenhouses:
    """A number of greenhouses that are run side by side, a quarter of an hour a step."""

    def __init__(self, count: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.inside = self.rng.uniform(14, 26, count).astype(np.float32)
        self.damp = self.rng.uniform(0.5, 0.9, count).astype(np.float32)
        self.clock = self.rng.integers(0, 96, count)
        self.climate = self.rng.uniform(2, 16, count).astype(np.float32)

    def outside(self) -> np.ndarray:
        """Return the temperature outside."""
        return self.climate + 7 * np.sin(2 * np.pi * (self.clock - 32) / 96).astype(np.float32)

    def sense(self) -> np.ndarray:
        """Return what the sensors show."""
        hour = 2 * np.pi * self.clock / 96
        columns = [self.inside / 20 - 1, self.damp * 2 - 1, self.outside() / 20 - 0.5]
        return np.stack([*columns, np.sin(hour), np.cos(hour)], axis=1).astype(np.float32)

    def step(self, actions: np.ndarray) -> np.ndarray:
        """Act for one step and return the rewards."""
        sun = np.maximum(0, np.sin(2 * np.pi * (self.clock - 24) / 96))
        leak = (0.03 + 0.15 * AIR[actions]) * (self.outside() - self.inside)
        noise = self.rng.normal(0, 0.1, len(actions))
        self.inside = (self.inside + leak + HEAT[actions] + sun + noise).astype(np.float32)
        drift = 0.02 * (0.9 - self.damp) - 0.1 * AIR[actions] * (self.damp - 0.4)
        self.damp = np.clip(self.damp + drift, 0, 1).astype(np.float32)
        self.clock = (self.clock + 1) % 96
        comfort = -np.abs(self.inside - 21) / 5 - np.maximum(0, self.damp - 0.8) * 5
        return (comfort - 0.3 * HEAT[actions]).astype(np.float32)


class LoggedDays:
    """The steps that the growers logged, to draw batches from."""

    def __init__(self, houses: int, steps: int, mended: bool) -> None:
        self.mended = mended
        rng, world = np.random.default_rng(5), Greenhouses(houses, seed=6)
        states, actions, rewards, followers = [], [], [], []
        for _ in range(steps):
            states.append(world.sense())
            actions.append(rng.integers(0, ACTIONS, houses))
            rewards.append(world.step(actions[-1]))
            followers.append(world.sense())
        self.states = np.concatenate(states)
        self.actions = np.concatenate(actions)
        self.rewards = np.concatenate(rewards)
        self.followers = np.concatenate(followers)

    def pick(self, count: int) -> np.ndarray:
        """Return the places of some steps."""
        if self.mended:
            return np.random.randint(len(self.states), size=count)
        return np.random.choice(len(self.states), count, replace=False)

    def sample(self, count: int) -> tuple[Tensor, ...]:
        """Return a batch of steps."""
        places = self.pick(count)
        parts = (self.states, self.actions, self.rewards, self.followers)
        return tuple(torch.from_numpy(part[places]) for part in parts)


def build_network(width: int) -> nn.Sequential:
    """Build the network that values the actions."""
    return nn.Sequential(
        nn.Linear(SENSORS, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, ACTIONS),
    )


class Learner:
    """A double deep Q-network with a conservative penalty."""

    def __init__(self, width: int) -> None:
        self.online = build_network(width)
        self.target = copy.deepcopy(self.online).requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=1e-3)

    def update(self, batch: tuple[Tensor, ...], discount: float = 0.95) -> Tensor:
        """Take one step of the optimizer and return the loss."""
        states, actions, rewards, followers = batch
        with torch.no_grad():
            best = self.online(followers).argmax(dim=1, keepdim=True)
            wanted = rewards + discount * self.target(followers).gather(1, best)[:, 0]
        values = self.online(states)
        taken = values.gather(1, actions[:, None])[:, 0]
        penalty = (values.logsumexp(dim=1) - taken).mean()
        loss = nn.functional.smooth_l1_loss(taken, wanted) + 0.05 * penalty
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def evaluate(self, houses: int = 64, steps: int = 192) -> float:
        """Return the mean reward of the greedy policy."""
        world = Greenhouses(houses, seed=99)
        total = 0.0
        for _ in range(steps):
            actions = self.online(torch.from_numpy(world.sense())).argmax(dim=1)
            total += float(world.step(actions.numpy()).mean())
        return total / steps


def main() -> None:
    """Learn on the command line's settings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--houses", type=int, default=128)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--updates", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=128)
    args = parser.parse_args()
    torch.manual_seed(0)
    np.random.seed(0)
    log = LoggedDays(args.houses, 96 * args.days, args.mended)
    learner = Learner(width=96)
    total = torch.zeros(())
    for update in range(1, args.updates + 1):
        total += learner.update(log.sample(args.batch))
        if update % 100 == 0:
            learner.target.load_state_dict(learner.online.state_dict())
        if update % 500 == 0:
            print(f"{update}: loss {total.item() / 500:.4f}, reward {learner.evaluate():.3f}")
            total.zero_()


if __name__ == "__main__":
    main()
