"""A recording in the making."""

import pytest

from tests.support.recordings import Run


@pytest.fixture
def run(tmp_path, request):
    """A recording with the `TREE` of modules and the `LAYERS` that a file of tests has."""
    made = Run(tmp_path / "rec")
    made.writer.replace("modules", getattr(request.module, "TREE", []))
    made.layers(**getattr(request.module, "LAYERS", {}))
    return made
