"""For all tests of the torch trace: whoever traces the tests steps aside."""

import pytest


@pytest.fixture(autouse=True)
def _nobody_traces(nobody_watches):
    return
