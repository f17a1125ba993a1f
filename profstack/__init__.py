"""profstack: one run, every profiling layer, honest numbers.

Importing this package imports neither torch nor a profiling tool, nor any module that a bare
interpreter has not loaded already: a measured script loads it before its first line. `Session`,
`Recording`, `benchmark`, `try_` and `region` are imported at their first use.
"""

import os

# typing's own must not be imported here; type checkers know the name.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from profstack.capture.user_regions import region
    from profstack.environment import __version__
    from profstack.recording import Recording
    from profstack.session import Session, benchmark, try_

__all__ = ["Recording", "Session", "__version__", "benchmark", "region", "step", "try_"]

_LAZY = {
    "__version__": "environment",
    "Recording": "recording",
    "Session": "session",
    "benchmark": "session",
    "try_": "session",
    "region": "capture.user_regions",
}

_HERE = os.path.dirname(os.path.abspath(__file__))
_CHECKOUT = os.path.dirname(_HERE)

# In a checkout without the profstack/wrappers link (a file system without symbolic links) the
# wrappers are found beside the package, under the same name, profstack.wrappers.
if not os.path.isdir(os.path.join(_HERE, "wrappers")) and os.path.isfile(
    os.path.join(_CHECKOUT, "wrappers", "__init__.py")
):
    __path__.append(_CHECKOUT)


def step() -> None:
    """Mark the end of a step; outside a measured run it does nothing.

    The first call makes `profstack.step()` the step rule of the run. It ends no step inside a
    session that marks steps itself.
    """
    from profstack.launch import child

    child.user_step()


def __getattr__(name: str) -> "object":
    """Import the public names lazily."""
    if (module := _LAZY.get(name)) is None:
        raise AttributeError(f"module 'profstack' has no attribute {name!r}")
    found = getattr(__import__(f"profstack.{module}", fromlist=["_"]), name)
    if name == "region":
        from profstack.capture import user_regions
        from profstack.launch import child

        if child.is_armed():
            # The script is measured, and has not imported torch yet or is importing it.
            user_regions.switch_on()
    globals()[name] = found
    return found


def __dir__() -> "list[str]":
    return sorted({*globals(), *__all__})
