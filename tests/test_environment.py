"""Facts of the machine, and what is masked before they are shown."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import threading
import time

import pytest
from conftest import CHECKOUT, clean_environment

from profstack import environment
from profstack.environment import environment_facts, rss_bytes
from profstack.privacy import (
    commit_facts,
    home_relative,
    mask_secrets,
    package_versions,
    presentable_argv,
)


def test_facts_are_true_and_fit_json():
    facts = environment_facts(CHECKOUT)
    assert json.loads(json.dumps(facts)) == facts
    assert facts["python"] == platform.python_version()
    assert facts["implementation"] == sys.implementation.name.replace("cpython", "CPython")
    assert facts["logical_cores"] == os.cpu_count()
    assert facts["memory_bytes"] > 2**28
    assert 1 <= facts["usable_cores"] <= facts["logical_cores"]
    import torch

    assert facts["packages"]["torch"] == torch.__version__


def test_values_of_environment_variables_are_no_facts(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "31337")
    monkeypatch.setenv("WANDB_API_KEY", "hush-hush")
    facts = environment_facts()
    assert facts["variables_set"].count("OMP_NUM_THREADS") == 1
    text = json.dumps(facts)
    assert "31337" not in text
    assert "WANDB" not in text
    assert "hush" not in text


def test_packages_that_are_absent_are_left_out():
    assert package_versions(("pytest", "no-such-package-anywhere")) == {
        "pytest": pytest.__version__
    }


def test_commit_of_a_folder(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=A", "-c", "user.email=a@b.c"]
        done = subprocess.run(
            ["git", "-C", str(tmp_path), *identity, *arguments],
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()

    nothing = {"commit": None, "changed": None}
    assert commit_facts(tmp_path) == nothing
    git("init", "-q")
    assert commit_facts(tmp_path) == nothing
    (tmp_path / "train.py").write_text("steps = 3\n")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    head = git("rev-parse", "HEAD")
    inner = tmp_path / "inner"
    inner.mkdir()
    assert commit_facts(inner) == {"commit": head, "changed": False}
    (tmp_path / "new.txt").write_text("untracked files change nothing")
    assert commit_facts(tmp_path)["changed"] is False
    (tmp_path / "train.py").write_text("steps = 4\n")
    assert commit_facts(tmp_path) == {"commit": head, "changed": True}


def test_no_git_program_means_no_commit(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert commit_facts(CHECKOUT) == {"commit": None, "changed": None}


needs_statm = pytest.mark.skipif(
    not os.path.exists(environment._STATM), reason="this system has no /proc"
)


@needs_statm
def test_resident_set_grows_with_what_is_touched():
    before = rss_bytes()
    held = bytearray(os.urandom(1)) * (64 * 2**20)
    grown = rss_bytes() - before
    assert 48 * 2**20 < grown < 96 * 2**20
    del held


@needs_statm
def test_a_forked_child_reads_its_own_resident_set():
    rss_bytes()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        before = rss_bytes()
        held = b"\1" * (96 * 2**20)
        until = time.monotonic() + 5
        # A virtual machine may count what was touched a moment later.
        while (grown := rss_bytes() - before) <= 64 * 2**20 and time.monotonic() < until:
            time.sleep(0.01)
        os.write(writing, str(grown).encode())
        os._exit(len(held) == 0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        grown = int(pipe.read())
    os.waitpid(child, 0)
    # Through its parent's open file it would see its parent, which stands still.
    assert grown > 16 * 2**20


@needs_statm
def test_a_script_that_closes_or_takes_the_descriptor_does_no_harm(tmp_path):
    reader = environment._ResidentSet()
    first = reader.read()
    os.close(reader._file)
    assert abs(reader.read() - first) < 2**26
    other = tmp_path / "numbers.txt"
    other.write_text("1 2 3")
    mine = os.open(other, os.O_RDONLY)
    os.dup2(mine, reader._file)
    assert abs(reader.read() - first) < 2**26
    os.close(mine)


def test_everything_works_where_proc_is_absent(monkeypatch):
    real = environment._read
    monkeypatch.setattr(environment, "_STATM", "/no-such-place/statm")
    monkeypatch.setattr(
        environment, "_read", lambda path: None if path.startswith("/proc") else real(path)
    )
    assert environment._ResidentSet().read() is None
    assert environment_facts()["python"]


def test_importing_it_is_cheap():
    code = (
        "import sys; before = set(sys.modules); import profstack.environment;"
        "print(*(set(sys.modules) - before))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=clean_environment(),
    )
    ours = {"profstack", "profstack.environment", "profstack.guard"}
    assert set(answer.stdout.split()) <= {"__future__", *ours}


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["--token", "abc"], ["--token", "***"]),
        (["--hf-token=abc", "x"], ["--hf-token=***", "x"]),
        (["--api-key", "abc", "x"], ["--api-key", "***", "x"]),
        (["--APIKey=abc def"], ["--APIKey=***"]),
        (["--apiKey", "abc"], ["--apiKey", "***"]),
        (["--hftoken", "abc"], ["--hftoken", "***"]),
        (["-password", "1234"], ["-password", "***"]),
        (["password=hunter2"], ["password=***"]),
        (["+auth.token=abc"], ["+auth.token=***"]),
        (["WANDB_API_KEY=abc"], ["WANDB_API_KEY=***"]),
        (["--client_secret", "abc"], ["--client_secret", "***"]),
        (["--api-keys", "a", "b", "--n", "3"], ["--api-keys", "***", "***", "--n", "3"]),
        (["--tokens", "abc"], ["--tokens", "***"]),
        (["https://ann:pw@host/x?token=abc&n=3"], ["https://***@host/x?token=***&n=3"]),
        (['{"password": "a b", "n": 3}'], ['{"password": "***", "n": 3}']),
        (["-c", "api_key = 'abc'; f(1)"], ["-c", "api_key = '***'; f(1)"]),
        (["--header", "Authorization: Bearer abc.d"], ["--header", "Authorization: Bearer ***"]),
        (["hf_" + "a" * 30], ["***"]),
        (["--x=sk-" + "b" * 30], ["--x=***"]),
        # What is no secret stays readable.
        (["--max-tokens", "128"], ["--max-tokens", "128"]),
        (["--num_tokens=128"], ["--num_tokens=128"]),
        (["--key-dim", "64"], ["--key-dim", "64"]),
        (["--tokenizer", "gpt2"], ["--tokenizer", "gpt2"]),
        (["--monkey", "bonobo"], ["--monkey", "bonobo"]),
        (["--lr", "1e-3", "train.py"], ["--lr", "1e-3", "train.py"]),
        (["--use-token", "--epochs", "3"], ["--use-token", "--epochs", "3"]),
        (["--secret"], ["--secret"]),
        ([], []),
    ],
)
def test_secrets_on_a_command_line(argv, shown):
    assert mask_secrets(argv) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/ann", "~"),
        ("/home/ann/run/train.py", "~/run/train.py"),
        ("--data=/home/ann/x:/home/ann/y", "--data=~/x:~/y"),
        ("/home/anna/x", "/home/anna/x"),
        ("/home/ann.old/x", "/home/ann.old/x"),
        ("/mnt/home/ann/x", "/mnt/home/ann/x"),
        ("train.py", "train.py"),
    ],
)
def test_paths_are_shown_relative_to_home(text, shown, monkeypatch):
    monkeypatch.setenv("HOME", "/home/ann")
    assert home_relative(text) == shown


def test_a_home_at_the_root_hides_nothing(monkeypatch):
    monkeypatch.setenv("HOME", "/")
    assert home_relative("/data/x") == "/data/x"


def test_an_argument_list_gets_both(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ann")
    argv = ["--out", "/home/ann/runs", "--token=/home/ann/secret"]
    assert presentable_argv(argv) == ["--out", "~/runs", "--token=***"]


@needs_statm
def test_peak_of_the_resident_set_starts_anew_where_it_is_told_to():
    code = (
        "from profstack.environment import peak_rss_bytes\n"
        "held = b'a' * 2**27\n"
        "first = peak_rss_bytes()\n"
        "del held\n"
        "assert peak_rss_bytes() > first - 2**20 > 2**27\n"
        "try:\n"
        "    open('/proc/self/clear_refs', 'w').close()\n"
        "except OSError:\n"
        # Where it may not be reset it stays.
        "    assert peak_rss_bytes(reset=True) > first - 2**20\n"
        "else:\n"
        "    assert peak_rss_bytes(reset=True) < first - 2**26\n"
    )
    # Its parent is large: what getrusage says of such a child begins there.
    subprocess.run([sys.executable, "-c", code], env=clean_environment(), check=True)


def test_available_memory_is_the_least_that_is_told(tmp_path, monkeypatch):
    files = {
        "/proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    4000 kB\n",
        "/proc/self/cgroup": "4:memory:/outer/inner\n3:cpuset:/x\n0::/box/own\n",
        # The limit stands above the process's own group; dropped files are not in the way.
        "/sys/fs/cgroup/box/memory.max": "3000000",
        "/sys/fs/cgroup/box/memory.current": "1500000",
        "/sys/fs/cgroup/box/memory.stat": "anon 1\ninactive_file 500000\n",
        "/sys/fs/cgroup/box/own/memory.max": "max",
        "/sys/fs/cgroup/box/own/memory.current": "1500000",
    }
    monkeypatch.setattr(environment, "_read", files.get)
    assert environment.available_memory_bytes() == 2_000_000
    old = "/sys/fs/cgroup/memory/outer/inner/memory"
    files |= {f"{old}.limit_in_bytes": "1000", f"{old}.usage_in_bytes": "400"}
    assert environment.available_memory_bytes() == 600
    files[f"{old}.usage_in_bytes"] = "1400"
    assert environment.available_memory_bytes() == 0
    files.clear()
    assert environment.available_memory_bytes() is None
    files["/proc/meminfo"] = "MemAvailable:    4000 kB\n"
    assert environment.available_memory_bytes() == 4000 * 1024


needs_proc = pytest.mark.skipif(
    not os.path.exists("/proc/self/task"), reason="this system has no /proc"
)


@needs_proc
def test_threads_are_listed_and_named():
    native, go = [], threading.Event()

    def wait():
        native.append(threading.get_native_id())
        ready.set()
        go.wait()

    ready = threading.Event()
    thread = threading.Thread(target=wait)
    thread.start()
    ready.wait()
    numbers = environment.thread_numbers()
    assert {threading.get_native_id(), *native} <= set(numbers)
    assert environment.thread_numbers(os.getpid()) is not None
    assert environment.thread_name(native[0])
    go.set()
    thread.join()


@needs_proc
def test_children_are_those_that_nobody_waited_for_yet():
    own = threading.get_native_id()
    if environment.children_of(own) is None:
        pytest.skip("this kernel does not list children")
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in environment.children_of(own)
        assert environment.children_of(child.pid, child.pid) == []
        child.stdin.close()
        child.wait()
    assert child.pid not in environment.children_of(own)


@needs_proc
def test_what_is_gone_has_no_threads_and_no_name():
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as child:
        child.wait()
    assert environment.thread_numbers(child.pid) is None
    assert environment.thread_name(child.pid, child.pid) is None
    assert environment.children_of(child.pid, child.pid) is None
    assert environment.run_delay_s(child.pid) is None


@needs_proc
def test_the_wait_for_a_core_only_grows():
    first = environment.run_delay_s(threading.get_native_id())
    if first is None:
        pytest.skip("this kernel does not tell it")
    assert 0 <= first <= environment.run_delay_s(threading.get_native_id())
