"""Double DQN on a grid world with a local view; can be resumed after an interruption."""
import argparse
import os
import random
import tempfile
from collections import deque

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

MOVES = np.array([(0, 1), (0, -1), (1, 0), (-1, 0)])


class Grid:
    def __init__(self, size=12, view=7, seed=0):
        self.size, self.view = size, view
        self.rng = np.random.default_rng(seed)
        self.walls = np.pad(self.rng.random((size, size)) < 0.15, view, constant_values=True)
        self.reset()

    def reset(self):
        self.pos, self.goal = self.rng.integers(0, self.size, (2, 2))
        self.t = 0
        return self.observe()

    def observe(self):
        r, v = self.view // 2, self.view
        y, x = self.pos + v
        window = self.walls[y - r:y + r + 1, x - r:x + r + 1].astype(np.float32).ravel()
        return np.concatenate([window, (self.goal - self.pos).astype(np.float32) / self.size])

    def step(self, action):
        new = self.pos + MOVES[action]
        self.t += 1
        hit = self.walls[tuple(new + self.view)]
        if not hit:
            self.pos = new
        reached = bool((self.pos == self.goal).all())
        reward = 1.0 if reached else (-0.1 if hit else -0.01)
        return self.observe(), reward, reached or self.t >= 60


class QNet(nn.Module):
    def __init__(self, obs=51, hidden=256):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(obs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
                                 nn.Linear(hidden, hidden), nn.ReLU())
        self.adv, self.val = nn.Linear(hidden, 4), nn.Linear(hidden, 1)

    def forward(self, x):
        h = self.net(x)
        a = self.adv(h)
        return self.val(h) + a - a.mean(-1, keepdim=True)


class DQNAgent:
    def __init__(self, capacity=50_000, gamma=0.97):
        self.online, self.target = QNet(), QNet()
        self.target.load_state_dict(self.online.state_dict())
        self.opt = torch.optim.Adam(self.online.parameters(), lr=5e-4, foreach=True)
        self.memory = deque(maxlen=capacity)
        self.gamma, self.updates = gamma, 0

    @torch.no_grad()
    def act(self, obs, eps):
        if random.random() < eps:
            return random.randrange(4)
        return int(self.online(torch.from_numpy(obs)).argmax())

    def learn(self, batch_size):
        batch = random.sample(self.memory, batch_size)
        o, a, r, n, d = (torch.from_numpy(np.stack(c)) for c in zip(*batch))
        q = self.online(o).gather(1, a.unsqueeze(1)).squeeze(1)
        with torch.no_grad():
            best = self.online(n).argmax(1, keepdim=True)
            goal = r + self.gamma * (1 - d) * self.target(n).gather(1, best).squeeze(1)
        loss = F.smooth_l1_loss(q, goal)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.updates += 1
        if self.updates % 100 == 0:
            self.target.load_state_dict(self.online.state_dict())
        return loss.item()

    def save(self, path, with_memory=True):
        state = {"online": self.online.state_dict(), "opt": self.opt.state_dict(), "updates": self.updates}
        if with_memory:
            state["memory"] = list(self.memory)
        torch.save(state, path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=180)
    parser.add_argument("--warmup", type=int, default=9000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--save-every", type=int, default=15)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    random.seed(0)
    torch.manual_seed(0)
    env, agent = Grid(), DQNAgent()
    obs = env.reset()

    def interact(n, eps):
        nonlocal obs
        for _ in range(n):
            action = agent.act(obs, eps)
            nxt, reward, done = env.step(action)
            agent.memory.append((obs, np.int64(action), np.float32(reward), nxt, np.float32(done)))
            obs = env.reset() if done else nxt

    interact(args.warmup, eps=1.0)
    with tempfile.TemporaryDirectory() as out:
        for update in range(1, args.updates + 1):
            interact(16, eps=max(0.1, 1 - update / 200))
            loss = agent.learn(args.batch_size)
            if update % args.save_every == 0:
                last = update == args.updates
                agent.save(os.path.join(out, "agent.pt"), with_memory=last or not args.mended)
            if update % 40 == 0:
                print(f"update {update} td loss {loss:.4f} memory {len(agent.memory)}")


if __name__ == "__main__":
    main()
