"""What torch tells of a module: what wraps it, its class, its parameters, whether it is a loss."""

from __future__ import annotations

from typing import Any

from profstack.interrupts import is_scripts

# torch's modules that run another one, by the name under which they hold it.
WRAPPERS = {
    "OptimizedModule": "_orig_mod",
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "OffloadWrapper": "_checkpoint_wrapped_module",
}
# Of these nothing is left when they run: the compiled code stands for the module itself.
TRANSPARENT = frozenset({"OptimizedModule"})
# Classes that torch makes of a module's own class, with one of these before it.
MIXED_IN = frozenset({"FSDPModule", "ReplicateModule", "DDP"})


def wrapped_module(module: Any) -> tuple[str, Any] | None:
    """What kind of wrapper of torch's a module is, and the module in it; None for any other."""
    for kind in type(module).__mro__:
        held = WRAPPERS.get(kind.__name__)
        if held is not None and kind.__module__.partition(".")[0] == "torch":
            core = module._modules.get(held)
            return None if core is None or core is module else (kind.__name__, core)
    return None


def innermost(module: Any) -> Any:
    """The module inside all of torch's wrappers around it; itself where there is none."""
    seen = [module]
    while (wrapped := wrapped_module(seen[-1])) is not None:
        if any(each is wrapped[1] for each in seen):
            break
        seen.append(wrapped[1])
    return seen[-1]


def class_name(module: Any) -> str:
    """The name of a module's class as the script wrote it: torch may have made another of it."""
    kind = type(module)
    first, *others = kind.__bases__
    mixed = first.__name__ in MIXED_IN and first.__module__.startswith("torch.distributed")
    return str(others[0].__name__ if mixed and others else kind.__name__)


def parameter_count(module: Any) -> int | None:
    """Parameters of a module and its children; None while a lazy one has no shape yet."""
    from torch._C import DisableTorchFunction
    from torch.nn.parameter import is_lazy

    try:
        # A function mode of the script's is not to hear of it.
        with DisableTorchFunction():
            parameters = list(module.parameters())
            if any(map(is_lazy, parameters)):
                return None
            count = sum(parameter.numel() for parameter in parameters)
            return int(count) + sum(map(_frozen_count, module.modules()))
    except Exception as error:
        if is_scripts(error):
            raise
        # Uninitialised (lazy) parameters have no number of elements.
        return None


def _frozen_count(module: Any) -> int:
    """Elements of the constants that frozen TorchScript has for parameters; 0 of other modules."""
    from torch.jit import ScriptModule

    if not isinstance(module, ScriptModule) or any(True for _ in module.parameters()):
        return 0
    graph: Any = module.graph
    constants = graph.findAllNodes("prim::Constant")
    tensors = (each for each in constants if each.hasAttribute("value"))
    return sum(each.t("value").numel() for each in tensors if each.kindOf("value") == "t")


def is_loss(module: Any) -> bool:
    """Whether the module is a loss: one of torch.nn's, or named so and without parameters."""
    kind = type(module)
    if kind.__module__ == "torch.nn.modules.loss":
        return True
    named_so = kind.__name__.lower().endswith(("loss", "criterion"))
    return named_so and not parameter_count(module)
