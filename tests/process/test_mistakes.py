"""The first profiler of a process."""

from tests.support.processes import run_python

CODE = """
import os
os.environ.pop("KINETO_LOG_LEVEL", None)
import torch
from profstack.stats.clock import Clock
from profstack.bench.measure import Policy
from profstack.bench.mistakes import mistakes
from profstack.bench.subject import Subject
one, levels = torch.ones(4), set()
def step():
    levels.add(os.environ.get('KINETO_LOG_LEVEL'))
    one.add(1)
mistakes(Subject('step', step), Policy(max_s=0.05), Clock())
assert levels == {None}, levels
"""


def test_the_first_profiler_of_a_process_prints_nothing():
    assert run_python("-c", CODE).stderr == ""
