"""Fed to `python -`: inference of a TorchScript model, a TransformerEncoder and GPT-2, in a thread.

The first has neither a mode nor parameters left; the fused path of the second is switched off by
any hook on an instance; each call of `generate` calls the third many times.
"""

import probe

probe.first_line()

import sys
import threading

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel


def note(*arguments, **names):
    fused.append(1)
    return original(*arguments, **names)


probe.seed(19)
print(__name__, globals().get("__file__"), sys.argv, repr(sys.path[0]))
net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
net.append(nn.Linear(8, 10)).eval()
layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
encoder = nn.TransformerEncoder(layer, 2).eval()
sizes = {"vocab_size": 128, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 2}
writer = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).eval()
how = {"max_new_tokens": 8, "do_sample": True, "pad_token_id": 0}
fused, original = [], torch._transformer_encoder_layer_fwd
torch._transformer_encoder_layer_fwd = note
with torch.no_grad():
    model = torch.jit.freeze(torch.jit.trace(net, torch.randn(1, 3, 32, 32)))
assert not hasattr(model, "training")


def main():
    for _ in range(30):
        with torch.inference_mode():
            sums = model(torch.randn(4, 3, 32, 32)).sum(), encoder(torch.randn(2, 7, 16)).sum()
        prompt = torch.randint(1, 128, (2, 5))
        tokens = writer.generate(prompt, attention_mask=torch.ones_like(prompt), **how)
        probe.count((*(each.item().hex() for each in sums), tokens.tolist()))


thread = threading.Thread(target=main)
thread.start()
thread.join()
torch._transformer_encoder_layer_fwd = original
print("fused calls", len(fused))
probe.last_step(net=net, encoder=encoder, writer=writer)
