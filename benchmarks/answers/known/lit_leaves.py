"""Teach a pretrained image encoder to tell leaf diseases apart, in Lightning.

The encoder comes from an earlier run on many plants (random weights stand in
for it here).  A new classifier on top of it learns six diseases from
synthetic pictures of leaves.
"""
import argparse
import math

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

DISEASES = 6


def draw_leaves(count, size, seed=31):
    """Green ellipses with spots; number, size and colour of the spots tell the disease."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(DISEASES, (count,), generator=generator)
    axis = torch.linspace(-1, 1, size)
    y, x = axis[:, None], axis[None, :]
    pictures = torch.rand(count, 3, size, size, generator=generator) * 0.15
    for picture, label in zip(pictures, labels.tolist()):
        turn = torch.rand(1, generator=generator) * math.pi
        u, v = x * turn.cos() + y * turn.sin(), y * turn.cos() - x * turn.sin()
        leaf = ((u / 0.9) ** 2 + (v / 0.5) ** 2 < 1).float()
        picture[1] += 0.6 * leaf
        for _ in range(2 + 2 * (label % 3)):
            centre = (torch.rand(2, generator=generator) - 0.5) * 0.9
            radius = 0.08 + 0.05 * (label // 3)
            spot = ((u - centre[0]) ** 2 + (v - centre[1] * 0.6) ** 2 < radius ** 2).float()
            picture[0] += 0.5 * spot * leaf
            picture[1] -= 0.3 * spot * leaf
    return pictures, labels


class ResidualBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm_first = nn.GroupNorm(8, outputs)
        self.norm_second = nn.GroupNorm(8, outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)

    def forward(self, x):
        y = F.relu(self.norm_first(self.first(x)))
        return F.relu(self.norm_second(self.second(y)) + self.shortcut(x))


class LeafEncoder(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 5, stride=2, padding=2), nn.ReLU())
        self.blocks = nn.Sequential(
            ResidualBlock(width, width, 1), ResidualBlock(width, 2 * width, 2),
            ResidualBlock(2 * width, 4 * width, 2))
        self.features = 4 * width

    def forward(self, pictures):
        return self.blocks(self.stem(pictures)).mean(dim=(2, 3))


def pretrained_encoder():
    torch.manual_seed(1)
    return LeafEncoder()


class LeafClassifier(L.LightningModule):
    def __init__(self, encoder, hidden=128, lr=3e-3):
        super().__init__()
        self.encoder = encoder
        self.head = nn.Sequential(nn.LayerNorm(encoder.features),
                                  nn.Linear(encoder.features, hidden), nn.ReLU(),
                                  nn.Linear(hidden, DISEASES))
        self.lr = lr

    def augment(self, pictures):
        if torch.rand(()) < 0.5:
            pictures = pictures.flip(-1)
        shift = torch.randint(-4, 5, (2,)).tolist()
        pictures = torch.roll(pictures, shift, dims=(2, 3))
        return pictures * (0.8 + 0.4 * torch.rand(len(pictures), 1, 1, 1))

    def forward(self, pictures):
        return self.head(self.encoder(pictures))

    def training_step(self, batch, batch_index):
        pictures, labels = batch
        loss = F.cross_entropy(self(self.augment(pictures)), labels)
        if batch_index == 0:
            print(f"epoch {self.current_epoch}: loss {loss.item():.4f}")
        return loss

    def validation_step(self, batch, batch_index):
        pictures, labels = batch
        hits = (self(pictures).argmax(-1) == labels).float().mean()
        self.log("accuracy", hits, on_epoch=True, batch_size=len(labels))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.head.parameters(), lr=self.lr)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--leaves", type=int, default=320)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    L.seed_everything(0, verbose=False)
    pictures, labels = draw_leaves(args.leaves + 64, args.size)
    train_set = TensorDataset(pictures[:args.leaves], labels[:args.leaves])
    test_set = TensorDataset(pictures[args.leaves:], labels[args.leaves:])
    model = LeafClassifier(pretrained_encoder())
    if args.mended:
        model.encoder.requires_grad_(False)
    trainer = L.Trainer(accelerator="cpu", devices=1, max_epochs=args.epochs, logger=False,
                        enable_checkpointing=False, enable_progress_bar=False,
                        enable_model_summary=False, num_sanity_val_steps=0,
                        check_val_every_n_epoch=args.epochs)
    trainer.fit(model, DataLoader(train_set, args.batch_size, shuffle=True, drop_last=True),
                DataLoader(test_set, args.batch_size))
    print(f"accuracy {trainer.callback_metrics['accuracy'].item():.4f}")


if __name__ == "__main__":
    main()
