"""Forecast electricity load with an MLP-Mixer in Lightning.

The load has a daily and a weekly rhythm per household.  The model sees four
days and predicts the next one; the latest state is kept on disk.
"""
import argparse
import math
import tempfile

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, Dataset


def make_load(hours, households, seed=21):
    generator = torch.Generator().manual_seed(seed)
    t = torch.arange(hours).float()[:, None]
    phase = torch.rand(households, generator=generator) * 2 * math.pi
    daily = torch.sin(2 * math.pi * t / 24 + phase)
    weekly = torch.sin(2 * math.pi * t / 168 + phase / 2)
    noise = torch.randn(hours, households, generator=generator) * 0.2
    return (1.5 + daily * (1 + 0.3 * weekly) + noise).float()


class LoadWindows(Dataset):
    def __init__(self, load, history, horizon):
        self.load, self.history, self.horizon = load, history, horizon

    def __len__(self):
        return len(self.load) - self.history - self.horizon

    def __getitem__(self, start):
        middle = start + self.history
        return self.load[start:middle], self.load[middle:middle + self.horizon]


class MixerBlock(nn.Module):
    """Mixes over time, then over households."""

    def __init__(self, steps, channels, hidden, channel_hidden=32):
        super().__init__()
        self.over_time = nn.Sequential(nn.Linear(steps, hidden), nn.GELU(),
                                       nn.Linear(hidden, steps))
        self.over_channels = nn.Sequential(nn.Linear(channels, channel_hidden), nn.GELU(),
                                           nn.Linear(channel_hidden, channels))
        self.norm_time, self.norm_channels = nn.LayerNorm(channels), nn.LayerNorm(channels)

    def forward(self, x):
        x = x + self.over_time(self.norm_time(x).transpose(1, 2)).transpose(1, 2)
        return x + self.over_channels(self.norm_channels(x))


class LoadForecaster(L.LightningModule):
    def __init__(self, households, history, horizon, hidden=2048, blocks=4, lr=1e-3):
        super().__init__()
        self.blocks = nn.Sequential(
            *[MixerBlock(history, households, hidden) for _ in range(blocks)])
        self.head = nn.Linear(history, horizon)
        self.lr = lr

    def forward(self, history):
        return self.head(self.blocks(history).transpose(1, 2)).transpose(1, 2)

    def training_step(self, batch, batch_index):
        history, future = batch
        loss = F.l1_loss(self(history), future)
        if batch_index % 50 == 0:
            print(f"epoch {self.current_epoch} batch {batch_index}: loss {loss.item():.4f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def build_trainer(args, folder):
    keeper = ModelCheckpoint(dirpath=folder, filename="latest-{step}", save_top_k=1,
                             every_n_train_steps=args.save_every)
    return L.Trainer(accelerator="cpu", devices=1, max_epochs=args.epochs, max_steps=args.steps,
                     logger=False, callbacks=[keeper], enable_progress_bar=False,
                     enable_model_summary=False)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=int, default=2000)
    parser.add_argument("--households", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=300, help="stop after so many steps")
    parser.add_argument("--save-every", type=int, default=2)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    if args.mended:
        args.save_every = 150
    return args


def main():
    args = parse_args()
    L.seed_everything(0, verbose=False)
    history, horizon = 96, 24
    load = make_load(args.hours, args.households)
    loader = DataLoader(LoadWindows(load, history, horizon), batch_size=args.batch_size,
                        shuffle=True, drop_last=True)
    model = LoadForecaster(args.households, history, horizon)
    with tempfile.TemporaryDirectory() as folder:
        build_trainer(args, folder).fit(model, loader)


if __name__ == "__main__":
    main()
