"""Training fed by DataLoader workers, forked and spawned; then starts Python and forks itself.

No child may be observed, or see that its parent is.
"""

import probe

probe.first_line()

import ctypes
import os
import subprocess
import sys

import torch
from torch.utils.data import DataLoader, Dataset

LOOK = """
import os, sys
print(sorted(sys.modules))
print(sorted(os.environ))
print(sys.path, [type(f).__name__ for f in sys.meta_path], sys.getprofile(), sys.gettrace())
import torch
print(torch.nn.Module.__call__.__qualname__, torch.autograd.backward.__module__)
"""


class Noise(Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(20, generator=generator), index % 3


def main():
    probe.seed(20)
    model = torch.nn.Linear(20, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for context, workers in (("fork", 2), ("spawn", 1)):
        how = {"multiprocessing_context": context, "persistent_workers": True}
        loader = DataLoader(Noise(), 8, shuffle=True, num_workers=workers, **how)
        for _ in range(3):
            for x, y in loader:
                probe.descend(torch.nn.functional.cross_entropy(model(x), y), optimizer)
        if context == "fork":
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


if __name__ == "__main__":
    main()
