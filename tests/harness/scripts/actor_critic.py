"""Actor and critic with an optimizer each; episodes of differing length call both often."""

import probe

probe.first_line()

import random

import torch
from torch import nn
from torch.distributions import Categorical


class Walk:
    """Walk along a line until either end is reached or time is up."""

    def reset(self):
        self.place, self.time = random.randint(-2, 2), 0
        return self.state()

    def state(self):
        return torch.tensor([self.place / 5, self.time / 20])

    def step(self, action):
        self.place += 1 if action else -1
        self.time += 1
        done = abs(self.place) >= 5 or self.time >= 20
        return self.state(), float(self.place >= 5), done


probe.seed(3)
actor = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
critic = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
actor_optimizer = torch.optim.Adam(actor.parameters(), lr=1e-2)
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-2)
world = Walk()
steps = 0
for _ in range(40):
    state, done, logs, states, rewards = world.reset(), False, [], [], []
    while not done:
        choice = Categorical(logits=actor(state))
        action = choice.sample()
        logs.append(choice.log_prob(action))
        states.append(state)
        state, reward, done = world.step(action.item())
        rewards.append(reward)
    returns, total = [], 0.0
    for reward in reversed(rewards):
        total = reward + 0.95 * total
        returns.insert(0, total)
    values = critic(torch.stack(states)).squeeze(1)
    advantage = torch.tensor(returns) - values
    critic_loss = advantage.pow(2).mean()
    critic_optimizer.zero_grad()
    critic_loss.backward()
    critic_optimizer.step()
    actor_loss = -(torch.stack(logs) * advantage.detach()).sum()
    actor_optimizer.zero_grad()
    actor_loss.backward()
    actor_optimizer.step()
    print(len(rewards), critic_loss.item().hex(), actor_loss.item().hex())
    steps += 1
probe.last_step(actor=actor, critic=critic)
print("steps", steps)
