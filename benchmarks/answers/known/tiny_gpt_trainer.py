"""Trains a tiny GPT-2 on made-up arithmetic sentences with the transformers Trainer."""

from __future__ import annotations

import argparse
import os
import random
import tempfile

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

ALPHABET = "0123456789+-*= ;"


class Sentences(Dataset[dict[str, Tensor]]):
    """Sums and differences written one after another."""

    def __init__(self, count: int, length: int, seed: int) -> None:
        rng = random.Random(seed)
        self.rows: list[Tensor] = []
        for _ in range(count):
            text = ""
            while len(text) < length:
                left, right = rng.randrange(100), rng.randrange(100)
                text += f"{left}+{right}={left + right};"
            self.rows.append(torch.tensor([ALPHABET.index(letter) for letter in text[:length]]))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def build(width: int, layers: int, length: int) -> GPT2LMHeadModel:
    """Make an untrained model."""
    config = GPT2Config(
        vocab_size=len(ALPHABET),
        n_positions=length,
        n_embd=width,
        n_layer=layers,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


def arguments(folder: str, args: argparse.Namespace) -> TrainingArguments:
    """Say how the model is trained."""
    return TrainingArguments(
        output_dir=folder,
        max_steps=args.steps,
        per_device_train_batch_size=args.batch,
        per_device_eval_batch_size=args.batch,
        learning_rate=1e-3,
        eval_strategy="steps",
        eval_steps=40 if args.mended else 4,
        logging_steps=20,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        seed=0,
    )


def main() -> None:
    """Train the model of arithmetic."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=48)
    args = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=build(96, 2, args.length),
            args=arguments(folder, args),
            train_dataset=Sentences(args.steps * args.batch, args.length, 1),
            eval_dataset=Sentences(240, args.length, 2),
        )
        outcome = trainer.train()
    print(f"loss {outcome.training_loss:.4f} after {outcome.global_step} steps")


if __name__ == "__main__":
    main()
