"""Edits of the user's file: what they change, that git takes them, and when there is none."""

import subprocess

from profstack.changes.built_in import changes
from profstack.changes.contract import Edit, Seen
from profstack.changes.edits import own_path, patch_of, words_of
from tests.support.tables import cases

TEXT = '''\
"""A training with umlauts: äöü."""
import torch
from torch.utils.data import DataLoader

def train(epochs):
    net = Net()
    opt = torch.optim.AdamW(
        net.parameters(),
        lr=1e-3,
    )
    loader = DataLoader(Rows(), batch_size=4, shuffle=True); other = 3
    test = DataLoader(Rows())
    for epoch in range(epochs):
        for x, y in loader:
            out = net(
                x)  # é
            opt.zero_grad(set_to_none=False)
    return [net(x) for x, y in test]
'''
AUTOCAST = "with torch.autocast('cpu', dtype=torch.bfloat16)"
SEEN = Seen(root={"name": "net", "block": "Layer"}, optimizers=[{"name": "AdamW"}])


def edited(name, line, value=None, seen=SEEN, text=TEXT):
    return patch_of(changes()[name].edit, value, "/w/train.py", line, seen, text)


@cases(
    "name line value gone new",
    ("workers", 11, 4, ["shuffle=True)"], ["shuffle=True, num_workers=4)"]),
    ("workers", 12, 2, ["test = DataLoader(Rows())"], ["test = DataLoader(Rows(), num_workers=2)"]),
    ("batch-size", 11, 2, ["batch_size=4,"], ["batch_size=2 * 4,"]),
    ("fused-optimizer", 8, None, ["lr=1e-3,\n    )"], ["lr=1e-3, fused=True,\n    )"]),
    ("set-to-none", 17, None, ["set_to_none=False"], ["set_to_none=True"]),
    ("compile", 15, None, [], ["    net.compile()\n    for epoch in"]),
    (
        "bfloat16", 16, None, ["            out = net(\n                x)  # é\n"],
        [f"{' ' * 12}{AUTOCAST}:\n{' ' * 16}out = net(\n{' ' * 20}x)  # é\n"],
    ),
    ("threads", 1, 2, [], ["import DataLoader\n\ntorch.set_num_threads(2)\n"]),
    ("compile-block", 15, None, [], ["    for block in net.modules():\n        if type(block)"]),
)  # fmt: skip
def test_an_edit_changes_its_place_alone(tmp_path, name, line, value, gone, new):
    made = edited(name, line, value)
    text = TEXT
    for before, after in zip(gone, new, strict=bool(gone)):
        assert text.count(before) == 1
        text = text.replace(before, after)
    assert (made.after == text) if gone else (new[0] in made.after)
    assert gone or {*TEXT.splitlines()} <= {*made.after.splitlines()}
    compile(made.after, "train.py", "exec")
    # git makes the same of the user's file.
    (tmp_path / "train.py").write_text(TEXT, encoding="utf-8")
    patch = patch_of(changes()[name].edit, value, str(tmp_path / "train.py"), line, SEEN, TEXT)
    (tmp_path / "it.diff").write_text(patch.diff(tmp_path), encoding="utf-8")
    subprocess.run(["git", "apply", "it.diff"], cwd=tmp_path, check=True)
    assert (tmp_path / "train.py").read_text(encoding="utf-8") == made.after


@cases(
    "name line seen text reason",
    ("workers", 13, SEEN, TEXT, "line 13 has no call"),
    ("batch-size", 12, SEEN, TEXT, "line 12 has no call"),
    ("compile", 6, SEEN, TEXT, "no loop is around line 6"),
    ("compile", 15, Seen(root={"name": "self"}), TEXT, "no name of its own"),
    ("bfloat16", 13, SEEN, TEXT, "line 13 is no statement"),
    ("threads", 1, SEEN, "import os\n", "does not import torch"),
    ("bfloat16", 2, SEEN, "from torch import nn\nout = net(x)\n", "does not import torch"),
    ("bfloat16", 3, SEEN, 'import torch\nout = net("""\n  a\n""")\n', "no statement"),
    ("compile", 4, SEEN, "import torch\nfor i in j:\n    net = N()\n    net(i)\n", "no loop"),
    ("workers", 1, SEEN, "DataLoader(**options)\n", "no call"),
    ("fused-optimizer", 1, SEEN, "Trainer(opt)\n", "no call"),
    ("workers", 1, SEEN, "a = 1\rDataLoader(r)\n", "carriage returns"),
    ("huge-pages", 1, SEEN, TEXT, "environment"),
    ("no-checkpointing", 1, SEEN, "checkpoint(*both)\n", "no call with a function"),
    ("no-checkpointing", 1, SEEN, "checkpoint(f, x) + checkpoint(g, x)\n", "no call"),
    ("no-checkpointing", 1, SEEN, "checkpoint(b, x, **options)\n", "no call with a function"),
    ("workers", 1, SEEN, "def (", "no Python"),
)
def test_without_a_place_there_is_a_reason_and_no_edit(tmp_path, name, line, seen, text, reason):
    made = edited(name, line, 2, seen, text)
    assert (made.after, made.diff(tmp_path)) == (None, None)
    assert reason in made.reason


@cases(
    "name value text edited",
    ("set-to-none", None, "opt.zero_grad(False)\n", "opt.zero_grad(True)\n"),
    ("fused-optimizer", None, "AdamW(p, foreach=True)\n", "AdamW(p, fused=True)\n"),
    ("fused-optimizer", None, "AdamW(foreach=True, lr=1)\n", "AdamW(lr=1, fused=True)\n"),
    ("fused-optimizer", None, "AdamW(p, fused=False, foreach=None)\n", "AdamW(p, fused=True)\n"),
    ("fused-optimizer", None, "Trainer(AdamW(p), x)\n", "Trainer(AdamW(p, fused=True), x)\n"),
    ("workers", 0, "DataLoader(r, num_workers=4, timeout=3, pin_memory=True)\n",
     "DataLoader(r, num_workers=0, pin_memory=True)\n"),
    ("workers", 2, "DataLoader(r, timeout=3)\n", "DataLoader(r, timeout=3, num_workers=2)\n"),
    ("workers", 2, "DataLoader((x for x in y))\n", "DataLoader((x for x in y), num_workers=2)\n"),
    ("workers", 2, "DataLoader()\r\n", "DataLoader(num_workers=2)\r\n"),
    ("batch-size", 2, "DataLoader(batch_size=a + b)\n", "DataLoader(batch_size=2 * (a + b))\n"),
    ("no-checkpointing", None, "x = checkpoint(b, x, *y, use_reentrant=False, mask=m)\n",
     "x = b(x, *y, mask=m)\n"),
    ("threads", 2, "import os\nimport torch\nfrom a import b\nx = 1\nimport c\n",
     "import os\nimport torch\nfrom a import b\n\ntorch.set_num_threads(2)\nx = 1\nimport c\n"),
    ("no-checkpointing", None, "cp.checkpoint(lambda a: a + 1, 2)\n", "(lambda a: a + 1)(2)\n"),
    ("channels-last", None, "import torch\r\nwhile 1:\r\n    net(x)\r\n",
     "import torch\r\nnet.to(memory_format=torch.channels_last)\r\nwhile 1:\r\n    net(x)\r\n"),
    ("compile", None, "for i in j:\n  net = N()\n  for k in i:\n    net(k)\n",
     "for i in j:\n  net = N()\n  net.compile()\n  for k in i:\n    net(k)\n"),
)  # fmt: skip
def test_arguments_are_set_beside_those_that_do_not_go_with_them(name, value, text, edited):
    line = text.count("\n")
    assert patch_of(changes()[name].edit, value, "/w/a.py", line, SEEN, text).after == edited


def test_a_file_outside_the_folder_has_no_diff(tmp_path):
    made = edited("threads", 1, 2)
    assert made.after is not None
    assert made.diff(tmp_path) is None


def test_a_file_without_a_last_line_feed_can_be_applied(tmp_path):
    text = "import torch\ntorch.zeros(1)"
    (tmp_path / "a.py").write_text(text, encoding="utf-8")
    made = patch_of(Edit(line="x = {value}"), 3, str(tmp_path / "a.py"), 1, SEEN, text)
    (tmp_path / "it.diff").write_text(made.diff(tmp_path), encoding="utf-8")
    subprocess.run(["git", "apply", "it.diff"], cwd=tmp_path, check=True)
    assert (tmp_path / "a.py").read_text() == "import torch\n\nx = 3\ntorch.zeros(1)"


def test_every_change_says_what_to_write_where_no_place_is_known():
    said = {n: words_of(each.edit, 2, SEEN) for n, each in changes().items() if each.edit}
    assert not [text for text in said.values() if not text or "{" in text]
    expected = {
        "workers": "DataLoader(..., num_workers=2)", "compile": "net.compile()",
        "fused-optimizer": "the optimizer(..., fused=True)", "threads": "torch.set_num_threads(2)",
    }  # fmt: skip
    assert expected.items() <= said.items()
    assert words_of(changes()["compile"].edit, None, Seen()) == "model.compile()"


def test_files_of_a_copy_have_the_users_own_path():
    copies = [("/tmp/copy-1/work", "/home/x/work")]
    assert own_path("/tmp/copy-1/work/a.py", copies) == "/home/x/work/a.py"
    assert own_path("/lib/a.py", copies) == "/lib/a.py"
