"""The limit of a process's memory."""

import resource
import sys

import pytest

from profstack import environment
from profstack.bench import batch_trial
from tests.support.processes import run_python

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux limits a process's memory in earnest"
)
LIMITED = """
import resource
from profstack.bench.batch_trial import limit_memory
limit = limit_memory(96 * 2**20)
held = bytearray(64 * 2**20)
try:
    bytearray(64 * 2**20)
except MemoryError:
    print('refused')
limit.lift()
print(len(bytearray(64 * 2**20)) == len(held), limit.allowance_bytes == 96 * 2**20)
# A limit that the process has already, and that allows less, stays.
hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
resource.setrlimit(resource.RLIMIT_DATA, (512 * 2**20, hard))
print(limit_memory(2**40).allowance_bytes < 512 * 2**20)
"""


def test_the_limit_holds_and_comes_off_again():
    assert run_python("-c", LIMITED).stdout.split() == ["refused", "True", "True", "True"]


def test_it_is_a_share_of_what_is_available_where_that_is_held_to(monkeypatch):
    monkeypatch.setattr(environment, "available_memory_bytes", lambda: 1000)
    assert batch_trial.share_of_available() == 800
    monkeypatch.setattr(environment, "available_memory_bytes", lambda: None)
    with pytest.raises(batch_trial.NoLimitError, match="not known"):
        batch_trial.share_of_available()
    # As on systems that accept a limit and do nothing.
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    with pytest.raises(batch_trial.NoLimitError, match="holds to no limit"):
        batch_trial.limit_memory(2**20)
