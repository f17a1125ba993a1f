"""`profstack try` of a script whose batches are made slowly: the remedy is found, and its edit."""

import json
import subprocess

SCRIPT = """
import subprocess
import time
import torch

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 4000
    def __getitem__(self, at):
        time.sleep(0.004)
        return torch.full((8,), float(at % 7))

net = torch.nn.Linear(8, 2)
descent = torch.optim.SGD(net.parameters(), lr=0.01)
for batch in torch.utils.data.DataLoader(Slow(), batch_size=4):
    descent.zero_grad()
    loss = torch.sin(1e4 * net(batch)).pow(2).mean()
    loss.backward()
    descent.step()
    open("losses.txt", "a").write(f"{loss.item()}\\n")
    open("data/kept.txt", "w").write("overwritten")
    subprocess.run(["git", "config", "user.name", "somebody"])
"""


def tree(folder):
    """All files below a folder, its repository's too, with their content."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_the_remedy_is_found_and_its_edit_applies(run_profstack, tmp_path):
    folder = tmp_path / "work"
    (folder / "data").mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT)
    (folder / "data" / "kept.txt").write_text("mine")
    for words in ("init -q", "add train.py", "-c user.name=me -c user.email=a@b commit -qm first"):
        subprocess.run(["git", *words.split()], check=True, cwd=folder)
    before = tree(folder)
    words = ["--change", "workers", "--change", "pin-memory", "--steps", 24, "--json", "-q"]
    words += ["--change", "no-evaluation"]
    done = run_profstack(["try", *words, "train.py"], cwd=folder)
    report = json.loads(done.stdout)
    best = report["trials"][0]
    assert best["change"].startswith("workers=")
    assert (best["verdict"], best["recommended"], best["results"]) == ("gains", True, "equal")
    assert best["ci95_high"] < 0.9
    reason = "no DataLoader is gone through by a model in evaluation mode"
    assert report["left_out"] == {"pin-memory": "it uses no GPU", "no-evaluation": reason}
    # The sine carries last digits of the parameters far.
    assert report["digits_limit"] > 1e-3
    # Files, also those that the script overwrites, and the repository are as they were.
    assert tree(folder) == before
    assert len(before) > 10
    given = best["diff"].encode()
    patch = subprocess.run(["git", "apply"], check=False, input=given, cwd=folder)
    count = best["change"].partition("=")[2]
    expected = SCRIPT.replace("batch_size=4)", f"batch_size=4, num_workers={count})")
    assert (patch.returncode, (folder / "train.py").read_text()) == (0, expected)
