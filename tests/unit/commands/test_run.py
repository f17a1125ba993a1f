"""`profstack run` around the script: its options, its exit code, the page, and second runs."""

import json
import shutil
import signal
import time
import webbrowser
from contextlib import closing
from pathlib import Path

import pytest

from profstack.capture.slices import Targets
from profstack.commands import main
from profstack.commands import run as run_command
from profstack.launch import other_runs, process, second_run
from profstack.launch.target import parse
from profstack.layer import MEMORY_BY, layer_names
from profstack.readers.nsys import importing, tool
from profstack.report import files
from profstack.storage.folder import PAGE_MARKER, Writer, append_event, read_run
from tests.support.commands import fails, refused, refuses
from tests.support.engine import table
from tests.support.reports import build


class Script:
    """Stands for the process of the script: what it is given, and what it does and ends with."""

    def __init__(self):
        self.code, self.records, self.does = 0, True, lambda folder, poll: None
        self.starts, self.unrecorded, self.pages = [], [], []

    def run(self, arguments, folder, words, poll):
        self.starts.append((" ".join(arguments), str(folder), " ".join(words)))
        if self.records:
            with closing(Writer(folder)) as writer:
                rows = [{"name": "torch", "status": "empty"}, {"name": "nvtx", "status": "emitted"}]
                writer.write({"layers": rows})
        self.does(folder, poll)
        return self.code

    def run_unrecorded(self, arguments):
        self.unrecorded.append(tuple(arguments))
        return 41

    def write_report(self, folder):
        self.pages.append(str(folder))
        files.write(build(), folder / "report.json")
        return folder / "report.html"

    def options(self):
        return json.loads(Path(self.starts[-1][1], "logs", "options.json").read_text())


@pytest.fixture
def script(here, monkeypatch):
    """A script `train.py` in the current folder, whose process is made up."""
    made = Script()
    Path("train.py").write_text("import torch\nloss.backward()\n")
    for name in ("PROFSTACK", "RANK", "SLURM_PROCID", "WORLD_SIZE", "NSYS_PROFILING_SESSION_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PROFSTACK_PEAKS", "0")
    for owner, name in ((process, "run"), (process, "run_unrecorded"), (files, "write_report")):
        monkeypatch.setattr(owner, name, getattr(made, name))
    return made


def run(*words, into="rec"):
    return main(["run", "-o", into, "--force", *words, "train.py"])


def test_exit_code_arguments_and_facts_are_the_scripts(script):
    for code, passed_on in {0: 0, 1: 1, 2: 2, 77: 77, -15: 143, -9: 137, -11: 139}.items():
        script.code, begun = code, time.perf_counter()
        words = ["train.py", "-x", "--layers", "own", "--token", "hunter2"]
        assert main(["run", "-o", "rec", "--force", *words]) == passed_on
        assert script.starts[-1][0] == " ".join(words)
        run = read_run(Path("rec"))["run"]
        assert (run["exit_code"], run["signal"]) == ((None, -code) if code < 0 else (code, None))
        assert 0 < run["duration_s"] < time.perf_counter() - begun
    facts = read_run(Path("rec"))
    assert (facts["script"], facts["argv"]) == ("train.py", [*words[:-1], "***"])
    assert facts["environment"]["python"]


def test_what_measures_in_the_background_knows_of_the_run(script, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    known = []
    script.does = lambda *_: known.append(other_runs.is_running())
    run()
    assert (known, other_runs.is_running()) == ([True], False)


def test_an_interrupt_ends_us_and_a_failing_page_changes_no_code(script, monkeypatch, capsys):
    done = []
    with monkeypatch.context() as patched:
        patched.setattr(run_command.signal, "signal", lambda *given: done.append(given))
        patched.setattr(run_command.signal, "raise_signal", done.append)
        script.code = -signal.SIGINT
        assert (run(), script.pages) == (130, ["rec"])
    assert done == [(signal.SIGINT, signal.SIG_DFL), signal.SIGINT]
    script.code = 3
    monkeypatch.setattr(files, "write_report", fails(ValueError("a defect")))
    assert run() == 3
    said = capsys.readouterr().err
    assert ("ValueError: a defect" in said, "profstack report rec" in said) == (True, True)


BAD_INPUT = """
| no script to run // nowhere.py | no such script // . | folder without __main__
-m | -m needs a value // --layers cprofile,sundial train.py | no layer 'sundial'
--max-steps 0 train.py | 0 is not above 0 // --max-seconds x train.py | x is no number
--step-by moonlight train.py | moonlight // --no-such-option train.py | --no-such-option
--skip memory --memory-by memory_profiler train.py | leave it in --layers
--ranks first train.py | --ranks first // -o train.py/rec train.py | cannot write
-o used train.py | --force
--light --skip torch train.py | --light chooses the layers // --nsys - | standard input
--nsys --skip nvtx train.py | layer nvtx
"""


def test_bad_input_is_one_line_and_nothing_is_started(script, capsys, monkeypatch):
    Path("used").mkdir()
    Path("used", "mine.txt").write_text("mine")
    refuses(capsys, BAD_INPUT, "run")
    why = {"NSYS_PROFILING_SESSION_ID": "observes this run already", "RANK": "one rank"}
    for variable, said in why.items():
        with monkeypatch.context() as patched:
            patched.setenv(variable, "0")
            assert said in refused(capsys, "run", "--nsys", "-o", "rec", "train.py")
    found = sorted(map(str, Path().rglob("*")))
    assert (script.starts, found) == ([], ["train.py", "used", "used/mine.txt"])


DEFAULTS = dict.fromkeys(("lockstep", "sync", "whole", "launched", "sparing"), False)
DEFAULTS |= dict.fromkeys(("step_by", "asked_step_by", "max_steps", "max_seconds", "startup"))
DEFAULTS |= {"layers": layer_names(), "left_out": {}, "source": True, "targets": vars(Targets())}
DEFAULTS |= {"budget": 10.0, "memory_by": "profstack"}
WHOLE = {"whole": True}


def test_the_child_is_told_what_was_asked_for(script):
    for number, (words, text, early, told) in enumerate((
        ("", "loss.backward()", "watch", {}),
        ("--layers torch,flops", "step", "", {"layers": ["torch", "flops"]}),
        ("--layers torch,flops --skip flops", "step", "", {"layers": ["torch"]}),
        ("--max-steps 12", "step", "watch", {"max_steps": 12}),
        ("--sync --no-source", "step", "watch", {"sync": True, "source": False}),
        ("--budget 2.5", "step", "watch", {"budget": 2.5}),
        *[(f"--memory-by {one}", "step", "watch", {"memory_by": one}) for one in MEMORY_BY],
        ("--light --no-children", "step", "watch sparing", {"layers": ["watch"], "sparing": True}),
        ("--startup cprofile", "step", "profile watch", {"startup": "cprofile"}),
        ("--step-by backward", "print()", "watch", {"step_by": "backward"}),
        ("--step-by none", "step", "profile watch", {"step_by": "none", **WHOLE}),
        ("--rounds 7 --slice-s 1", "step", "watch", {"targets": vars(Targets(3, 1.0, rounds=7))}),
        ("", "print()", "profile watch", WHOLE),
        ("--layers cprofile", "print()", "profile", {"layers": ["cprofile"], **WHOLE}),
        ("", "import profstack\nprofstack.step()", "watch", {"step_by": "step"}),
    )):  # fmt: skip
        Path("train.py").write_text(text)
        main(["run", *words.split(), "train.py", "--sync"])
        folder = f"profstack-runs/train-{number + 1:04d}"
        early += " follows" * ("--no-children" not in words)
        assert script.starts[number] == ("train.py --sync", folder, early.strip())
        asked = {"asked_step_by": told.get("step_by")} if "--step-by" in words else {}
        assert script.options() == DEFAULTS | told | asked


def test_only_the_ranks_asked_for_record(script, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "8")
    for rank, ranks in ((0, "0"), (7, "all"), (3, "0,3")):
        monkeypatch.setenv("RANK", str(rank))
        assert main(["run", "--ranks", ranks, "-o", "rec", "train.py"]) == 0
        folder = f"rec/rank-0000{rank}"
        assert script.starts[-1][1] == folder
        facts, options = read_run(Path(folder))["run"], script.options()
        assert (facts["rank"], facts["world_size"]) == (rank, 8)
        assert (options["lockstep"], options["targets"]) == (True, vars(Targets().in_lockstep()))
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, named in (("0", True), ("1", False)):
        monkeypatch.setenv("RANK", rank)
        capsys.readouterr()
        assert run("--ranks", "7") == 41
        assert ("no rank 7 among 0 and 1 (--ranks 7)" in capsys.readouterr().err) is named
    assert run("--ranks", "0") == 41
    assert (len(script.starts), script.unrecorded) == (3, [("train.py",)] * 3)
    monkeypatch.setenv("PROFSTACK", "0")
    assert main(["run", "-o", "off", "gone.py", "x"]) == 41
    assert (script.unrecorded[3:], Path("off").exists()) == ([("gone.py", "x")], False)


def test_progress_summary_and_early_page_go_to_standard_error(script, monkeypatch, capsys):
    def does(folder, poll):
        append_event(folder, {"event": "rule", "rule": "optimizer", "phase": "train"})
        append_event(folder, {"event": "page"})
        for early_s in (60.0, 0.0):
            assert script.pages == []
            monkeypatch.setattr(run_command, "EARLY_PAGE_S", early_s)
            poll()
        append_event(folder, {"event": "finished", "stopped_by": "max_steps"})

    script.does = does
    assert run() == 0
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert (out, lines[0]) == ("", "profstack: steps by Optimizer.step (train)")
    assert ("early page: rec/report.html" in lines[1], lines[-1]) == (True, "Wrote rec/report.html")
    assert "clean step: median 4.01 ms" in err
    assert read_run(Path("rec"))["run"]["stopped_by"] == "max_steps"
    assert (script.pages, Path("rec", PAGE_MARKER).exists()) == (["rec", "rec"], True)
    script.pages.clear()
    assert run("-q") == 0
    assert capsys.readouterr() == ("", "Wrote rec/report.html\n")


def test_a_script_without_torch_leaves_a_recording_that_says_so(script, capsys):
    script.records = False
    for code, why in {0: "it never imported torch", 5: "it ended before it imported torch"}.items():
        script.code = code
        assert run("--layers", "torch") == code
        (row,) = table(Path("rec"), "layers")
        assert (row["name"], row["status"], why in row["reason"]) == ("torch", "skipped", True)
        said = capsys.readouterr().err.splitlines()
        assert [why in said[0], said[1:]] == [True, ["Wrote rec/report.html"]]


def test_the_page_is_opened_and_peaks_are_measured_after_it(script, monkeypatch, capsys):
    opened, begun = [], []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    keep = lambda folder, *, measure, later: measure and later  # noqa: E731
    monkeypatch.setattr("profstack.launch.peaks.keep_peaks", keep)
    begin = lambda folder: begun.append(len(script.pages)) or True  # noqa: E731
    monkeypatch.setattr("profstack.launch.background_peaks.begin", begin)
    # Begun once the page is written.
    for words, pages, told in (
        *(("", [1], True), ("--no-peaks", [1], False), ("--skip torch", [1], False)),
        ("-q --open", [1, 4], False),
    ):
        run(*words.split())
        said = capsys.readouterr().err.splitlines()
        assert (begun, "in the background" in "".join(said[-2:-1])) == (pages, told)
        assert said[-1] == "Wrote rec/report.html"
    assert opened == [Path("rec", "report.html").resolve().as_uri()]


def test_a_second_run_is_for_the_layers_that_stayed_empty(script, monkeypatch, capsys):
    filled = []
    monkeypatch.setattr(second_run, "copy_layers", lambda *given: filled.append(given) or ["torch"])
    run()
    script.code = -15
    run("--rerun")
    assert ([start[1] for start in script.starts], filled) == (["rec"] * 2, [])
    for code in (0, 3):
        script.code = code
        capsys.readouterr()
        run("--rerun", "--max-steps", "9", into=f"rec{code}")
        assert script.starts[-1] == ("train.py", f"rec{code}/rerun", "")
        again = {"layers": ["torch"], "step_by": "none", "whole": True, "max_steps": 9}
        assert script.options() == DEFAULTS | again
        assert filled.pop() == (Path(f"rec{code}"), Path(f"rec{code}", "rerun"), ["torch"])
        said = capsys.readouterr().err
        assert "running again for torch" in said
        assert ("exit code 3 and filled torch" in said) is (code == 3)


def recording(folder):
    """A recording of two plans, one of 4 and one of 7 steps; a third is a script as a whole."""
    (folder / "logs").mkdir(parents=True)
    with closing(Writer(folder)) as writer:
        rules = {"plan_1": "module", "plan_2": "optimizer", "plan_3": "whole"}
        writer.facts({plan: {"rule": rule} for plan, rule in rules.items()})
        counts = {1: 4, 2: 7, 3: 9}
        rows = [{"plan": plan, "step": n} for plan, count in counts.items() for n in range(count)]
        writer.write({"steps": rows})
    return folder


@pytest.fixture
def nsys(tmp_path, monkeypatch):
    """Run a script a second time under a made-up nsys; gives what was told, noted and captured."""
    given = []

    def again(ends):
        ends = {"exit_code": 0, "timed_out": False, "said": "", "steps": 3, **ends}
        given.clear()
        shutil.rmtree(tmp_path / "rec", ignore_errors=True)
        (tmp_path / "rec.nsys-rep").unlink(missing_ok=True)
        steps = ends.pop("steps")

        def captured(nsys, command, environment, folder, **how):
            given.append((command[-2:], how))
            (folder / "capture.nsys-rep").touch()
            return second_run.NsysRun(folder / "capture.nsys-rep", **ends)

        imported = lambda *_, **__: {"steps": steps}  # noqa: E731
        monkeypatch.setattr(tool, "find_nsys", lambda path: tool.Nsys("/opt/nsys", "2025.1", None))
        monkeypatch.setattr(run_command, "package_version", lambda name: "0.2.11")
        monkeypatch.setattr(second_run, "capture", captured)
        monkeypatch.setattr(importing, "import_file", imported)
        monkeypatch.delenv("NSYS_PROFILING_SESSION_ID", raising=False)
        folder, told = recording(tmp_path / "rec"), []
        options = run_command.parser().parse_args([])
        second = run_command.NsysRun.prepared(options, parse(["train.py", "x"]), ["nvtx"], None)
        second.announce(told.append)
        second.execute(folder, 0, {"targets": vars(Targets())}, 2.25)
        assert second_run.FirstRun.read(folder).steps == 7
        return told, [row["text"] for row in table(folder, "notes")], given

    return again


def test_a_run_under_nsys_says_what_it_lacks(tmp_path, nsys):
    late = "was ended after 66 s, before the steps it was for were over"
    for ends, words in (
        *(({}, ""), ({"timed_out": True, "exit_code": 143}, late)),
        ({"exit_code": 4, "said": "last \x1bword"}, "ended with exit code 4"),
        ({"steps": 0}, "has no range of a step"),
    ):
        told, notes, given = nsys(ends)
        # Three times the first run and a minute.
        assert given == [(["train.py", "x"], {"on_device": False, "limit_s": 66})]
        assert (tmp_path / "rec.nsys-rep").is_file()
        assert "running again under Nsight Systems 2025.1" in told[0]
        assert f"{tmp_path}/rec.nsys-rep" in told[1]
        assert notes == ([f"the run under Nsight Systems {words}"] if words else [])
        last = ["the script's last words there: last ?word"] if "said" in ends else []
        assert told[2:] == [f"profstack: {line}" for line in [*last, *notes]]
