"""Does on demand what a profiler must not: the harness is judged by what it finds here."""

import probe

probe.first_line()

import gc
import random
import sys
import threading
import time
import warnings

import torch
from torch.optim import optimizer

probe.seed(1)
model = torch.nn.Linear(2, 2)
probe.last_step(model=model)
if input() == "harm":
    random.random()
    torch.manual_seed(99)
    warnings.simplefilter("ignore")
    torch.backends.cudnn.benchmark = True
    sys.path.append("/elsewhere")
    gc.disable()
    gc.callbacks.append(lambda *_: None)
    model.register_forward_hook(lambda *_: None)
    torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    optimizer.register_optimizer_step_post_hook(lambda *_: None)
    original = torch.nn.Module.__call__
    torch.nn.Module.__call__ = lambda *arguments: original(*arguments[:2])
    torch.autograd.backward = lambda *_: None
    threading.setprofile(print)
    threading.Thread(target=time.sleep, args=(60,), name="left", daemon=True).start()
    sys.setprofile(lambda *_: None)
