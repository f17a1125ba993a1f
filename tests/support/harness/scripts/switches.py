"""Sets what can be set, which must stay as set; reads its data, and fails in mid-training.

Variables are set before torch is imported, errors in backward are caught and told, and the
traceback of the last one, in the forward pass, is the script's own.
"""

import probe

probe.first_line()

import gc
import os
import sys
import threading
import traceback
import warnings

os.environ["OMP_NUM_THREADS"] = "2"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy
import torch


class Faulty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, fail):
        ctx.fail = fail
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        if ctx.fail:
            raise ArithmeticError("a gradient nobody can take")
        return gradient * 2, None


def train():
    for step, line in enumerate(sys.stdin):
        warnings.warn("the same warning each step", stacklevel=1)
        x = torch.tensor([float(word) for word in line.split()]) + numpy.random.randn(1)
        loss = Faulty.apply(model(x), step % 20 == 9).pow(2).mean()
        optimizer.zero_grad()
        try:
            loss.backward()
        except ArithmeticError:
            traceback.print_exc()
        optimizer.step()
        probe.count((loss.item().hex(), gc.isenabled()))


probe.seed(34)
print("threads", torch.get_num_threads(), "first", input())
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
model = torch.nn.Linear(3, 1)
model.register_forward_hook(lambda *_: seen.append(2))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
optimizer.register_step_post_hook(lambda *_: seen.append(3))
try:
    train()
finally:
    print("hook calls", len(seen), "order", seen[:6], torch.get_num_threads())
    probe.last_step(model=model, optimizer=optimizer)
