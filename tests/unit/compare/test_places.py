"""Times of functions, lines and modules in which places of a difference are looked for."""

import pytest

from profstack.compare.places import function_times
from profstack.findings.reading import FunctionKey
from tests.support.reports import rows


def test_times_of_functions_are_clean_ones_of_the_users_own_in_steps():
    names = "line name own phase total_s self_s calibrated_s"
    made = rows(
        *("functions", names, (3, "f", True, "step", 3.0, 2.0, 1.0)),
        # What is not calibrated stays as it was measured.
        *((7, "g", True, "step", 5.0, 2.0, None), (9, "h", True, "step", 4.0, 0.0, 1.0)),
        *((1, "a", False, "step", 3.0, 2.0, 1.0), (2, "b", True, "startup", 3.0, 2.0, 1.0)),
        (4, "c", True, "step", None, 2.0, 1.0),
        file="/a/train.py",
    )
    found = function_times({"tables": {"functions": made}})
    expected = {(3, "f"): 1.5, (7, "g"): 5.0, (9, "h"): 4.0}
    assert found == {
        FunctionKey("/a/train.py", *key): pytest.approx(seconds)
        for key, seconds in expected.items()
    }
