"""Two real ranks: one page of both, and what the script sees of the launch."""

import json
import os

from tests.support.tables import of

SCRIPT = """
import os, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()

class Samples(Dataset):
    def __len__(self):
        return 8 * 70

    def __getitem__(self, index):
        if rank == 1:
            time.sleep(0.003)
        return torch.randn(16)

model = nn.parallel.DistributedDataParallel(nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs in DataLoader(Samples(), batch_size=8):
    optimizer.zero_grad()
    model(inputs).sum().backward()
    optimizer.step()
print("own", [name for name in os.environ if "LAUNCHED" in name], sys.argv[1:])
dist.destroy_process_group()
sys.exit(3)
"""

GET_ITEM = "def __getitem__(self, index):"


def test_the_page_of_two_ranks_names_the_one_that_makes_the_other_wait(run_profstack, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["--nproc-per-node", "2", "-o", "out", "--skip", "memory,nvtx", "train.py", "--lr", "1"]
    # The launcher's exit code for an error in a rank.
    done = run_profstack(["run", *words], code=1)
    assert done.stdout.splitlines() == ["own [] ['--lr', '1']"] * 2
    wrote = [line for line in done.stderr.splitlines() if line.startswith("Wrote")]
    assert wrote == [f"Wrote {os.path.join('out', 'report.html')}"]
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    found = report["ranks"]["straggler"]
    assert (report["ranks"]["count"], report["ranks"]["world_size"]) == (2, 2)
    assert (found["rank"], found["rare"]) == (1, None)
    assert found["late_s"] > 0.015
    early = json.loads((tmp_path / "out" / "rank-00000" / "report.json").read_text())["verdict"]
    assert (early["slug"], "gloo:" in early["sentence"]) == ("communication-bound", True)
    row = report["tables"]["ranks"][1]
    assert row["part"] == "data wait"
    assert row["file"] == str(tmp_path / "train.py")
    assert SCRIPT.splitlines()[row["line"] - 1].strip() in ("time.sleep(0.003)", GET_ITEM)
    # One bucket of all parameters; the late rank sleeps 24 ms, of which the mean rank waits half.
    [row] = report["tables"]["collectives"]
    assert of(row, "name bytes calls last_rank") == ["gloo:all_reduce", 4 * (16 * 4 + 4), 1.0, 1]
    assert row["skew_s"] > 0.008
    assert row["last_share"] > 0.5
