"""Fixtures for tests of one module."""

import sys
import threading

import pytest


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
