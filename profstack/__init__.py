"""profstack: one run, every profiling layer, honest numbers.

Importing this package imports neither torch nor any profiling tool, nor any module that a bare
interpreter has not loaded already: inside a measured script it is there from the first line on.
"""

import os

__version__ = "0.1.0"

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

    The first call makes `profstack.step()` the step rule of the run.
    """
    from profstack import child

    child.user_step()
