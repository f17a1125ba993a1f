"""Which wrappers there are: the table of the built-in ones, and those that other packages add.

Nothing here imports a wrapper, and with it the tool it wraps, before that very layer is asked
for. Other packages name their wrappers as entry points of the group `profstack.wrappers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from profstack.environment import under_nsys
from profstack.errors import UsageError
from profstack.interrupts import is_scripts

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from profstack.wrapper import Wrapper

# Layer -> "module:class", in the order of the page.
BUILT_IN = {
    "cprofile": "profstack.wrappers.cprofile:CProfileWrapper",
    "torch": "profstack.wrappers.torch_profiler:TorchProfilerWrapper",
    "nvtx": "profstack.wrappers.nvtx:NvtxWrapper",
    "memory": "profstack.wrappers.memory:MemoryWrapper",
    "flops": "profstack.wrappers.flops:FlopsWrapper",
    "watch": "profstack.wrappers.watch:WatchWrapper",
}

ENTRY_POINTS = "profstack.wrappers"

# Under Nsight Systems these alone: there is one client of CUPTI at a time, and its timeline is to
# show steps that nothing else slows.
BESIDE_NSYS = ("nvtx", "watch")


# What is left to do after such a run, until it is done.
IMPORT_IT = "; profstack import FILE.nsys-rep --into this folder adds what it saw"


def layer_names() -> list[str]:
    """The built-in layers, in the order of the page."""
    return list(BUILT_IN)


def beside_nsys(layers: list[str]) -> tuple[list[str], dict[str, str]]:
    """Those of `layers` that are armed where Nsight Systems may be, and why the others are not."""
    if not under_nsys():
        return layers, {}
    reason = "Nsight Systems observes this run: beside it only nvtx and watch are armed"
    kept = [name for name in layers if name in BESIDE_NSYS]
    return kept, {name: reason for name in layers if name not in kept}


def word_of_nsys() -> tuple[str, str] | None:
    """Slug and text of a note that says whose run it is, where Nsight Systems may observe it."""
    if not under_nsys():
        return None
    text = (
        "Nsight Systems observes this run: the layer nvtx makes ranges for it, and nothing but the "
        "watch is armed beside that"
    )
    return "under-nsys", text + IMPORT_IT


def load(name: str) -> type[Wrapper]:
    """The wrapper class of a layer, built in or from another package.

    Raises `UsageError` where the layer is not known, or is another package's and broken.
    """
    location = BUILT_IN.get(name)
    if location is not None:
        return _imported(location)
    for entry in _entry_points():
        if entry.name == name:
            wrapper, problem = _third_party(entry)
            if wrapper is None:
                raise UsageError(problem, next_step=f"mend or uninstall {_origin(entry)}")
            return wrapper
    known = ", ".join(all_layer_names())
    raise UsageError(f"no layer '{name}'", next_step=f"the layers are {known}")


def all_layer_names() -> list[str]:
    """The built-in layers, then those that other packages name (not checked)."""
    added = {entry.name for entry in _entry_points()} - BUILT_IN.keys()
    return [*BUILT_IN, *sorted(added)]


def third_party() -> tuple[dict[str, type[Wrapper]], list[str]]:
    """Wrappers of other packages by layer, and a line for each one that cannot be used."""
    wrappers: dict[str, type[Wrapper]] = {}
    problems = []
    for entry in _entry_points():
        if entry.name in BUILT_IN or entry.name in wrappers:
            problems.append(f"layer '{entry.name}' of {_origin(entry)}: the name is taken")
            continue
        wrapper, problem = _third_party(entry)
        if wrapper is None:
            problems.append(problem)
        else:
            wrappers[entry.name] = wrapper
    return wrappers, problems


def _entry_points() -> list[EntryPoint]:
    from importlib.metadata import entry_points

    return sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: (entry.name, entry.value))


def _third_party(entry: EntryPoint) -> tuple[type[Wrapper] | None, str]:
    """The class an entry point names, or None and why not."""
    where = f"layer '{entry.name}' of {_origin(entry)}"
    try:
        return _imported(entry.value, entry.name), ""
    except Exception as error:
        if is_scripts(error):
            raise
        # Somebody else's import may fail in any way; the run goes on without that layer.
        return None, f"{where}: {type(error).__name__}: {error}"


def _imported(location: str, name: str | None = None) -> type[Wrapper]:
    """The class at "module:class", checked to be a wrapper (of that name, where one is given)."""
    from importlib import import_module

    from profstack.wrapper import Wrapper

    module, _, attribute = location.partition(":")
    found = getattr(import_module(module), attribute)
    if not (isinstance(found, type) and issubclass(found, Wrapper)):
        raise TypeError(f"{location} is not a profstack.wrapper.Wrapper")
    if name is not None and found.name != name:
        raise TypeError(f"{location} calls its layer '{found.name}', not '{name}'")
    return found


def _origin(entry: EntryPoint) -> str:
    """The package that an entry point came with."""
    return entry.dist.name if entry.dist is not None else entry.value
