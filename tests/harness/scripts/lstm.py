"""An LSTM with padded sequences, gradient clipping and a learning-rate schedule."""

import probe

probe.first_line()

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.lstm = nn.LSTM(16, 24, num_layers=2, dropout=0.1, batch_first=True)
        self.head = nn.Linear(24, 5)

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(self.embed(tokens), lengths, batch_first=True)
        _, (hidden, _) = self.lstm(packed)
        return self.head(hidden[-1])


probe.seed(31)
model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.5)
lengths = torch.tensor([12, 9, 7, 4])
steps = 0
for _ in range(50):
    tokens, tags = torch.randint(50, (4, 12)), torch.randint(5, (4,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(tokens, lengths), tags)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    print(loss.item().hex(), norm.item().hex())
    steps += 1
probe.last_step(model=model, optimizer=optimizer)
print("steps", steps)
