"""Inference of a TransformerEncoder, whose fused path any per-instance hook switches off."""

import probe

probe.first_line()

import torch
from torch import nn

probe.seed(29)
layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
model = nn.TransformerEncoder(layer, 2).eval()
fused = []


def note(*arguments, **names):
    fused.append(1)
    return original(*arguments, **names)


original = torch._transformer_encoder_layer_fwd
torch._transformer_encoder_layer_fwd = note
steps = 0
with torch.inference_mode():
    for _ in range(60):
        print(model(torch.randn(2, 7, 16)).sum().item().hex())
        steps += 1
torch._transformer_encoder_layer_fwd = original
print("fused calls", len(fused))
probe.last_step(model=model)
print("steps", steps)
