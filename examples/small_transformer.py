"""Train a small GPT-2, made from a `transformers` config, on random tokens.

Nothing is downloaded: the weights start at random and the "text" is one fixed set of random
tokens, which the model learns by heart, so that the loss has somewhere to go.

    python -m profstack run examples/small_transformer.py --steps 60
"""

import argparse

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def make_model(options: argparse.Namespace) -> GPT2LMHeadModel:
    """GPT-2 of the asked-for size, with random weights."""
    config = GPT2Config(
        vocab_size=options.vocabulary,
        n_positions=options.length,
        n_embd=options.width,
        n_layer=options.layers,
        n_head=options.heads,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


def train(model: GPT2LMHeadModel, batches: list[torch.Tensor], options: argparse.Namespace) -> int:
    """Step through the batches in turn; returns the number of optimizer steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
    model.train()
    steps = 0
    for step in range(options.steps):
        tokens = batches[step % len(batches)]
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        steps += 1
        if step % options.every == 0 or step == options.steps - 1:
            print(f"step {step:4d}: loss {loss.item():.6f}")
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=1024)
    parser.add_argument("--length", type=int, default=64, help="tokens per sequence")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--batches", type=int, default=8, help="batches in the fixed data set")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--every", type=int, default=10, help="print the loss this often")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    model = make_model(options)
    shape = (options.batch_size, options.length)
    batches = [torch.randint(options.vocabulary, shape) for _ in range(options.batches)]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{parameters:,} parameters, {options.batch_size} x {options.length} tokens per step")
    print(f"steps: {train(model, batches, options)}")


if __name__ == "__main__":
    main()
