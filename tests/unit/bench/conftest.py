"""What other tests left is not looked through at each of the many collections here."""

import gc

import pytest


@pytest.fixture(autouse=True, scope="module")
def quick_collections():
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
