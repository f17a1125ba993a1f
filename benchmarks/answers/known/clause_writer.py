"""Fine-tunes a small GPT-2 on the clauses of contracts with transformers' Trainer."""

from __future__ import annotations

import argparse
import tempfile

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

PAD, START, STOP = 0, 1, 2
PARTIES = ["lessor", "lessee", "buyer", "seller", "licensor", "licensee", "agent", "bank"]
DUTIES = ["shall", "must", "may", "agrees to", "undertakes to", "is entitled to"]
DEEDS = ["pay", "deliver", "return", "inspect", "insure", "assign", "terminate", "notify"]
WHEN = ["without delay", "within thirty days", "upon request", "at its own cost", "in writing"]


def write_clauses(count: int, terms: int, seed: int) -> list[str]:
    """Compose clauses of a few sentences about defined terms."""
    rng = np.random.default_rng(seed)
    clauses = []
    for _ in range(count):
        words = []
        topic = int(rng.integers(0, terms))
        for _ in range(int(rng.integers(2, 5))):
            party, duty, deed, when = (
                str(rng.choice(choice)) for choice in (PARTIES, DUTIES, DEEDS, WHEN)
            )
            words.append(f"the {party} {duty} {deed} the term{topic} {when} .")
            topic = (7 * topic + 1) % terms
        clauses.append(" ".join(words))
    return clauses


class Vocabulary:
    """Numbers for the words of a contract."""

    def __init__(self, terms: int) -> None:
        plain = " ".join([*PARTIES, *DUTIES, *DEEDS, *WHEN, "the", "."]).split()
        words = sorted(set(plain)) + [f"term{number}" for number in range(terms)]
        self.ids = {word: number for number, word in enumerate(words, start=3)}

    def __len__(self) -> int:
        return len(self.ids) + 3

    def encode(self, text: str) -> list[int]:
        """Return the numbers of a text between start and stop."""
        return [START, *(self.ids[word] for word in text.split()), STOP]


class Clauses(Dataset[list[int]]):
    """Encoded clauses."""

    def __init__(self, texts: list[str], vocabulary: Vocabulary) -> None:
        self.rows = [vocabulary.encode(text) for text in texts]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> list[int]:
        return self.rows[index]


def collate(rows: list[list[int]]) -> dict[str, Tensor]:
    """Pad some clauses to the longest of them."""
    longest = max(len(row) for row in rows)
    ids = torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])
    mask = (ids != PAD).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def best_tokens(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the likeliest token of every position."""
    return logits.argmax(dim=-1)


def token_accuracy(outcome: EvalPrediction) -> dict[str, float]:
    """Return how many of the next tokens are foretold rightly."""
    guesses, labels = np.asarray(outcome.predictions), np.asarray(outcome.label_ids)
    if guesses.ndim == 3:
        guesses = guesses.argmax(-1)
    guesses, labels = guesses[:, :-1], labels[:, 1:]
    known = labels != -100
    return {"accuracy": float((guesses[known] == labels[known]).mean())}


def main() -> None:
    """Fine-tune on the command line's settings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--clauses", type=int, default=320)
    parser.add_argument("--held-out", type=int, default=320)
    parser.add_argument("--terms", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    set_seed(4)
    vocabulary = Vocabulary(args.terms)
    train = Clauses(write_clauses(args.clauses, args.terms, 1), vocabulary)
    held_out = Clauses(write_clauses(args.held_out, args.terms, 2), vocabulary)
    config = GPT2Config(
        vocab_size=len(vocabulary),
        n_embd=96,
        n_layer=2,
        n_head=4,
        n_positions=96,
        bos_token_id=START,
        eos_token_id=STOP,
        pad_token_id=PAD,
    )
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            num_train_epochs=args.epochs,
            per_device_train_batch_size=16,
            per_device_eval_batch_size=8,
            learning_rate=2e-3,
            eval_strategy="epoch",
            save_strategy="no",
            logging_strategy="epoch",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(
            model=GPT2LMHeadModel(config),
            args=settings,
            train_dataset=train,
            eval_dataset=held_out,
            data_collator=collate,
            compute_metrics=token_accuracy,
            preprocess_logits_for_metrics=best_tokens if args.mended else None,
        )
        trainer.train()


if __name__ == "__main__":
    main()
