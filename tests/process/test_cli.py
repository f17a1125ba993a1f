"""The front door: what a command costs before it starts, servers, and the documented commands."""

import cProfile
import os
import re
import signal
import subprocess
import sys
import urllib.request

import pytest

import profstack
from profstack import commands
from tests.support.commands import make_recording
from tests.support.hostile_recordings import kept
from tests.support.processes import CHECKOUT, clean_environment, run_python
from tests.support.tables import cases


def imported(folder, *words, code="from profstack.commands import main; main(sys.argv[1:])"):
    """The modules that a command, or a program, imports."""
    look = f"import sys\nbefore = set(sys.modules)\n{code}\n"
    look += "print(*sorted(set(sys.modules) - before), file=sys.stderr)"
    return set(run_python("-c", look, *words, cwd=folder).stderr.splitlines()[-1].split())


def test_what_runs_before_the_script_imports_nothing_heavy(tmp_path):
    assert imported(tmp_path, code="import profstack") == {"profstack"}
    assert imported(tmp_path, "--help") <= {"__future__", "profstack", "profstack.commands"}
    early = {"__future__", "profstack", "profstack.environment", "profstack.guard"}
    assert imported(tmp_path, code="import profstack.environment") <= early
    assert "torch" not in imported(tmp_path, code="import profstack; profstack.step()")
    region = "import profstack\nwith profstack.region('idle'): pass"
    others = {name for name in imported(tmp_path, code=region) if not name.startswith("profstack")}
    assert others == {"_contextvars", "contextvars"}
    assert {"Session", "Recording", "region", "step"} <= set(dir(profstack))
    with pytest.raises(AttributeError, match="'profstack' has no attribute 'nothing'"):
        _ = profstack.nothing
    heavy = {"torch", "profstack.wrappers"}
    assert not imported(tmp_path, "bench", "--help") & {"torch", "numpy", "pandas"}
    make_recording(tmp_path / "profstack-runs" / "train-0001")
    for words in (["show"], ["view", "--no-browser"], ["run", "nowhere.py"]):
        found = imported(tmp_path, *words)
        assert "profstack.errors" in found
        assert not found & heavy
    recording = kept(tmp_path / "kept")
    assert not imported(tmp_path, "report", str(recording)) & {"torch", "pandas", "jinja2"}


@cases("what ending code", ("--serve", signal.SIGINT, 0), ("--snakeviz", signal.SIGTERM, 143))
def test_a_server_is_for_this_machine_only_and_ends_with_us(tmp_path, what, ending, code):
    recording = make_recording(tmp_path / "rec")
    (recording / "cprofile").mkdir()
    profile = cProfile.Profile()
    profile.runcall(sorted, range(1000))
    profile.dump_stats(recording / "cprofile" / "profile.prof")
    command = [sys.executable, "-m", "profstack", "view", what, "--no-browser", str(recording)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    server = subprocess.Popen(command, **pipes, start_new_session=True, env=clean_environment())
    try:
        lines = (line.strip().removeprefix("page: ") for line in server.stdout)
        address = next(line for line in lines if line.startswith("http"))
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address, timeout=60) as answer:
            read = answer.read()
        page = (recording / "report.html").read_bytes()
        assert read == page if what == "--serve" else b"sorted" in read
        if ending == signal.SIGINT:
            os.killpg(server.pid, ending)
        else:
            server.terminate()
        _, complaint = server.communicate(timeout=60)
        assert (complaint, server.returncode) == ("", code)
        with pytest.raises(OSError, match=r"refused|Cannot assign"):
            urllib.request.urlopen(address, timeout=5)
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def options_in(text):
    return re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text)


def documented_commands():
    """Every (command, option) that a page shows in code; "" stands for the command alone."""
    found = set()
    for page in (CHECKOUT / "README.md", *(CHECKOUT / "docs").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        blocks = re.findall(r"```.*?```", text, flags=re.DOTALL)
        spans = re.findall(r"`[^`\n]+`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
        lines = [line.partition("#")[0] for block in blocks for line in block.splitlines()]
        for line in [*lines, *(span.strip("`") for span in spans)]:
            shown = re.match(r"(?:python -m )?profstack ([a-z]+)(.*)", line)
            if shown is not None:
                # What stands behind the target belongs to the script.
                own = re.split(r"\s(?:-m\s|-c\s|-\s|\S+\.py\b)", shown[2])[0]
                found.update((shown[1], option) for option in ["", *options_in(own)])
        # Tables of options are those of `profstack run`, but on the page of the benchmark; those of
        # the plugin are pytest's.
        if page.name == "pytest.md":
            continue
        command = "bench" if page.name == "benchmark.md" else "run"
        for cell in re.findall(r"^\| (`-.*?) \|", text, flags=re.MULTILINE):
            found.update((command, option) for option in options_in(cell))
    return found


def test_commands_and_options_in_the_documentation_exist(capsys):
    said = documented_commands()
    # The pages are read as people read them.
    assert {("run", ""), ("run", "-o"), ("run", "--max-seconds"), ("bench", "--throughput")} <= said
    assert not {("run", "--epochs"), ("run", "--throughput")} & said
    for name in sorted({name for name, _ in said}):
        assert name in commands.command_names()
        assert commands.main([name, "--help"]) == 0
        printed = capsys.readouterr().out
        for option in sorted(option for command, option in said if command == name and option):
            pattern = rf"(?<![\w-]){re.escape(option)}(?![\w-])"
            assert re.search(pattern, printed), f"profstack {name} knows no {option}"
