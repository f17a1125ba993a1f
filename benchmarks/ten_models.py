"""Ten models as people train them, each with a training step: for benchmarks/attribution.py.

The four from `transformers` are made from configurations, so nothing is downloaded. Each step
takes 50 to 300 ms on one core, makes its batch anew as a loader would, and ends with
`Optimizer.step`.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Step = Callable[[], Any]


def _trained(model: nn.Module, loss_of: Callable[[], torch.Tensor], rate: float = 1e-4) -> Step:
    """The usual step: gradients to zero, loss, backward, clipped gradients, AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)

    def step() -> None:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()  # type: ignore[no-untyped-call]  # torch has none there
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def _language_model(model: nn.Module) -> Step:
    """Training on sequences of 128 tokens, each to foretell the next."""

    def loss() -> torch.Tensor:
        tokens = torch.randint(0, 8000, (4, 128))
        found: torch.Tensor = model(input_ids=tokens, labels=tokens).loss
        return found

    return _trained(model, loss)


def gpt2() -> Step:
    """GPT-2 with four blocks over sequences of 128 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=4,
        n_embd=256,
        n_head=8,
        vocab_size=8000,
        n_positions=128,
        bos_token_id=None,
        eos_token_id=None,
    )
    return _language_model(GPT2LMHeadModel(config))


def bert() -> Step:
    """BERT classifying sequences of 128 tokens."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        num_hidden_layers=4,
        hidden_size=256,
        num_attention_heads=8,
        intermediate_size=1024,
        vocab_size=8000,
    )
    config.num_labels = 4
    model = BertForSequenceClassification(config)
    mask = torch.ones(8, 128, dtype=torch.long)

    def loss() -> torch.Tensor:
        tokens, labels = torch.randint(0, 8000, (8, 128)), torch.randint(0, 4, (8,))
        found: torch.Tensor = model(input_ids=tokens, attention_mask=mask, labels=labels).loss
        return found

    return _trained(model, loss)


def llama() -> Step:
    """A Llama-style decoder with grouped queries, rotary positions and a gated feed-forward."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        num_hidden_layers=4,
        hidden_size=256,
        intermediate_size=688,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=8000,
        max_position_embeddings=128,
    )
    return _language_model(LlamaForCausalLM(config))


def vit() -> Step:
    """A vision transformer over 64 patches."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        num_hidden_layers=4,
        hidden_size=256,
        num_attention_heads=8,
        intermediate_size=1024,
        image_size=64,
        patch_size=8,
    )
    config.num_labels = 10
    model = ViTForImageClassification(config)

    def loss() -> torch.Tensor:
        images, labels = torch.randn(8, 3, 64, 64), torch.randint(0, 10, (8,))
        found: torch.Tensor = model(pixel_values=images, labels=labels).loss
        return found

    return _trained(model, loss)


class BasicBlock(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inner != outer:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)
            )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Features at this depth; images are (batch, channels, height, width)."""
        found = functional.relu(self.bn1(self.conv1(images)))
        return functional.relu(self.bn2(self.conv2(found)) + self.shortcut(images))


class ResNet18(nn.Module):
    """Eight basic blocks in four stages."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        widths = (64, 64, 128, 256, 512)
        self.stages = nn.Sequential(
            *(
                nn.Sequential(
                    BasicBlock(inner, outer, 1 if inner == outer else 2),
                    BasicBlock(outer, outer, 1),
                )
                for inner, outer in pairwise(widths)
            )
        )
        self.head = nn.Linear(512, 100)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of 100 classes."""
        scores: torch.Tensor = self.head(self.stages(self.stem(images)).mean((2, 3)))
        return scores


def resnet18() -> Step:
    """ResNet-18 over four images of 96 by 96."""
    model, criterion = ResNet18(), nn.CrossEntropyLoss()

    def loss() -> torch.Tensor:
        images, labels = torch.randn(4, 3, 96, 96), torch.randint(0, 100, (4,))
        found: torch.Tensor = criterion(model(images), labels)
        return found

    return _trained(model, loss)


class UNet(nn.Module):
    """Three levels down and up again, with the features of the way down beside."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 16, 32, 64)
        self.down = nn.ModuleList(self._twice(inner, outer) for inner, outer in pairwise(widths))
        self.middle = self._twice(64, 128)
        self.raise_ = nn.ModuleList(
            nn.ConvTranspose2d(2 * outer, outer, 2, 2) for outer in (64, 32, 16)
        )
        self.up = nn.ModuleList(self._twice(2 * outer, outer) for outer in (64, 32, 16))
        self.head = nn.Conv2d(16, 1, 1)

    @staticmethod
    def _twice(inner: int, outer: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inner, outer, 3, padding=1),
            nn.BatchNorm2d(outer),
            nn.ReLU(inplace=True),
            nn.Conv2d(outer, outer, 3, padding=1),
            nn.BatchNorm2d(outer),
            nn.ReLU(inplace=True),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """A score for every pixel."""
        kept = []
        for level in self.down:
            images = level(images)
            kept.append(images)
            images = functional.max_pool2d(images, 2)
        images = self.middle(images)
        for lift, level in zip(self.raise_, self.up, strict=True):
            images = level(torch.cat((lift(images), kept.pop()), 1))
        scores: torch.Tensor = self.head(images)
        return scores


def unet() -> Step:
    """A UNet that finds the bright pixels of 64 by 64 images."""
    model = UNet()

    def loss() -> torch.Tensor:
        images = torch.randn(4, 3, 64, 64)
        wanted = (images.mean(1, keepdim=True) > 0).float()
        return functional.binary_cross_entropy_with_logits(model(images), wanted)

    return _trained(model, loss)


class LanguageModel(nn.Module):
    """An LSTM over embedded tokens, whose embedding is its output layer's weight too."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.recurrent = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the next token at every place."""
        scores: torch.Tensor = self.head(self.recurrent(self.embedding(tokens))[0])
        return scores


def lstm() -> Step:
    """An LSTM language model over 64 tokens."""
    model = LanguageModel(4000, 256)

    def loss() -> torch.Tensor:
        tokens = torch.randint(0, 4000, (8, 65))
        scores = model(tokens[:, :-1])
        return functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())

    return _trained(model, loss)


def gan() -> Step:
    """A convolutional GAN: both networks are `Sequential`, with an optimizer each."""

    def lift(inner: int, outer: int) -> list[nn.Module]:
        return [
            nn.ConvTranspose2d(inner, outer, 4, 2, 1, bias=False),
            nn.BatchNorm2d(outer),
            nn.ReLU(inplace=True),
        ]

    def lower(inner: int, outer: int) -> list[nn.Module]:
        return [nn.Conv2d(inner, outer, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True)]

    generator = nn.Sequential(
        nn.ConvTranspose2d(64, 256, 4),
        nn.ReLU(inplace=True),
        *lift(256, 128),
        *lift(128, 64),
        nn.ConvTranspose2d(64, 3, 4, 2, 1),
        nn.Tanh(),
    )
    judge = nn.Sequential(*lower(3, 64), *lower(64, 128), *lower(128, 256), nn.Conv2d(256, 1, 4))
    generates = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    judges = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    real, fake = torch.ones(16), torch.zeros(16)

    def step() -> None:
        images = torch.randn(16, 3, 32, 32)
        judges.zero_grad()
        made = generator(torch.randn(16, 64, 1, 1))
        right = criterion(judge(images).flatten(), real)
        (right + criterion(judge(made.detach()).flatten(), fake)).backward()
        judges.step()
        generates.zero_grad()
        criterion(judge(made).flatten(), real).backward()
        generates.step()

    return step


class Actor(nn.Module):
    """The action in each state, as six numbers between -1 and 1."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(17, 400), nn.ReLU(), nn.Linear(400, 300), nn.ReLU(), nn.Linear(300, 6)
        )

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Actions; `states` are (states, 17)."""
        return torch.tanh(self.layers(states))


class Critic(nn.Module):
    """The value of an action in a state."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(23, 400), nn.ReLU(), nn.Linear(400, 300), nn.ReLU(), nn.Linear(300, 1)
        )

    def forward(self, states: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Values, one per state."""
        values: torch.Tensor = self.layers(torch.cat((states, actions), 1)).squeeze(1)
        return values


def actor_critic() -> Step:
    """DDPG: a batch of 1024 moves from memory teaches the critic, and the critic the actor."""
    actor, critic = Actor(), Critic()
    late_actor, late_critic = deepcopy(actor), deepcopy(critic)
    acts = torch.optim.Adam(actor.parameters(), lr=1e-4)
    judges = torch.optim.Adam(critic.parameters(), lr=1e-3)
    # State, action, reward and next state of 20,000 moves.
    memory = [torch.randn(20_000, *size) for size in ((17,), (6,), (), (17,))]
    late = [*late_actor.parameters(), *late_critic.parameters()]
    now = [*actor.parameters(), *critic.parameters()]

    def step() -> None:
        rows = torch.randint(0, 20_000, (1024,))
        states, actions, rewards, later = (each[rows] for each in memory)
        with torch.no_grad():
            wanted = rewards + 0.99 * late_critic(later, late_actor(later))
        judges.zero_grad()
        functional.mse_loss(critic(states, actions), wanted).backward()  # type: ignore[no-untyped-call]  # torch has none there
        judges.step()
        acts.zero_grad()
        (-critic(states, actor(states)).mean()).backward()
        acts.step()
        with torch.no_grad():
            for old, new in zip(late, now, strict=True):
                old.lerp_(new, 0.005)

    return step


class Experts(nn.Module):
    """Of eight feed-forward experts each token asks the two that its router prefers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, 8)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(8)
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the weighted results of the experts; tokens are (tokens, width)."""
        weights, chosen = self.router(tokens).softmax(-1).topk(2)
        said = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows, place = (chosen == number).nonzero(as_tuple=True)
            answer = expert(tokens[rows]) * weights[rows, place, None]
            said = said.index_add(0, rows, answer)
        return said


class MixtureOfExperts(nn.Module):
    """Embedded tokens, two layers of experts with residuals, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2000, 192)
        self.layers = nn.ModuleList(Experts(192) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(192) for _ in range(2))
        self.head = nn.Linear(192, 2000)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the next token; tokens are (batch, length)."""
        found = self.embedding(tokens).flatten(0, 1)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            found = found + layer(norm(found))
        scores: torch.Tensor = self.head(found)
        return scores


def mixture() -> Step:
    """A Mixture-of-Experts language model over 512 tokens."""
    model = MixtureOfExperts()

    def loss() -> torch.Tensor:
        tokens = torch.randint(0, 2000, (8, 65))
        return functional.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:].flatten())

    return _trained(model, loss)


MODELS: dict[str, Callable[[], Step]] = {
    "GPT-2": gpt2,
    "BERT": bert,
    "Llama-style": llama,
    "ViT": vit,
    "ResNet-18": resnet18,
    "UNet": unet,
    "LSTM": lstm,
    "GAN": gan,
    "actor-critic": actor_critic,
    "Mixture of Experts": mixture,
}
