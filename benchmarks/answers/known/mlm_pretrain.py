"""Masked language model pre-training of a small encoder on synthetic text."""
import argparse
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    vocab_size: int = 10000
    max_len: int = 64
    dim: int = 128
    heads: int = 4
    layers: int = 1
    mask_prob: float = 0.15
    mask_id: int = 1
    batch_size: int = 8
    steps: int = 60
    lr: float = 5e-4
    pick_targets_first: bool = False


class MaskedCorpus:
    def __init__(self, cfg, seed=0):
        self.cfg = cfg
        self.gen = torch.Generator().manual_seed(seed)
        ranks = torch.arange(1, cfg.vocab_size - 1).float()
        self.weights = 1.0 / ranks

    def batches(self):
        cfg = self.cfg
        for _ in range(cfg.steps):
            n = cfg.batch_size * cfg.max_len
            ids = torch.multinomial(self.weights, n, replacement=True, generator=self.gen) + 2
            ids = ids.view(cfg.batch_size, cfg.max_len)
            masked = torch.rand(ids.shape, generator=self.gen) < cfg.mask_prob
            masked[:, 0] = True
            labels = ids.masked_fill(~masked, -100)
            yield ids.masked_fill(masked, cfg.mask_id), labels


class Encoder(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tok = nn.Embedding(cfg.vocab_size, cfg.dim)
        self.pos = nn.Embedding(cfg.max_len, cfg.dim)
        layer = nn.TransformerEncoderLayer(cfg.dim, cfg.heads, 4 * cfg.dim, dropout=0.0,
                                           activation="gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, cfg.layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(cfg.dim)

    def forward(self, ids):
        pos = torch.arange(ids.size(1))
        return self.norm(self.body(self.tok(ids) + self.pos(pos)))


class MaskedLM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.encoder = Encoder(cfg)
        self.transform = nn.Sequential(nn.Linear(cfg.dim, cfg.dim), nn.GELU(), nn.LayerNorm(cfg.dim))
        self.bias = nn.Parameter(torch.zeros(cfg.vocab_size))

    def predict(self, hidden):
        return F.linear(self.transform(hidden), self.encoder.tok.weight, self.bias)

    def forward(self, ids, labels):
        hidden = self.encoder(ids)
        if self.cfg.pick_targets_first:
            keep = labels != -100
            return F.cross_entropy(self.predict(hidden[keep]), labels[keep])
        scores = self.predict(hidden)
        return F.cross_entropy(scores.view(-1, self.cfg.vocab_size), labels.view(-1), ignore_index=-100)


def train(cfg):
    torch.manual_seed(0)
    model = MaskedLM(cfg)
    nn.init.normal_(model.encoder.tok.weight, std=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, foreach=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, cfg.lr, total_steps=cfg.steps)
    for step, (ids, labels) in enumerate(MaskedCorpus(cfg).batches()):
        loss = model(ids, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 15 == 0:
            print(f"step {step:4d} mlm loss {loss.item():.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    train(Config(steps=args.steps, batch_size=args.batch_size, pick_targets_first=args.mended))
