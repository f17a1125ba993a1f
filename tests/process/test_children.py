"""Real processes that a script starts: each has a recording inside the script's own."""

import json

import pytest

SCRIPT = """
import multiprocessing, os, subprocess, sys
import torch

def train(name, steps, wide=8):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, wide), torch.nn.Linear(wide, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(4 * steps, 16))
    for (inputs,) in torch.utils.data.DataLoader(data, batch_size=4, num_workers=name == "fork"):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    ours = [key for key in os.environ if key.startswith(("PROFSTACK_CHILD", "PROFSTACK_PYTHON"))]
    print(name, steps, ours, sys.argv[1:], flush=True)

if __name__ == "__main__":
    if sys.argv[1:]:
        train("subprocess", 40)
        sys.exit(5)
    for name, steps, wide in (("spawn", 50, 8), ("fork", 60, 2048)):
        context = multiprocessing.get_context(name)
        process = context.Process(target=train, args=(name, steps, wide))
        process.start()
        process.join()
    subprocess.run([sys.executable, __file__, "as a program"])
    pid = os.fork()
    if not pid:
        torch.nn.Linear(2, 2)(torch.ones(1, 2))
        sys.exit(0)
    os.waitpid(pid, 0)
    sys.exit(7)
"""
SAID = ["spawn 50 [] []", "fork 60 [] []", "subprocess 40 [] ['as a program']"]


@pytest.mark.parametrize("followed", [True, False])
def test_each_way_of_starting_a_process_gives_it_a_recording(followed, run_profstack, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    words = [] if followed else ["--no-children"]
    run = ["run", *words, "-o", "out", "--layers", "torch,flops", "train.py"]
    done = run_profstack(run, code=7)
    assert done.stdout.splitlines() == SAID
    found = sorted(each.name for each in (tmp_path / "out").glob("process-*"))
    # Neither the worker of a DataLoader nor a process that calls a model once.
    assert found == ([f"process-{number}" for number in (1, 2, 3)] if followed else [])
    if not followed:
        report = json.loads((tmp_path / "out" / "report.json").read_text())
        why = report["step"]["reason"]
        assert "in the 2 processes that it started by multiprocessing" in why
        assert why in report["verdict"]["sentence"]
        return
    reports = [json.loads((tmp_path / "out" / name / "report.json").read_text()) for name in found]
    assert [report["status"] for report in reports] == ["complete"] * 3
    for report, made in zip(reports, (50, 60, 40), strict=True):
        assert made - 2 <= report["step"]["count"] <= made
        paths = [row["path"] for row in report["tables"]["modules"] if row["depth"] < 2]
        assert paths[:3] == ["Sequential", "Sequential.0", "Sequential.1"]
        assert [layer["status"] for layer in report["layers"]] == ["recorded"] * 2
    assert [report["argv"][1:] for report in reports] == [[], [], ["as a program"]]
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    # As the script itself ended.
    assert (report["status"], report["run"]["exit_code"]) == ("partial", 7)
    assert [row["folder"] for row in report["tables"]["ranks"]] == found
    # The widest model takes most time.
    assert (report["ranks"]["kind"], report["ranks"]["shown"]) == ("process", 2)
    assert report["verdict"]["sentence"].startswith("Of 3 processes, process 2 spent most time")
