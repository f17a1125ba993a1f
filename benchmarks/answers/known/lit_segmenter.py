"""Segment synthetic street scenes with a small U-Net in Lightning.

Scenes are stacks of coloured regions; every pixel belongs to one of twenty-seven
classes.  The mean intersection-over-union is tracked while training.
"""
import argparse

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLASSES = 27


def make_scenes(count, size, seed=20):
    generator = torch.Generator().manual_seed(seed)
    palette = torch.rand(CLASSES, 3, generator=generator)
    masks = torch.zeros(count, size, size, dtype=torch.long)
    for mask in masks:
        for _ in range(14):
            x, y = torch.randint(0, size - 8, (2,), generator=generator).tolist()
            w, h = torch.randint(8, size // 2, (2,), generator=generator).tolist()
            mask[y:y + h, x:x + w] = int(torch.randint(0, CLASSES, (1,), generator=generator))
    images = palette[masks].permute(0, 3, 1, 2)
    return images + torch.randn(images.shape, generator=generator) * 0.1, masks


def double_conv(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(),
    )


class UNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.top = double_conv(3, width)
        self.bottom = double_conv(width, 2 * width)
        self.merge = double_conv(3 * width, width)
        self.out = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x):
        high = self.top(x)
        low = self.bottom(F.max_pool2d(high, 2))
        low = F.interpolate(low, scale_factor=2.0, mode="nearest")
        return self.out(self.merge(torch.cat([high, low], dim=1)))


def confusion_by_pairs(predicted, target):
    matrix = torch.zeros(CLASSES, CLASSES, dtype=torch.long)
    for true_class in range(CLASSES):
        for predicted_class in range(CLASSES):
            hits = (target == true_class) & (predicted == predicted_class)
            matrix[true_class, predicted_class] = hits.sum()
    return matrix


def confusion_by_count(predicted, target):
    codes = target.flatten() * CLASSES + predicted.flatten()
    return torch.bincount(codes, minlength=CLASSES ** 2).view(CLASSES, CLASSES)


class Segmenter(L.LightningModule):
    def __init__(self, lr, count_confusion):
        super().__init__()
        self.net = UNet()
        self.lr = lr
        self.count_confusion = count_confusion
        self.register_buffer("confusion", torch.zeros(CLASSES, CLASSES, dtype=torch.long))

    def update_confusion(self, predicted, target):
        count = confusion_by_count if self.count_confusion else confusion_by_pairs
        for picture, truth in zip(predicted, target):
            self.confusion += count(picture, truth)

    def mean_iou(self):
        hits = self.confusion.diag().float()
        union = self.confusion.sum(0) + self.confusion.sum(1) - hits
        return (hits / union.clamp(min=1)).mean()

    def training_step(self, batch, batch_index):
        images, masks = batch
        logits = self.net(images)
        self.update_confusion(logits.detach().argmax(1), masks)
        return F.cross_entropy(logits, masks)

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch}: mean IoU {self.mean_iou().item():.4f}")
        self.confusion.zero_()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenes", type=int, default=240)
    parser.add_argument("--size", type=int, default=48)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=-1, help="stop after so many steps")
    parser.add_argument("--mended", action="store_true")
    args = parser.parse_args()
    L.seed_everything(0, verbose=False)
    loader = DataLoader(TensorDataset(*make_scenes(args.scenes, args.size)),
                        batch_size=args.batch_size, shuffle=True)
    model = Segmenter(lr=2e-3, count_confusion=args.mended)
    trainer = L.Trainer(
        accelerator="cpu", devices=1, max_epochs=args.epochs, max_steps=args.steps, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, loader)


if __name__ == "__main__":
    main()
