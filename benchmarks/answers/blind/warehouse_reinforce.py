"""Learn when to order goods for warehouses with REINFORCE and a baseline.

Several warehouses run side by side for a year.  Each day the policy picks how
much to order; goods arrive some days later, and stock, orders and lost sales
cost money.
"""
import argparse
import math
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical

ORDER_SIZES = torch.tensor([0.0, 5.0, 10.0, 20.0, 40.0])


class Warehouses:
    """A batch of warehouses with one product each."""

    def __init__(self, count, delay, seed=36):
        self.count, self.delay = count, delay
        self.generator = torch.Generator().manual_seed(seed)

    def reset(self):
        self.day = 0
        self.stock = torch.full((self.count,), 20.0)
        self.coming = torch.zeros(self.count, self.delay)
        self.level = torch.rand(self.count, generator=self.generator) * 6 + 3
        return self.observe()

    def observe(self):
        season = 2 * math.pi * self.day / 365
        calendar = torch.tensor([math.sin(season), math.cos(season)]).expand(self.count, 2)
        return torch.cat([self.stock[:, None] / 20, self.coming / 20, self.level[:, None] / 6,
                          calendar], dim=1)

    def step(self, choices):
        ordered = ORDER_SIZES[choices]
        self.stock = self.stock + self.coming[:, 0]
        self.coming = torch.cat([self.coming[:, 1:], ordered[:, None]], dim=1)
        season = 1 + 0.5 * math.sin(2 * math.pi * self.day / 365)
        demand = torch.poisson(self.level * season, generator=self.generator)
        sold = torch.minimum(self.stock, demand)
        self.stock = self.stock - sold
        self.day += 1
        reward = sold - 0.05 * self.stock - 0.5 * (ordered > 0).float() - 0.5 * (demand - sold)
        return self.observe(), reward / 10


class Policy(nn.Module):
    def __init__(self, inputs, hidden=128):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(),
                                   nn.Linear(hidden, hidden), nn.Tanh())
        self.orders = nn.Linear(hidden, len(ORDER_SIZES))
        self.value = nn.Linear(hidden, 1)

    def forward(self, observed):
        x = self.trunk(observed)
        return self.orders(x), self.value(x).squeeze(-1)


def discounted_returns(rewards, discount):
    """Discounted sum of the rewards from each day on, for one warehouse."""
    returns = []
    for day in range(len(rewards)):
        later = rewards[day:]
        returns.append(sum(discount ** k * reward for k, reward in enumerate(later)))
    return returns


def discounted_returns_backwards(rewards, discount):
    """Discounted sum of the rewards from each day on, for one warehouse."""
    returns, total = [], 0.0
    for reward in reversed(rewards):
        total = reward + discount * total
        returns.append(total)
    return returns[::-1]


@torch.no_grad()
def run_year(warehouses, policy, days):
    observed = warehouses.reset()
    history, choices, rewards = [], [], []
    for _ in range(days):
        logits, _ = policy(observed)
        choice = torch.multinomial(logits.softmax(-1), 1).squeeze(-1)
        history.append(observed)
        choices.append(choice)
        observed, reward = warehouses.step(choice)
        rewards.append(reward)
    return torch.stack(history), torch.stack(choices), torch.stack(rewards)


def update(policy, optimizer, observed, choices, returns):
    logits, values = policy(observed)
    orders = Categorical(logits=logits)
    advantage = returns - values.detach()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
    loss = -(orders.log_prob(choices) * advantage).mean()
    loss = loss + 0.5 * F.smooth_l1_loss(values, returns) - 0.01 * orders.entropy().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--warehouses", type=int, default=12)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--delay", type=int, default=3)
    parser.add_argument("--years", type=int, default=80)
    parser.add_argument("--discount", type=float, default=0.98)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    warehouses = Warehouses(args.warehouses, args.delay)
    policy = Policy(warehouses.reset().shape[1])
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    sum_rewards = discounted_returns_backwards if args.mended else discounted_returns
    start = time.perf_counter()
    for year in range(1, args.years + 1):
        observed, choices, rewards = run_year(warehouses, policy, args.days)
        returns = [sum_rewards(column, args.discount) for column in rewards.T.tolist()]
        update(policy, optimizer, observed, choices, torch.tensor(returns).T)
        if year % 20 == 0:
            print(f"year {year}: {rewards.sum(0).mean().item():.1f} per warehouse "
                  f"({time.perf_counter() - start:.1f} s)")


if __name__ == "__main__":
    main()
