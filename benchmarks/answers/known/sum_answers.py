"""Answer small arithmetic prompts with a GPT-2 style model through `generate`."""
import argparse
import os
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import GPT2Config, GPT2LMHeadModel

CHARS = "0123456789+-=? \n"
STOI = {c: i for i, c in enumerate(CHARS)}


def encode(text):
    return torch.tensor([[STOI[c] for c in text]])


def decode(ids):
    return "".join(CHARS[i] for i in ids)


def load_model(seed=0):
    torch.manual_seed(seed)
    config = GPT2Config(vocab_size=len(CHARS), n_positions=128, n_embd=96, n_layer=3, n_head=4,
                        bos_token_id=STOI["?"], eos_token_id=None)
    return GPT2LMHeadModel(config).eval()


class AnswerService:
    def __init__(self, model, max_new_tokens, stop_id=None):
        self.model = model
        self.options = dict(max_new_tokens=max_new_tokens, do_sample=True, temperature=1.0,
                            pad_token_id=STOI[" "])
        if stop_id is not None:
            self.options["eos_token_id"] = stop_id

    def ask(self, question, seed):
        ids = encode(question)
        torch.manual_seed(seed)
        with torch.inference_mode():
            out = self.model.generate(ids, attention_mask=torch.ones_like(ids), **self.options)
        text = decode(out[0, ids.size(1):].tolist())
        return text.split("\n")[0]


def make_questions(n, seed=3):
    gen = torch.Generator().manual_seed(seed)
    pairs = torch.randint(10, 999, (n, 2), generator=gen).tolist()
    return [f"{a}+{b}=?" for a, b in pairs]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--questions", type=int, default=32)
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()

    model = load_model()
    stop_id = STOI["\n"] if args.mended else None
    service = AnswerService(model, args.max_new_tokens, stop_id)
    latencies, lengths = [], []
    for i, question in enumerate(make_questions(args.questions)):
        t0 = time.perf_counter()
        answer = service.ask(question, seed=i)
        latencies.append(time.perf_counter() - t0)
        lengths.append(len(answer))
        if i % 10 == 0:
            print(f"{question} {answer!r}")
    latencies.sort()
    print(f"{len(latencies)} answers, mean length {sum(lengths) / len(lengths):.1f}, "
          f"median latency {1e3 * latencies[len(latencies) // 2]:.1f} ms")


if __name__ == "__main__":
    main()
