"""The pytest plugin: its options, hooks and fixtures.

All that it does is in `profstack.pytest_steps`, which is imported when a test asks for one of the
fixtures: this module is imported in every run of pytest, and costs what its few lines cost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

    from profstack.pytest_steps import MeasuredStep, Row, Steps

MARKER = "profstack"
# Arguments of the marker, with what they are.
ARGUMENTS = {
    "max_s": "most seconds of a step",
    "compare": "by how much a step may be slower than the last kept one ('5%' or 0.05)",
    "max_flop": "most floating-point operations of a step",
    "max_syncs": "most waits for the device in a step",
    "seconds": "longest time of the measurement (default: 2)",
    "warmup": "calls before the measurement (default: until times are stable)",
    "repeat": "samples (default: until the median is known within 1 %)",
}
ROWS: pytest.StashKey[list[Row]] = pytest.StashKey()


# -- hooks of pytest -------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    add = parser.getgroup("profstack", "measure and lock steps (profstack)").addoption
    add("--profstack-save", action="store_true", help="keep the times of measured steps")
    words = "fail where a step is slower than the last kept one by more than this, beyond noise"
    add("--profstack-compare", metavar="SHARE", help=f"{words}, such as 5%%")
    add("--profstack-strict", action="store_true", help="fail where a limit cannot be judged")
    add("--profstack-lock", action="store_true", help="write the locks of steps anew")
    add("--profstack-off", action="store_true", help="call steps once and measure nothing")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, and prepare the rows of the table."""
    names = ", ".join(f"{name}: {meaning}" for name, meaning in ARGUMENTS.items())
    config.addinivalue_line("markers", f"{MARKER}(**limits): limits of a measured step ({names})")
    config.stash[ROWS] = []
    if (given := config.getoption("profstack_compare")) is not None:
        from profstack.pytest_steps import share_of

        try:
            share_of(given)
        except ValueError:
            raise pytest.UsageError(f"--profstack-compare: no share: {given}") from None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand the rows of a worker of xdist over to its controller."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["profstack"] = session.config.stash[ROWS]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take the rows of a worker of xdist."""
    rows = getattr(node, "workeroutput", {}).get("profstack", [])
    node.config.stash[ROWS].extend(rows)


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    """Print the table of what was measured."""
    if rows := config.stash[ROWS]:
        from profstack.pytest_steps import print_table

        print_table(terminalreporter, rows)


@pytest.fixture
def measure_step(request: pytest.FixtureRequest) -> Callable[..., MeasuredStep]:
    """Measure a callable: `measure_step(step, *args, **kwargs)` calls it often and returns a time.

    Limits of `@pytest.mark.profstack(...)` are checked, and the test fails where one is broken.
    """
    return _steps(request).measure


@pytest.fixture
def lock_step(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Compare what a step does with its lock: `lock_step(step, *args, **kwargs)`.

    A lock holds exact numbers: operators, operations, bytes, calls. The test fails where they
    differ. `--profstack-lock` writes the lock.
    """
    return _steps(request).lock


def _steps(request: pytest.FixtureRequest) -> Steps:
    from profstack.pytest_steps import Steps

    return Steps(request, MARKER, ARGUMENTS, request.config.stash[ROWS])
