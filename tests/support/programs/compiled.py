"""Two compiled models: one works with a count of its calls, the other prints within its forward."""

import torch
from torch import nn

# As the warning of the limit that it would reach advises.
torch._dynamo.config.cache_size_limit = 10_000
torch._dynamo.config.accumulated_cache_size_limit = 10_000


class Cooling(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(64, 64)
        self.calls = 0

    def forward(self, inputs):
        self.calls += 1  # @counter
        return self.inner(inputs) / (1.0 + 0.01 * self.calls)


class Talkative(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, inputs):
        hidden = torch.relu(self.first(inputs))
        print("between", hidden.shape)  # @print
        return self.second(hidden)


torch.manual_seed(0)
models = nn.ModuleList([Cooling(), Talkative()])
cooling, talkative = (torch.compile(model, backend="eager") for model in models)
optimizer = torch.optim.SGD(models.parameters(), lr=1e-3)
inputs = torch.randn(16, 64)
for _ in range(30):
    loss = talkative(cooling(inputs)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
