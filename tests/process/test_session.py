"""`Session` in programs of their own: under `profstack run`, with a late torch, and the example."""

from pathlib import Path

from profstack.recording import Recording
from tests.support.processes import CHECKOUT, run_python
from tests.support.recorded_runs import SGD, report_of

SCRIPT = f"""
from profstack import Session
import torch
{SGD}model = torch.nn.Linear(8, 4)
optimizer = SGD(model.parameters(), lr=0.1)
with Session("digits", layers=["cprofile"]) as session:
    for epoch in range(2):
        for number in session.steps(range(30)):
            optimizer.zero_grad()
            model(torch.randn(16, 8)).square().mean().backward()
            optimizer.step()
print(session.recording.to_dict()["step"]["counts_by_phase"])
print(type(session.recording.frames["steps"]).__name__)
"""
LATE = """
import sys
import profstack
with profstack.Session('late', layers=['cprofile'], output='rec') as session:
    import torch
    session.run(torch.nn.Linear(2, 2).eval(), torch.ones(1, 2))
assert 'pandas' not in sys.modules
print(repr(session), session.recording.to_dict()['argv'])
"""


def test_inside_profstack_run_it_marks_the_steps_of_that_run(run_profstack, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    done = run_profstack(["run", "-o", "rec", "--layers", "cprofile,torch", "script.py"])
    assert done.stdout == "{'train': 60}\nDataFrame\n"
    assert "session 'digits' marks the steps of the run it is in" in done.stderr
    report = report_of(tmp_path / "rec")
    assert (report["status"], report["step"]["rule"]) == ("complete", "step")
    assert report["step"]["counts_by_phase"] == {"train": 60}


def test_torch_may_be_imported_late_and_arguments_are_masked(tmp_path):
    (tmp_path / "script.py").write_text(LATE, encoding="utf-8")
    done = run_python("script.py", "--api-token", "hunter2", cwd=tmp_path)
    assert done.stdout == "<Session 'late', over> ['script.py', '--api-token', '***']\n"
    assert done.stderr.splitlines()[-1] == f"Wrote {Path('rec', 'report.html')}"
    for path in (tmp_path / "rec").rglob("*"):
        assert not path.is_file() or b"hunter2" not in path.read_bytes()
    report = report_of(tmp_path / "rec")
    assert (report["script"], report["run"]["exit_code"]) == ("late", None)
    assert report["environment"]["torch"]


def test_the_example_by_hand_measures_both_parts(tmp_path):
    script = CHECKOUT / "examples" / "session_by_hand.py"
    done = run_python(script, "--steps", "60", "--output", "tones", cwd=tmp_path)
    assert "answers: (32, 2)" in done.stdout
    made = [Recording.load(tmp_path / "tones" / name) for name in ("training", "inference")]
    assert [each.to_dict()["step"]["phase"] for each in made] == ["train", "eval"]
    assert all("Tones.recurrent" in set(each.frames["modules"]["path"]) for each in made)
    assert set(made[0].frames["regions"]["path"]) == {"add noise", "update"}
