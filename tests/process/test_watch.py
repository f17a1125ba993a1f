"""The watch, and the sampler of memory, in processes of their own: forks and signals."""

import signal

import pytest

from profstack.storage.vocabulary import WATCH_INTERVAL_S
from tests.support.processes import run_python
from tests.support.recorded_runs import rows_of

BEGIN = """
import _thread, gc, os, signal, threading, time
# What is registered first is called last before a fork.
at_fork = set()
os.register_at_fork(before=lambda: at_fork.add(_thread._count()))
def goes_on():
    before, late = taken(), time.perf_counter() + 60
    while taken() == before and time.perf_counter() < late:
        time.sleep(0.01)
    return taken() > before
"""
WATCH = """
from profstack.readers.watch import Sampler
sampler = Sampler(time.perf_counter())
sampler.resume()
end, taken = sampler.pause, lambda: sampler.taken
empty = lambda: (sampler.resume(), sampler.pause(), sampler.flush())[2] == ([], [])
"""
MEMORY = """
from profstack.readers.memory.readings import MemorySampler
sampler = MemorySampler(lambda: (1, 1))
sampler.start()
end, taken, empty = sampler.stop, lambda: sampler.count, lambda: True
"""
FORKS = """
for running in [True] * 9 + [False]:
    time.sleep(0.011)
    if not running:
        end()
    pid = os.fork()
    if not pid:
        right = empty()
        end()
        os._exit(not right or _thread._count())
    assert os.waitpid(pid, 0)[1] == 0
    # From Python 3.13 on it is begun again with the next collection.
    gc.collect()
    assert not running or goes_on()
print((at_fork, _thread._count()) == ({0}, 0))
"""
FORKS_OF_THREADS = """
def fork_often():
    for _ in range(15):
        pid = os.fork()
        if not pid:
            os._exit(0)
        os.waitpid(pid, 0)
threads = [threading.Thread(target=fork_often) for _ in range(4)]
for each in threads: each.start()
for _ in range(50):
    sampler.pause(); time.sleep(0.001); sampler.resume(); time.sleep(0.001)
for each in threads: each.join()
garbage = [[] for _ in range(20_000)]
went_on = goes_on()
sampler.pause()
sampler.close()
print((went_on, _thread._count(), sampler.forking) == (True, 0, 0))
"""
# A thread that does not block it would be given it, and the process would end.
BLOCKED_SIGNAL = """
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
goes_on()
os.kill(os.getpid(), signal.SIGUSR1)
goes_on()
print(signal.sigtimedwait({signal.SIGUSR1}, 5).si_signo == signal.SIGUSR1)
"""


@pytest.mark.skipif(not hasattr(signal, "sigtimedwait"), reason="no signals to wait for")
@pytest.mark.parametrize(("sampler", "code"), [
    (WATCH, FORKS), (WATCH, FORKS_OF_THREADS), (WATCH, BLOCKED_SIGNAL), (MEMORY, FORKS),
    (MEMORY, BLOCKED_SIGNAL),
])  # fmt: skip
def test_forks_and_blocked_signals_find_no_thread(sampler, code):
    # The script's own threads are what Python warns of.
    flag = "ignore::DeprecationWarning" if code == FORKS_OF_THREADS else "error"
    done = run_python("-W", flag, "-c", BEGIN + sampler + code, timeout=120)
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.parametrize(("option", "threads"), [("--layers", 1), ("--skip", 0)])
def test_a_script_without_torch_is_watched_all_the_same(tmp_path, run_profstack, option, threads):
    text = "import _thread, time\ndef wait():\n    time.sleep(0.3)\nwait()\nprint(_thread._count())"
    (tmp_path / "script.py").write_text(text)
    layers = "nvtx,watch" if option == "--layers" else "watch"
    done = run_profstack(["run", "-q", "-o", "rec", option, layers, "script.py"])
    assert done.stdout == f"{threads}\n"
    if option == "--layers":
        folder = tmp_path / "rec"
        found = rows_of(folder, "SELECT name, status, reason FROM layers")
        status = {name: rest for name, *rest in found}
        assert (status["watch"][0], status["nvtx"][0]) == ("recorded", "skipped")
        assert "never imported torch" in status["nvtx"][1]
        query = "SELECT sum(weight) FROM watch_samples JOIN watch_frames USING (frame) WHERE name"
        [(weight,)] = rows_of(folder, f"{query} = 'wait'")
        assert weight * WATCH_INTERVAL_S > 0.2
