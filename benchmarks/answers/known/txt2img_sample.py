"""Text-conditioned DDIM sampling with classifier-free guidance (random weights)."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

PROMPTS = [
    "a red bicycle in the snow", "two cats asleep on a sofa", "an old harbour at dawn",
    "portrait of a violinist", "a bowl of ramen", "city street in the rain",
    "a hot air balloon over hills", "macro photo of a beetle",
]


class PromptEncoder(nn.Module):
    def __init__(self, dim=256, depth=4, max_len=40):
        super().__init__()
        self.max_len = max_len
        self.emb = nn.Embedding(256, dim)
        self.pos = nn.Parameter(torch.randn(max_len, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, 8, 4 * dim, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)

    def forward(self, texts):
        ids = torch.zeros(len(texts), self.max_len, dtype=torch.long)
        for i, t in enumerate(texts):
            raw = t.encode()[: self.max_len]
            ids[i, : len(raw)] = torch.tensor(list(raw))
        return self.layers(self.emb(ids) + self.pos)


class CrossBlock(nn.Module):
    def __init__(self, ch, ctx, tdim):
        super().__init__()
        self.conv = nn.Conv2d(ch, ch, 3, padding=1)
        self.norm = nn.GroupNorm(8, ch)
        self.time = nn.Linear(tdim, ch)
        self.attn = nn.MultiheadAttention(ch, 4, kdim=ctx, vdim=ctx, batch_first=True)

    def forward(self, x, temb, context):
        h = F.silu(self.norm(self.conv(x))) + self.time(temb)[:, :, None, None]
        b, c, hh, ww = h.shape
        q = h.flatten(2).transpose(1, 2)
        a, _ = self.attn(q, context, context, need_weights=False)
        return x + h + a.transpose(1, 2).reshape(b, c, hh, ww)


class Denoiser(nn.Module):
    def __init__(self, ch=48, ctx=256, depth=3):
        super().__init__()
        self.tdim = ch
        self.inp = nn.Conv2d(4, ch, 3, padding=1)
        self.blocks = nn.ModuleList([CrossBlock(ch, ctx, ch) for _ in range(depth)])
        self.out = nn.Conv2d(ch, 4, 3, padding=1)

    def forward(self, x, t, context):
        freqs = torch.exp(-math.log(1e4) * torch.arange(self.tdim // 2) / (self.tdim // 2))
        temb = torch.cat([(t * freqs).sin(), (t * freqs).cos()]).expand(x.size(0), -1)
        h = self.inp(x)
        for block in self.blocks:
            h = block(h, temb, context)
        return self.out(h)


class Pipeline:
    def __init__(self, steps, guidance, mended):
        self.encoder = PromptEncoder().eval()
        self.unet = Denoiser().eval()
        betas = torch.linspace(1e-4, 0.02, 1000)
        self.alpha_bar = torch.cumprod(1 - betas, 0)
        self.timesteps = torch.linspace(999, 0, steps).long()
        self.guidance = guidance
        self.mended = mended

    def predict_noise(self, x, t, prompts, context=None):
        if context is None:
            context = self.encoder([""] * len(prompts) + prompts)
        eps = self.unet(torch.cat([x, x]), t.float(), context)
        uncond, cond = eps.chunk(2)
        return uncond + self.guidance * (cond - uncond)

    @torch.inference_mode()
    def __call__(self, prompts, seed):
        x = torch.randn(len(prompts), 4, 16, 16, generator=torch.Generator().manual_seed(seed))
        context = self.encoder([""] * len(prompts) + prompts) if self.mended else None
        for i, t in enumerate(self.timesteps):
            eps = self.predict_noise(x, t, prompts, context)
            a = self.alpha_bar[t]
            a_prev = self.alpha_bar[self.timesteps[i + 1]] if i + 1 < len(self.timesteps) else torch.tensor(1.0)
            x0 = ((x - (1 - a).sqrt() * eps) / a.sqrt()).clamp(-3, 3)
            x = a_prev.sqrt() * x0 + (1 - a_prev).sqrt() * eps
        return x


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--guidance", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    pipe = Pipeline(args.steps, args.guidance, args.mended)
    for r in range(args.rounds):
        batch = [PROMPTS[(2 * r + k) % len(PROMPTS)] for k in range(2)]
        latents = pipe(batch, seed=r)
        print(f"round {r}: {batch} mean {latents.mean():.4f} std {latents.std():.4f}")


if __name__ == "__main__":
    main()
