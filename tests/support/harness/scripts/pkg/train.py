"""Run as `-m pkg.train`: relative imports, `__spec__`, a handler of SIGTERM and exit code 3.

An LSTM with padded sequences, accumulated gradients, their clipping, a schedule, two optimizers.
"""

import probe

probe.first_line()

import atexit
import os
import signal
import sys

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from .data import batch


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.lstm = nn.LSTM(16, 24, num_layers=2, dropout=0.1, batch_first=True)
        self.head = nn.Linear(24, 5)

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(self.embed(tokens), lengths, batch_first=True)
        return self.head(self.lstm(packed)[1][0][-1])


asked = []
signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
atexit.register(print, "callback of the script")
probe.seed(10)
print(__name__, __spec__.name, __package__, sys.argv[1:])
model = Tagger()
words = torch.optim.Adagrad(model.embed.parameters(), lr=0.1)
others = torch.optim.AdamW([*model.lstm.parameters(), *model.head.parameters()], lr=0.01)
schedule = torch.optim.lr_scheduler.StepLR(others, 20, 0.5)
while not asked:
    for _ in range(4):
        tokens, lengths, tags = batch()
        loss = nn.functional.cross_entropy(model(tokens, lengths), tags) / 4
        loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in (words, others):
        optimizer.step()
        optimizer.zero_grad()
    schedule.step()
    probe.count((loss.item().hex(), norm.item().hex()))
    if schedule.last_epoch == 50:
        # As a cluster does; the state is saved before the end.
        os.kill(os.getpid(), signal.SIGTERM)
with open("state.txt", "w") as file:
    file.write(repr([p.tolist() for p in model.parameters()]))
probe.last_step(model=model, words=words, others=others)
sys.exit(3)
