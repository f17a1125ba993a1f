"""Convolutional autoencoder on rendered glyphs with Lightning."""
import argparse
import logging
import warnings

import lightning as L
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Glyphs(Dataset):
    """Random strokes drawn on a 28x28 canvas."""

    def __init__(self, n, size=28, seed=0):
        self.n, self.size, self.seed = n, size, seed
        self.yy, self.xx = np.mgrid[0:size, 0:size].astype(np.float32)

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        rng = np.random.default_rng((self.seed, i))
        img = np.zeros((self.size, self.size), dtype=np.float32)
        for _ in range(3):
            x0, y0, x1, y1 = rng.uniform(4, self.size - 4, 4)
            for t in np.linspace(0, 1, 6):
                cx, cy = x0 + t * (x1 - x0), y0 + t * (y1 - y0)
                img += np.exp(-((self.xx - cx) ** 2 + (self.yy - cy) ** 2) / 2.0)
        return torch.from_numpy(img.clip(0, 1)).unsqueeze(0)


class GlyphData(L.LightningDataModule):
    def __init__(self, n, batch_size, workers, keep_workers):
        super().__init__()
        self.n, self.batch_size = n, batch_size
        self.loader_options = dict(num_workers=workers, persistent_workers=keep_workers)

    def train_dataloader(self):
        return DataLoader(Glyphs(self.n), batch_size=self.batch_size, shuffle=True, **self.loader_options)

    def val_dataloader(self):
        return DataLoader(Glyphs(32, seed=1), batch_size=32, **self.loader_options)


class AutoEncoder(L.LightningModule):
    def __init__(self, width=16, latent=32, lr=2e-3):
        super().__init__()
        self.lr = lr
        self.encoder = nn.Sequential(
            nn.Conv2d(1, width, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(2 * width * 49, latent))
        self.decoder = nn.Sequential(
            nn.Linear(latent, 2 * width * 49), nn.ReLU(), nn.Unflatten(1, (2 * width, 7, 7)),
            nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1), nn.ReLU(),
            nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1))

    def forward(self, x):
        return self.decoder(self.encoder(x))

    def training_step(self, batch, batch_idx):
        loss = F.binary_cross_entropy_with_logits(self(batch), batch)
        self.log("train", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val", F.binary_cross_entropy_with_logits(self(batch), batch))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr, foreach=True)


class Report(L.Callback):
    def on_train_epoch_end(self, trainer, module):
        if trainer.current_epoch % 5 == 0:
            m = trainer.callback_metrics
            print(f"epoch {trainer.current_epoch} train {m['train']:.4f} val {m['val']:.4f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--glyphs", type=int, default=96)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=26)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    L.seed_everything(0, verbose=False)
    data = GlyphData(args.glyphs, args.batch_size, args.workers, keep_workers=args.mended)
    trainer = L.Trainer(max_epochs=args.epochs, accelerator="cpu", devices=1, logger=False,
                        enable_checkpointing=False, enable_progress_bar=False, log_every_n_steps=4,
                        enable_model_summary=False, num_sanity_val_steps=0, callbacks=[Report()])
    trainer.fit(AutoEncoder(), data)


if __name__ == "__main__":
    main()
