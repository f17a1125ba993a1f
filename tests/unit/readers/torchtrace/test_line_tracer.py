"""The tracer of source lines: every stamp it makes, and what it leaves alone."""

import _thread
import signal
import sys
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from profstack.readers.torchtrace import line_tracer
from profstack.readers.torchtrace.line_tracer import LineTracer, frames_outwards, is_users


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Run a source as a file of the script's; `tracer` in it is a tracer that was not started."""
    monkeypatch.setattr(line_tracer, "script_folder", lambda: str(tmp_path))
    # A project of its own, whatever lies above it.
    (tmp_path / "pyproject.toml").touch()

    def run(source, **names):
        names = {"tracer": LineTracer(), **names}
        exec(compile(source, str(tmp_path / "train.py"), "exec"), names)
        return names

    return run


def stamps(tracer):
    """Line of every stamp, 0 for no line, below 0 where it goes on."""
    assert len(tracer.times) == len(tracer.places) == len(tracer.runs)
    assert tracer.times == sorted(tracer.times)
    lines = [tracer.lines[place][1] if place >= 0 else 0 for place in tracer.places]
    assert all(line or not begun for line, begun in zip(lines, tracer.runs, strict=True))
    return [line if begun else -line for line, begun in zip(lines, tracer.runs, strict=True)]


def called(names):
    """Stamps of a call of `main`, in a thread: whatever runs the tests has frames of its own."""
    tracer = names["tracer"]

    def traced():
        tracer.start()
        try:
            names["main"]()
        finally:
            tracer.stop()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(traced).result()
    return stamps(tracer)


CALLS = "def inner(x):\n  y = x + 1\n  return y\ndef main():\n  a = inner(2)\n  return a"
NUMBERS = """def numbers():\n  for n in (1, 2):\n    yield n
def main():\n  for n in numbers():\n    str(n)"""
ERROR = """def fails():\n  raise KeyError
def main():\n  try:\n    fails()\n  except KeyError:\n    pass"""
LIBRARY = """import re\ndef twice(match):\n  return match[0] * 2
def main():\n  re.sub('a', twice, 'a')"""


def test_stamps_of_a_call(script):
    for source, wanted in [
        # After a call the caller's line goes on; after the outermost one no line does.
        (CALLS, [5, 2, 3, -5, 6, 0]),
        # A generator goes on where it had yielded, which is no new line.
        (NUMBERS, [5, 2, 3, -5, 6, 5, -3, 2, 3, -5, 6, 5, -3, 2, -5, 0]),
        (ERROR, [4, 5, 2, -5, 6, 7, 0]),
        # Through a library's function, whose lines are not traced.
        (LIBRARY, [5, 3, -5, 0]),
    ]:
        assert called(script(source)) == wanted


def test_lines_that_run_already_when_it_starts(script):
    """The loop of a script without functions was entered long before."""
    names = script("tracer.start()\nfor n in (1, 2):\n    str(n)\ntracer.stop()\n")
    assert stamps(names["tracer"]) == [-1, 2, 3, 2, 3, 2, 4]
    assert {code.co_name for code, _ in names["tracer"].lines} == {"<module>"}


HOT = "def hot(count):\n  total = 0\n  for n in range(count):\n    total += n\n  return total\n"
HOT += "def main():\n  hot(2)\n  hot(9)\n" + 5 * "  hot(1)\n"


def counted(tracer):
    """Runs that were only counted, by line."""
    return {tracer.lines[place][1]: count for place, count in tracer.counted()}


def test_lines_over_their_budget_are_counted_alone(script, monkeypatch):
    monkeypatch.setattr(line_tracer, "BUDGET", 3)
    monkeypatch.setattr(line_tracer, "LONG_LINE_NS", 10**12)
    monkeypatch.setattr(line_tracer, "_INTERVAL_NS", 10**12)
    monkeypatch.setattr(line_tracer, "WINDOW", 1)
    names = script(HOT)
    # The fourth run of line 3 opens the window, and those after it are hidden with lines 4 and 2.
    first = [7, 2, 3, 4, 3, 4, 3, 5, -7, 8, 2, 3, 4, 0, 5, -8, 9, 2, 0, 5, -9]
    # Line 5 has its budget left for one run more than line 2.
    calls = [stamp for line in (10, 11, 12, 13) for stamp in (line, 0, -line)]
    assert called(names) == [*first, *calls, 0]
    runs = {2: 7, 3: 3 + 10 + 5 * 2, 4: 2 + 9 + 5, 5: 7}
    known = counted(names["tracer"])
    assert known == {line: count - 3 - (line == 3) for line, count in runs.items()}


def test_long_lines_are_stamped_wherever_they_run(script, monkeypatch):
    monkeypatch.setattr(line_tracer, "BUDGET", 2)
    monkeypatch.setattr(line_tracer, "_INTERVAL_NS", 10**12)
    source = "def main():\n  for n in range(2000):\n    if n % 500 == 499:\n      sleep(0.001)\n"
    tracer = (names := script(source, sleep=time.sleep))["tracer"]
    assert called(names).count(4) == 4
    assert counted(tracer).get(4, 0) == 0
    # A line is stamped or counted each time it runs.
    for line, runs in {2: 2001, 3: 2000}.items():
        assert counted(tracer)[line] + stamps(tracer).count(line) == runs


def test_tracing_ends_after_very_many_lines(script, monkeypatch):
    monkeypatch.setattr(line_tracer, "MOST_LINES", 20_000)
    tracer = (names := script("def main():\n  for n in range(200_000):\n    str(n)\n"))["tracer"]
    assert called(names)[-1] == 0
    assert 20_000 < sum(counted(tracer).values()) < 200_000
    assert "20,000 lines" in tracer.ended


PHASES = """def main():
  for n in range(9_000): str(n)
  for n in range(300_000):
    str(n)
  for n in range(20_000):
    called(n)
def called(n):
  return n"""


def test_windows_show_the_lines_that_run_after_the_budget_in_loops_and_in_calls(script):
    interval, threads = sys.getswitchinterval(), _thread._count()
    tracer = (names := script(PHASES))["tracer"]
    called(names)
    stamped = zip(tracer.places, tracer.in_window, strict=True)
    assert {3, 4, 5, 6, 8} <= {tracer.lines[at][1] for at, window in stamped if window}
    runs = stamps(tracer)
    assert sum(tracer.in_window) >= 5 * line_tracer.WINDOW
    # Windows come by time: a slow machine has more of them.
    assert len(runs) < 300_000
    wanted = {3: 300_001, 4: 300_000, 8: 20_000}
    assert {line: counted(tracer)[line] + runs.count(line) for line in wanted} == wanted
    left = (sys.getswitchinterval(), _thread._count())
    assert (left, tracer.costs.stamp_ns > 0) == ((interval, threads), True)


def other(frame, event, argument):
    return None


def test_a_tracer_of_the_script_is_left_alone():
    sys.settrace(other)
    with pytest.raises(RuntimeError, match="settrace"):
        LineTracer().start()
    assert sys.gettrace() is other
    sys.settrace(None)
    tracer = LineTracer()
    tracer.start()
    sys.settrace(other)
    tracer.stop()
    assert sys.gettrace() is other


ENDED = "import sys\nframe = sys._getframe()\ntracer.start()\nbegan = frame.f_trace is not None\n"
ENDED += "for n in range(30_000):\n    str(n)\n" + 2 * "tracer.stop()\n"


def test_nothing_is_left_on_frames_and_they_are_not_kept_alive(script):
    names = script(ENDED)
    ended = (names["frame"].f_trace, names["frame"].f_trace_lines, sys.gettrace())
    assert (names["began"], ended) == (True, (None, True, None))
    source = "def main():\n    big = Big()\n    tracer.start()\n    return Ref(big)\n"
    names = script(source, Big=type("Big", (), {}), Ref=weakref.ref)
    alive = names["main"]()
    assert alive() is None
    names["tracer"].stop()


class TimeUpError(Exception):
    """What a signal handler of the script's raises."""


@pytest.mark.parametrize("own", [False, True], ids=["scripts", "own"])
@pytest.mark.parametrize("place", ["_line", "place_of"])
def test_an_error_in_the_tracer_ends_it_and_only_the_scripts_passes(script, place, own):
    def handler(number, frame):
        raise TimeUpError

    def interrupted(*arguments, **keywords):
        calls.append(1)
        if len(calls) == 9:
            if own:
                raise KeyError("a defect")
            signal.raise_signal(signal.SIGUSR1)
        return original(*arguments, **keywords)

    names, calls, raised = script(HOT), [], 0
    tracer = names["tracer"]
    original, before = getattr(tracer, place), signal.signal(signal.SIGUSR1, handler)
    try:
        tracer.start()
        setattr(tracer, place, interrupted)
        try:
            names["main"]()
        except TimeUpError:
            raised += 1
        assert sys.gettrace() is None
        names["main"]()
    finally:
        tracer.stop()
        signal.signal(signal.SIGUSR1, before)
    assert (raised, len(calls)) == (not own, 9)
    assert tracer.ended == ("KeyError: 'a defect'" if own else "a signal's handler raised")
    # What comes after it is no line's time.
    assert stamps(tracer)[-1] == 0


def test_whose_files_and_frames_are_looked_at(tmp_path):
    root, frame = str(tmp_path), sys._getframe()
    assert [is_users(file, root) for file in (f"{root}/train.py", torch.__file__)] == [True, False]
    assert list(frames_outwards(frame))[:2] == [frame, frame.f_back]
    assert list(frames_outwards(None)) == []
