"""What a script can see of the interpreter it runs in, written down at four moments.

The harness copies this file beside each script, so that both runs import it in the same way.

* `first`: at the script's first line, with nothing imported for the purpose;
* `last`: where the script calls `last_step`, after its last step;
* `atexit`: in the exit callback that runs after all of the script's own;
* `final`: after every exit callback of anybody, just before modules are torn down.

Facts are written as Python literals: `repr` needs no import.
"""

import atexit
import os
import sys

FOLDER = os.path.join(os.path.dirname(os.getcwd()), "facts")
_watched = {}


def first_line():
    """Record the first moment and arrange for the third; workers of the script do nothing."""
    if sys._getframe(1).f_globals["__name__"] != "__main__":
        return
    facts = interpreter_facts()
    facts["environ"] = dict(os.environ)
    facts["modules"] = sorted(sys.modules)
    facts["path_importer_cache"] = sorted(sys.path_importer_cache)
    facts["main"] = main_facts(sys._getframe(1).f_globals)
    write("first", facts)
    with open("runs.log", "a") as log:
        log.write("once\n")
    atexit.register(at_exit, os.getpid())


def seed(number):
    """Seed every generator the script may use, so that their last states say something."""
    import random

    random.seed(number)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(number)


def last_step(**watched):
    """Record the second moment; `watched` are the models and optimizers the script used."""
    _watched.update(watched)
    write("last", run_facts())


def at_exit(owner):
    """Record the third moment and arrange for the last, in the process that began."""
    if os.getpid() == owner:
        facts = run_facts()
        facts["signals"] = signal_facts()
        write("atexit", facts)
        # Finalisation clears builtins._ before it touches anything else, and after the last exit
        # callback: what dies with it sees the interpreter as everybody left it. It is hung there
        # only now, because torch keeps references to all built-ins it finds.
        sys.modules["builtins"].__dict__["_"] = Parting(owner)


class Parting:
    """Records the last moment when it is thrown away."""

    def __init__(self, owner):
        self.owner = owner

    def __del__(self):
        if os.getpid() == self.owner:
            facts = run_facts()
            facts["observers"] = observer_facts()
            facts["namespaces"] = namespace_facts()
            write("final", facts)


def write(moment, facts):
    """One file per moment, in the folder next to the working folder."""
    with open(os.path.join(FOLDER, moment), "w") as file:
        file.write(repr(facts))


def run_facts():
    """Everything that must be alike at any moment after the first."""
    facts = interpreter_facts()
    facts["environ"] = dict(os.environ)
    facts["random"] = random_facts()
    facts["switches"] = switch_facts()
    facts["hooks"] = hook_facts()
    facts["watched"] = {name: object_facts(value) for name, value in _watched.items()}
    return facts


def main_facts(names):
    """How the script was started, as it sees it in its own namespace."""
    spec = names.get("__spec__")
    return {
        "names": sorted(names),
        "file": names.get("__file__"),
        "package": names.get("__package__"),
        "doc": names.get("__doc__"),
        "loader": describe(type(names.get("__loader__"))),
        "spec": spec and (spec.name, spec.origin),
        "is_main": sys.modules["__main__"].__dict__ is names,
        "frames_below": stack_below(2),
    }


def stack_below(depth):
    """Code objects under the script's own frame: plain Python has none, or runpy's."""
    frame, codes = sys._getframe(depth).f_back, []
    while frame is not None:
        codes.append((frame.f_code.co_filename, frame.f_code.co_name))
        frame = frame.f_back
    return codes


def interpreter_facts():
    """Facts that need nothing but sys."""
    return {
        "argv": list(sys.argv),
        "orig_argv": list(sys.orig_argv),
        "flags": repr(sys.flags),
        "warnoptions": list(sys.warnoptions),
        "xoptions": dict(sys._xoptions),
        "path": list(sys.path),
        "path_hooks": [describe(hook) for hook in sys.path_hooks],
        "meta_path": [describe(finder) for finder in sys.meta_path],
        "executable": sys.executable,
        "prefix": sys.prefix,
        "dont_write_bytecode": sys.dont_write_bytecode,
        "recursion_limit": sys.getrecursionlimit(),
        "switch_interval": sys.getswitchinterval(),
        "working_folder": os.getcwd(),
        "excepthook": describe(sys.excepthook),
        "unraisablehook": describe(sys.unraisablehook),
        "displayhook": describe(sys.displayhook),
        "breakpointhook": describe(sys.breakpointhook),
        "streams": [
            (type(stream).__name__, stream.encoding, stream.errors, stream.line_buffering)
            for stream in (sys.stdin, sys.stdout, sys.stderr)
            if stream is not None
        ],
    }


def digest(data):
    """A short name for a lot of bytes."""
    import hashlib

    return hashlib.sha256(data).hexdigest()[:16]


def random_facts():
    """States of the random-number generators of whatever the script has imported."""
    facts = {}
    if "random" in sys.modules:
        facts["python"] = digest(repr(sys.modules["random"].getstate()).encode())
    if "numpy" in sys.modules and "numpy.random" in sys.modules:
        state = sys.modules["numpy.random"].get_state()
        facts["numpy"] = digest(repr((state[0], state[1].tolist(), *state[2:])).encode())
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        facts["torch"] = digest(bytes(torch.get_rng_state().tolist()))
        facts["torch_seed"] = torch.initial_seed()
    return facts


def switch_facts():
    """Process-wide settings of Python and torch that change results, speed or messages."""
    import gc
    import logging
    import warnings

    facts = {
        "gc": (gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.get_freeze_count()),
        "gc_callbacks": [describe(callback) for callback in gc.callbacks],
        "warnings": [repr(entry) for entry in warnings.filters],
        "showwarning": describe(warnings.showwarning),
        "logging": (logging.root.level, [describe(type(h)) for h in logging.root.handlers]),
    }
    if "torch" in sys.modules:
        facts.update(torch_switches(sys.modules["torch"]))
    return facts


def torch_switches(torch):
    """Backend flags and modes of torch."""
    backends = torch.backends
    return {
        "default_dtype": repr(torch.get_default_dtype()),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "anomaly": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")),
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.get_deterministic_debug_mode(),
        ),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "tf32": (backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32),
        "cudnn": (
            backends.cudnn.enabled,
            backends.cudnn.benchmark,
            backends.cudnn.deterministic,
            backends.cudnn.benchmark_limit,
        ),
        "mkldnn": (backends.mkldnn.enabled, backends.mkldnn.deterministic),
        "fused_attention": (
            backends.mha.get_fastpath_enabled(),
            backends.cuda.flash_sdp_enabled(),
            backends.cuda.mem_efficient_sdp_enabled(),
            backends.cuda.math_sdp_enabled(),
        ),
        "cuda_initialized": torch.cuda.is_initialized(),
        "dispatch_modes": torch._C._len_torch_dispatch_stack(),
        "function_modes": torch._C._len_torch_function_stack(),
        "dynamo": dynamo_counters(),
    }


def dynamo_counters():
    """Graphs, breaks and recompiles, where the script has used torch.compile."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return None
    return {
        group: dict(sorted((str(key), count) for key, count in utils.counters[group].items()))
        for group in ("stats", "frames", "graph_break", "unimplemented", "recompiles")
        if utils.counters.get(group)
    }


def hook_facts():
    """Global hooks of torch's modules and autograd; nobody may add one, not even for a while."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "nn"):
        return {}
    module = sys.modules["torch.nn.modules.module"]
    return {
        name: len(value)
        for name, value in sorted(vars(module).items())
        if name.startswith("_global_") and hasattr(value, "__len__")
    }


def object_facts(value):
    """What could have been hung on a model or an optimizer."""
    if hasattr(value, "named_modules"):
        return {path: instance_facts(module) for path, module in value.named_modules()}
    return instance_facts(value)


def instance_facts(value):
    """Attributes of one object and the sizes of its hook tables."""
    return {
        "attributes": sorted(vars(value)),
        "hooks": {
            name: len(table)
            for name, table in sorted(vars(value).items())
            if "hooks" in name and hasattr(table, "__len__")
        },
    }


def signal_facts():
    """What would happen on each signal."""
    import signal

    return {number.name: describe(signal.getsignal(number)) for number in signal.Signals}


def observer_facts():
    """Who is watching the interpreter or torch; asked for once everybody should be gone."""
    import _thread
    import threading

    names = [thread.name for thread in threading.enumerate()]
    # A DataLoader's queue leaves its thread to die by itself, sooner or later.
    dying = names.count("QueueFeederThread")
    facts = {
        "trace": describe(sys.gettrace()),
        "profile": describe(sys.getprofile()),
        "thread_trace": describe(threading.gettrace()),
        "thread_profile": describe(threading.getprofile()),
        "threads": sorted(name for name in names if name != "QueueFeederThread"),
        "raw_threads": _thread._count() - dying,
        "monitoring": monitoring_tools(),
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        optimizer = sys.modules["torch.optim.optimizer"]
        facts["optimizer_hooks"] = (
            len(optimizer._global_optimizer_pre_hooks),
            len(optimizer._global_optimizer_post_hooks),
        )
        facts["torch_profiler"] = torch.autograd._profiler_enabled()
        facts["python_tracer"] = str(torch._C._autograd._profiler_type())
    return facts


def monitoring_tools():
    """Holders of the tool identifiers of `sys.monitoring` (Python 3.12 and later)."""
    monitoring = getattr(sys, "monitoring", None)
    return monitoring and [monitoring.get_tool(number) for number in range(6)]


MODULES = """
builtins _thread atexit gc importlib._bootstrap importlib._bootstrap_external io linecache os
random signal subprocess sys threading time warnings multiprocessing.process numpy numpy.random
torch torch._C torch._C._autograd torch.autograd torch.autograd.graph torch.autograd.profiler
torch.cuda torch.cuda.nvtx torch.nn.functional torch.nn.modules.module torch.optim.optimizer
torch.profiler torch.random torch.serialization torch.utils.data.dataloader
torch.utils.flop_counter torch._dynamo.eval_frame
"""


def namespace_facts():
    """Every function in the modules and classes a profiler might patch, by where it is defined."""
    facts = {}
    for name in MODULES.split():
        module = sys.modules.get(name)
        if module is not None:
            facts[name] = callables(vars(module))
    torch = sys.modules.get("torch")
    if torch is not None:
        roots = [torch.nn.Module, torch.Tensor, torch.optim.Optimizer, torch.autograd.Function]
        roots += torch.Tensor.__mro__[1:-1]
        roots += [torch.utils.data.DataLoader, torch.utils.data.dataloader._BaseDataLoaderIter]
        for root in roots:
            for cls in family(root):
                facts[f"{cls.__module__}.{cls.__qualname__}"] = callables(vars(cls))
    return facts


def family(root):
    """A class and all that inherit from it."""
    return [root] + [cls for child in type.__subclasses__(root) for cls in family(child)]


def callables(names):
    """Name and origin of every function and class among `names`."""
    return {
        name: describe(value)
        for name, value in list(names.items())
        if callable(value) or isinstance(value, (property, staticmethod, classmethod))
    }


def describe(value):
    """What an object is, in words that are the same in every process."""
    if value is None or isinstance(value, (bool, int, str)):
        return repr(value)
    if isinstance(value, (staticmethod, classmethod)):
        return f"{type(value).__name__} {describe(value.__func__)}"
    if isinstance(value, property):
        return f"property {describe(value.fget)}"
    code = getattr(value, "__code__", None)
    named = value if hasattr(value, "__qualname__") else type(value)
    where = f" {code.co_filename}:{code.co_firstlineno}" if hasattr(code, "co_filename") else ""
    module = getattr(named, "__module__", None)
    return f"{type(value).__name__} {module}.{named.__qualname__}{where}"
