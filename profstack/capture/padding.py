"""Note how much of the tokens that a model is given is padding.

Tokens are integers that an embedding takes, that are named so, or that a mask belongs to; labels,
types and positions are none. The mask says what is padding where there is one, else the embedding's
`padding_idx`, else the token that most rows end in again and again.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from profstack.models import can_be_read

# A shorter row is no sequence of tokens, and a larger batch takes too long to read.
_SHORTEST = 8
_MOST_READ = 1 << 22
_TOKENS = re.compile(r"(^|_)(ids|tokens?)$")
_OTHERS = re.compile(r"label|target|type|position|segment|mask")
_MASK = re.compile(r"mask")


@dataclass
class _Counts:
    """Tokens that the model was given in so many batches: all of them, and those of padding.

    `unused` are those behind the longest sequence of their batch.
    """

    inputs: int = 0
    tokens: int = 0
    padded: int = 0
    unused: int = 0


class PaddingNotes:
    """Counts over the outermost calls; tensors are held only while a call lasts."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._embeddings = (torch.nn.Embedding, torch.nn.EmbeddingBag)
        self._counts = _Counts()
        # Rows and tokens of the batch before.
        self._shape = (0, 0)
        self._named: dict[str, Any] = {}
        # Size and `padding_idx` of the largest embedding that takes a tensor, by its name.
        self._embedded: dict[str, tuple[int, int | None]] = {}

    def call_begins(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Look through the inputs of an outermost call."""
        self.forget()
        code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
        names = code.co_varnames[1 : code.co_argcount] if code is not None else ()
        named = {f"argument {at}": value for at, value in enumerate(args[len(names) :])}
        named |= {**dict(zip(names, args, strict=False)), **kwargs}
        # Data sets of language give the model one dictionary.
        mapping = next((each for each in named.values() if type(each) is dict), {})
        for name, value in {**named, **mapping}.items():
            if type(name) is str and self._is_sequence(name, value):
                self._named[name] = value

    def embedding_begins(self, module: Any, args: tuple[Any, ...]) -> None:
        """Note which of the inputs an embedding takes."""
        if not self._named or not args or not issubclass(type(module), self._embeddings):
            return
        taken = args[0]
        if type(taken) is not self._torch.Tensor or taken.layout is not self._torch.strided:
            return
        own = object.__getattribute__(module, "__dict__")
        for name, value in self._named.items():
            is_it = value.data_ptr() == taken.data_ptr() and value.numel() == taken.numel()
            size = own.get("num_embeddings") or 0
            if is_it and size > self._embedded.get(name, (0, None))[0]:
                self._embedded[name] = (size, own.get("padding_idx"))

    def call_ends(self) -> None:
        """Count the padding of the call's tokens."""
        found = self._tokens()
        if found is not None:
            self._count(*found)
        self.forget()

    def forget(self) -> None:
        """Let go of what a call was given."""
        self._named, self._embedded = {}, {}

    def facts(self) -> dict[str, int] | None:
        """Return the counts; None where no tokens were seen."""
        return asdict(self._counts) if self._counts.inputs else None

    def _is_sequence(self, name: str, value: Any) -> bool:
        torch = self._torch
        if type(value) is not torch.Tensor or value.layout is not torch.strided:
            return False
        if not can_be_read(torch, value):
            return False
        integers = value.dtype in (torch.int64, torch.int32)
        shape = tuple(value.shape)
        is_long = len(shape) == 2 and shape[1] >= _SHORTEST and 0 < value.numel() <= _MOST_READ
        return is_long and (integers or bool(_MASK.search(name)))

    def _tokens(self) -> tuple[Any, int | None, list[Any]] | None:
        """Return the tokens, the `padding_idx` of their embedding, and masks of their shape."""
        masks = [value for name, value in self._named.items() if _MASK.search(name)]
        largest = max(self._embedded.items(), key=lambda each: each[1], default=None)
        if largest is not None:
            name, (_, index) = largest
        else:
            integers = [name for name in self._named if not _OTHERS.search(name)]
            spoken = [name for name in integers if _TOKENS.search(name)]
            name, index = next(iter(spoken or (integers if masks else ())), ""), None
        tokens = self._named.get(name)
        if tokens is None:
            return None
        return tokens, index, [mask for mask in masks if mask.shape == tokens.shape]

    def _count(self, tokens: Any, index: int | None, masks: list[Any]) -> None:
        with self._torch._C.DisableTorchFunction():
            values = tokens.detach().cpu().numpy()
            told = [mask.detach().bool().cpu().numpy() for mask in masks]
        # A single value throughout is an example, and no text.
        if (values == values[0, 0]).all():
            return
        padded = next(
            (found for mask in told if (found := _masked(values, mask)) is not None), None
        )
        # Text that is one token longer at each call is being generated: what it repeats was made.
        (rows, length), (before, shorter) = values.shape, self._shape
        self._shape = rows, length
        is_made = rows == 1 or (rows == before and length == shorter + 1)
        if padded is None and index is None and is_made:
            padded = values != values
        elif padded is None:
            padded = _repeated(values, index)
        counts = self._counts
        counts.inputs += 1
        counts.tokens += values.size
        counts.padded += int(padded.sum())
        counts.unused += len(values) * int(padded.all(axis=0).sum())


def _masked(values: Any, mask: Any) -> Any:
    """Return the tokens of padding by a mask; None of a mask that is about something else.

    Masks are true of padding or of all else: padding is one token again and again.
    """
    if mask.all() or not mask.any():
        return mask & ~mask
    sides = (side for side in (~mask, mask) if len(set(values[side].tolist())) == 1)
    return next(sides, None)


def _repeated(values: Any, index: int | None) -> Any:
    """Return the tokens of padding by the one that rows end in, or that the embedding says."""
    is_padding = values == (
        Counter(values[:, -1].tolist()).most_common(1)[0][0] if index is None else index
    )
    # From each end on, as long as there is nothing else.
    right = is_padding[:, ::-1].cumprod(axis=1, dtype=bool)[:, ::-1]
    # One alone is the end of a text.
    right[right.sum(axis=1) == 1] = False
    return right if index is None else right | is_padding.cumprod(axis=1, dtype=bool)
