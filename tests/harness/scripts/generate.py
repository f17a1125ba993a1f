"""Tokens from a tiny GPT-2, sampled; each call of `generate` calls the model many times."""

import probe

probe.first_line()

import torch
from transformers import GPT2Config, GPT2LMHeadModel

probe.seed(8)
config = GPT2Config(
    vocab_size=128, n_positions=64, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
)
model = GPT2LMHeadModel(config).eval()
steps = 0
for _ in range(12):
    prompt = torch.randint(1, 128, (2, 5))
    tokens = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=8,
        do_sample=True,
        pad_token_id=0,
    )
    print(tokens.tolist())
    steps += 1
probe.last_step(model=model)
print("steps", steps)
