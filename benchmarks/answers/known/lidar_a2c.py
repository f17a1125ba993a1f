"""Advantage actor-critic for a robot that has to leave a round arena.

The robot sees the distances to the walls by a ring of lidar beams and picks
one of four moves.  Several arenas are played at once.
"""
import argparse
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical

MOVES = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]], dtype=np.float32) * 0.15


class Arena:
    """A round arena of radius one with a gap in the wall."""

    def __init__(self, beams, rng):
        self.beams, self.rng = beams, rng
        self.angles = np.linspace(0, 2 * np.pi, beams, endpoint=False, dtype=np.float32)
        self.directions = np.stack([np.cos(self.angles), np.sin(self.angles)], axis=1)
        self.reset()

    def reset(self):
        self.position = self.rng.uniform(-0.5, 0.5, 2).astype(np.float32)
        self.gap = self.rng.uniform(-np.pi, np.pi)
        self.age = 0
        return self.observe()

    def observe(self):
        along = self.directions @ self.position
        reach = -along + np.sqrt(np.maximum(along ** 2 + 1 - self.position @ self.position, 0))
        hits = self.position + reach[:, None] * self.directions
        offset = np.arctan2(hits[:, 1], hits[:, 0]) - self.gap
        reach[np.cos(offset) > 0.9] = 3.0
        return reach.astype(np.float32)

    def step(self, move):
        before = self.position
        self.position = before + MOVES[move]
        self.age += 1
        exit_point = np.array([np.cos(self.gap), np.sin(self.gap)])
        closer = np.linalg.norm(before - exit_point) - np.linalg.norm(self.position - exit_point)
        done = self.age >= 50 or np.linalg.norm(self.position) > 1
        if np.linalg.norm(self.position) > 1:
            offset = np.arctan2(self.position[1], self.position[0]) - self.gap
            closer += 1.0 if np.cos(offset) > 0.9 else -1.0
        return (self.reset() if done else self.observe()), float(closer), done


class ActorCritic(nn.Module):
    def __init__(self, beams, moves=4, hidden=128):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(beams, hidden), nn.Tanh(),
                                  nn.Linear(hidden, hidden), nn.Tanh())
        self.policy = nn.Linear(hidden, moves)
        self.value = nn.Linear(hidden, 1)

    def forward(self, observations):
        features = self.body(observations)
        return Categorical(logits=self.policy(features)), self.value(features).squeeze(-1)


class Learner:
    def __init__(self, args):
        self.args = args
        rng = np.random.default_rng(9)
        self.arenas = [Arena(args.beams, rng) for _ in range(args.arenas)]
        self.observations = [arena.reset() for arena in self.arenas]
        self.model = ActorCritic(args.beams)
        self.optimizer = torch.optim.RMSprop(self.model.parameters(), lr=args.lr)

    def to_tensor(self, observations):
        if self.args.mended:
            return torch.from_numpy(np.stack(observations))
        return torch.tensor(observations)

    def rollout(self):
        seen, moves, rewards, ends = [], [], [], []
        for _ in range(self.args.horizon):
            with torch.no_grad():
                policy, _ = self.model(self.to_tensor(self.observations))
                chosen = policy.sample()
            results = [arena.step(m) for arena, m in zip(self.arenas, chosen.tolist())]
            seen.extend(self.observations)
            moves.append(chosen)
            rewards.append([reward for _, reward, _ in results])
            ends.append([done for _, _, done in results])
            self.observations = [observation for observation, _, _ in results]
        return seen, torch.stack(moves), torch.tensor(rewards), torch.tensor(ends).float()

    def update(self, gamma=0.97):
        seen, moves, rewards, ends = self.rollout()
        policy, values = self.model(self.to_tensor(seen))
        with torch.no_grad():
            _, following = self.model(self.to_tensor(self.observations))
        returns = torch.empty_like(rewards)
        for t in reversed(range(len(rewards))):
            following = rewards[t] + gamma * following * (1 - ends[t])
            returns[t] = following
        returns = returns.reshape(-1)
        advantage = returns - values.detach()
        loss = (-(policy.log_prob(moves.reshape(-1)) * advantage).mean()
                + 0.5 * F.mse_loss(values, returns) - 0.01 * policy.entropy().mean())
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return rewards.mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arenas", type=int, default=8)
    parser.add_argument("--beams", type=int, default=360)
    parser.add_argument("--horizon", type=int, default=16)
    parser.add_argument("--updates", type=int, default=600)
    parser.add_argument("--lr", type=float, default=7e-4)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    learner = Learner(args)
    start = time.perf_counter()
    for update in range(1, args.updates + 1):
        reward = learner.update()
        if update % 100 == 0:
            print(f"update {update}: mean reward {reward:.4f} "
                  f"({time.perf_counter() - start:.1f} s)")


if __name__ == "__main__":
    main()
