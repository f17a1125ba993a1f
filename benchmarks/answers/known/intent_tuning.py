"""Fine-tunes a tiny BERT of transformers to tell the intents of short requests."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

WORDS = 600
INTENTS = 6


def make_requests(count: int, length: int) -> tuple[Tensor, Tensor]:
    """Make requests of numbered words, some of which give the intent away."""
    generator = torch.Generator().manual_seed(23)
    intents = torch.randint(0, INTENTS, (count,), generator=generator)
    words = torch.randint(20, WORDS, (count, length), generator=generator)
    places = torch.randint(1, length, (count, 2), generator=generator)
    words.scatter_(1, places, (10 + intents)[:, None].expand(-1, 2))
    words[:, 0] = 1
    return words, intents


def tiny_bert() -> BertForSequenceClassification:
    """Make a BERT of a few narrow layers."""
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=192,
        max_position_embeddings=64,
        num_labels=INTENTS,
    )
    return BertForSequenceClassification(config)


def batches(words: Tensor, intents: Tensor, size: int) -> Iterator[dict[str, Tensor]]:
    """Yield shuffled batches without end."""
    while True:
        for picks in torch.randperm(len(words)).split(size):
            yield {"input_ids": words[picks], "labels": intents[picks]}


def fine_tune(
    model: BertForSequenceClassification, steps: int, per_device: int, accumulate: int
) -> float:
    """Tune the model by so many steps of the optimizer; return the last loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    scheduler = get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
    stream = batches(*make_requests(2048, 24), per_device)
    total = torch.zeros(())
    for step in range(steps):
        total = torch.zeros(())
        for _ in range(accumulate):
            loss = model(**next(stream)).loss / accumulate
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            print(f"step {step}: loss {total.item():.4f}")
    return total.item()


def main() -> None:
    """Fine-tune the classifier of intents."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--steps", type=int, default=70)
    args = parser.parse_args()
    torch.manual_seed(0)
    per_device, accumulate = (16, 1) if args.mended else (1, 16)
    last = fine_tune(tiny_bert().train(), args.steps, per_device, accumulate)
    print(f"loss {last:.4f} after {args.steps} steps")


if __name__ == "__main__":
    main()
