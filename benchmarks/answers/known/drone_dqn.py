"""Teaches drones to reach their marks against the wind with deep Q-learning."""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor, nn

SIGHTS = 10
MOVES = 5


class Drones:
    """Many drones that fly at once."""

    def __init__(self, count: int) -> None:
        self.random = np.random.default_rng(37)
        self.push = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]], dtype=np.float32)
        self.state = self.fresh(count)

    def fresh(self, count: int) -> np.ndarray:
        """Return places, speeds, marks, winds and clocks of new flights."""
        state = self.random.normal(0, 1, (count, SIGHTS)).astype(np.float32)
        state[:, 2:4] = 0
        state[:, 6:8] *= 0.3
        state[:, 8:] = 0
        return state

    def step(self, moves: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Fly on; return what was seen after it, the rewards and which flights ended."""
        state = self.state.copy()
        state[:, 2:4] = 0.9 * state[:, 2:4] + 0.1 * (self.push[moves] + state[:, 6:8])
        state[:, :2] += 0.2 * state[:, 2:4]
        state[:, 8] += 0.02
        away = np.linalg.norm(state[:, :2] - state[:, 4:6], axis=1)
        there = away < 0.2
        ended = there | (state[:, 8] > 1) | (away > 5)
        rewards = 5 * there - 0.1 * away
        self.state = state.copy()
        self.state[ended] = self.fresh(int(ended.sum()))
        return state, rewards.astype(np.float32), ended


class Memory:
    """The last flights; what surprised most is drawn most often."""

    def __init__(self, room: int, mended: bool) -> None:
        self.before = np.zeros((room, SIGHTS), dtype=np.float32)
        self.after = np.zeros((room, SIGHTS), dtype=np.float32)
        self.moves = np.zeros(room, dtype=np.int64)
        self.rewards = np.zeros(room, dtype=np.float32)
        self.ended = np.zeros(room, dtype=bool)
        self.priorities = np.zeros(room) if mended else [0.0] * room
        self.random = np.random.default_rng(41)
        self.room, self.next, self.filled, self.highest = room, 0, 0, 1.0

    def add(self, before: np.ndarray, moves: np.ndarray, outcome: tuple[np.ndarray, ...]) -> None:
        """Keep one moment of each drone."""
        places = (self.next + np.arange(len(moves))) % self.room
        self.before[places], self.moves[places] = before, moves
        self.after[places], self.rewards[places], self.ended[places] = outcome
        self.rank(places, np.full(len(places), self.highest))
        self.next = int(places[-1] + 1) % self.room
        self.filled = min(self.room, self.filled + len(places))

    def rank(self, places: np.ndarray, priorities: np.ndarray) -> None:
        """Set how much the moments at some places count."""
        self.highest = max(self.highest, float(priorities.max()))
        if isinstance(self.priorities, np.ndarray):
            self.priorities[places] = priorities
            return
        for place, priority in zip(places.tolist(), priorities.tolist(), strict=True):
            self.priorities[place] = priority

    def draw(self, batch: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw places of moments, and return the weights of these."""
        if isinstance(self.priorities, np.ndarray):
            sums = self.priorities[: self.filled].cumsum()
            places = sums.searchsorted(self.random.random(batch) * sums[-1], side="right")
            chances = self.priorities[places] / sums[-1]
        else:
            known = np.array(self.priorities[: self.filled])
            shares = known / known.sum()
            places = self.random.choice(self.filled, size=batch, p=shares)
            chances = shares[places]
        weights = (self.filled * chances) ** -0.4
        return places, (weights / weights.max()).astype(np.float32)

    def moments(self, places: np.ndarray) -> list[Tensor]:
        """Return the moments at some places as tensors."""
        columns = (self.before, self.moves, self.rewards, self.after, self.ended)
        return [torch.from_numpy(column[places]) for column in columns]


def q_network(width: int) -> nn.Sequential:
    """Make a network from sights to the values of the moves."""
    layers = [nn.Linear(SIGHTS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, MOVES))


class Pilot:
    """Acts and learns."""

    def __init__(self, width: int) -> None:
        self.online, self.target = q_network(width), q_network(width)
        self.target.load_state_dict(self.online.state_dict())
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=1e-3, fused=True)
        self.random = np.random.default_rng(43)

    @torch.no_grad()
    def act(self, sights: np.ndarray, chance: float) -> np.ndarray:
        """Choose the best moves, or by chance others."""
        moves = self.online(torch.from_numpy(sights)).argmax(dim=1).numpy()
        others = self.random.integers(0, MOVES, len(moves))
        return np.where(self.random.random(len(moves)) < chance, others, moves)

    def learn(self, memory: Memory, batch: int) -> Tensor:
        """Take one step towards the values of a batch."""
        places, weights = memory.draw(batch)
        before, moves, rewards, after, ended = memory.moments(places)
        with torch.no_grad():
            wanted = rewards + 0.98 * self.target(after).amax(dim=1) * ~ended
        errors = self.online(before).gather(1, moves[:, None])[:, 0] - wanted
        loss = (torch.from_numpy(weights) * errors.square()).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        memory.rank(places, (errors.detach().abs().numpy() + 1e-3) ** 0.6)
        return loss.detach()


def main() -> None:
    """Train the pilot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--steps", type=int, default=2200)
    parser.add_argument("--drones", type=int, default=96)
    parser.add_argument("--room", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=128)
    args = parser.parse_args()
    torch.manual_seed(0)
    drones, memory, pilot = Drones(args.drones), Memory(args.room, args.mended), Pilot(96)
    total = 0.0
    for step in range(args.steps):
        before = drones.state
        moves = pilot.act(before, chance=max(0.1, 1 - step / 400))
        outcome = drones.step(moves)
        memory.add(before, moves, outcome)
        loss = pilot.learn(memory, args.batch)
        total += float(outcome[1].mean())
        if (step + 1) % 250 == 0:
            pilot.target.load_state_dict(pilot.online.state_dict())
            print(f"step {step + 1}: reward {total / 250:.4f}, loss {loss.item():.4f}")
            total = 0.0


if __name__ == "__main__":
    main()
