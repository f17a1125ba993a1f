"""Teaches a small GPT-2 to continue made-up proverbs, with the Trainer of transformers."""

from __future__ import annotations

import argparse
import os
import random
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    EvalPrediction,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
    set_seed,
)

SYLLABLES = ["ba", "co", "di", "fa", "gu", "ho", "ki", "lu", "me", "no", "pa", "ra", "su", "ti"]
PATTERNS = [
    "who {v} the {n} will {v} the {n} ,",
    "no {n} without a {n} ;",
    "a {a} {n} is worth two {a} {n} .",
    "better a {a} {n} than a {a} {n} .",
]


def words_of(kind: str, count: int) -> list[str]:
    """Make the words of one kind."""
    rng = random.Random(kind)
    made: dict[str, None] = {}
    while len(made) < count:
        made[kind + "".join(rng.choices(SYLLABLES, k=4))] = None
    return list(made)


class Proverbs(Dataset[dict[str, Tensor]]):
    """Proverbs one after the other, cut into rows of the same length."""

    def __init__(self, rows: int, length: int, seed: int, words: dict[str, list[str]]) -> None:
        fixed = sorted({word for text in PATTERNS for word in text.split() if "{" not in word})
        names = [*fixed, *(word for kind in words.values() for word in kind)]
        self.numbers = {name: number for number, name in enumerate(names)}
        rng = random.Random(seed)
        tokens: list[int] = []
        while len(tokens) < rows * length:
            topic = rng.randrange(40)
            for piece in rng.choice(PATTERNS).split():
                if "{" in piece:
                    choices = words[piece.strip("{}")]
                    piece = choices[(topic * 53 + rng.randrange(12)) % len(choices)]
                tokens.append(self.numbers[piece])
        self.rows = torch.tensor(tokens[: rows * length]).view(rows, length)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = self.rows[index]
        return {"input_ids": row, "labels": row}


def best_words(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the likeliest next word of every place."""
    return logits.argmax(dim=-1)


def score(outcome: EvalPrediction) -> dict[str, float]:
    """Return how many of the next words were foreseen."""
    guesses = np.asarray(outcome.predictions)
    if guesses.ndim == 3:
        guesses = guesses.argmax(axis=-1)
    right = guesses[:, :-1] == outcome.label_ids[:, 1:]
    return {"foreseen": float(right.mean())}


def build_model(words: int, length: int, width: int) -> GPT2LMHeadModel:
    """Make the model with random weights."""
    config = GPT2Config(
        vocab_size=words,
        n_positions=length,
        n_embd=width,
        n_layer=2,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
        loss_type="ForCausalLM",
    )
    return GPT2LMHeadModel(config)


def main() -> None:
    """Train the model and score it after each epoch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--rows", type=int, default=240)
    parser.add_argument("--held-out", type=int, default=320)
    parser.add_argument("--length", type=int, default=48)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    set_seed(0)
    words = {"n": words_of("n", 3600), "v": words_of("v", 900), "a": words_of("a", 900)}
    lessons = Proverbs(args.rows, args.length, 1, words)
    held_out = Proverbs(args.held_out, args.length, 2, words)
    model = build_model(len(lessons.numbers), args.length, width=64)
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            num_train_epochs=args.epochs,
            per_device_train_batch_size=8,
            per_device_eval_batch_size=8,
            learning_rate=2e-3,
            optim="adamw_torch_fused",
            logging_steps=20,
            eval_strategy="epoch",
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            seed=0,
        )
        trainer = Trainer(
            model=model,
            args=settings,
            train_dataset=lessons,
            eval_dataset=held_out,
            compute_metrics=score,
            preprocess_logits_for_metrics=best_words if args.mended else None,
        )
        trainer.train()


if __name__ == "__main__":
    main()
