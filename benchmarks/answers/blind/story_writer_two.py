"""Continue story openings with a small GPT-2 by top-k sampling.

The model is made from a configuration with random weights; the openings are
random tokens.  Prints how many tokens were written and how fast.
"""
import argparse
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def build_model(vocab_size, max_length):
    config = GPT2Config(
        vocab_size=vocab_size, n_positions=max_length, n_embd=192, n_layer=6, n_head=4,
        bos_token_id=0, eos_token_id=0, attn_implementation="sdpa",
    )
    return GPT2LMHeadModel(config).eval()


class TopKSampler:
    """Draws the next token of every story from its k most likely ones."""

    def __init__(self, k=40, temperature=0.9, seed=16):
        self.k, self.temperature = k, temperature
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, logits):
        values, tokens = (logits / self.temperature).topk(self.k, dim=-1)
        choice = torch.multinomial(values.softmax(-1), 1, generator=self.generator)
        return tokens.gather(-1, choice)


class StoryWriter:
    def __init__(self, model, sampler, remember=False):
        self.model, self.sampler, self.remember = model, sampler, remember

    def next_logits(self, story, memory):
        """Logits of the token after `story`, and what to pass on to the next call."""
        if not self.remember:
            return self.model(input_ids=story, use_cache=False).logits[:, -1], None
        fresh = story if memory is None else story[:, -1:]
        output = self.model(input_ids=fresh, past_key_values=memory, use_cache=True)
        return output.logits[:, -1], output.past_key_values

    @torch.inference_mode()
    def write(self, opening, new_tokens):
        story, memory = opening, None
        for _ in range(new_tokens):
            logits, memory = self.next_logits(story, memory)
            story = torch.cat([story, self.sampler(logits)], dim=1)
        return story


def distinct_pairs(story):
    """Share of different neighbouring token pairs, a rough measure of variety."""
    pairs = list(zip(story[:-1], story[1:]))
    return len(set(pairs)) / len(pairs)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stories", type=int, default=40)
    parser.add_argument("--together", type=int, default=2, help="stories written at a time")
    parser.add_argument("--opening", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--vocab-size", type=int, default=2000)
    parser.add_argument("--mended", action="store_true")
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(0)
    model = build_model(args.vocab_size, args.opening + args.new_tokens)
    writer = StoryWriter(model, TopKSampler(), remember=args.mended)
    openings = torch.randint(0, args.vocab_size, (args.stories, args.opening))
    variety, written = [], 0
    start = time.perf_counter()
    for batch in openings.split(args.together):
        stories = writer.write(batch, args.new_tokens)
        variety.extend(distinct_pairs(story) for story in stories.tolist())
        written += len(batch) * args.new_tokens
        seconds = time.perf_counter() - start
        print(f"{len(variety)} stories, {written / seconds:.0f} tokens/s", flush=True)
    print(f"mean variety {sum(variety) / len(variety):.4f}")


if __name__ == "__main__":
    main()
