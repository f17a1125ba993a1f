"""Sets what can be set: flags, filters, hooks and the collector; all must stay as set."""

import probe

probe.first_line()

import gc
import sys
import threading
import warnings

import numpy
import torch

probe.seed(34)
torch.use_deterministic_algorithms(True)
torch.backends.cudnn.deterministic = True
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
torch.autograd.set_detect_anomaly(False)
warnings.simplefilter("once", UserWarning)
gc.disable()
gc.set_threshold(500, 7, 7)
sys.setswitchinterval(0.004)
seen = []
sys.setprofile(None)
threading.setprofile(None)
torch.nn.modules.module.register_module_forward_pre_hook(lambda *_: seen.append(1))
model = torch.nn.Linear(10, 1)
model.register_forward_hook(lambda *_: seen.append(2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
optimizer.register_step_post_hook(lambda *_: seen.append(3))
steps = 0
for _ in range(50):
    warnings.warn("the same warning each step", stacklevel=1)
    loss = model(torch.tensor(numpy.random.randn(8, 10))).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item().hex(), gc.isenabled())
    steps += 1
print("hook calls", len(seen), "order", seen[:6])
probe.last_step(model=model, optimizer=optimizer)
print("steps", steps)
