"""Serves replies to queued prompts, written letter by letter with a small decoder."""

from __future__ import annotations

import argparse
from collections import deque

import torch
from torch import Tensor, nn
from torch.nn import functional

LETTERS = 3000


class Block(nn.Module):
    """Attention over the kept keys and values, and a feed-forward part."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, hidden: Tensor, kept: Tensor, start: int) -> Tensor:
        batch, length, width = hidden.shape
        parts = self.project(self.norms[0](hidden)).view(batch, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        end = start + length
        kept[0, :, :, start:end] = key
        kept[1, :, :, start:end] = value
        mixed = functional.scaled_dot_product_attention(
            query, kept[0, :, :, :end], kept[1, :, :, :end], is_causal=length > 1
        )
        hidden = hidden + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return hidden + self.feed(self.norms[1](hidden))


class Decoder(nn.Module):
    """A decoder with room for keys and values of one batch."""

    def __init__(self, width: int, layers: int, heads: int, room: int) -> None:
        super().__init__()
        self.shape = (2, -1, heads, room, width // heads)
        self.letters = nn.Embedding(LETTERS, width)
        self.places = nn.Embedding(room, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.head = nn.Linear(width, LETTERS)

    def room_for(self, batch: int) -> list[Tensor]:
        """Make the empty room for keys and values."""
        two, _, *rest = self.shape
        return [torch.empty(two, batch, *rest) for _ in self.blocks]

    def forward(self, letters: Tensor, kept: list[Tensor], start: int) -> Tensor:
        places = torch.arange(start, start + letters.shape[1])
        hidden = self.letters(letters) + self.places(places)
        for block, pair in zip(self.blocks, kept, strict=True):
            hidden = block(hidden, pair, start)
        return self.head(hidden[:, -1])


class RepetitionPenalty:
    """Makes letters that were written already less likely."""

    def __init__(self, penalty: float, mended: bool) -> None:
        self.penalty = penalty
        self.mended = mended

    def __call__(self, written: Tensor, scores: Tensor) -> Tensor:
        if self.mended:
            seen = scores.gather(1, written)
            lower = torch.where(seen < 0, seen * self.penalty, seen / self.penalty)
            return scores.scatter(1, written, lower)
        for row in range(len(written)):
            for letter in set(written[row].tolist()):
                if scores[row, letter] < 0:
                    scores[row, letter] *= self.penalty
                else:
                    scores[row, letter] /= self.penalty
        return scores


def reply(model: Decoder, prompts: Tensor, length: int, penalty: RepetitionPenalty) -> Tensor:
    """Continue prompts of one length by sampled letters."""
    kept = model.room_for(len(prompts))
    written, start = prompts, 0
    for _ in range(length):
        scores = penalty(written, model(written[:, start:], kept, start))
        start = written.shape[1]
        letter = torch.multinomial(scores.softmax(dim=-1), 1)
        written = torch.cat([written, letter], dim=1)
    return written


@torch.inference_mode()
def serve(model: Decoder, queue: deque[Tensor], penalty: RepetitionPenalty) -> int:
    """Answer all prompts, four at a time; return a sum over the replies."""
    total = 0
    while queue:
        prompts = torch.stack([queue.popleft() for _ in range(4)])
        replies = reply(model, prompts, 48, penalty)
        total += int(replies.sum())
    return total


def main() -> None:
    """Serve made-up prompts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--prompts", type=int, default=76)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Decoder(width=128, layers=3, heads=4, room=256).eval()
    queue = deque(torch.randint(0, LETTERS, (args.prompts, 200)))
    total = serve(model, queue, RepetitionPenalty(1.2, args.mended))
    print(f"replied to {args.prompts} prompts, letters add up to {total}")


if __name__ == "__main__":
    main()
