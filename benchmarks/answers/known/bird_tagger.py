"""Sound tagging on log-spectrogram patches, trained with accelerate."""
import argparse
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed
from torch.utils.data import DataLoader, TensorDataset

SPECIES = 12


def make_recordings(n, samples=2048, seed=0):
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(samples) / 8000.0
    tags = (torch.rand(n, SPECIES, generator=g) < 0.2).float()
    chirps = torch.stack([torch.sin(6.28 * (400 + 250 * k) * t + 30 * torch.sin(6.28 * (3 + k) * t))
                          for k in range(SPECIES)])
    waves = tags @ chirps + 0.5 * torch.randn(n, samples, generator=g)
    spec = torch.stft(waves, 256, hop_length=128, window=torch.hann_window(256), return_complex=True)
    return torch.log1p(spec.abs()), tags


class Tagger(nn.Module):
    def __init__(self, bins=129, dim=320, layers=3):
        super().__init__()
        self.proj = nn.Linear(bins, dim)
        self.pos = nn.Parameter(0.02 * torch.randn(64, dim))
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, SPECIES))

    def forward(self, spec):
        x = self.proj(spec.transpose(1, 2))
        x = self.encoder(x + self.pos[: x.size(1)])
        return self.head(x.mean(1))


def train(args, workdir):
    config = ProjectConfiguration(project_dir=workdir, automatic_checkpoint_naming=True, total_limit=2)
    accelerator = Accelerator(cpu=True, project_config=config)
    set_seed(0)
    spec, tags = make_recordings(args.recordings)
    loader = DataLoader(TensorDataset(spec, tags), batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = Tagger()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, foreach=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(loader))
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

    step = 0
    for epoch in range(args.epochs):
        model.train()
        total = torch.zeros(())
        for x, y in loader:
            loss = F.binary_cross_entropy_with_logits(model(x), y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            total += loss.detach()
            step += 1
            if step % args.save_every == 0:
                accelerator.save_state()
        accelerator.print(f"epoch {epoch} loss {total.item() / len(loader):.4f}")
    accelerator.wait_for_everyone()
    torch.save(accelerator.unwrap_model(model).state_dict(), os.path.join(workdir, "final.pt"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--recordings", type=int, default=160)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--save-every", type=int, default=2)
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    if args.mended:
        args.save_every = 40
    with tempfile.TemporaryDirectory() as workdir:
        train(args, workdir)


if __name__ == "__main__":
    main()
