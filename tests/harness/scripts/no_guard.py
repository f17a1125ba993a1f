"""Everything at module level, no main guard; shows what the script can see of itself."""

import probe

probe.first_line()

import pickle
import sys

import torch

probe.seed(9)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 2)

    def forward(self, x):
        return self.layer(x).relu()


print(__name__, __spec__, __package__, sys.argv, Net.__module__, Net.__qualname__)
print(pickle.loads(pickle.dumps(Net)) is Net, sys.modules["__main__"].Net is Net)
net = Net()
opt = torch.optim.RMSprop(net.parameters())
steps = 0
for _ in range(60):
    out = net(torch.randn(4, 6)).sum()
    out.backward()
    opt.step()
    opt.zero_grad()
    print(out.item().hex())
    steps += 1
probe.last_step(net=net, opt=opt)
print("steps", steps)
