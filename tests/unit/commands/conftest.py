"""A recording in the current folder, for the commands that read."""

import webbrowser

import pytest

from tests.support.commands import RECORDING, make_recording


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current folder in which no browser is ever opened."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(webbrowser, "open", lambda url: pytest.fail(f"opened {url}"))
    return tmp_path


@pytest.fixture
def recording(here):
    """One recording in the usual place."""
    make_recording(here / RECORDING)
    return RECORDING
