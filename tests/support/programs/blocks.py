"""Four blocks that are alike, one of which goes through its rows one after the other."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width, by_row):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / width)
        self.by_row = by_row

    def forward(self, inputs):
        if not self.by_row:
            return inputs + torch.relu(inputs @ self.weight)
        rows = []
        for row in inputs.split(1):
            rows.append(row + torch.relu(row @ self.weight))  # @loop
        return torch.cat(rows)


torch.manual_seed(0)
model = nn.Sequential(*(Block(16, by_row=number == 2) for number in range(4)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
inputs = torch.randn(128, 16)
for _ in range(100):
    loss = model(inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
