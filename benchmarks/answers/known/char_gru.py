"""Character language model with a GRU and gradient monitoring."""
import argparse
from collections import defaultdict

import torch
import torch.nn as nn
import torch.nn.functional as F

RULES = {"a": "bnrt", "b": "aeu", "e": "nrst ", "i": "nst", "n": "ade ", "o": "nru", "r": "aeio ",
         "s": "aeot ", "t": "aeiho ", "u": "nrst", "h": "aei", "d": "aeo ", " ": "abdehinorstu"}
CHARS = "".join(sorted(RULES))


def write_text(n, seed=0):
    g = torch.Generator().manual_seed(seed)
    draws = torch.randint(0, 1000, (n,), generator=g).tolist()
    out, c = [], "a"
    for r in draws:
        c = RULES[c][r % len(RULES[c])]
        out.append(CHARS.index(c))
    return torch.tensor(out)


class CharGRU(nn.Module):
    def __init__(self, vocab, dim=48, hidden=160, layers=2):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, hidden, num_layers=layers, batch_first=True)
        self.out = nn.Linear(hidden, vocab)

    def forward(self, ids, state=None):
        h, state = self.rnn(self.emb(ids), state)
        return self.out(h), state


class GradientMonitor:
    """Collects one norm per parameter to spot vanishing or exploding layers."""

    def __init__(self, model, mended):
        self.params = dict(model.named_parameters())
        self.history = defaultdict(list)
        self.mended = mended

    def norm(self, g):
        if self.mended or g.dim() != 2:
            return torch.linalg.vector_norm(g)
        return torch.linalg.norm(g, 2)

    def record(self):
        for name, p in self.params.items():
            if p.grad is not None:
                self.history[name].append(self.norm(p.grad))

    def summary(self):
        last = {k: v[-1].item() for k, v in self.history.items()}
        worst = max(last, key=last.get)
        return f"largest gradient {worst} {last[worst]:.4f}"


def batches(text, batch_size, length, steps):
    rows = text[: len(text) // batch_size * batch_size].view(batch_size, -1)
    span = rows.size(1) - length - 1
    for k in range(steps):
        i = (k * length) % span
        yield rows[:, i:i + length], rows[:, i + 1:i + length + 1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=24)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)

    text = write_text(60_000)
    model = CharGRU(len(CHARS))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, foreach=True)
    monitor = GradientMonitor(model, args.mended)
    state = None
    for step, (x, y) in enumerate(batches(text, args.batch_size, args.length, args.steps), 1):
        logits, state = model(x, state)
        state = state.detach()
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        monitor.record()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.3f}; {monitor.summary()}")


if __name__ == "__main__":
    main()
