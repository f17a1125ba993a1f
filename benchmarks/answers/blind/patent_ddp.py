"""Sorts patents into classes by their words, trained by two processes together."""

from __future__ import annotations

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CLASSES = 24


def patents(count: int, length: int, words: int) -> TensorDataset:
    """Make patents whose words come mostly from the part of their class."""
    generator = torch.Generator().manual_seed(59)
    classes = torch.randint(0, CLASSES, (count,), generator=generator)
    part = words // CLASSES
    own = classes[:, None] * part + torch.randint(0, part, (count, length), generator=generator)
    any_word = torch.randint(0, words, (count, length), generator=generator)
    typical = torch.rand(count, length, generator=generator) < 0.3
    return TensorDataset(torch.where(typical, own, any_word), classes)


class Reader(nn.Module):
    """Reads the words with convolutions and decides on the class."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, 48)
        self.phrases = nn.Conv1d(48, width, 3, padding=1)
        self.decide = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, CLASSES)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        phrases = self.phrases(self.words(tokens).transpose(1, 2))
        return self.decide(torch.relu(phrases).amax(dim=2))


class Tally:
    """Counts for every class how sure the processes were of it, and how often right."""

    def __init__(self, processes: int, mended: bool) -> None:
        self.processes = processes
        self.mended = mended
        self.seen = torch.zeros(CLASSES)
        self.right = torch.zeros(CLASSES)
        self.sure = torch.zeros(CLASSES)

    def collect(self, classes: Tensor, guesses: Tensor, chances: Tensor) -> list[Tensor]:
        """Return the outcomes of the samples of all processes."""
        if self.mended:
            own = torch.stack([classes.float(), guesses.float(), chances])
            parts = [torch.empty_like(own) for _ in range(self.processes)]
            dist.all_gather(parts, own)
            together = torch.cat(parts, dim=1)
            return [together[0].long(), together[1].long(), together[2]]
        samples = [
            {"class": truth, "guess": guess, "chance": chance}
            for truth, guess, chance in zip(classes, guesses, chances, strict=True)
        ]
        lists: list[list[dict[str, Tensor]]] = [[] for _ in range(self.processes)]
        dist.all_gather_object(lists, samples)
        outcomes = [sample for part in lists for sample in part]
        return [torch.stack([o[name] for o in outcomes]) for name in ("class", "guess", "chance")]

    def add(self, scores: Tensor, classes: Tensor) -> None:
        """Count the samples of one step."""
        best = scores.softmax(dim=1).max(dim=1)
        truths, guesses, chances = self.collect(classes, best.indices, best.values)
        self.seen += torch.bincount(truths, minlength=CLASSES)
        self.right += torch.bincount(truths[truths == guesses], minlength=CLASSES)
        self.sure.index_add_(0, truths, chances)

    def report(self) -> str:
        """Describe the class that is hardest to tell, and begin anew."""
        shares = self.right / self.seen.clamp(min=1)
        worst = int(shares.argmin())
        sure = self.sure[worst] / self.seen[worst].clamp(min=1)
        overall = self.right.sum() / self.seen.sum()
        for count in (self.seen, self.right, self.sure):
            count.zero_()
        return f"right {overall:.3f}, hardest class {worst}: {shares[worst]:.3f}, sure {sure:.3f}"


def work(rank: int, processes: int, meeting: str, args: argparse.Namespace) -> None:
    """Train in one of the processes."""
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=processes
    )
    torch.manual_seed(0)
    data = patents(args.patents, args.length, args.words)
    sampler = DistributedSampler(data, processes, rank, seed=0)
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler, drop_last=True)
    model = DistributedDataParallel(Reader(args.words, args.width))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    tally = Tally(processes, args.mended)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for tokens, classes in loader:
            scores = model(tokens)
            loss = nn.functional.cross_entropy(scores, classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            tally.add(scores.detach(), classes)
        report = tally.report()
        if rank == 0:
            print(f"epoch {epoch}: {report}")
    dist.destroy_process_group()


def main() -> None:
    """Start the processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--patents", type=int, default=3200)
    parser.add_argument("--length", type=int, default=48)
    parser.add_argument("--words", type=int, default=4800)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        meeting = os.path.join(folder, "meeting")
        mp.spawn(work, args=(args.processes, meeting, args), nprocs=args.processes)


if __name__ == "__main__":
    main()
