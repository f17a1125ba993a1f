"""A recording in the making."""

import pytest

from tests.support.recordings import Run


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "rec")
