"""Run as `-m pkg.train`: relative imports, `__spec__`, a handler of SIGTERM and exit code 3.

An LSTM with padded sequences, accumulated gradients, their clipping, a schedule and two optimizers.
Then training fed by DataLoader workers, forked and spawned; it starts Python and forks itself: no
child may be observed, or see that its parent is.
"""

import probe

probe.first_line()

import atexit
import ctypes
import os
import signal
import subprocess
import sys

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import DataLoader

from .data import Noise, batch, look

LOOK = """
import os, sys
print(sorted(name for name in sys.modules if not name.startswith("profstack")))
print(sorted(os.environ))
finders = [f for f in map(type, sys.meta_path) if not f.__module__.startswith("profstack")]
print(sys.path, [f.__name__ for f in finders], sys.getprofile(), sys.gettrace())
"""


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.lstm = nn.LSTM(16, 24, num_layers=2, dropout=0.1, batch_first=True)
        self.head = nn.Linear(24, 5)

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(self.embed(tokens), lengths, batch_first=True)
        return self.head(self.lstm(packed)[1][0][-1])


def train_with_workers():
    model = nn.Linear(20, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for context, workers, init in (("fork", 2, None), ("spawn", 1, look)):
        how = {"multiprocessing_context": context, "persistent_workers": True}
        loader = DataLoader(
            Noise(), 8, shuffle=True, num_workers=workers, worker_init_fn=init, **how
        )
        for _ in range(3):
            for x, y in loader:
                probe.descend(nn.functional.cross_entropy(model(x), y), optimizer)
        del loader
    print(subprocess.check_output([sys.executable, "-c", LOOK], text=True))
    sys.stdout.flush()
    child = os.fork()
    if not child:
        model(torch.randn(8, 20))
        os.write(1, b"forked child\n")
        # As at the end of Python, libraries take themselves down: Kineto's thread is gone.
        ctypes.CDLL(None).exit(5)
    print("child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    probe.last_step(model=model, optimizer=optimizer)


def train_tagger():
    asked = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
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
        if schedule.last_epoch == 40:
            # As a cluster does; the state is saved before the end.
            os.kill(os.getpid(), signal.SIGTERM)
    with open("state.txt", "w") as file:
        file.write(repr([p.tolist() for p in model.parameters()]))


if __name__ == "__main__":
    atexit.register(print, "callback of the script")
    probe.seed(10)
    print(__name__, __spec__.name, __package__, sys.argv[1:])
    train_tagger()
    train_with_workers()
    sys.exit(3)
