"""Does `profstack try` find the known remedy, and is its gain the one of the edit made by hand?

For each program of benchmarks/programs whose remedy is one of the changes, made longer, and for
some of its own: `profstack try` runs in a folder with it, the diff of the remedy is applied by
`git apply`, and the program and the edited one run by hand, in turn and in fresh processes. A row
has the best change found and whether it is the remedy, the remedy's ratio with its interval, the
ratio by hand, and whether that lies in the interval. `--nothing N` tries N mended programs instead,
with changes of a made-up package that do nothing, and counts invocations that tell a gain;
`--breaks` tries changes that break programs, and counts those that are told so.

Run it with nothing else running: some 5 minutes a program with all changes (`--changes remedy`
tries the remedy alone, in a minute). Programs that need one core can run two at a time, each under
`taskset`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from findings import KEEPS_PAGES, PROGRAMS, times_by_hand

REMEDIES = {
    "batchnorm_training_at_inference__blocks": "eval-mode",
    "batchnorm_training_at_inference__features": "eval-mode",
    "batchnorm_training_at_inference__forgotten_eval": "eval-mode",
    "batchnorm_training_at_inference__sequence": "eval-mode",
    "data_starved__accumulated": "workers",
    "data_starved__few_workers": "workers",
    "data_starved__no_workers": "workers",
    "grad_in_inference__convolutions": "inference-mode",
    "unfused_optimizer__few_large": "fused-optimizer",
    "unfused_optimizer__many_small": "fused-optimizer",
    "unfused_optimizer__momentum": "fused-optimizer",
    "zero_grad_to_zeros__set_to_none_false": "set-to-none",
}
# A processor with units for bfloat16 gains more by these than by most remedies: the programs are
# tried, and timed by hand, as on one without.
NO_BFLOAT16 = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"}
# Steps of a program, where it makes as many as its first lines say.
STEPS = 3_000
_MAIN = """
import torch
from torch import nn


def main(steps: int = {steps}, after_step=lambda: None) -> None:
    torch.manual_seed(0)
{body}

if __name__ == "__main__":
    main()
"""
# Programs beside those: the remedy, and what `main` does.
OWN = {
    "one_thread__sorted_rows": (
        "threads",
        """
    net = nn.Linear(64, 2_000)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    x = torch.randn(500, 64)
    for _ in range(steps):
        optimizer.zero_grad()
        net(x).sort(dim=1).values[:, ::7].square().mean().backward()
        optimizer.step()
        after_step()
""",
    ),
    "no_kv_cache__letters": (
        "kv-cache",
        """
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 2, "n_head": 4, "n_embd": 256, "vocab_size": 200, "n_positions": 256}
    model = GPT2LMHeadModel(GPT2Config(**sizes)).eval()
    model.generation_config.pad_token_id = 0
    prompt = torch.randint(1, 200, (4, 150))
    for _ in range(steps):
        model.generate(prompt, max_new_tokens=16, do_sample=False, use_cache=False)
        after_step()
""",
    ),
    "worker_starts__short_epochs": (
        "persistent-workers",
        """
    import time

    class Slow(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 64

        def __getitem__(self, at: int) -> torch.Tensor:
            time.sleep(0.004)
            return torch.full((32,), float(at))

    loader = torch.utils.data.DataLoader(Slow(), batch_size=8, num_workers=2)
    net = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    for _ in range(steps // 8):
        for x in loader:
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
            after_step()
""",
    ),
    "checkpointed__small_model": (
        "no-checkpointing",
        """
    from torch.utils.checkpoint import checkpoint

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = (nn.Sequential(nn.Linear(96, 96), nn.GELU()) for _ in range(8))
            self.layers = nn.ModuleList(layers)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False)
            return x

    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    x = torch.randn(32, 96)
    for _ in range(steps):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
        after_step()
""",
    ),
    "unfused_optimizer__deep_tower": (
        "fused-optimizer",
        """
    net = nn.Sequential(*[nn.Linear(48, 48) for _ in range(40)])
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    x = torch.randn(8, 48)
    for _ in range(steps):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
        after_step()
""",
    ),
    "unfused_optimizer__nesterov_tower": (
        "fused-optimizer",
        """
    net = nn.Sequential(*[nn.Linear(40, 40) for _ in range(60)])
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9, nesterov=True)
    x = torch.randn(6, 40)
    for _ in range(steps):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
        after_step()
""",
    ),
    "checkpointed__encoder": (
        "no-checkpointing",
        """
    from torch.utils.checkpoint import checkpoint

    layers = nn.ModuleList(
        nn.TransformerEncoderLayer(48, 4, 96, dropout=0.0, batch_first=True) for _ in range(4)
    )
    head = nn.Linear(48, 1)
    optimizer = torch.optim.SGD([*layers.parameters(), *head.parameters()], lr=1e-4)
    x = torch.randn(4, 24, 48, requires_grad=True)
    for _ in range(steps):
        optimizer.zero_grad()
        hidden = x
        for layer in layers:
            hidden = checkpoint(layer, hidden, use_reentrant=False)
        head(hidden).square().mean().backward()
        optimizer.step()
        after_step()
""",
    ),
    "zero_grad_to_zeros__large_weight": (
        "set-to-none",
        """
    weight = nn.Parameter(torch.randn(3_000_000))
    optimizer = torch.optim.SGD([weight], lr=1e-4)
    scale = nn.Linear(1, 1)
    x = torch.randn(3_000_000)
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=False)
        scale((weight * x).sum().reshape(1)).sum().backward()
        optimizer.step()
        after_step()
""",
    ),
    "channels_last__depthwise": (
        "channels-last",
        """
    blocks = [nn.Conv2d(64, 64, 3, padding=1, groups=64) for _ in range(4)]
    tail = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), *blocks, *tail).eval()
    images = torch.randn(4, 3, 48, 48)
    with torch.inference_mode():
        for _ in range(steps):
            model(images)
            after_step()
""",
    ),
    "grad_in_inference__thin_layers": (
        "inference-mode",
        """
    layers = [nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32), nn.ReLU()) for _ in range(40)]
    model = nn.Sequential(*layers).eval()
    x, total = torch.randn(4, 32), 0.0
    for _ in range(steps):
        total += model(x).sum().item()
        after_step()
""",
    ),
}
# Programs that a change breaks: what is changed, and the program's own lines. Each has to be told
# as one that breaks, or whose results differ, and never be recommended.
_TRAIN = """
for step in range(40):
    x = torch.rand(8, 6)
    loss = {loss}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
_NET = "net = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))\n"
_ADAM = "optimizer = torch.optim.Adam(net.parameters(), lr=0.01)\n"
_LOOP = "for step in range(40):\n    "
_ROWS = """
class Rows(torch.utils.data.Dataset):
    seen = 0
    def __len__(self):
        return 400
    def __getitem__(self, at):
        Rows.seen += 1
        return torch.full((6,), float({item}))
{net}optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for x in torch.utils.data.DataLoader(Rows(), batch_size=8):
    loss = {loss}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
_SQUARE = "net(x).square().mean()"
BREAKS = {
    "digits lost in a difference": (
        "bfloat16",
        _NET + _ADAM + _TRAIN.format(loss="((net(x) + 4096.0) - 4096.0).square().mean()"),
    ),
    "an inverse without bfloat16": (
        "bfloat16",
        _NET + _ADAM + _TRAIN.format(loss="torch.linalg.inv(net(x)[:6] + torch.eye(6)).sum()"),
    ),
    "random numbers in the data set": (
        "workers",
        _ROWS.format(net=_NET, item="random.random()", loss=_SQUARE),
    ),
    "a data set that counts": (
        "workers",
        _ROWS.format(net=_NET, item="at", loss=f"Rows.seen * {_SQUARE}"),
    ),
    "a batch of fixed size": (
        "batch-size",
        _ROWS.format(net=_NET, item="at", loss="(net(x) - torch.zeros(8, 6)).square().mean()"),
    ),
    "gradients of an inference": (
        "inference-mode",
        _NET + _LOOP + "torch.autograd.grad(net(torch.rand(8, 6)).sum(), net[0].bias)\n",
    ),
    "a result changed in place": (
        "inference-mode",
        _NET + _LOOP + "net(torch.rand(8, 6)).add_(1.0)\n",
    ),
    "a view of an image": (
        "channels-last",
        "net = nn.Conv2d(3, 4, 3)\n" + _LOOP + "net(torch.rand(2, 3, 9, 9)).view(2, -1).sum()\n",
    ),
    "complex parameters": (
        "fused-optimizer",
        "net = nn.Linear(6, 6, dtype=torch.complex64)\n"
        + _ADAM
        + _TRAIN.format(loss="net(x.to(torch.complex64)).abs().mean()"),
    ),
    "gradients that are read after": (
        "set-to-none",
        _NET
        + _ADAM
        + _TRAIN.format(loss=_SQUARE)
        + "    optimizer.zero_grad(set_to_none=False)\n    net[0].weight.grad.norm()\n",
    ),
}
# A package whose changes do nothing, as many as usually apply to a program.
NOTHING = [f"nothing-{number}" for number in range(4)]
_PACKAGE = """
from profstack.changes.contract import Change

def _patch(run):
    run.took_hold()

def __getattr__(name):
    return Change(name.replace("_", "-"), "do nothing", "equal", lambda seen: None, _patch)
"""


def program_of(case: str) -> tuple[str, str]:
    """Return the remedy of a program and its text, with many steps."""
    if case in OWN:
        remedy, body = OWN[case]
        return remedy, _MAIN.replace("{steps}", str(STEPS)).replace("{body}", body.strip("\n"))
    text = (PROGRAMS / case / "bad.py").read_text(encoding="utf-8")
    return REMEDIES[case], re.sub(r"(?m)^STEPS = \d+", f"STEPS = {STEPS}", text)


def tried(folder: Path, words: Sequence[str]) -> dict[str, Any]:
    """Run `profstack try` in a folder and return its report."""
    command = [sys.executable, "-m", "profstack", "try", "--json", "-q", *words, "bad.py"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder)
    if done.returncode:
        raise SystemExit(f"{folder.name}: {done.stderr.strip()}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def by_hand(before: Path, after: Path, repeats: int, steps: int) -> tuple[float, float]:
    """Return after over before of mean steps in fresh processes, and the error of its log."""
    logs = []
    for turn in range(repeats):
        pair = {}
        for program in (before, after) if turn % 2 == 0 else (after, before):
            # As a trial does: rare work, as that of an epoch's first step, is a part of it.
            pair[program] = fmean(times_by_hand(program, steps))
        logs.append(math.log(pair[after] / pair[before]))
    error = stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan
    return math.exp(fmean(logs)), error


def one(case: str, words: Sequence[str], repeats: int, *, alone: bool) -> bool:
    """Try one program and print its row; return whether all of it holds."""
    remedy, text = program_of(case)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / case
        folder.mkdir()
        (folder / "bad.py").write_text(text, encoding="utf-8")
        report = tried(folder, [*words, *(["--change", remedy] if alone else [])])
        rows = [row for row in report["trials"] if row["recommended"]]
        best = min(rows, key=lambda row: row["ratio"], default=None)
        found = min(
            (row for row in report["trials"] if row["changes"] == [remedy] and row["ratio"]),
            key=lambda row: row["ratio"],
            default=None,
        )
        named = best["change"] if best else "none"
        line = f"{case:50}{named:28}"
        if found is None or not found["diff"]:
            print(f"{line}no row or no diff of {remedy}: {report['left_out']}", flush=True)
            return False
        before = folder.parent / "before.py"
        shutil.copy(folder / "bad.py", before)
        applied = subprocess.run(
            ["git", "apply"], input=found["diff"], text=True, cwd=folder, check=False
        )
        hand, error = by_hand(before, folder / "bad.py", repeats, report["steps"])
        low, high = found["ci95_low"] or math.nan, found["ci95_high"] or math.nan
        # The ratio by hand is measured with an error of its own.
        is_within = low * math.exp(-2 * error) <= hand <= high * math.exp(2 * error)
        holds = (applied.returncode == 0, best is not None and best["changes"] == [remedy])
        print(
            f"{line}{found['ratio']:8.3f} ({low:.3f} to {high:.3f}){hand:10.3f} +- {error:.3f}"
            f"   applies {'yes' if holds[0] else 'NO'}, remedy {'yes' if holds[1] else 'NO'}, "
            f"within {'yes' if is_within else 'NO'}, {report['seconds']:.0f} s, "
            f"{found['verdict']} by {found['processes']} processes, floor {report['floor']:.3f}",
            flush=True,
        )
        return all(holds) and is_within


def nothing(count: int, first: int, words: Sequence[str]) -> int:
    """Try what changes nothing; return how many invocations told a gain."""
    told = 0
    programs = sorted(PROGRAMS.glob("*/mended.py"))
    asked = [word for change in NOTHING for word in ("--change", change)]
    with tempfile.TemporaryDirectory() as packages:
        (Path(packages) / "nothing_tried.py").write_text(_PACKAGE, encoding="utf-8")
        facts = Path(packages) / "nothing_tried-1.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text("Name: nothing_tried\nVersion: 1\n", encoding="utf-8")
        lines = [f"{name} = nothing_tried:{name.replace('-', '_')}\n" for name in NOTHING]
        (facts / "entry_points.txt").write_text("[profstack.changes]\n" + "".join(lines), "utf-8")
        os.environ["PYTHONPATH"] = packages
        for number in range(first, first + count):
            program = programs[number % len(programs)]
            folder = Path(packages) / f"work-{number}"
            folder.mkdir()
            text = re.sub(r"(?m)^STEPS = \d+", f"STEPS = {STEPS}", program.read_text("utf-8"))
            (folder / "bad.py").write_text(text, encoding="utf-8")
            report = tried(folder, [*words, *asked])
            verdicts = [(row["verdict"], row["ratio"]) for row in report["trials"]]
            told += any(word == "gains" for word, _ in verdicts)
            floor = f"floor {report['floor']:.4f}, {report['plain_processes']} plain"
            print(f"{number:3} {program.parent.name:48}", floor, verdicts, flush=True)
    return told


def breaks(words: Sequence[str]) -> int:
    """Try changes that break programs; return how many were told so."""
    told = 0
    for name, (change, text) in BREAKS.items():
        with tempfile.TemporaryDirectory() as folder:
            head = "import random\nimport torch\nfrom torch import nn\n\n"
            (Path(folder) / "bad.py").write_text(head + text, encoding="utf-8")
            report = tried(Path(folder), [*words, "--steps", "20", "--change", change])
        rows = [row for row in report["trials"] if row["changes"] == [change]]
        is_told = bool(rows) and all(
            not row["recommended"] and (row["verdict"] == "breaks" or row["results"] == "different")
            for row in rows
        )
        told += is_told
        said = [(row["change"], row["verdict"], row["results"], row["reason"]) for row in rows]
        print(f"{name:34}{'told' if is_told else 'NOT TOLD':10}{said}", flush=True)
    return told


def main() -> None:
    """Try the programs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    known = [*REMEDIES, *OWN]
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(known)}")
    parser.add_argument("--changes", choices=("all", "remedy"), default="all")
    parser.add_argument("--budget", default="5m")
    parser.add_argument("--repeats", type=int, default=3, help="pairs of processes by hand")
    parser.add_argument("--nothing", type=int, metavar="N")
    parser.add_argument("--first", type=int, default=0, help="the first mended program of these")
    parser.add_argument("--breaks", action="store_true", help="try changes that break programs")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # By hand and in trials alike.
    os.environ.update(KEEPS_PAGES | NO_BFLOAT16)
    words = ["--budget", options.budget]
    if options.nothing:
        told = nothing(options.nothing, options.first, words)
        print(f"{told} of {options.nothing} invocations told a gain of changes that do nothing")
        return
    if options.breaks:
        print(f"{breaks(words)} of {len(BREAKS)} changes that break results were told so")
        return
    cases = options.cases or known
    alone = options.changes == "remedy"
    held = sum(one(case, words, options.repeats, alone=alone) for case in cases)
    print(f"{held} of {len(cases)} found the remedy, with an edit that applies and has its gain")


if __name__ == "__main__":
    main()
