"""Facts about live torch models: class names, wrappers, losses, and live objects by class."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from itertools import chain, compress, starmap
from typing import Any

from profstack.guard import Guard

# torch's modules that run another one, by the name under which they hold it.
WRAPPERS = {
    "OptimizedModule": "_orig_mod",
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "OffloadWrapper": "_checkpoint_wrapped_module",
}
# Of these nothing is left when they run: the compiled code takes the place of the module.
TRANSPARENT = frozenset({"OptimizedModule"})
# Classes that torch puts before a module's own class, to make a new class of both.
MIXED_IN = frozenset({"FSDPModule", "ReplicateModule", "DDP"})


def can_be_read(torch: Any, value: Any) -> bool:
    """Return whether a tensor's values may be looked at without an effect on the script.

    That waits for a device: it would end the capture of a CUDA graph, and is an error where the
    script has asked for errors at waits.
    """
    device = value.device.type
    if device != "cuda":
        return bool(device == "cpu")
    return not torch.cuda.is_current_stream_capturing() and not torch.cuda.get_sync_debug_mode()


def operators_are_watched(torch: Any) -> bool:
    """Return whether a profiler or mode of the script's, or of the layer flops, sees operators.

    Operators of our own would be in what it tells.
    """
    c = torch._C
    return bool(c._autograd._profiler_enabled() or c._len_torch_dispatch_stack())


def wrapped_module(module: Any) -> tuple[str, Any] | None:
    """Return the kind of torch's wrapper that a module is, and the module in it; else None."""
    for kind in type(module).__mro__:
        held = WRAPPERS.get(kind.__name__)
        if held is not None and kind.__module__.partition(".")[0] == "torch":
            core = module._modules.get(held)
            return None if core is None or core is module else (kind.__name__, core)
    return None


def innermost(module: Any) -> Any:
    """Return the module inside all of torch's wrappers around it; itself where there is none."""
    seen = [module]
    while (wrapped := wrapped_module(seen[-1])) is not None:
        if any(each is wrapped[1] for each in seen):
            break
        seen.append(wrapped[1])
    return seen[-1]


def class_name(module: Any) -> str:
    """Return the name of a module's class as the script wrote it: torch may have replaced it."""
    kind = type(module)
    first, *others = kind.__bases__
    mixed = first.__name__ in MIXED_IN and first.__module__.startswith("torch.distributed")
    return str(others[0].__name__ if mixed and others else kind.__name__)


def children_of(module: Any) -> list[tuple[str, Any]]:
    """Return the modules right inside one by name, past what its class does at a look-up."""
    own = object.__getattribute__(module, "__dict__").get("_modules") or {}
    return [(name, each) for name, each in own.items() if each is not None]


def parts_of(module: Any) -> Iterator[Any]:
    """Yield a module and all modules inside it, each once."""
    waiting, seen = [module], set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += [child for _, child in children_of(each)]


def parameters_in(module: Any) -> list[Any]:
    """Return the parameters of a module without its children, past what its class does."""
    own = object.__getattribute__(module, "__dict__").get("_parameters") or {}
    return [each for each in own.values() if each is not None]


def parameter_count(module: Any) -> int | None:
    """Count the parameters of a module and its children; None while a lazy one has no shape."""
    from torch._C import DisableTorchFunction
    from torch.nn.parameter import is_lazy

    # A function mode of the script's must not see this.
    with Guard(), DisableTorchFunction():
        parameters = list(module.parameters())
        if not any(map(is_lazy, parameters)):
            count = sum(parameter.numel() for parameter in parameters)
            return int(count) + sum(map(_frozen_count, module.modules()))
    # Uninitialised (lazy) parameters have no number of elements.
    return None


def own_parameters(module: Any) -> tuple[int, int, int] | None:
    """Count the parameters of a module without its children, their bytes, and the trainable ones.

    None while a lazy one has no shape.
    """
    from torch._C import DisableTorchFunction
    from torch.nn.parameter import is_lazy

    with Guard(), DisableTorchFunction():
        own = [each for each in vars(module).get("_parameters", {}).values() if each is not None]
        if not any(map(is_lazy, own)):
            sizes = [(each.numel(), each.numel() * each.element_size()) for each in own]
            trainable = sum(each.numel() for each in own if each.requires_grad)
            return sum(size for size, _ in sizes), sum(nbytes for _, nbytes in sizes), trainable
    return None


def _frozen_count(module: Any) -> int:
    """Count the constants that frozen TorchScript has for parameters; 0 for other modules."""
    from torch.jit import ScriptModule

    if not isinstance(module, ScriptModule) or any(True for _ in module.parameters()):
        return 0
    graph: Any = module.graph
    constants = graph.findAllNodes("prim::Constant")
    tensors = (each for each in constants if each.hasAttribute("value"))
    return sum(each.t("value").numel() for each in tensors if each.kindOf("value") == "t")


def is_loss(module: Any) -> bool:
    """Return whether a module is a loss: one of torch.nn's, or one named so without parameters."""
    kind = type(module)
    if kind.__module__ == "torch.nn.modules.loss":
        return True
    return kind.__name__.lower().endswith(("loss", "criterion")) and not parameter_count(module)


# -- live objects by class, found unseen by any other thread -------------------------------------
#
# The garbage collector also lists tuples that another thread is still filling. CPython fills a
# tuple from a generator in place, and raises SystemError in that thread as soon as the tuple has
# another holder. So nothing here may hold the list while another thread can run: the interpreter
# lets go of its lock between bytecodes only, and the list lives within one call of C code.


def instances_of(*bases: type) -> list[Any]:
    """Return live objects of these classes and their subclasses, as the collector lists them.

    No attribute of an object is read: `isinstance` would read `__class__`, which warns for some.
    """
    return _among(map(gc.get_objects, (None,)), with_subclasses(bases))


def direct_instances(*classes: type) -> list[Any]:
    """Return live objects of these few classes themselves, in less than half the time."""
    # An object refers to its class.
    return _among(starmap(gc.get_referrers, (classes,)), classes)


def _among(sources: Iterator[list[Any]], classes: Iterable[type]) -> list[Any]:
    """Return the objects of these classes in the lists that the collector makes."""
    # By identity: a class of the script's may define equality itself.
    wanted = set(map(id, classes))
    every: list[Any] = []
    # All three happen while `list` draws from them: live objects are noted, gone through by two
    # iterators at once, and forgotten.
    note = map(every.extend, sources)
    found = compress(iter(every), map(wanted.__contains__, map(id, map(type, iter(every)))))
    forget = starmap(every.clear, ((),))
    return list(chain(filter(None, note), found, filter(None, forget)))


def with_subclasses(bases: tuple[type, ...]) -> list[type]:
    """Return classes and all that are made of them."""
    found: dict[int, type] = {}
    left = list(bases)
    while left:
        each = left.pop()
        if id(each) not in found:
            found[id(each)] = each
            left += type.__subclasses__(each)
    return list(found.values())


def in_training(module: Any) -> bool:
    """Return the module's mode; frozen TorchScript has none left, and acts as in evaluation."""
    return bool(getattr(module, "training", False))


# Options of `generate` that end a text before its limit of new tokens.
_ENDS = ("eos_token_id", "stop_strings", "max_time")


def generated_tokens(model: Any, args: Any, kwargs: Any, result: Any) -> dict[str, int | None]:
    """Return what a call of `generate` was asked for and gave, as far as its shapes tell."""

    def shape_of(value: Any) -> tuple[int, ...]:
        return tuple(getattr(value, "shape", ()))

    given_config = kwargs.get("generation_config", args[1] if len(args) > 1 else None)
    configs = (given_config, getattr(model, "generation_config", None))

    def option(name: str) -> Any:
        """Return an option: the call's own, also None, else the first that a configuration has."""
        of_configs = (getattr(each, name, None) for each in configs)
        return kwargs.get(name, next((each for each in of_configs if each is not None), None))

    cached = option("use_cache")
    ends = (*map(option, _ENDS), kwargs.get("stopping_criteria") or None)
    embedded = shape_of(kwargs.get("inputs_embeds"))
    given = shape_of(kwargs.get("input_ids", kwargs.get("inputs", args[0] if args else None)))
    prompt = embedded[1] if len(embedded) == 3 else given[1] if len(given) == 2 else None
    # An encoder reads the prompt apart: a sequence begins with one token of its own.
    apart = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    before = 1 if apart else 0 if embedded else prompt
    made = shape_of(getattr(result, "sequences", result))
    return {
        "sequences": made[0] if len(made) == 2 else None,
        "prompt_tokens": prompt,
        "new_tokens": made[1] - before if len(made) == 2 and before is not None else None,
        "cached": None if cached is None else int(bool(cached)),
        "can_end": int(any(each is not None for each in ends)),
    }
