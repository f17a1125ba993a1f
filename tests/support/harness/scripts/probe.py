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
_watched, _steps, _owner = {}, [], os.getpid()


def first_line():
    """Record the first moment and arrange for the third; workers of the script do nothing."""
    if sys._getframe(1).f_globals["__name__"] == "__main__":
        loaded = {"modules": sorted(sys.modules), "finders": sorted(sys.path_importer_cache)}
        # Only what is built in: an import would show.
        import _signal

        loaded["blocked"] = sorted(map(int, _signal.pthread_sigmask(_signal.SIG_BLOCK, [])))
        loaded["handlers"] = [str(_signal.getsignal(one)) for one in range(1, _signal.NSIG)]
        write("first", {**interpreter_facts(), **loaded, "main": main_facts(sys._getframe(1))})
        with open("runs.log", "a") as log:
            log.write("once\n")
        atexit.register(at_exit)


def seed(number):
    """Seed every generator the script may use, so that their last states say something."""
    sys.modules["random"].seed(number)
    sys.modules["torch"].manual_seed(number)
    sys.modules["numpy"].random.seed(number)


def count(text):
    """One more step of the script, with what is to be seen of it."""
    print(text, flush=True)
    _steps.append(1)


def descend(loss, *optimizers):
    """The end of a step of training."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    count(loss.item().hex())


def last_step(**watched):
    """Record the second moment; `watched` are the models and optimizers the script used."""
    _watched.update(watched)
    write("last", run_facts())
    print("steps", len(_steps))


def at_exit():
    """Record the third moment and arrange for the last, in the process that began."""
    if os.getpid() == _owner:
        import signal

        handlers = {number.name: describe(signal.getsignal(number)) for number in signal.Signals}
        write("atexit", {**run_facts(), "signals": handlers})
        # Finalisation clears builtins._ before it touches anything else, and after the last exit
        # callback: what dies with it sees the interpreter as everybody left it. It is hung there
        # only now, because torch keeps references to all built-ins it finds.
        sys.modules["builtins"].__dict__["_"] = Parting()


class Parting:
    """Records the last moment when it is thrown away."""

    def __del__(self):
        if os.getpid() == _owner:
            seen = {"observers": observer_facts(), "namespaces": namespace_facts()}
            write("final", {**run_facts(), **seen})


def write(moment, facts):
    with open(f"{FOLDER}/{moment}", "w") as file:
        file.write(repr(facts))


def run_facts():
    """Everything that must be alike at any moment after the first."""
    import gc
    import logging
    import warnings
    from hashlib import sha256 as digest

    torch = sys.modules["torch"]
    states = {
        "python": sys.modules["random"].getstate(),
        "torch": (torch.get_rng_state().tolist(), torch.initial_seed()),
        "numpy": sys.modules["numpy.random"].get_state(legacy=False),
    }
    return {
        **interpreter_facts(),
        "random": {
            name: digest(repr(state).encode()).hexdigest() for name, state in states.items()
        },
        # Process-wide settings of Python and torch that change results, speed or messages.
        "switches": {
            "gc": (gc.isenabled(), gc.get_threshold(), gc.get_debug(), gc.get_freeze_count()),
            "gc_callbacks": [describe(callback) for callback in gc.callbacks],
            "warnings": [repr(entry) for entry in warnings.filters],
            "showwarning": describe(warnings.showwarning),
            "logging": (logging.root.level, [describe(type(h)) for h in logging.root.handlers]),
            **torch_switches(torch),
        },
        # Global hooks of modules and autograd; nobody may add one, not even for a while.
        "hooks": sizes(torch.nn.modules.module, "_global_"),
        # What could have been hung on a model, on each of its modules, or on an optimizer.
        "watched": {
            name: {
                path: {"attributes": sorted(vars(part)), "hooks": sizes(part, "hooks")}
                for path, part in (*getattr(value, "named_modules", list)(), ("itself", value))
            }
            for name, value in _watched.items()
        },
    }


def sizes(owner, word):
    """The lengths of an object's tables with a word in their name."""
    tables = {name: value for name, value in sorted(vars(owner).items()) if word in name}
    return {name: len(value) for name, value in tables.items() if hasattr(value, "__len__")}


def main_facts(frame):
    """How the script was started, as it sees it in its own namespace."""
    names, below = frame.f_globals, []
    spec = names.get("__spec__")
    # Code under the script's own frame: plain Python has none, or runpy's.
    while frame := frame.f_back:
        below.append((frame.f_code.co_filename, frame.f_code.co_name))
    return {
        "names": sorted(names),
        **{name: names.get(name) for name in ("__file__", "__package__", "__doc__")},
        "loader": describe(type(names.get("__loader__"))),
        "spec": spec and (spec.name, spec.origin),
        "is_main": sys.modules["__main__"].__dict__ is names,
        "frames_below": below,
    }


def interpreter_facts():
    """Facts that need nothing but sys and os."""
    hooks = ("excepthook", "unraisablehook", "displayhook", "breakpointhook")
    return {
        **{name: list(getattr(sys, name)) for name in ("argv", "orig_argv", "warnoptions", "path")},
        **{name: describe(getattr(sys, name)) for name in hooks},
        "flags": repr(sys.flags),
        "xoptions": dict(sys._xoptions),
        "path_hooks": [describe(hook) for hook in sys.path_hooks],
        "meta_path": [describe(finder) for finder in sys.meta_path],
        "executable": (sys.executable, sys.prefix, sys.dont_write_bytecode),
        "limits": (sys.getrecursionlimit(), sys.getswitchinterval()),
        "working_folder": os.getcwd(),
        "environ": dict(os.environ),
        "streams": [
            (type(stream).__name__, stream.encoding, stream.errors, stream.line_buffering)
            for stream in (sys.stdin, sys.stdout, sys.stderr)
            if stream is not None
        ],
    }


# What torch is asked for.
SWITCHES = """
get_default_dtype get_num_threads get_num_interop_threads is_grad_enabled is_inference_mode_enabled
is_anomaly_enabled is_anomaly_check_nan_enabled are_deterministic_algorithms_enabled
is_deterministic_algorithms_warn_only_enabled get_deterministic_debug_mode cuda.is_initialized
get_float32_matmul_precision _C._len_torch_dispatch_stack _C._len_torch_function_stack
backends.mha.get_fastpath_enabled backends.cuda.flash_sdp_enabled
backends.cuda.mem_efficient_sdp_enabled backends.cuda.math_sdp_enabled
"""


def torch_switches(torch):
    from operator import attrgetter

    cudnn, mkldnn = torch.backends.cudnn, torch.backends.mkldnn
    # Graphs, breaks and recompiles, where the script has used torch.compile.
    dynamo = sys.modules.get("torch._dynamo.utils")
    groups = ("stats", "frames", "graph_break", "unimplemented", "recompiles")
    counters = [(group, dynamo.counters.get(group, {})) for group in groups if dynamo]
    return {
        **{name: repr(attrgetter(name)(torch)()) for name in SWITCHES.split()},
        "autocast": (torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")),
        "tf32": (torch.backends.cuda.matmul.allow_tf32, cudnn.allow_tf32),
        "cudnn": (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.benchmark_limit),
        "mkldnn": (mkldnn.enabled, mkldnn.deterministic),
        "dynamo": {group: sorted(map(str, counts.items())) for group, counts in counters},
    }


def observer_facts():
    """Who is watching the interpreter or torch; asked for once everybody should be gone."""
    import _thread
    import threading

    names = [thread.name for thread in threading.enumerate()]
    # The queue of a DataLoader and tqdm leave their threads to die by themselves, sooner or later.
    dying = [name for name in names if name in ("QueueFeederThread", "tqdm_monitor")]
    # Holders of tool identifiers: from Python 3.12 on.
    monitoring = getattr(sys, "monitoring", None)
    torch, optimizer = sys.modules["torch"], sys.modules["torch.optim.optimizer"]
    return {
        "trace": describe(sys.gettrace()),
        "profile": describe(sys.getprofile()),
        "thread_trace": describe(threading.gettrace()),
        "thread_profile": describe(threading.getprofile()),
        "threads": sorted(name for name in names if name not in dying),
        "raw_threads": _thread._count() - len(dying),
        "monitoring": monitoring and [monitoring.get_tool(number) for number in range(6)],
        "optimizer_hooks": sizes(optimizer, "_global_optimizer_"),
        "torch_profiler": torch.autograd._profiler_enabled(),
        "python_tracer": str(torch._C._autograd._profiler_type()),
    }


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
    loaded = {name: sys.modules[name] for name in MODULES.split() if name in sys.modules}
    torch, data = sys.modules["torch"], sys.modules["torch.utils.data"]
    roots = [torch.nn.Module, torch.Tensor, torch.optim.Optimizer, torch.autograd.Function]
    roots += [*torch.Tensor.__mro__[1:-1], data.DataLoader, data.dataloader._BaseDataLoaderIter]
    classes = [cls for root in roots for cls in family(root)]
    loaded.update((f"{cls.__module__}.{cls.__qualname__}", cls) for cls in classes)
    return {
        place: {
            name: describe(value)
            for name, value in list(vars(owner).items())
            if callable(value) or isinstance(value, (property, staticmethod, classmethod))
        }
        for place, owner in loaded.items()
    }


def family(root):
    return [root] + [cls for child in type.__subclasses__(root) for cls in family(child)]


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
