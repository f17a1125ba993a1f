"""Train a small causal language model on synthetic recipes with the Trainer.

A recipe is a list of quantities, ingredients and actions that obey simple
rules.  The perplexity on held-out recipes is reported during training.
"""
import argparse
import math
import random

import torch
from torch.utils.data import Dataset
from transformers import (GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback,
                          TrainingArguments, set_seed)

ACTIONS = ["chop", "fry", "boil", "bake", "mix", "serve"]
UNITS = ["g", "cups", "spoons", "pieces"]


def build_vocabulary(ingredients):
    words = ["<pad>", "<start>", "<end>", ",", ";"]
    words += ACTIONS + UNITS + [str(n) for n in range(1, 21)]
    words += [f"ingredient{n}" for n in range(ingredients)]
    return {word: index for index, word in enumerate(words)}


def write_recipe(rng, ingredients):
    """Quantities first; afterwards every ingredient is used once."""
    chosen = sorted(rng.sample(range(ingredients), rng.randint(5, 9)))
    words = ["<start>"]
    for number in chosen:
        words += [str(rng.randint(1, 20)), UNITS[number % len(UNITS)], f"ingredient{number}", ","]
    for number in chosen:
        words += [ACTIONS[number % len(ACTIONS)], f"ingredient{number}", ";"]
    return words + ["serve", "<end>"]


class Recipes(Dataset):
    """Recipes joined to one stream that is cut into blocks of equal length."""

    def __init__(self, blocks, length, vocabulary, ingredients, seed):
        rng = random.Random(seed)
        stream = []
        while len(stream) < blocks * length:
            stream.extend(vocabulary[word] for word in write_recipe(rng, ingredients))
        self.blocks = torch.tensor(stream[:blocks * length]).view(blocks, length)

    def __len__(self):
        return len(self.blocks)

    def __getitem__(self, index):
        block = self.blocks[index]
        return {"input_ids": block, "labels": block}


class PerplexityReport(TrainerCallback):
    def __init__(self, every):
        self.every = every
        self.best = math.inf

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        perplexity = math.exp(metrics["eval_loss"])
        self.best = min(self.best, perplexity)
        if state.global_step % self.every == 0:
            print(f"step {state.global_step}: perplexity {perplexity:.3f} (best {self.best:.3f})")


def build_model(vocabulary, length):
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=len(vocabulary), n_positions=length, n_embd=128, n_layer=3, n_head=4,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=2))


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=800)
    parser.add_argument("--held-out", type=int, default=96)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--ingredients", type=int, default=120)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--eval-every", type=int, default=5)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    if args.mended:
        args.eval_every = 75
    return args


def main():
    args = parse_args()
    set_seed(0)
    vocabulary = build_vocabulary(args.ingredients)
    train_set = Recipes(args.blocks, args.length, vocabulary, args.ingredients, seed=23)
    held_out = Recipes(args.held_out, args.length, vocabulary, args.ingredients, seed=24)
    arguments = TrainingArguments(
        output_dir="/tmp/recipes", max_steps=args.steps, learning_rate=1e-3,
        per_device_train_batch_size=args.batch_size, per_device_eval_batch_size=args.batch_size,
        eval_strategy="steps", eval_steps=args.eval_every, save_strategy="no", logging_steps=75,
        report_to="none", use_cpu=True, disable_tqdm=True, seed=0, dataloader_pin_memory=False)
    trainer = Trainer(
        model=build_model(vocabulary, args.length), args=arguments, train_dataset=train_set,
        eval_dataset=held_out, callbacks=[PerplexityReport(every=75)])
    result = trainer.train()
    print(f"training loss {result.training_loss:.4f}")


if __name__ == "__main__":
    main()
