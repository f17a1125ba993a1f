"""Training loops that the GPU check runs under every layer, and by hand.

A ResNet-18, a GPT-2 and an MLP, written in torch alone. `profstack run scripts/gpu_workloads.py
resnet18` measures one; with `--hand` it is timed without profstack, by events that are read when
all is over. The last line it prints is a JSON object: what torch itself says of the run, which the
check compares with the report.

`--mistake` plants one: `item` waits for the loss and for a count in each step, `pageable` copies
each batch from pageable memory, `float32` multiplies without TF32.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
# `small` is an MLP whose step is short enough that waiting once or twice in it shows.
MODELS = ("resnet18", "gpt2", "mlp", "small")
MISTAKES = ("item", "pageable", "float32")


@dataclass(frozen=True)
class Size:
    """How large one workload is; `full` sizes keep a data-centre GPU busy, `tiny` ones a test."""

    batch: int
    # Side of an image, tokens of a sequence, or features of a row.
    extent: int
    width: int
    depth: int
    steps: int


SIZES: dict[str, dict[str, Size]] = {
    "full": {
        "resnet18": Size(batch=64, extent=224, width=0, depth=0, steps=400),
        "gpt2": Size(batch=8, extent=512, width=768, depth=12, steps=300),
        "mlp": Size(batch=4096, extent=2048, width=4096, depth=6, steps=800),
        "small": Size(batch=2048, extent=1024, width=2048, depth=6, steps=1500),
    },
    "tiny": {
        "resnet18": Size(batch=2, extent=64, width=0, depth=0, steps=40),
        "gpt2": Size(batch=2, extent=16, width=32, depth=2, steps=150),
        "mlp": Size(batch=64, extent=64, width=128, depth=3, steps=300),
        "small": Size(batch=16, extent=16, width=32, depth=2, steps=300),
    },
}
VOCABULARY = {"full": 50257, "tiny": 256}
HEAD_WIDTH = {"full": 64, "tiny": 16}
CLASSES = 1000


class Attention(nn.Module):
    """Causal self-attention, query, key and value from one product."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attend within each sequence."""
        batch, length, width = x.shape
        heads = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        joined: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return joined


class Block(nn.Module):
    """One layer of a GPT-2: attention and a wide MLP, each after a normalisation."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Add what attention and then the MLP make of it."""
        x = x + self.attention(self.norm_1(x))
        made: Tensor = x + self.mlp(self.norm_2(x))
        return made


class Gpt2(nn.Module):
    """The published architecture, the head's weights its own; random weights."""

    def __init__(self, size: Size, vocabulary: int, head_width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, size.width)
        self.positions = nn.Embedding(size.extent, size.width)
        heads = size.width // head_width
        self.blocks = nn.Sequential(*(Block(size.width, heads) for _ in range(size.depth)))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next token, at every place."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        scores: Tensor = self.head(self.norm(self.blocks(x)))
        return scores


class Mlp(nn.Module):
    """Equal wide layers, so that products of matrices are nearly all there is."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.into = nn.Linear(size.extent, size.width)
        self.hidden = nn.Sequential(
            *(
                nn.Sequential(nn.ReLU(), nn.Linear(size.width, size.width))
                for _ in range(size.depth)
            )
        )
        self.out = nn.Linear(size.width, CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        """Scores of the classes."""
        scores: Tensor = self.out(self.hidden(self.into(rows)))
        return scores


def make_model(name: str, scale: str) -> nn.Module:
    """The model in training, on the CPU."""
    size = SIZES[scale][name]
    if name == "resnet18":
        # The one of `profstack bench`'s example.
        sys.path.insert(0, str(EXAMPLES))
        made: nn.Module = import_module("bench_resnet18").ResNet18(CLASSES)
        return made
    if name == "gpt2":
        return Gpt2(size, VOCABULARY[scale], HEAD_WIDTH[scale])
    return Mlp(size)


def mlp_flop(size: Size) -> int:
    """Operations of one training step's products of matrices, a multiply-add being two."""
    into, inner = size.extent * size.width, size.depth * size.width**2 + size.width * CLASSES
    # Nobody asks for the gradient of the inputs: the first product has one backward, not two.
    return 2 * size.batch * (2 * into + 3 * inner)


def make_batch(name: str, scale: str, batch: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of one step, on the CPU."""
    size = SIZES[scale][name]
    if name == "resnet18":
        images = torch.randn(batch, 3, size.extent, size.extent)
        return images, torch.randint(CLASSES, (batch,))
    if name == "gpt2":
        tokens = torch.randint(VOCABULARY[scale], (batch, size.extent + 1))
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    return torch.randn(batch, size.extent), torch.randint(CLASSES, (batch,))


def throughput_full(batch_size: int = 1) -> tuple[nn.Module, tuple[Tensor]]:
    """ResNet-18 at inference, for `profstack bench --throughput`."""
    return make_model("resnet18", "full").eval(), (make_batch("resnet18", "full", batch_size)[0],)


def throughput_tiny(batch_size: int = 1) -> tuple[nn.Module, tuple[Tensor]]:
    """The small MLP at inference, likewise."""
    return make_model("mlp", "tiny").eval(), (make_batch("mlp", "tiny", batch_size)[0],)


class Timer:
    """Times of steps by events that are read at the end; by the host's clock without CUDA."""

    def __init__(self, device: str) -> None:
        self._on_device = device == "cuda"
        self._marks: list[torch.cuda.Event | float] = []

    def mark(self) -> None:
        """A step ends here."""
        if not self._on_device:
            self._marks.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's
        event.record()
        self._marks.append(event)

    def seconds(self) -> list[float]:
        """Times between the marks, once the device has passed them all."""
        if self._on_device:
            torch.cuda.synchronize()
        pairs = zip(self._marks, self._marks[1:], strict=False)
        return [_between_s(first, second) for first, second in pairs]


def _between_s(first: torch.cuda.Event | float, second: torch.cuda.Event | float) -> float:
    if isinstance(first, float) or isinstance(second, float):
        assert isinstance(first, float)
        assert isinstance(second, float)
        return second - first
    return float(first.elapsed_time(second)) / 1e3


def batches(options: argparse.Namespace) -> Iterator[tuple[Tensor, Tensor]]:
    """The same batch at every step: on the device already, or on its way there if so planted."""
    size = SIZES[options.scale][options.model]
    inputs, targets = make_batch(options.model, options.scale, size.batch)
    if options.mistake != "pageable":
        inputs, targets = inputs.to(options.device), targets.to(options.device)
    while True:
        yield inputs.to(options.device), targets.to(options.device)


def train(options: argparse.Namespace, mark: Callable[[], None]) -> float:
    """Run the loop; the last loss, which is the only wait unless one is planted."""
    torch.manual_seed(0)
    # What the TF32 finding looks for, unless it is planted, is on.
    tf32 = options.mistake != "float32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    model = make_model(options.model, options.scale).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    total, right, source = 0.0, 0, batches(options)
    loss = torch.zeros(())
    for _ in range(options.steps or SIZES[options.scale][options.model].steps):
        inputs, targets = next(source)
        optimizer.zero_grad(set_to_none=True)
        scores = model(inputs)
        loss = functional.cross_entropy(scores.flatten(0, -2), targets.flatten())
        if options.mistake == "item":
            total += loss.item()
            right += int((scores.argmax(-1) == targets).sum().item())
        loss.backward()  # type: ignore[no-untyped-call]  # torch's
        optimizer.step()
        mark()
    return float(loss.item())


def said(options: argparse.Namespace, loss: float, seconds: list[float]) -> dict[str, object]:
    """Return torch's own figures of the run; seconds are those of the hand-timed steps."""
    # The first quarter is the warm-up.
    warm = seconds[len(seconds) // 4 :]
    facts: dict[str, object] = {"loss": loss, "median_s": statistics.median(warm) if warm else None}
    if options.device == "cuda":
        facts["max_memory_allocated"] = torch.cuda.max_memory_allocated()
        facts["memory_allocated"] = torch.cuda.memory_allocated()
    return facts


def main() -> None:
    """Train as the options say, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scale", choices=tuple(SIZES), default="full")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--mistake", choices=MISTAKES)
    parser.add_argument("--hand", action="store_true", help="time it without profstack")
    options = parser.parse_args()
    timer = Timer(options.device)
    loss = train(options, timer.mark if options.hand else _nothing)
    sys.stdout.write(json.dumps(said(options, loss, timer.seconds())) + "\n")


def _nothing() -> None:
    """Without a hand there is nothing to mark: profstack finds the steps by itself."""


if __name__ == "__main__":
    main()
