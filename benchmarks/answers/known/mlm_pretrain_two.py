"""Pretrain a small transformer encoder by masked language modelling.

The corpus is made of sentences drawn from a random word grammar.  Fifteen
per cent of the tokens are hidden and the model has to name them.
"""
import argparse
import math
import time

import torch
import torch.nn.functional as F
from torch import nn

PAD, MASK, FIRST_WORD = 0, 1, 2
IGNORE = -100


def make_corpus(sentences, length, vocab_size, seed=1):
    """Sentences in which a word's successor comes from a few likely ones."""
    generator = torch.Generator().manual_seed(seed)
    words = vocab_size - FIRST_WORD
    followers = torch.randint(0, words, (words, 4), generator=generator)
    corpus = torch.empty(sentences, length, dtype=torch.long)
    current = torch.randint(0, words, (sentences,), generator=generator)
    for position in range(length):
        corpus[:, position] = current + FIRST_WORD
        choice = torch.randint(0, 4, (sentences,), generator=generator)
        current = followers[current, choice]
    return corpus


def mask_tokens(tokens, generator, rate=0.15):
    hidden = torch.rand(tokens.shape, generator=generator) < rate
    labels = torch.where(hidden, tokens, torch.full_like(tokens, IGNORE))
    inputs = torch.where(hidden, torch.full_like(tokens, MASK), tokens)
    return inputs, labels


class Encoder(nn.Module):
    def __init__(self, vocab_size, dim, layers, heads, max_length):
        super().__init__()
        self.words = nn.Embedding(vocab_size, dim, padding_idx=PAD)
        self.positions = nn.Parameter(torch.randn(max_length, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0.0, activation="gelu",
                                           batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, tokens):
        x = self.words(tokens) + self.positions[: tokens.shape[1]]
        return self.norm(self.layers(x))


class MaskedLM(nn.Module):
    """Encoder with a prediction head tied to the word embeddings."""

    def __init__(self, vocab_size, dim=128, layers=3, heads=4, max_length=64, select=False):
        super().__init__()
        self.encoder = Encoder(vocab_size, dim, layers, heads, max_length)
        self.transform = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.LayerNorm(dim))
        self.bias = nn.Parameter(torch.zeros(vocab_size))
        self.select = select

    def predict(self, hidden):
        return F.linear(self.transform(hidden), self.encoder.words.weight, self.bias)

    def forward(self, tokens, labels):
        hidden = self.encoder(tokens)
        if self.select:
            wanted = labels != IGNORE
            hidden, labels = hidden[wanted], labels[wanted]
        logits = self.predict(hidden)
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1),
                               ignore_index=IGNORE)


def learning_rate(step, warmup, total):
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))


def train(model, corpus, args):
    generator = torch.Generator().manual_seed(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate(step, 10, args.steps))
    start = time.perf_counter()
    loss = None
    for step in range(args.steps):
        rows = torch.randint(0, len(corpus), (args.batch_size,), generator=generator)
        inputs, labels = mask_tokens(corpus[rows], generator)
        loss = model(inputs, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        if (step + 1) % 25 == 0:
            print(f"step {step + 1}: loss {loss.item():.4f} ({time.perf_counter() - start:.1f} s)")
    return loss.item()


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocab-size", type=int, default=8000)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--mended", action="store_true")
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(0)
    corpus = make_corpus(2000, args.length, args.vocab_size)
    model = MaskedLM(args.vocab_size, max_length=args.length, select=args.mended)
    final = train(model, corpus, args)
    print(f"final loss {final:.4f}")


if __name__ == "__main__":
    main()
