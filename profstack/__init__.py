"""profstack: one run, every profiling layer, honest numbers.

Importing this package imports neither torch nor any profiling tool, nor any module that a bare
interpreter has not loaded already: inside a measured script it is there from the first line on.
`Session`, `Recording`, `benchmark` and `region` are loaded when they are first asked for.
"""

import os

__version__ = "0.1.0"

# As typing's own, which is not to be imported here; type checkers know the name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from profstack.benchsession import benchmark
    from profstack.frozen import Recording
    from profstack.session import Session
    from profstack.userregions import region

__all__ = ["Recording", "Session", "__version__", "benchmark", "region", "step"]

_LATER = {"Recording": "frozen", "Session": "session", "region": "userregions"}

_HERE = os.path.dirname(os.path.abspath(__file__))
_CHECKOUT = os.path.dirname(_HERE)

# In a checkout without the profstack/wrappers link (a file system without symbolic links) the
# wrappers are found beside the package, still under their one name, profstack.wrappers.
if not os.path.isdir(os.path.join(_HERE, "wrappers")) and os.path.isfile(
    os.path.join(_CHECKOUT, "wrappers", "__init__.py")
):
    __path__.append(_CHECKOUT)


def step() -> None:
    """Mark the end of a step; outside a measured run it does nothing.

    The first call makes `profstack.step()` the step rule of the run. It ends no step as long as a
    session is open that marks steps itself.
    """
    from profstack import child

    child.user_step()


def _benchmark(target: "Any", *inputs: "Any", **options: "Any") -> "Recording":
    """What a call of the package `profstack.benchmark` does, which may not import this itself."""
    from profstack import benchsession

    return benchsession.benchmark(target, *inputs, **options)


def __getattr__(name: str) -> "object":
    """What is loaded when it is first asked for."""
    if name == "benchmark":
        # A package that can be called; importing it makes it an attribute of this one.
        return __import__("profstack.benchmark", fromlist=["_"])
    module = _LATER.get(name)
    if module is None:
        raise AttributeError(f"module 'profstack' has no attribute {name!r}")
    found = getattr(__import__(f"profstack.{module}", fromlist=["_"]), name)
    if name == "region":
        from profstack import child, userregions

        if child.is_armed():
            # The script is measured, and has not imported torch yet or does so right now.
            userregions.switch_on()
    globals()[name] = found
    return found


def __dir__() -> "list[str]":
    return sorted({*globals(), *__all__})
