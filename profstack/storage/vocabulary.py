"""Words and constants that are written into a recording and read again.

Capture and analysis share nothing else but the tables. The measured process loads this module
before the script's first line: it imports only what a bare interpreter has loaded.
"""

import os

# --- Step parts and profiler ranges ---------------------------------------------------------------

RANGE_PREFIX = "profstack::"
MODULE_PREFIX = RANGE_PREFIX + "module "
BACKWARD_RANGE = RANGE_PREFIX + "backward"
# What an optimizer's step calls for a loss: the work in it is the loop's and not the optimizer's.
CLOSURE_RANGE = RANGE_PREFIX + "closure"
REGION_PREFIX = RANGE_PREFIX + "region "
# Suffix of a region entered inside itself: the outer range has the work.
AGAIN = " (inside itself)"

# Rows of a step that are no module. Their numbers are below 0, so that none is ever a module's.
WAIT, LOSS, OPTIMIZER, ACCUMULATION, OUTSIDE, UNATTRIBUTED = -1, -2, -3, -4, -5, -6
ZERO_GRAD, BEFORE_OPTIMIZER, COMPILED = -7, -8, -9
# In the order in which a step does them.
STEP_PARTS = {
    WAIT: "(wait)",
    COMPILED: "(compiled functions)",
    LOSS: "(loss)",
    ACCUMULATION: "(gradient accumulation)",
    BEFORE_OPTIMIZER: "(before the optimizer)",
    OPTIMIZER: "(optimizer)",
    ZERO_GRAD: "(zero_grad)",
    OUTSIDE: "(outside modules)",
    UNATTRIBUTED: "(not attributed)",
}
# Parts without an owner: time that no module, pass or optimizer accounts for.
UNOWNED = (OUTSIDE, UNATTRIBUTED)

# --- Regions --------------------------------------------------------------------------------------

# Source of a region named by the script through profstack.
OWN_REGION = "profstack.region"
# Paths of one slice that have rows of their own; a name with a number in it never ends.
MOST_REGIONS = 1000
OTHER_REGIONS = "(more regions)"

# --- Layers and counters --------------------------------------------------------------------------

# Status of a layer that has data.
WITH_DATA = ("recorded", "emitted")
# The fact that lists the files of other tools in a recording.
IMPORTS = "imports"
# Kinds of threads and processes: Python's by `threading`, torch's by the names it gives.
MAIN, BACKWARD, OWN, NATIVE, OTHER = "main", "backward", "profstack", "native", "other"
WORKER, PIN = "DataLoader worker", "DataLoader pin memory"
# Time between two samples of the watch.
WATCH_INTERVAL_S = 0.010
# Mode of a slice that is a whole program, watched by another tool.
PROGRAM = "program"
# The file of a frame around the stacks of one thread, where samples are of several.
THREAD = "<thread>"
# Note of the layer flops on a slice without a counted operator.
NO_OPERATIONS = "no operator with floating-point operations was called"
# Counters of operations that run on a copy of the model.
MODEL_COUNTERS = ("thop", "fvcore")
_CONVOLUTIONS = tuple(f"Conv{kind}{size}d" for kind in ("", "Transpose") for size in (1, 2, 3))
_RECURRENT = tuple(f"{kind}{cell}" for kind in ("RNN", "GRU", "LSTM") for cell in ("", "Cell"))
# Names of what each counts in multiply-adds: types of modules, and operators of a trace.
MULTIPLYING: dict[str, frozenset[str]] = {
    "thop": frozenset((*_CONVOLUTIONS, *_RECURRENT, "Linear")),
    "fvcore": frozenset(("conv", "addmm", "bmm", "einsum", "matmul", "mm", "linear")),
}

# --- Benchmarks -----------------------------------------------------------------------------------

# Name of the fact that holds a benchmark's results.
BENCH_FACT = "bench"
# Origins of a batch size.
STATED, READ = "stated", "read from the inputs"
# Addition to `how` of a peak rate that may be higher than measured.
OTHER_WORK = "other work took the CPU meanwhile"

# --- Errors that end a script ---------------------------------------------------------------------


def undefined_profile(error: object) -> "str | None":
    """Return what to do about an error that is for want of `profile`; None for any other."""
    if not isinstance(error, NameError) or getattr(error, "name", None) != "profile":
        return None
    import linecache

    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    text = linecache.getline(at.tb_frame.f_code.co_filename, at.tb_lineno) if at is not None else ""
    if not text.lstrip().startswith("@"):
        return None
    return (
        "the script uses @profile, which only `python -m memory_profiler` or `kernprof` define: "
        "remove it (profstack measures lines without it)"
    )


# --- Launchers ------------------------------------------------------------------------------------

_TORCHRUN = "torchrun --nproc-per-node N --no-python"
_ACCELERATE = "accelerate launch --no_python"
_DEEPSPEED = "deepspeed --no_python"
# Programs that start scripts in processes of their own, and the command that starts profstack
# in each of these.
_LAUNCHERS = {
    **dict.fromkeys(("torchrun", "torch.distributed.run", "torch.distributed.launch"), _TORCHRUN),
    **dict.fromkeys(("accelerate", "accelerate.commands.launch"), _ACCELERATE),
    "accelerate.commands.accelerate_cli": _ACCELERATE,
    **dict.fromkeys(("deepspeed", "deepspeed.launcher.runner"), _DEEPSPEED),
    "deepspeed.launcher.launch": _DEEPSPEED,
}


def launcher_warning(script: "str | None") -> "str | None":
    """Return a warning for a script or module that only launches others; None for any other."""
    name = os.path.basename(script or "")
    command = _LAUNCHERS.get(name)
    if command is None:
        return None
    return (
        f"{name} starts the script in processes of its own, which are not measured: to measure "
        f"them write {command} profstack run --ranks all script.py"
    )
