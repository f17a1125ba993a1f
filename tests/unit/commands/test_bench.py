"""`profstack bench` around its processes: options, exit codes, and the one recording."""

import json
import signal
import webbrowser
from pathlib import Path
from types import SimpleNamespace

import pytest

from profstack import layer
from profstack.bench import results
from profstack.bench.measure import Policy
from profstack.bench.run import BenchOptions
from profstack.commands import bench, main
from profstack.commands.options import CommandParser
from profstack.errors import UsageError
from profstack.report import files
from profstack.storage.folder import facts_of, read_run, read_tables
from tests.support.commands import fails, refuses
from tests.support.engine import table
from tests.support.reports import build


def parsed(*words):
    parser = CommandParser("bench", bench.HELP)
    bench.configure(parser)
    return parser.parse_args(["train.py:step", *words])


def test_options_say_what_is_measured_and_sizes_are_binary():
    search = {"throughput": True, "search": "linear", "dtypes": ["float32", "tf32"]}
    search |= {"memory_limit": 2560, "max_batch": 9}
    for words, policy, asked in (
        ("", {}, {}),
        ("--warmup 7 --repeat 30 --throughput", {"warmup": 7, "repeat": 30}, {"throughput": True}),
        ("--max-seconds 2 --ablation", {"max_s": 2.0, "max_warmup_s": 2.0}, {"ablation": True}),
        ("--gc --compare eager,,compile", {"collect": True}, {"compare": ["eager", "compile"]}),
        ("--throughput --search linear --dtype float32,tf32 --memory-limit 2.5k --max-batch 9",
         {}, search),
    ):  # fmt: skip
        given = {"mode": "both", "compare": [], "dtypes": [], **asked}
        found = bench.asked_of(parsed(*words.split()))
        assert found == BenchOptions(policy=Policy(**policy), **given)
    sizes = {"1000000": 1_000_000, "3B": 3, "1.5K": 1536, "5MiB": 5 << 20, "2 GiB": 2 << 30}
    sizes["3tb"] = 3 << 40
    assert {text: parsed(f"--memory-limit={text}").memory_limit for text in sizes} == sizes
    for text in ("0", "2X", "-1", "KiB", "1.M"):
        with pytest.raises(UsageError, match="is no size; write 512MiB"):
            parsed(f"--memory-limit={text}")


@pytest.fixture
def processes(here, monkeypatch):
    """A target `train.py:step`, whose processes are made up; the page is never built.

    `ends` is what each process ends with, `medians` the median that it leaves.
    """
    made = SimpleNamespace(ends={}, medians={}, with_layers=True, started=[], signals=[])

    def popen(command):
        folder, process = Path(command[-2]), command[-1]
        made.started.append(process)
        ends = list(made.ends.get(process, [0]))

        def wait():
            end = ends.pop(0)
            if end == "SIGTERM":
                signal.getsignal(signal.SIGTERM)(15, None)
                end = ends.pop(0)
            if isinstance(end, BaseException):
                raise end
            median = made.medians.get(process, 0.25)
            figures = None if median is None else {"median_s": median, "note": f"of {process}"}
            left = {"figures": figures, "environment": {"torch": f"t{process}"}, "error": None}
            results.result_path(folder, process).write_text(json.dumps(left))
            if made.with_layers and process in ("0", "layers"):
                (folder / results.LAYERS / "logs").mkdir(parents=True, exist_ok=True)
                (folder / results.LAYERS / "recording.sqlite").touch()
            return end

        terminate = lambda: made.signals.append("SIGTERM")  # noqa: E731
        return SimpleNamespace(wait=wait, send_signal=made.signals.append, terminate=terminate)

    def write_report(folder):
        files.write(build(), folder / "report.json")
        return folder / "report.html"

    (here / "train.py").write_text("def step():\n    pass\n")
    monkeypatch.delenv("PROFSTACK", raising=False)
    monkeypatch.setenv("PROFSTACK_PEAKS", "0")
    monkeypatch.setattr(bench, "subprocess", SimpleNamespace(Popen=popen))
    monkeypatch.setattr(files, "write_report", write_report)
    return made


def run(words="", into="rec"):
    return main(["bench", "-o", into, "--force", "train.py:step", *words.split()])


def fact():
    return facts_of(read_tables(Path("rec")))["bench"]


def test_processes_run_one_after_the_other(processes, capsys):
    processes.medians = {"0": 0.5, "1": 0.25, "2": 0.375}
    assert run("--processes 3 --input 2x3 --batch-size 5") == 0
    assert processes.started == ["0", "1", "2"]
    options = json.loads(Path("rec", "logs", "bench.json").read_text())
    request = [options["request"][name] for name in ("spec", "inputs", "batch_size")]
    assert request == ["train.py:step", ["2x3"], 5]
    assert (options["processes"], options["layers"]) == (3, layer.layer_names())
    found, facts = fact(), read_run(Path("rec"))
    figures = found["figures"]
    assert (figures["note"], figures["between_process"]["median_s"]) == ("of 0", 0.375)
    assert (found["problems"], found["layers_apart"]) == ([], False)
    assert (facts["script"], facts["run"]["exit_code"]) == ("train.py:step", 0)
    assert (facts["environment"]["torch"], bool(facts["environment"]["python"])) == ("t0", True)
    out = capsys.readouterr().out
    assert ("4.01 ms" in out, out.endswith("Wrote rec/report.html\n")) == (True, True)


def test_a_process_that_fails_is_the_last_one(processes):
    before = signal.getsignal(signal.SIGTERM)
    processes.medians = {"1": None, "2": None}
    for ends, code, started, problem, signals in (
        ({"1": [1]}, 1, "01", "process 2: ended with exit code 1", []),
        ({"1": [-9]}, 137, "01", "process 2: ended by signal 9", []),
        ({"1": [KeyboardInterrupt(), 130]}, 130, "01", "process 2: interrupted", [2]),
        ({"2": ["SIGTERM", 143]}, 143, "012", "process 3: ended with exit code 143", ["SIGTERM"]),
    ):
        processes.ends = ends
        processes.started.clear()
        processes.signals.clear()
        assert run("--processes 3 -q --no-peaks") == code
        assert (processes.started, processes.signals) == (list(started), signals)
        assert any(problem in one for one in fact()["problems"])
        stopped_by = read_run(Path("rec"))["run"]["stopped_by"]
        assert stopped_by == ("interrupt" if code == 130 else None)
        assert signal.getsignal(signal.SIGTERM) == before


def test_without_any_sample_there_is_no_recording(processes, capsys):
    processes.medians = {"0": None}
    for code, kept in ((2, False), (130, False), (1, True)):
        processes.ends = {"0": [code]}
        assert (run("-q"), Path("rec").exists()) == (code, kept)
        assert ("nothing was recorded" in capsys.readouterr().err) is (code == 130)


def test_why_there_are_no_layers_and_peaks_are_of_the_torch_layer(processes, monkeypatch):
    given = []
    keep = lambda folder, *, measure, tell: given.append((measure, tell is not None))  # noqa: E731
    monkeypatch.setattr("profstack.launch.peaks.keep_peaks", keep)
    for words, left, why, measured, told in (
        *(("-q", True, None, True, False), ("--layers flops", True, None, False, True)),
        ("", False, "ended before", False, True),
        ("--layers none", False, "--layers none", False, True),
    ):
        processes.with_layers = left
        run(words)
        assert given.pop() == (measured, told)
        rows = table(Path("rec"), "layers")
        assert [row["name"] for row in rows] == ([] if why is None else layer.layer_names())
        assert all(row["status"] == "skipped" and why in row["reason"] for row in rows)


def test_json_has_standard_output_alone(processes, capsys, monkeypatch):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    assert run("--json --open --no-peaks") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["median_s"] == build()["benchmark"]["median_s"]
    assert printed.err.endswith("Wrote rec/report.html\n")
    assert opened == [Path("rec", "report.html").resolve().as_uri()]
    assert run("-q") == 0
    assert capsys.readouterr().out == "Wrote rec/report.html\n"
    monkeypatch.setattr(files, "write_report", fails(ValueError("a defect")))
    assert run("--no-peaks") == 2
    assert "profstack report rec" in capsys.readouterr().err
    assert fact()["figures"]["median_s"] == 0.25


CONTRADICTIONS = """
--repeat 3 --target 0.1 | give one of the two // --target 1 | 1 is no part of the median
--search linear | --search is of the search // --memory-limit 1G | --memory-limit is of the search
--compare eager,fast | knows no 'fast' // --compare , | --compare names nothing
--layers nothing | no layer 'nothing'
--input 3xy | 3xy // --factory --step | not allowed with // --processes 0 | 0 is not above 0
"""


def test_what_contradicts_itself_is_refused(processes, capsys, monkeypatch):
    refuses(capsys, CONTRADICTIONS, "bench", "-o", "rec", "train.py:step")
    refuses(capsys, "nowhere.py:step | nowhere.py", "bench")
    monkeypatch.setenv("PROFSTACK", "0")
    refuses(capsys, "train.py:step | PROFSTACK=0", "bench")
    assert (processes.started, Path("rec").exists()) == ([], False)
