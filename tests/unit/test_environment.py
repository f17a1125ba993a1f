"""Facts of the machine, its processes and threads, with and without /proc."""

import gc
import json
import mmap
import os
import platform
import threading
from pathlib import Path

import pytest
import torch

from profstack import environment
from profstack.environment import environment_facts, rss_bytes
from tests.support.processes import CHECKOUT

MIB = 2**20


@pytest.fixture
def files(monkeypatch):
    """What the system's files hold: nothing but what the test puts here."""
    found = {}
    monkeypatch.setattr(environment, "_read", found.get)
    return found


def test_facts_are_true_and_hold_no_values_of_environment_variables(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "31337")
    monkeypatch.setenv("WANDB_API_KEY", "hush-hush")
    monkeypatch.delenv("KMP_AFFINITY", raising=False)
    facts = environment_facts(CHECKOUT)
    text = json.dumps(facts)
    assert json.loads(text) == facts
    names = ("python", "implementation", "logical_cores", "usable_cores", "memory_bytes")
    assert [facts[name] for name in names] == [
        *(platform.python_version(), "CPython", os.cpu_count(), len(os.sched_getaffinity(0))),
        os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    ]
    assert facts["packages"]["torch"] == torch.__version__
    assert facts["variables_set"].count("OMP_NUM_THREADS") == 1
    assert "KMP_AFFINITY" not in facts["variables_set"]
    assert not [secret for secret in ("31337", "WANDB", "hush") if secret in text]


def test_facts_of_files_that_say_little_or_nothing(files):
    def facts():
        found = environment_facts()
        names = ("cpu_limit_cores", "cpu_governor", "memory_limit_bytes")
        return [found["cpu"] == "First: CPU", *(found[name] for name in names)]

    assert facts() == [False, None, None, None]
    assert environment.peak_rss_bytes() is None
    files["/proc/cpuinfo"] = "processor\t: 0\nmodel name\t: First: CPU\nmodel name : Second\n"
    files["/sys/fs/cgroup/cpu.max"] = "250000 100000\n"
    files["/sys/fs/cgroup/memory.max"] = "3000000\nmore\n"
    files["/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"] = " powersave \n"
    assert facts() == [True, 2.5, "powersave", 3_000_000]
    files["/sys/fs/cgroup/cpu.max"] = "max 100000\n"
    files["/sys/fs/cgroup/memory.max"] = "max\n"
    assert facts() == [True, None, "powersave", None]
    files["/proc/self/status"] = "Name: x\nVmPeak: 9 kB\nVmHWM:\t   7 kB\nVmRSS: 5 kB\n"
    assert environment.peak_rss_bytes() == 7 * 1024


def test_a_script_that_closes_or_takes_the_descriptor_does_no_harm(tmp_path):
    def descriptors():
        places = {int(each): f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd")}
        return [n for n, path in places.items() if os.path.realpath(path).endswith("/statm")]

    (tmp_path / "numbers.txt").write_text("1 2 3")
    mine = os.open(tmp_path / "numbers.txt", os.O_RDONLY)
    first = rss_bytes()
    for descriptor in descriptors():
        os.close(descriptor)
    assert abs(rss_bytes() - first) < 64 * MIB
    (reopened,) = descriptors()
    os.dup2(mine, reopened)
    assert abs(rss_bytes() - first) < 64 * MIB
    assert os.pread(reopened, 5, 0) == b"1 2 3"
    os.close(mine)


def test_the_peak_is_at_least_what_is_held_and_may_begin_anew():
    # A mapping of its own, touched: memory that other tests freed does not become part of it.
    gc.collect()
    mapping = mmap.mmap(-1, 128 * MIB)
    mapping.write(b"\1" * (128 * MIB))
    high = environment.peak_rss_bytes()
    assert high >= rss_bytes() - MIB > 128 * MIB
    mapping.close()
    assert environment.peak_rss_bytes() >= high - 8 * MIB
    after = environment.peak_rss_bytes(reset=True)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        # Where it may not be reset it stays.
        assert after >= high - 8 * MIB
    else:
        assert after < high - 64 * MIB


def test_available_memory_is_the_least_that_is_told(files):
    assert environment.available_memory_bytes() is None
    files["/proc/meminfo"] = "MemTotal: 9000 kB\nMemAvailable:    4000 kB\n"
    assert environment.available_memory_bytes() == 4000 * 1024
    files |= {
        "/proc/self/cgroup": "4:memory:/outer/inner\n3:cpuset:/x\n0::/box/own\n",
        # The limit stands above the process's own group; dropped files are not in the way.
        "/sys/fs/cgroup/box/memory.max": "3000000",
        "/sys/fs/cgroup/box/memory.current": "1500000",
        "/sys/fs/cgroup/box/memory.stat": "anon 1\ninactive_file 500000\n",
        "/sys/fs/cgroup/box/own/memory.max": "max",
        "/sys/fs/cgroup/box/own/memory.current": "1500000",
        "/sys/fs/cgroup/memory/x/memory.limit_in_bytes": "2",
        "/sys/fs/cgroup/memory/x/memory.usage_in_bytes": "1",
    }
    assert environment.available_memory_bytes() == 2_000_000
    # Version 1, in the group of its own that the controller of memory names.
    old = "/sys/fs/cgroup/memory/outer/inner/memory"
    files |= {f"{old}.limit_in_bytes": "1000", f"{old}.usage_in_bytes": "400"}
    assert environment.available_memory_bytes() == 600
    files[f"{old}.stat"] = "inactive_file 1\ntotal_inactive_file 30\n"
    assert environment.available_memory_bytes() == 630


def test_threads_are_listed_and_named_and_tell_how_long_they_waited_for_a_core():
    go = threading.Event()
    waiting = threading.Thread(target=go.wait)
    waiting.start()
    thread = waiting.native_id
    path = Path(f"/proc/self/task/{thread}")
    name = (path / "comm").read_text().strip()
    for process in ([], [os.getpid()]):
        assert {threading.get_native_id(), thread} <= set(environment.thread_numbers(*process))
        assert environment.thread_name(thread, *process) == name
    # The second figure, in nanoseconds; not every kernel tells it.
    if (path / "schedstat").exists():
        delay_s = environment.run_delay_s(thread)
        before = int((path / "schedstat").read_text().split()[1])
        assert delay_s * 1e9 <= before * (1 + 1e-12)
    go.set()
    waiting.join()
