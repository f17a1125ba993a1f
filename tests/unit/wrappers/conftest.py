"""Fixtures for tests of wrappers."""

import pytest

from tests.support.wrapped import RememberingDomain, installed_hooks


@pytest.fixture
def hooks():
    with installed_hooks() as made:
        yield made


@pytest.fixture
def domain(monkeypatch):
    made = RememberingDomain()
    monkeypatch.setattr("nvtx.get_domain", lambda name: made)
    return made
