"""Fixtures for tests that look at all tensors of the process."""

import gc

import pytest


@pytest.fixture(scope="module")
def nothing_older():
    """What was alive before a file's tests, models of other tests among it, is not looked at."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def nothing_left(nothing_older):
    """Nor is what its own tests left behind."""
    gc.collect()
