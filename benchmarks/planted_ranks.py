"""Does the page of several ranks name what was planted in them? Real launches with gloo.

    python benchmarks/planted_ranks.py [--ranks 2 4] [--equal 20] [CASE ...]

One script with one planted cause at a time is started by `profstack run --nproc-per-node`: a slow
loader on one rank, slow Python on one, a batch that is slow every tenth step, batches of other
sizes, a large exchange that nothing overlaps, collectives in another order, a rank that dies, and
nothing.
Printed is whether the page's first sentence says what it should, and that sentence. `--equal`
repeats the last case, where no rank may be named. Run it with nothing else running, about 15
seconds a launch.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = '''
import os, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

PLANTED, STEPS = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, slow = dist.get_rank(), dist.get_world_size() - 1
width = 1200 if PLANTED == "exchange" else 160
torch.manual_seed(0)


class Samples(Dataset):
    def __len__(self):
        return 8 * STEPS

    def __getitem__(self, index):
        if PLANTED == "loader" and rank == slow:
            time.sleep(0.004)
        if PLANTED == "tenth" and rank == slow and index % 80 == 0:
            time.sleep(0.15)
        return torch.ones(width)


def check(outputs):
    """Go through some of the outputs one by one."""
    total = 0.0
    for _ in range(1600):
        for value in outputs[0, :32].tolist():
            total += value * value
    return total


net = nn.Sequential(*(nn.Linear(width, width) for _ in range(6)))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
loader = DataLoader(Samples(), batch_size=8)
for number, inputs in enumerate(loader):
    if PLANTED == "batches":
        inputs = inputs.repeat(40 if rank == slow else 2, 1)
    optimizer.zero_grad()
    outputs = model(inputs)
    if PLANTED == "python" and rank == slow:
        check(outputs.detach())
    if PLANTED == "order" and number == STEPS // 2:
        tensors = [torch.zeros(10), torch.zeros(20)]
        for each in tensors if rank else tensors[::-1]:
            dist.all_reduce(each)
    if PLANTED == "dead" and rank == slow and number == STEPS // 2:
        os._exit(9)
    outputs.sum().backward()
    optimizer.step()
dist.destroy_process_group()
'''
STEPS = 90
# What the first sentence has to say; `LAST` stands for the last rank.
CASES = {
    "loader": r"[Rr]ank LAST makes .*(DataLoader|data wait|next batch).*train\.py:\d+",
    "python": r"[Rr]ank LAST makes .*train\.py:\d+",
    "tenth": r"[Rr]ank LAST .*(step|time)s?",
    "batches": r"[Rr]ank LAST makes ",
    "exchange": r"[Cc]ommunication|in collectives|transfer",
    "order": r"[Rr]anks? .*(order|different|other) .*collective|collective.*(order|differ|other)",
    "dead": r"[Rr]ank LAST (ended|died|stopped|was|left)",
    "equal": r"None of \d ranks makes|[Nn]o rank makes",
}
NAMED = re.compile(r"\b[Rr]ank \d+ (?:makes|is late)")


def sentence(planted: str, ranks: int, steps: int) -> str:
    """Run the script, and return the first sentence of its page."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(SCRIPT, encoding="utf-8")
        words = ["run", "-q", "--nproc-per-node", str(ranks), "-o", "out", script.name]
        # A rank that waits for a dead one gives up.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        subprocess.run(
            [sys.executable, "-m", "profstack", *words, planted, str(steps)],
            cwd=folder, env=environment, capture_output=True, timeout=300, check=False,
        )  # fmt: skip
        report = Path(folder) / "out" / "report.json"
        if not report.is_file():
            return "(no page)"
        text = json.loads(report.read_text(encoding="utf-8"))["verdict"]["sentence"]
        return str(text)


def main() -> int:
    """Run all cases, and print what their pages say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], metavar="CASE")
    parser.add_argument("--ranks", nargs="*", type=int, default=[2, 4])
    parser.add_argument("--equal", type=int, default=0, help="repeat the case of equal ranks")
    parser.add_argument("--quick", action="store_true", help="one short launch")
    options = parser.parse_args()
    wrong, steps = 0, STEPS
    if options.quick:
        options.ranks, options.cases, steps = [2], ["equal"], 30
    for ranks in options.ranks:
        for planted in options.cases or CASES:
            text = sentence(planted, ranks, steps)
            right = re.search(CASES[planted].replace("LAST", str(ranks - 1)), text) is not None
            wrong += not right
            said = "right" if right else "WRONG"
            print(f"{ranks} ranks, {planted:<9} {said}  {text}", flush=True)
    named = 0
    for _ in range(options.equal):
        text = sentence("equal", options.ranks[0], steps)
        if NAMED.search(text):
            named += 1
            print(f"equal ranks, and one is named: {text}", flush=True)
    if options.equal:
        print(f"equal ranks: one was named in {named} of {options.equal} runs")
    return int(bool(wrong or named))


if __name__ == "__main__":
    sys.exit(main())
