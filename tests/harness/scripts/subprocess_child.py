"""Starts Python and forks itself: neither child may be observed, or see that its parent is."""

import probe

probe.first_line()

import os
import subprocess
import sys

import torch

LOOK = """
import os, sys
print(sorted(sys.modules))
print(sorted(os.environ))
print(sys.path, [type(f).__name__ for f in sys.meta_path], sys.getprofile(), sys.gettrace())
import torch
print(torch.nn.Module.__call__.__qualname__, torch.autograd.backward.__module__)
"""

probe.seed(27)
model = torch.nn.Linear(10, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
steps = 0
for step in range(50):
    loss = model(torch.randn(8, 10)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
    steps += 1
    if step == 20:
        print(subprocess.check_output([sys.executable, "-c", LOOK], text=True))
    if step == 30:
        sys.stdout.flush()
        child = os.fork()
        if not child:
            model(torch.randn(8, 10))
            os.write(1, b"forked child\n")
            os._exit(5)
        print("child ended with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
probe.last_step(model=model, optimizer=optimizer)
print("steps", steps)
