"""Teaches carts to balance their poles by policy gradients."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

Array = npt.NDArray[np.float64]


class Carts:
    """Carts with poles, pushed to the left or to the right."""

    def __init__(self, count: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.state = self.rng.uniform(-0.05, 0.05, (count, 4))

    def step(self, actions: Array) -> tuple[Array, Array]:
        _, speed, angle, spin = self.state.T
        push = np.where(actions > 0, 10.0, -10.0)
        pull = (push + 0.05 * spin**2 * np.sin(angle)) / 1.1
        turn = 9.8 * np.sin(angle) - np.cos(angle) * pull
        turn = turn / (0.5 * (4.0 / 3.0 - 0.1 * np.cos(angle) ** 2 / 1.1))
        gain = pull - 0.05 * turn * np.cos(angle) / 1.1
        change = np.stack([speed, gain, spin, turn], axis=1)
        self.state = self.state + 0.02 * change
        fallen = (np.abs(self.state[:, 0]) > 2.4) | (np.abs(self.state[:, 2]) > 0.21)
        fresh = self.rng.uniform(-0.05, 0.05, self.state.shape)
        self.state = np.where(fallen[:, None], fresh, self.state)
        return np.where(fallen, -1.0, 0.1), fallen


class Player(nn.Module):
    """A policy and a value from one trunk."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()
        )
        self.policy = nn.Linear(width, 2)
        self.value = nn.Linear(width, 1)

    def forward(self, states: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.trunk(states)
        return self.policy(hidden).log_softmax(dim=-1), self.value(hidden).squeeze(-1)


@dataclass
class Rollout:
    """What happened: time first, then cart."""

    states: Tensor
    actions: Tensor
    rewards: Tensor
    fallen: Tensor


@torch.no_grad()
def play(groups: list[Carts], player: Player, horizon: int) -> Rollout:
    """Let the player push every cart for some time."""
    seen: list[list[tuple[Tensor, Tensor, Tensor, Tensor]]] = []
    for _ in range(horizon):
        row: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        for carts in groups:
            states = torch.from_numpy(carts.state).float()
            actions = torch.multinomial(player(states)[0].exp(), 1).squeeze(1)
            rewards, fallen = carts.step(actions.numpy())
            row.append(
                (states, actions, torch.from_numpy(rewards).float(), torch.from_numpy(fallen))
            )
        seen.append(row)
    parts = [torch.stack([torch.cat([c[k] for c in row]) for row in seen]) for k in range(4)]
    return Rollout(*parts)


def improve(player: Player, optimizer: torch.optim.Optimizer, rollout: Rollout) -> float:
    """Take one step of the actor and the critic."""
    scores, values = player(rollout.states)
    returns = torch.zeros_like(values)
    running = values[-1].detach()
    for moment in reversed(range(len(returns))):
        running = rollout.rewards[moment] + 0.98 * running * ~rollout.fallen[moment]
        returns[moment] = running
    chosen = scores.gather(2, rollout.actions[..., None]).squeeze(2)
    advantage = returns - values
    loss = -(chosen * advantage.detach()).mean() + 0.5 * advantage.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return rollout.rewards.mean().item()


def main() -> None:
    """Train the player."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--updates", type=int, default=90)
    parser.add_argument("--carts", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(0)
    if args.mended:
        groups = [Carts(args.carts, 0)]
    else:
        groups = [Carts(1, seed) for seed in range(args.carts)]
    player = Player(512)
    optimizer = torch.optim.Adam(player.parameters(), lr=5e-4)
    reward = 0.0
    for _ in range(args.updates):
        reward = improve(player, optimizer, play(groups, player, 16))
    print(f"reward {reward:.4f} after {args.updates} updates")


if __name__ == "__main__":
    main()
