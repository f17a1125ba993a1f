"""Real processes that a script starts: each has a recording inside the script's own."""

import json

import pytest

from tests.support.processes import run_python

SCRIPT = """
import multiprocessing, os, subprocess, sys, time
import torch

# Unbuffered, `print` writes a line and its end apart: another process may come between.
say = lambda *words: os.write(1, (" ".join(map(str, words)) + chr(10)).encode())

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
    say(name, steps, ours, sys.argv[1:])

def call():
    torch.nn.Linear(2, 2)(torch.ones(1, 2))

def forked(work):
    if not (pid := os.fork()):
        work()
        sys.exit(3)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def outlives(name):
    parent = os.getpid()
    if not os.fork():
        while os.getppid() == parent: time.sleep(0.01)
        call()
        say(name)
        sys.exit()

if __name__ == "__main__":
    if sys.argv[1:]:
        train("subprocess", 40)
        say("codes", *map(forked, (call, lambda: train("child", 20), lambda: outlives("orphan"))))
        outlives("the last")
        sys.exit(5)
    for name, steps, wide in (("spawn", 50, 8), ("fork", 60, 1 << 16)):
        kind = multiprocessing.get_context(name).Process
        (process := kind(target=train, args=(name, steps, wide))).start()
        process.join()
    say(subprocess.run([sys.executable, "-u", __file__, "as a program"]).returncode)
    sys.exit(7)
"""
SAID = ["spawn 50 [] []", "fork 60 [] []", *(f"{each} [] ['as a program']" for each in (
    "subprocess 40", "child 20")), "codes 3 3 3", "5", "orphan", "the last"]  # fmt: skip


@pytest.mark.parametrize("followed", [True, False])
def test_each_way_of_starting_a_process_gives_it_a_recording(followed, run_profstack, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    words = [] if followed else ["--no-children"]
    run = ["run", *words, "-o", "out", "--layers", "torch,flops", "train.py"]
    done = run_profstack(run, code=7)
    # It is over when the last process has ended: none waits for ever after a fork.
    assert sorted(done.stdout.splitlines()) == sorted(SAID)
    found = sorted(each.name for each in (tmp_path / "out").glob("process-*"))
    # Neither the worker of a DataLoader nor a process that calls a model once.
    assert found == ([f"process-{number}" for number in (1, 2, 3, 4)] if followed else [])
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    if not followed:
        why, said = report["step"]["reason"], "in the 2 processes that it started by multiproc"
        assert (said in why, why in report["verdict"]["sentence"]) == (True, True)
        return
    reports = [json.loads((tmp_path / "out" / name / "report.json").read_text()) for name in found]
    assert [each["status"] for each in reports] == ["complete"] * 4
    for each, made in zip(reports, (50, 60, 40, 20), strict=True):
        assert made - 2 <= each["step"]["count"] <= made
        paths = [row["path"] for row in each["tables"]["modules"] if row["depth"] < 2]
        assert paths[:3] == ["Sequential", "Sequential.0", "Sequential.1"]
        # Kineto, which its parent has used, may wait for ever in a forked process.
        layers = {layer["name"]: layer["status"] for layer in each["layers"]}
        assert layers == {"torch": "recorded" if made > 20 else "skipped", "flops": "recorded"}
    assert [each["argv"][1:] for each in reports] == [[], [], *[["as a program"]] * 2]
    assert (report["status"], report["run"]["exit_code"]) == ("partial", 7)
    assert [row["folder"] for row in report["tables"]["ranks"]] == found
    assert (report["ranks"]["kind"], report["ranks"]["shown"]) == ("process", 2)
    assert report["verdict"]["sentence"].startswith("Of 4 processes, process 2 spent most time")


WORK = """
import torch
def train(seed, model=None):
    torch.manual_seed(seed)
    model = torch.nn.Linear(16, 4) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(60 + seed):
        optimizer.zero_grad()
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
    return seed
"""
BEGIN = """import concurrent.futures, subprocess, sys
import torch.multiprocessing
from work import train
if __name__ == "__main__":
"""
# One model in shared memory that all train; two pools, of workers that train twice; and a program
# that starts another one, which starts processes.
SHARED = """
    model = torch.nn.Linear(16, 4).share_memory()
    kind = torch.multiprocessing.get_context("spawn").Process
    started = [kind(target=train, args=(seed, model)) for seed in (1, 2)]
    [each.start() for each in started]
    [each.join() for each in started]
    print([each.exitcode for each in started])
"""
POOLS = """
    context = torch.multiprocessing.get_context("forkserver")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        print(list(pool.map(train, (1, 2))))
    with torch.multiprocessing.get_context("fork").Pool(1) as pool:
        print(pool.map(train, (3, 4)))
"""
NESTED = """
    if sys.argv[1:]:
        torch.multiprocessing.spawn(train, nprocs=2)
    else:
        print(subprocess.run([sys.executable, __file__, "inner"]).returncode)
"""


@pytest.mark.parametrize(
    ("body", "steps"), [(SHARED, [61, 62]), (POOLS, [123, 127]), (NESTED, [60, 61])]
)
def test_models_that_processes_share_pools_and_processes_of_processes(
    run_profstack, tmp_path, body, steps
):
    (tmp_path / "work.py").write_text(WORK)
    (tmp_path / "starts.py").write_text(BEGIN + body)
    alone = run_python("starts.py", cwd=tmp_path)
    under = run_profstack(["run", "-q", "-o", "rec", "starts.py"])
    assert under.stdout == alone.stdout
    reports = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(tmp_path.glob("rec/process-*/report.json"))
    ]
    counts = sorted(report["step"]["count"] for report in reports)
    # The step that shows the rule is over before the count begins. A pool asks its workers to end
    # and kills them at once: one whose turn it was not is killed, its last steps not written.
    killed = [report["status"] != "complete" for report in reports]
    for count, made in zip(counts, steps, strict=True):
        assert made / 2 < count < made if any(killed) else count == made - 1
    assert sum(killed) <= (body is POOLS)
    layers = [{row["name"]: row["status"] for row in report["layers"]} for report in reports]
    assert [each["torch"] for each in layers] == ["recorded"] * 2
