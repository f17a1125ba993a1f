"""Matching: renamed and moved functions, lines and modules; what has no partner stays."""

import pytest

from profstack.compare.matching import Sources, match_functions, match_modules
from profstack.findings.reading import FunctionKey
from tests.support.reports import row

BEFORE = """\
import torch

def scaled(sample):
    sample = sample * 2
    return sample + 1

def gone(a):
    return a.sum().sqrt().log()

class Data:
    def __getitem__(self, at):
        return scaled(self.items[at])
"""
AFTER = """\
import torch
import math

class Data:
    def __getitem__(self, at):
        return augmented(self.items[at])

def augmented(sample):
    sample = sample * 2
    sample = sample.flip(0)
    return sample + 1

def brand_new(values, other):
    print("something else entirely")
"""
PATHS = ("/old/train.py", "/new/place/train.py")


def _sources(before=BEFORE, after=AFTER):
    reports = []
    for path, text in zip(PATHS, (before, after), strict=True):
        tables = {"functions": [], "lines": [{"own": True, "file": path}]}
        reports.append({"sources": [{"file": path, "text": text}], "tables": tables})
    return Sources(*reports)


def _line(text, part):
    return next(at for at, line in enumerate(text.splitlines(), 1) if part in line)


def _keys(text, path, *names):
    return [FunctionKey(path, _line(text, f"def {name}("), name) for name in names]


def test_functions_are_paired_through_moves_and_new_names():
    library = "/old/lib/python3.11/site-packages/torch/nn/modules/linear.py"
    other = library.replace("/old/lib", "/x/venv/lib")
    before = _keys(BEFORE, PATHS[0], "__getitem__", "gone", "scaled")
    after = _keys(AFTER, PATHS[1], "brand_new", "__getitem__", "augmented")
    built_in = FunctionKey("~", 0, "<built-in method apply of type object at 0x7f01>")
    before += [FunctionKey(library, 10, "forward"), built_in]
    after += [built_in._replace(name="<built-in method apply of type object at 0x55aa>"),
              FunctionKey(other, 12, "forward")]  # fmt: skip
    pairs, left, free = match_functions(before, after, _sources())
    found = {one.name: other.name for one, other in pairs}
    named = {"__getitem__": "__getitem__", "scaled": "augmented", "forward": "forward"}
    assert found == named | {before[-1].name: after[-2].name}
    assert ([key.name for key in left], [key.name for key in free]) == (["gone"], ["brand_new"])


def test_lines_are_followed_to_their_place_on_the_other_side():
    sources = _sources()
    for part in ("sample = sample * 2", "return sample + 1", "def __getitem__", "import torch"):
        place = sources.line(PATHS[0], _line(BEFORE, part))
        assert place == (PATHS[1], _line(AFTER, part)), part
    assert sources.line(PATHS[0], _line(BEFORE, "sqrt")) is None
    # Without the texts nothing is known of moves.
    assert _sources("", "").line(PATHS[0], 7) == (PATHS[1], 7)


def _modules(*rows):
    return [row("modules", path=path, type=kind, parameters=size) for path, kind, size in rows]


PLAIN = (
    ("Net", "Net", 30), ("Net.stem", "Linear", 10), ("Net.blocks", "Sequential", 20),
    ("Net.blocks.0", "Block", 12), ("Net.blocks.1", "Block", 8), ("(optimizer)", "", None),
)  # fmt: skip


@pytest.mark.parametrize(("prefix", "around"), [
    ("DataParallel.module", [("DataParallel", "DataParallel", 30)]),
    ("OptimizedModule._orig_mod", [("OptimizedModule", "OptimizedModule", 30)]),
    ("Trainer.model.student", [("Trainer", "Trainer", 99), ("Trainer.model", "Pair", 99)]),
    ("Renamed", []),
])  # fmt: skip
def test_modules_are_paired_below_what_a_model_is_put_in(prefix, around):
    inside = [(prefix + path.removeprefix("Net"), kind, size) for path, kind, size in PLAIN[:-1]]
    if not around:
        inside[0] = (prefix, "Renamed", 30)
    found = match_modules(_modules(*PLAIN), _modules(*around, *inside, PLAIN[-1]))
    expected = {path: prefix + path.removeprefix("Net") for path, _, _ in PLAIN[:-1]}
    assert found == {**expected, "(optimizer)": "(optimizer)"}


def test_a_module_put_in_between_is_new_and_the_others_keep_their_partners():
    after = (*PLAIN[:3], ("Net.blocks.0", "Block", 12), ("Net.blocks.1", "Norm", 2),
             ("Net.blocks.2", "Block", 8), PLAIN[-1])  # fmt: skip
    found = match_modules(_modules(*PLAIN), _modules(*after))
    assert found["Net.blocks.1"] == "Net.blocks.2"
    assert "Net.blocks.1" not in found.values()
