"""Fixtures for tests of wrappers."""

import pytest

from tests.support.wrapped import installed_hooks


@pytest.fixture
def hooks():
    with installed_hooks() as made:
        yield made
