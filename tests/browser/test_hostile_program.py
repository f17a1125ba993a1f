"""A program whose names all try to be more than names, from the run to the terminal and the page.

Its modules, classes, functions, regions, arguments and file are called like markup, addresses,
escape sequences, marks that turn the direction of writing, lone surrogates, and with 3,000
letters. All of it is recorded, and is text wherever it is shown.
"""

import os
from urllib.parse import quote

import pytest

from profstack import commands
from tests.support.browser import shared, snippet, texts
from tests.support.processes import run_python
from tests.support.recorded_runs import report_of

FILE = "hostile <img src=x onerror=alert(1)>\"'.py"
SCRIPT = r"""
import types
import torch
from torch import nn
import profstack
NAMES = [
    "</script><img src=x onerror=alert(1)>", "<b>x</b>", "javascript:alert(1)",
    "\"quo'te\\back`tick", "line\u2028break\u2029", "turn\u202eed\u200f",
    "esc\x1b[31mred\x07\r\nnew\ttab\x9b2J", "sur\ud800rogate", "a|b", "=1+1", "%3Cb%3E&amp;",
    "__proto__", "constructor", "L" * 3_000,
]
class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
def named(function, name):
    code = function.__code__.replace(co_name=name)
    if hasattr(code, "co_qualname"):
        code = code.replace(co_qualname=name)
    return types.FunctionType(code, function.__globals__, name)
def forward(self, batch):
    return torch.relu(self.linear(batch))
class Root(nn.Module):
    def __init__(self):
        super().__init__()
        for name in NAMES:
            # Python has no class with a lone surrogate in its name.
            made = type(name.replace("\ud800", "?"), (Body,), {"forward": named(forward, name)})
            self.add_module(name, made())
    def forward(self, batch):
        for name in NAMES:
            batch = batch + self._modules[name](batch)
            with profstack.region(name):
                batch = batch + 1
        return batch
model = type(NAMES[0], (Root,), {})()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(60):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
print("done")
"""
# What would be written otherwise than it was called, as the recording has it.
SURROGATE = "sur\\ud800rogate"
# What a terminal would obey, and what turns or breaks a line.
FORBIDDEN = {
    *map(chr, (*range(9), *range(11, 32), *range(127, 160))),
    *"\u2028\u2029\u200e\u200f\u202a\u202b\u202c\u202d\u202e",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder in which the program was run, what was printed, and what `rec` tells."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / FILE).write_text(SCRIPT, encoding="utf-8")
    words = (FILE, "</script><img src=x onerror=alert(1)>", os.fsdecode(b"\xff\x1b[31m"))
    # In later rounds torch's tracer of stacks refuses the name of a function that is no text.
    layers = ("--layers", "cprofile,torch", "--rounds", "1", "--final-steps", "10")
    command = ("-m", "profstack", "run", "-o", "rec", *layers, *words, "javascript:alert(1)")
    done = run_python(*command, cwd=folder, code=None, text=False)
    assert (done.returncode, done.stdout) == (0, b"done\n"), done.stderr
    return folder, done.stderr.decode("utf-8"), report_of(folder / "rec")


def test_every_name_is_recorded(run):
    report = run[2]
    assert [layer["name"] for layer in report["layers"] if layer["status"] == "failed"] == []
    wanted = {"<b>x</b>", "javascript:alert(1)", "turn\u202eed\u200f", "a|b", "=1+1", "__proto__"}
    wanted |= {"constructor", "L" * 3_000, "esc\x1b[31mred\x07\r\nnew\ttab\x9b2J", SURROGATE}
    found = {
        name: {one[key] for one in report["tables"][name]}
        for name, key in (("modules", "path"), ("functions", "name"), ("regions", "path"))
    }
    assert {f"</script><img src=x onerror=alert(1)>.{name}" for name in wanted} <= found["modules"]
    assert wanted <= found["functions"]
    assert wanted <= found["regions"]
    assert {one["calls"] for one in report["tables"]["modules"]} <= {1.0, None}


def test_no_control_character_reaches_a_terminal(run, capsys):
    folder, printed, _ = run
    assert set(printed) & FORBIDDEN == set()
    assert max(map(len, printed.splitlines())) < 300, "a long name is cut"
    for form in ("text", "md", "json"):
        asked = ["--table", "modules", "--format", form, "--limit", "300"]
        assert commands.main(["show", str(folder / "rec"), *asked]) == 0
        shown = capsys.readouterr().out
        assert set(shown) & FORBIDDEN == set(), form
        assert "<b>x</b>" in shown or "&lt;b>x&lt;/b>" in shown


def test_all_of_it_is_text_on_the_page_and_addresses_lead_to_their_rows(run):
    page = shared()
    page.open(run[0] / "rec" / "report.html", at="all", width=400)
    page.evaluate(snippet("scroll_through"))
    assert page.evaluate(snippet("strange")) == []
    assert page.evaluate(snippet("beyond")) == [True, []]
    assert page.evaluate("document.querySelector('h1').textContent") == FILE
    for view in ("modules", "python", "ranges", "environment"):
        assert "javascript:alert(1)" in texts(page, f"#view-{view}")[0]
    for name in ("<b>x</b>", "%3Cb%3E&amp;", "__proto__", "turn\u202eed\u200f", SURROGATE):
        page.go("modules/" + quote(f"</script><img src=x onerror=alert(1)>.{name}", safe=""))
        # What would turn the writing round is written out.
        told = name.replace("\u202e", "\\u202e").replace("\u200f", "\\u200f")
        assert texts(page, "tr.marked button.name") == [told]
    assert [page.errors(), page.requests()] == [[], []]
