"""Child processes that tests wait for, two at a time: most of the suite's time is their imports.

Only for what is neither timed nor told apart by its time. A test that is not selected starts none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

Given = TypeVar("Given")
Got = TypeVar("Got")

AT_A_TIME = 2


@contextmanager
def done_ahead(
    request: pytest.FixtureRequest,
    parameter: str,
    work: Callable[[Given], Got],
    key: Callable[[Given], Any] = lambda given: given,
) -> Iterator[Callable[[Given], Got]]:
    """What `work` makes of each selected value of a test's parameter, begun before its turn.

    For a fixture of a module's scope: it gives a function that waits for one value's result and
    raises what `work` raised. `key` tells values apart.
    """
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        futures: dict[Any, Future[Got]] = {}
        for item in request.session.items:
            given = getattr(item, "callspec", None) and item.callspec.params.get(parameter)
            if item.path == request.path and given is not None and key(given) not in futures:
                futures[key(given)] = pool.submit(work, given)
        try:
            yield lambda given: futures[key(given)].result()
        finally:
            pool.shutdown(cancel_futures=True)
