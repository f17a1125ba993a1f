"""Tells what callers of a call centre want from transcripts, trained by two processes."""

from __future__ import annotations

import argparse
import os
import random
import socket
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

WISHES = 8
WORDS = 50000
Record = tuple[list[int], int]


class Transcripts(Dataset[Record]):
    """Transcripts of calls with the wish of the caller."""

    def __init__(self, count: int, seed: int) -> None:
        rng = random.Random(seed)
        self.records: list[Record] = []
        for _ in range(count):
            wish = rng.randrange(WISHES)
            length = rng.randint(20, 60)
            topic = [10 + 20 * wish + rng.randrange(20) for _ in range(length // 4)]
            words = topic + [rng.randrange(200, WORDS) for _ in range(length - len(topic))]
            rng.shuffle(words)
            self.records.append((words, wish))

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Record:
        return self.records[index]


def collate(records: list[Record]) -> tuple[Tensor, Tensor]:
    """Pad the transcripts of a batch to the longest."""
    rows = [torch.tensor(words) for words, _ in records]
    wishes = torch.tensor([wish for _, wish in records])
    return nn.utils.rnn.pad_sequence(rows, batch_first=True), wishes


class WishModel(nn.Module):
    """A small transformer encoder with a mean over the words."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width, padding_idx=0)
        layer = nn.TransformerEncoderLayer(width, 4, 3 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, WISHES)

    def forward(self, words: Tensor) -> Tensor:
        padding = words == 0
        states = self.encoder(self.embed(words), src_key_padding_mask=padding)
        kept = (~padding).unsqueeze(2).float()
        return self.head((states * kept).sum(dim=1) / kept.sum(dim=1))


def evaluate(model: nn.Module, data: Transcripts, sampler: DistributedSampler[Record]) -> Tensor:
    """Return how many wishes this process tells rightly, and of how many."""
    model.eval()
    right = torch.zeros(2)
    loader = DataLoader(data, batch_size=16, sampler=sampler, collate_fn=collate)
    with torch.no_grad():
        for words, wishes in loader:
            right += torch.tensor([(model(words).argmax(dim=1) == wishes).sum(), len(wishes)])
    return right


class Trainer:
    """Trains the model in one of the processes."""

    def __init__(self, rank: int, world: int, args: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.args = args
        self.model = DistributedDataParallel(WishModel(args.width))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        data = Transcripts(args.transcripts, seed=8)
        self.sampler = DistributedSampler(data, world, rank, seed=2)
        self.loader = DataLoader(
            data, args.batch, sampler=self.sampler, collate_fn=collate, drop_last=True
        )

    def learn(self, words: Tensor, wishes: Tensor, last: bool) -> Tensor:
        """Add the gradients of a part of a batch, and step after the last part."""
        context = self.model.no_sync() if self.args.mended and not last else nullcontext()
        with context:
            loss = nn.functional.cross_entropy(self.model(words), wishes)
            (loss / self.args.parts).backward()
        if last:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=False)
        return loss.detach()

    def epoch(self, number: int) -> float:
        """Train for one epoch and return the mean loss."""
        self.sampler.set_epoch(number)
        total = torch.zeros(2)
        for part, (words, wishes) in enumerate(self.loader, start=1):
            loss = self.learn(words, wishes, part % self.args.parts == 0)
            total += torch.stack([loss, torch.ones(())])
        dist.all_reduce(total)
        return (total[0] / total[1]).item()


def work(rank: int, world: int, port: int, args: argparse.Namespace) -> None:
    """Train and evaluate in one of the processes."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    trainer = Trainer(rank, world, args)
    for number in range(args.epochs):
        loss = trainer.epoch(number)
        if rank == 0:
            print(f"epoch {number}: loss {loss:.4f}", flush=True)
    calls = Transcripts(128, seed=9)
    right = evaluate(trainer.model.module, calls, DistributedSampler(calls, world, rank))
    dist.all_reduce(right)
    if rank == 0:
        print(f"accuracy on new calls {(right[0] / right[1]).item():.3f}", flush=True)
    dist.destroy_process_group()


def main() -> None:
    """Train on the command line's settings."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--transcripts", type=int, default=1280)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--width", type=int, default=64)
    args = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(work, args=(2, port, args), nprocs=2)


if __name__ == "__main__":
    main()
