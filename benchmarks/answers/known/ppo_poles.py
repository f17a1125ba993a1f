"""PPO on a set of balancing-pole environments written in numpy."""
import argparse

import numpy as np
import torch
import torch.nn as nn
from torch.distributions import Categorical


class PoleSet:
    """Cart-pole dynamics for several carts at once."""

    def __init__(self, n, seed=0):
        self.rng = np.random.default_rng(seed)
        self.n = n
        self.state = self.rng.uniform(-0.05, 0.05, (n, 4)).astype(np.float32)

    def step(self, action):
        x, v, th, w = self.state.T
        force = np.where(action == 1, 10.0, -10.0)
        cos, sin = np.cos(th), np.sin(th)
        tmp = (force + 0.05 * w**2 * sin) / 1.1
        acc_th = (9.8 * sin - cos * tmp) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        acc = tmp - 0.05 * acc_th * cos / 1.1
        self.state = np.stack([x + 0.02 * v, v + 0.02 * acc, th + 0.02 * w, w + 0.02 * acc_th], 1)
        done = (np.abs(self.state[:, 0]) > 2.4) | (np.abs(self.state[:, 2]) > 0.21)
        self.state[done] = self.rng.uniform(-0.05, 0.05, (done.sum(), 4))
        self.state = self.state.astype(np.float32)
        return self.state, np.ones(self.n, dtype=np.float32), done


class ActorCritic(nn.Module):
    def __init__(self, obs=4, hidden=64, n_actions=2):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.pi = nn.Linear(hidden, n_actions)
        self.v = nn.Linear(hidden, 1)

    def forward(self, obs):
        h = self.body(obs)
        return Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


class Agent:
    def __init__(self, net, lr=1e-3):
        self.net = net
        self.opt = torch.optim.Adam(net.parameters(), lr=lr)

    @torch.no_grad()
    def act(self, obs):
        dist, value = self.net(torch.as_tensor(obs).unsqueeze(0))
        action = dist.sample()
        return action.item(), dist.log_prob(action).item(), value.item()

    @torch.no_grad()
    def act_all(self, obs):
        dist, value = self.net(torch.as_tensor(obs))
        action = dist.sample()
        return action.numpy(), dist.log_prob(action).numpy(), value.numpy()

    def update(self, obs, act, logp, ret, adv, epochs=2, minibatch=128):
        for _ in range(epochs):
            for idx in torch.randperm(len(obs)).split(minibatch):
                dist, value = self.net(obs[idx])
                ratio = (dist.log_prob(act[idx]) - logp[idx]).exp()
                a = adv[idx]
                clipped = torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a).mean()
                loss = -clipped + 0.5 * (ret[idx] - value).pow(2).mean() - 0.01 * dist.entropy().mean()
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()


def collect(agent, envs, horizon, mended):
    buf = {k: [] for k in ("obs", "act", "logp", "val", "rew", "done")}
    for _ in range(horizon):
        obs = envs.state
        if mended:
            act, logp, val = agent.act_all(obs)
        else:
            act, logp, val = map(np.array, zip(*[agent.act(o) for o in obs]))
        _, rew, done = envs.step(act)
        for k, x in zip(buf, (obs, act, logp, val, rew, done)):
            buf[k].append(x)
    return {k: torch.as_tensor(np.stack(v).astype(np.int64 if k == "act" else np.float32)) for k, v in buf.items()}


def gae(b, last, gamma=0.99, lam=0.95):
    adv = torch.zeros_like(b["rew"])
    run = torch.zeros_like(last)
    for t in reversed(range(len(adv))):
        alive = 1 - b["done"][t]
        delta = b["rew"][t] + gamma * last * alive - b["val"][t]
        run = delta + gamma * lam * alive * run
        adv[t], last = run, b["val"][t]
    return adv


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--envs", type=int, default=8)
    parser.add_argument("--horizon", type=int, default=24)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    envs, agent = PoleSet(args.envs), Agent(ActorCritic())
    for it in range(args.iterations):
        b = collect(agent, envs, args.horizon, args.mended)
        with torch.no_grad():
            _, last = agent.net(torch.as_tensor(envs.state))
        adv = gae(b, last)
        ret = adv + b["val"]
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        agent.update(b["obs"].flatten(0, 1), b["act"].flatten(), b["logp"].flatten(), ret.flatten(), adv.flatten())
        if it % 10 == 0:
            print(f"iter {it}: falls {int(b['done'].sum())}")


if __name__ == "__main__":
    main()
