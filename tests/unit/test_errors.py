"""Errors that a user can correct: one line, in the words of the command line or of Python."""

import pytest

from profstack.errors import ProfstackError, RecordingError, UsageError, naming_arguments


def test_a_line_names_place_and_next_step_and_options_become_arguments():
    for where, next_step, line in (
        *(("", "", "too many"), ("run", "", "run: too many"), ("", "stop", "too many; stop")),
        ("run", "stop", "run: too many; stop"),
    ):
        error = UsageError("too many", where=where, next_step=next_step)
        assert (str(error), isinstance(error, ProfstackError)) == (line, True)
    cause = OSError("full")
    for said, in_python in {
        "choose another with --output": "choose another with path=",
        "keep it with -o FILE": "keep it with path=",
        "replace it with --force": "replace it with force=True",
        "--output alone stays": "--output alone stays",
    }.items():
        with pytest.raises(RecordingError) as caught, naming_arguments("path"):
            raise RecordingError(said, where="there", next_step=said) from cause
        assert str(caught.value) == f"there: {in_python}; {in_python}"
        assert caught.value.__cause__ is cause
