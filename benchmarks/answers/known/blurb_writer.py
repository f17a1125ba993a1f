"""Writes short blurbs for the goods of a shop with a small Llama model, a batch at a time."""

from __future__ import annotations

import argparse
import random
import time

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    StoppingCriteria,
    StoppingCriteriaList,
)

GOODS = ["kettle", "rucksack", "desk lamp", "rain jacket", "garden chair", "bread knife"]
TRAITS = ["light", "sturdy", "hand made", "easy to clean", "quiet", "recycled", "foldable"]
PLACES = ["kitchen", "balcony", "office", "hiking trip", "camper van", "summer house"]
END_MARK = "##"


def product_sheet(rng: random.Random, facts: int) -> str:
    """Write what is known about one product."""
    name = rng.choice(GOODS)
    lines = [f"Product: {name} number {rng.randint(100, 999)}."]
    for _ in range(facts):
        lines.append(f"The {name} is {rng.choice(TRAITS)}, good for the {rng.choice(PLACES)}.")
    lines.append("Write a blurb:")
    return " ".join(lines)


def learn_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Learn a byte-level BPE tokenizer from some product sheets."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        padding_side="left",
    )


class EndOfBlurb(StoppingCriteria):
    """Ends a blurb as soon as its text ends with the mark."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, mark: str, window: int | None) -> None:
        self.tokenizer = tokenizer
        self.mark = mark
        self.window = window

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: object) -> Tensor:
        rows = input_ids if self.window is None else input_ids[:, -self.window :]
        texts = self.tokenizer.batch_decode(rows, skip_special_tokens=True)
        ended = [text.rstrip().endswith(self.mark) for text in texts]
        return torch.tensor(ended, device=input_ids.device)


def build_model(words: int, width: int) -> LlamaForCausalLM:
    """Build the language model from its configuration."""
    config = LlamaConfig(
        vocab_size=words,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config).eval()


class BlurbWriter:
    """Writes the blurbs of a batch of products."""

    def __init__(self, texts: list[str], width: int, mended: bool) -> None:
        self.tokenizer = learn_tokenizer(texts)
        self.model = build_model(len(self.tokenizer), width)
        window = 2 * len(END_MARK) + 4 if mended else None
        self.stop = StoppingCriteriaList([EndOfBlurb(self.tokenizer, END_MARK, window)])

    def write(self, sheets: list[str], longest: int) -> tuple[list[str], int]:
        """Return the blurbs and how many tokens they hold."""
        batch = self.tokenizer(sheets, return_tensors="pt", padding=True)
        written = self.model.generate(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            max_new_tokens=longest,
            do_sample=True,
            temperature=0.9,
            stopping_criteria=self.stop,
        )
        fresh = written[:, batch["input_ids"].shape[1] :]
        return self.tokenizer.batch_decode(fresh, skip_special_tokens=True), fresh.numel()


def main() -> None:
    """Write blurbs on the command line's settings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--longest", type=int, default=350)
    parser.add_argument("--width", type=int, default=64)
    args = parser.parse_args()
    torch.manual_seed(0)
    rng = random.Random(17)
    sheets = [product_sheet(rng, rng.randint(36, 48)) for _ in range(args.batches * args.batch)]
    writer = BlurbWriter(sheets, args.width, args.mended)
    start = time.perf_counter()
    blurbs: list[str] = []
    tokens = 0
    for first in range(0, len(sheets), args.batch):
        texts, count = writer.write(sheets[first : first + args.batch], args.longest)
        blurbs += texts
        tokens += count
    seconds = time.perf_counter() - start
    letters = sum(len(blurb) for blurb in blurbs) / len(blurbs)
    print(f"{len(blurbs)} blurbs of {letters:.1f} letters, {tokens / seconds:.0f} tokens/s")


if __name__ == "__main__":
    main()
