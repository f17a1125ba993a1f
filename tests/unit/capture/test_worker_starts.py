"""Starts of a DataLoader's workers: how often, how long, on which line of the script's."""

import sys
import time

import pytest
import torch

from profstack import code_owner
from profstack.capture import worker_starts as module

Workers = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
Loader = torch.utils.data.DataLoader


@pytest.fixture
def counted(monkeypatch):
    monkeypatch.setattr(code_owner, "script_folder", lambda: __file__.rpartition("/")[0])
    before = Loader.__init__, Workers.__init__, Workers._shutdown_workers, Workers._reset
    starts = module.WorkerStarts()
    restore = starts.install(Loader, Workers, lambda wrapper, original: wrapper)
    yield starts
    for each in restore:
        each()
    found = Loader.__init__, Workers.__init__, Workers._shutdown_workers, Workers._reset
    assert found == before


class Ordered(list):
    """A sampler whose order takes its time in each epoch."""

    def __iter__(self):
        time.sleep(0.2)
        return super().__iter__()


def loader(workers, persistent=False, order=None):
    # Numbers, since tensors of workers lie in shared memory until the process ends.
    options = {"collate_fn": sum, "num_workers": workers, "persistent_workers": persistent}
    return torch.utils.data.DataLoader(range(6), 2, sampler=order, **options)


def test_each_iterator_with_workers_is_a_start(counted):
    assert counted.facts() is None
    for _ in range(2):
        assert sum(loader(0)) == 15
    assert counted.facts() is None
    made_at = loader.__code__.co_firstlineno + 3
    kept_from_before = loader(1)
    begun = time.perf_counter()
    for _ in range(2):
        assert sum(loader(1)) == 15
    kept = loader(1, persistent=True)
    for _ in range(2):
        assert sum(kept) == 15
    del kept
    took_s = time.perf_counter() - begun
    facts = counted.facts()
    file = __file__
    # They count for the line that made the loader.
    assert (facts["starts"], facts["places"]) == (3, [{"file": file, "line": made_at, "starts": 3}])
    assert 0.0 < facts["ended_s"] < took_s - facts["started_s"] < took_s
    # Each epoch asks for its order, workers or not.
    before_s = facts["started_s"]
    # One that was made before the wrappers counts for the line that asks it.
    counted._made.clear()
    assert sum(kept_from_before) == 15
    line = sys._getframe().f_lineno - 1
    assert {"file": file, "line": line, "starts": 1} in counted.facts()["places"]
    before_s = counted.facts()["started_s"]
    assert sum(loader(1, order=Ordered(range(6)))) == 15
    assert counted.facts()["started_s"] - before_s < 0.2


def test_a_start_that_fails_is_none_and_shows_no_frame_of_ours():
    class Iterator:
        def __init__(self):
            raise OSError("no more processes")

        def _shutdown_workers(self):
            raise OSError("not ours")

        def _reset(self):
            raise OSError("no more samples")

    class Made:
        def __init__(self):
            raise OSError("no more loaders")

    starts = module.WorkerStarts()
    starts.install(Made, Iterator, lambda wrapper, original: wrapper)
    ends, resets = (lambda: Iterator._shutdown_workers(None)), (lambda: Iterator._reset(None))
    for call in (Made, Iterator, ends, resets):
        with pytest.raises(OSError, match=r"no more|not ours") as raised:
            call()
        assert {entry.path.name for entry in raised.traceback} == {"test_worker_starts.py"}
    assert starts.facts() is None
