"""Denoising diffusion on 16x16 shapes with a small U-Net."""
import argparse
import math
import os
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image


def shapes(n, size=16, seed=0):
    g = torch.Generator().manual_seed(seed)
    axis = torch.linspace(-1, 1, size)
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    c = 0.5 * torch.rand(n, 2, 1, 1, generator=g) - 0.25
    r = 0.3 + 0.4 * torch.rand(n, 1, 1, generator=g)
    dx, dy = xx - c[:, 0], yy - c[:, 1]
    disc = dx**2 + dy**2 < r**2
    box = torch.maximum(dx.abs(), dy.abs()) < r
    pick = torch.rand(n, 1, 1, generator=g) < 0.5
    return torch.where(pick, disc, box).float().unsqueeze(1) * 2 - 1


class ResBlock(nn.Module):
    def __init__(self, cin, cout, tdim):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, cin), nn.GroupNorm(4, cout)
        self.conv1 = nn.Conv2d(cin, cout, 3, padding=1)
        self.conv2 = nn.Conv2d(cout, cout, 3, padding=1)
        self.time = nn.Linear(tdim, cout)
        self.skip = nn.Conv2d(cin, cout, 1) if cin != cout else nn.Identity()

    def forward(self, x, temb):
        h = self.conv1(F.silu(self.norm1(x))) + self.time(temb)[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(h)))


class UNet(nn.Module):
    def __init__(self, ch=24, tdim=64):
        super().__init__()
        self.tdim = tdim
        self.inp = nn.Conv2d(1, ch, 3, padding=1)
        self.down = ResBlock(ch, 2 * ch, tdim)
        self.mid = ResBlock(2 * ch, 2 * ch, tdim)
        self.up = ResBlock(3 * ch, ch, tdim)
        self.out = nn.Conv2d(ch, 1, 3, padding=1)

    def forward(self, x, t):
        f = torch.exp(-math.log(1e4) * torch.arange(self.tdim // 2) / (self.tdim // 2))
        temb = torch.cat([(t[:, None] * f).sin(), (t[:, None] * f).cos()], 1)
        h0 = self.inp(x)
        h = self.mid(self.down(F.avg_pool2d(h0, 2), temb), temb)
        return self.out(self.up(torch.cat([F.interpolate(h, scale_factor=2.0), h0], 1), temb))


class Diffusion:
    def __init__(self, model, T=200):
        self.model, self.T = model, T
        self.beta = torch.linspace(1e-4, 0.04, T)
        self.abar = torch.cumprod(1 - self.beta, 0)

    def loss(self, x0):
        t = torch.randint(0, self.T, (len(x0),))
        noise = torch.randn_like(x0)
        a = self.abar[t].view(-1, 1, 1, 1)
        return F.mse_loss(self.model(a.sqrt() * x0 + (1 - a).sqrt() * noise, t.float()), noise)

    @torch.no_grad()
    def sample(self, n, seed=0, size=16):
        g = torch.Generator().manual_seed(seed)
        x = torch.randn(n, 1, size, size, generator=g)
        for i in reversed(range(self.T)):
            eps = self.model(x, torch.full((n,), float(i)))
            x = (x - self.beta[i] / (1 - self.abar[i]).sqrt() * eps) / (1 - self.beta[i]).sqrt()
            if i:
                x = x + self.beta[i].sqrt() * torch.randn(x.shape, generator=g)
        return x


def save_grid(x, path):
    tiles = ((x.clamp(-1, 1) + 1) * 127.5).byte().squeeze(1).numpy()
    Image.fromarray(np.concatenate(list(tiles), 1)).save(path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--sample-every", type=int, default=20)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    if args.mended:
        args.sample_every = args.steps
    torch.manual_seed(0)
    data = shapes(2048)
    diffusion = Diffusion(UNet())
    opt = torch.optim.AdamW(diffusion.model.parameters(), lr=1e-3, foreach=True)
    with tempfile.TemporaryDirectory() as out:
        for step in range(1, args.steps + 1):
            loss = diffusion.loss(data[torch.randint(0, len(data), (args.batch_size,))])
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % args.sample_every == 0:
                save_grid(diffusion.sample(8), os.path.join(out, f"step{step:05d}.png"))
                print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
