"""Teaches a lander to touch down softly with deep Q-learning."""

from __future__ import annotations

import argparse
import random
from collections import deque
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

SENSORS = 32
MOVES = 4


class Moment(NamedTuple):
    """What was seen, done, earned and seen next."""

    before: np.ndarray
    move: int
    reward: float
    after: np.ndarray
    ended: bool


class Landers:
    """Several landers that fall at once."""

    def __init__(self, count: int) -> None:
        self.random = np.random.default_rng(7)
        self.view = self.random.normal(0, 1, (6, SENSORS)).astype(np.float32)
        self.states = self.random.normal(0, 1, (count, 6)).astype(np.float32)

    def observe(self) -> np.ndarray:
        """Return the sensors of all landers."""
        return np.tanh(self.states @ self.view)

    def step(self, moves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Move all landers; return rewards and which have ended."""
        push = np.array([[0, 0], [0, 0.4], [-0.3, 0], [0.3, 0]], dtype=np.float32)[moves]
        self.states[:, 2:4] += push - np.array([0, 0.1], dtype=np.float32)
        self.states[:, :2] += 0.1 * self.states[:, 2:4]
        self.states[:, 4:] *= 0.99
        rewards = -np.abs(self.states[:, :4]).sum(axis=1)
        ended = np.abs(self.states[:, :2]).max(axis=1) > 3
        fresh = self.random.normal(0, 1, (int(ended.sum()), 6))
        self.states[ended] = fresh.astype(np.float32)
        return rewards, ended


class Replay:
    """The last moments, of which batches are drawn."""

    def __init__(self, room: int) -> None:
        self.moments: deque[Moment] = deque(maxlen=room)

    def add(self, *columns: np.ndarray) -> None:
        """Keep one moment of each lander."""
        self.moments.extend(Moment(*moment) for moment in zip(*columns, strict=True))

    def sample(self, batch: int) -> list[Tensor]:
        """Draw a batch."""
        moments = random.sample(self.moments, batch)
        return [
            torch.tensor([m.before.tolist() for m in moments]),
            torch.tensor([int(m.move) for m in moments]),
            torch.tensor([float(m.reward) for m in moments]),
            torch.tensor([m.after.tolist() for m in moments]),
            torch.tensor([bool(m.ended) for m in moments]),
        ]


class ArrayReplay:
    """The last moments, of which batches are drawn."""

    def __init__(self, room: int) -> None:
        wide = (room, SENSORS)
        self.columns = [
            torch.zeros(wide),
            torch.zeros(room, dtype=torch.long),
            torch.zeros(room),
            torch.zeros(wide),
            torch.zeros(room, dtype=torch.bool),
        ]
        self.room, self.next, self.filled = room, 0, 0

    def add(self, *columns: np.ndarray) -> None:
        """Keep one moment of each lander."""
        places = (self.next + torch.arange(len(columns[0]))) % self.room
        for kept, column in zip(self.columns, columns, strict=True):
            kept[places] = torch.from_numpy(column).to(kept.dtype)
        self.next = (self.next + len(places)) % self.room
        self.filled = min(self.room, self.filled + len(places))

    def sample(self, batch: int) -> list[Tensor]:
        """Draw a batch."""
        picks = torch.randint(0, self.filled, (batch,))
        return [column[picks] for column in self.columns]


def q_network() -> nn.Sequential:
    """Make a network from sensors to the values of the moves."""
    return nn.Sequential(
        nn.Linear(SENSORS, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, MOVES)
    )


class Agent:
    """Acts and learns."""

    def __init__(self) -> None:
        self.online, self.target = q_network(), q_network()
        self.target.load_state_dict(self.online.state_dict())
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=1e-3)

    @torch.no_grad()
    def act(self, sensors: np.ndarray, chance: float) -> np.ndarray:
        """Choose the best moves, or by chance others."""
        moves = self.online(torch.from_numpy(sensors)).argmax(dim=1).numpy()
        other = np.random.randint(0, MOVES, len(moves))
        return np.where(np.random.rand(len(moves)) < chance, other, moves)

    def learn(self, batch: list[Tensor]) -> Tensor:
        """Take one step towards the values of a batch."""
        before, moves, rewards, after, ended = batch
        with torch.no_grad():
            best = self.target(after).max(dim=1).values
            wanted = rewards + 0.97 * best * ~ended
        values = self.online(before).gather(1, moves[:, None])[:, 0]
        loss = nn.functional.smooth_l1_loss(values, wanted)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def play(agent: Agent, landers: Landers, replay: Replay | ArrayReplay, steps: int) -> None:
    """Let the landers fall and the agent learn from it."""
    sensors = landers.observe()
    for step in range(steps):
        moves = agent.act(sensors, chance=0.2)
        rewards, ended = landers.step(moves)
        after = landers.observe()
        replay.add(sensors, moves, rewards, after, ended)
        sensors = after
        loss = agent.learn(replay.sample(256))
        if step % 100 == 0:
            agent.target.load_state_dict(agent.online.state_dict())
            print(f"step {step}: reward {rewards.mean():.3f}, loss {loss.item():.4f}")


def main() -> None:
    """Train the lander."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--steps", type=int, default=1500)
    args = parser.parse_args()
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    landers = Landers(32)
    replay = ArrayReplay(20_000) if args.mended else Replay(20_000)
    for _ in range(8):
        before = landers.observe()
        moves = np.random.randint(0, MOVES, 32)
        rewards, ended = landers.step(moves)
        replay.add(before, moves, rewards, landers.observe(), ended)
    play(Agent(), landers, replay, args.steps)


if __name__ == "__main__":
    main()
