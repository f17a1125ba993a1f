"""Training fed by two DataLoader workers, started by spawn."""

import probe

probe.first_line()

import torch
from torch.utils.data import DataLoader, Dataset


class Noise(Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(20, generator=generator), index % 3


def main():
    probe.seed(20)
    loader = DataLoader(
        Noise(),
        batch_size=8,
        shuffle=True,
        num_workers=2,
        multiprocessing_context="spawn",
        persistent_workers=True,
    )
    model = torch.nn.Linear(20, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    steps = 0
    for _ in range(4):
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item().hex())
            steps += 1
    probe.last_step(model=model, optimizer=optimizer)
    print("steps", steps)


if __name__ == "__main__":
    main()
