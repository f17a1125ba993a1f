"""What of the tokens that a model is given is padding, and which of its inputs tokens are."""

import pytest
import torch
from torch import nn

from profstack.capture.setup_notes import SetupNotes
from profstack.code_owner import Places
from tests.support.tables import cases

IDS = torch.arange(1, 31).reshape(3, 10)
IDS[0, 4:], IDS[1, 7:], IDS[2, 8:] = 0, 0, 0
COUNTS = {"inputs": 1, "tokens": 30, "padded": 6 + 3 + 2, "unused": 3 * 2}


class Net(nn.Module):
    def forward(self, text, kinds=None, attention_mask=None):
        pass


def noted(*args, embeddings=(), **kwargs):
    """The padding of one call, in which embeddings take tensors."""
    notes = SetupNotes(torch, Places.of("/nowhere"))
    notes.given(None, args, kwargs)
    notes.enter("module", "Net", Net())
    for embedding, taken in embeddings:
        notes.given(object(), (taken,), {})
        notes.enter("module", "Net.e", embedding)
        notes.leave("module", "")
    notes.leave("module", "")
    return notes.facts()["padding"]


@cases("name", "input_ids; tokens; token_ids; decoder_input_ids")
def test_tokens_are_known_by_their_name(name):
    assert noted(**{"labels": torch.ones_like(IDS), name: IDS.int()}) == COUNTS
    assert noted({"token_type_ids_": IDS, "labels": IDS, name: IDS}) == COUNTS


def test_what_nothing_says_to_be_tokens_is_none():
    for name in ("labels", "token_type_ids", "position_ids", "attention_mask", "text"):
        assert noted(**{name: IDS}) is None, name
    tables = {"floats": IDS.float(), "short": IDS[:, :7], "own": nn.Parameter(IDS.float())}
    for value in (*tables.values(), "x", IDS[0]):
        assert noted(input_ids=value) is None
    # A mask, or zeros, or an example of one token has no padding.
    assert noted(input_ids=torch.ones_like(IDS)) is None


def test_the_largest_embedding_says_which_input_is_tokens_and_what_pads_them():
    words, types = nn.Embedding(99, 2), nn.Embedding(2, 2)
    kinds = torch.zeros_like(IDS)
    taken = ((types, kinds), (words, IDS), (types, IDS))
    assert noted(IDS, kinds, embeddings=taken) == COUNTS
    # A view of it is the same one, a column is not.
    assert noted(IDS, embeddings=[(words, IDS.view(-1))]) == COUNTS
    assert noted(IDS, embeddings=[(words, IDS[:, 0]), (nn.Linear(1, 1), IDS)]) is None
    # On the left only the embedding's own word for it counts.
    left = IDS.flip(1).contiguous()
    padding = nn.Embedding(99, 2, padding_idx=0)
    assert noted(left, embeddings=[(padding, left)]) == COUNTS
    assert noted(left, embeddings=[(words, left)])["padded"] == 0
    begins = IDS.clone()
    begins[1, 0] = 0
    assert noted(input_ids=begins) == COUNTS


def test_a_mask_says_best_what_is_padding():
    keep = IDS != 0
    for mask in (keep, keep.long(), keep.float(), ~keep):
        assert noted(IDS, attention_mask=mask) == COUNTS
    # All of it counts, or the mask is about something else than padding.
    full = COUNTS | {"padded": 0, "unused": 0}
    assert noted(IDS, None, torch.ones_like(IDS)) == full
    random = torch.tensor([[True, False] * 5] * 3)
    assert noted(input_ids=IDS, mlm_mask=random) == COUNTS
    assert noted(input_ids=IDS, attention_mask=torch.ones(1, 1, 3, 10)) == COUNTS


def test_a_row_that_ends_in_one_such_token_ends_there_and_counts_add_up():
    tokens = IDS.clone()
    tokens[:, 8:] = torch.tensor([[5, 9], [6, 9], [9, 9]])
    tokens = torch.cat((tokens, torch.full((1, 10), 9)))
    expected = {"inputs": 1, "tokens": 40, "padded": 2 + 10, "unused": 0}
    assert noted(input_ids=tokens) == expected
    notes = SetupNotes(torch, Places.of("/nowhere"))
    for number in range(3):
        notes.given(None if number < 2 else object(), (), {"input_ids": IDS})
        notes.enter("module" if number < 2 else "backward", "Net", Net())
        notes.leave("module" if number < 2 else "backward", "")
    assert notes.facts()["padding"] == {name: 2 * count for name, count in COUNTS.items()}


def test_what_a_model_has_made_itself_is_no_padding():
    notes = SetupNotes(torch, Places.of("/nowhere"))
    texts = (*(IDS[:, :length] for length in (9, 10)), IDS[:1])
    for text in texts:
        notes.given(None, (), {"input_ids": text.contiguous()})
        notes.enter("module", "Net", Net())
        notes.leave("module", "")
    # Of the first it is not known yet.
    counts = {"inputs": 3, "tokens": 27 + 30 + 10, "padded": 5 + 2, "unused": 0}
    assert notes.facts()["padding"] == counts


@pytest.fixture(autouse=True)
def _untouched():
    before = IDS.clone()
    yield
    assert torch.equal(IDS, before)
