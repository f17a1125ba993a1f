"""Fixtures for tests of one module."""

import signal
import sys
import threading

import pytest


@pytest.fixture
def handle():
    """Put a handler of SIGUSR1; afterwards that before is back."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda handler: signal.signal(signal.SIGUSR1, handler) and None
    signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def nobody_watches():
    """No trace or profile function is set, coverage's for one; afterwards it is again."""
    before = sys.gettrace(), sys.getprofile()
    sys.settrace(None)
    sys.setprofile(None)
    yield
    assert (sys.getprofile(), threading.getprofile()) == (None, None)
    sys.setprofile(before[1])
    sys.settrace(before[0])


@pytest.fixture
def domain(monkeypatch):
    """A domain of nvtx that remembers, in place of profstack's."""
    from tests.support.wrapped import RememberingDomain  # its torch takes a second

    made = RememberingDomain()
    monkeypatch.setattr("nvtx.get_domain", {"profstack": made}.get)
    return made
