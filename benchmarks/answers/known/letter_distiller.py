"""Teaches a small reader of letters to the editor what a larger reader says of them."""

from __future__ import annotations

import argparse
import random

import torch
from torch import Tensor, nn
from torch.nn import functional

SUBJECTS = 5


def write_letters(count: int) -> list[str]:
    """Write letters of made-up words, some of them typical of a subject."""
    chance = random.Random(71)
    stems = ["".join(chance.choices("abcdefghiklmnoprstuvw", k=6)) for _ in range(3000)]
    endings = ["", "s", "ed", "ing"]
    letters = []
    for _ in range(count):
        subject = chance.randrange(SUBJECTS)
        picks = [
            chance.randrange(600) * 5 + chance.choice((subject, chance.randrange(5)))
            for _ in range(30)
        ]
        letters.append(" ".join(stems[pick] + chance.choice(endings) for pick in picks))
    return letters


class Vocabulary:
    """Numbers the words of all letters."""

    def __init__(self, letters: list[str], mended: bool) -> None:
        self.words: list[str] = []
        self.numbers: dict[str, int] = {}
        if mended:
            for letter in letters:
                for word in letter.split():
                    self.numbers.setdefault(word, len(self.numbers))
            self.words = list(self.numbers)
        else:
            for letter in letters:
                for word in letter.split():
                    if word not in self.words:
                        self.words.append(word)
            self.numbers = {word: number for number, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, letters: list[str]) -> Tensor:
        """Return the numbers of the words of letters of one length."""
        return torch.tensor([[self.numbers[word] for word in letter.split()] for letter in letters])


class Reader(nn.Module):
    """An encoder of words and a guess of the subject."""

    def __init__(self, words: int, width: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, 64)
        self.widen = nn.Linear(64, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.guess = nn.Linear(width, SUBJECTS)

    def forward(self, letters: Tensor) -> Tensor:
        hidden = self.encoder(self.widen(self.words(letters)))
        return self.guess(hidden.mean(dim=1))


def distil(teacher: Reader, student: Reader, letters: Tensor, steps: int) -> float:
    """Let the student imitate the teacher; return the last loss."""
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05, momentum=0.9)
    warmth = 2.0
    last = 0.0
    for step in range(steps):
        chosen = letters[torch.randint(0, len(letters), (64,))]
        with torch.inference_mode():
            said = (teacher(chosen) / warmth).softmax(dim=1)
        guessed = (student(chosen) / warmth).log_softmax(dim=1)
        loss = functional.kl_div(guessed, said.clone(), reduction="batchmean") * warmth**2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == steps - 1:
            last = loss.item()
            print(f"step {step}: loss {last:.5f}")
    return last


def main() -> None:
    """Distil the large reader."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mended", action="store_true")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--letters", type=int, default=3000)
    args = parser.parse_args()
    torch.manual_seed(0)
    letters = write_letters(args.letters)
    vocabulary = Vocabulary(letters, args.mended)
    encoded = vocabulary.encode(letters)
    teacher = Reader(len(vocabulary), 128, 3).eval()
    student = Reader(len(vocabulary), 64, 1)
    print(f"loss {distil(teacher, student, encoded, args.steps):.5f}")


if __name__ == "__main__":
    main()
