"""Live objects by class, and other threads that must not notice."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from profstack.models import instances_of


class Base:
    pass


class Answering(Base):
    """One that must not be asked what it is."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise AssertionError("asked")


class Meta(type):
    def __eq__(cls, other: object) -> bool:
        raise AssertionError("compared")

    def __hash__(cls) -> int:
        raise AssertionError("hashed")


class Odd(Base, metaclass=Meta):
    pass


def test_subclasses_are_found_and_nothing_is_asked() -> None:
    held = [Base(), Answering(), Odd()]
    found = instances_of(Base)
    assert {id(each) for each in found} == {id(each) for each in held}
    assert instances_of(Odd)[0] is held[2]


def test_several_classes_at_once_each_object_once() -> None:
    model = torch.nn.Linear(2, 2)
    found = [id(each) for each in instances_of(torch.nn.Module, torch.nn.Linear, torch.Tensor)]
    assert len(found) == len(set(found))
    assert {id(model), id(model.weight), id(model.bias)} <= set(found)


def test_nothing_else_is_held_afterwards() -> None:
    class Other:
        pass

    other = Other()
    gone = weakref.ref(other)
    instances_of(Base)
    del other
    assert gone() is None


@pytest.fixture
def _switching() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def tuples_filled_beside(work: Any) -> list[BaseException]:
    """What tuples that another thread fills from a generator end with while `work` is called."""
    failed: list[BaseException] = []
    filled, stop = threading.Event(), threading.Event()

    def fill() -> None:
        while not stop.is_set():
            try:
                tuple(number for number in range(200))
            except SystemError as error:
                failed.append(error)
            filled.set()

    thread = threading.Thread(target=fill)
    thread.start()
    filled.wait()
    try:
        for _ in range(15):
            work()
            if failed:
                break
    finally:
        stop.set()
        thread.join()
    return failed


@pytest.mark.usefixtures("_switching")
def test_another_threads_tuples_are_left_alone() -> None:
    assert tuples_filled_beside(lambda: instances_of(torch.optim.Optimizer)) == []


@pytest.mark.usefixtures("_switching")
@pytest.mark.skipif(sys.version_info >= (3, 14), reason="how tuples are filled may have changed")
def test_a_list_of_everything_would_break_them() -> None:
    """What the other test guards against: should it pass, that one tells nothing."""

    def hold() -> None:
        everything = gc.get_objects()
        for _ in everything:
            pass

    assert tuples_filled_beside(hold)
