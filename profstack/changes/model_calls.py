"""Changes to how the model is called: without gradients, in eval mode, with a cache, recomputed."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from profstack.changes.compilation import repeated_block
from profstack.changes.contract import Called, Change, Edit, Run, Seen, Value, called_within


def _inference(seen: Seen) -> str | None:
    if not seen.root:
        return "no model was called"
    return "the script trains" if seen.trains else None


def _inference_mode(run: Run) -> None:
    torch = run.torch

    def wrap(model: Any, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            if torch.is_inference_mode_enabled():
                return call(*args, **kwargs)
            run.took_hold_in_call()
            with torch.inference_mode():
                return call(*args, **kwargs)

        return called

    run.around_root(wrap)


INFERENCE = Change(
    "inference-mode",
    "call the model under torch.inference_mode()",
    "equal",
    lambda seen: (
        _inference(seen)
        or (None if seen.calls.get("calls with gradients") else "it is called without gradients")
    ),
    _inference_mode,
    edit=Edit(within="with torch.inference_mode():"),
    findings=("grad-in-inference",),
    on_call=lambda torch, target, value, device: called_within(target, torch.inference_mode),
)


def _eval_mode(run: Run) -> None:
    def change(model: Any) -> None:
        if model.training:
            model.eval()
            run.took_hold()

    run.once_at_root(change)


def _called_in_eval_mode(torch: Any, model: Any, value: Value | None, _: str) -> Called:
    @contextmanager
    def active() -> Iterator[None]:
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        try:
            yield
        finally:
            for module, mode in modes:
                module.training = mode

    return Called(model, active)


EVAL = Change(
    "eval-mode",
    "switch dropout off, and let normalisation use what it has learned",
    "different",
    lambda seen: _inference(seen) or (None if seen.root["training"] else "it is in eval mode"),
    _eval_mode,
    edit=Edit(before_loop="{model}.eval()"),
    findings=("batchnorm-training-at-inference",),
    on_call=_called_in_eval_mode,
    of_model=True,
)


def _cache(run: Run) -> None:
    def arrived(module: Any) -> None:
        original = module.GenerationMixin.generate

        @functools.wraps(original)
        def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not kwargs.get("use_cache", self.generation_config.use_cache):
                kwargs["use_cache"] = True
                run.took_hold()
            return original(self, *args, **kwargs)

        module.GenerationMixin.generate = generate

    run.when_imported("transformers.generation.utils", arrived)


CACHE = Change(
    "kv-cache",
    "let generate keep the keys and values of earlier tokens",
    "digits",
    lambda seen: (
        None
        if seen.calls.get("generate without a cache")
        else "no call of generate goes without a cache"
    ),
    _cache,
    edit=Edit("generate", ("use_cache", "True")),
    findings=("no-kv-cache",),
    # The new token alone.
    other_inputs=True,
)


def _attention(run: Run) -> None:
    def change(model: Any) -> None:
        config = getattr(model, "config", None)
        if getattr(config, "_attn_implementation", None) == "eager":
            model.set_attn_implementation("sdpa")
            run.took_hold()

    run.once_at_root(change)


def _called_with_sdpa(torch: Any, model: Any, value: Value | None, _: str) -> Called:
    made = copy.deepcopy(model)
    made.set_attn_implementation("sdpa")
    return Called(made)


ATTENTION = Change(
    "fused-attention",
    "let a Hugging Face model use torch's fused attention (sdpa)",
    "digits",
    lambda seen: (
        None
        if seen.root.get("attention") == "eager"
        else "no model has attention in single operators"
    ),
    _attention,
    edit=Edit("from_pretrained", ("attn_implementation", "'sdpa'")),
    on_call=_called_with_sdpa,
    of_model=True,
)

# --- Memory against time ---


def _checkpointing(run: Run) -> None:
    from torch.utils.checkpoint import checkpoint

    def change(model: Any) -> None:
        for block in repeated_block(model):
            forward = block.forward

            @functools.wraps(forward)
            def repeated(*args: Any, forward: Callable[..., Any] = forward, **kwargs: Any) -> Any:
                return checkpoint(forward, *args, use_reentrant=False, **kwargs)

            block.forward = repeated
            run.took_hold()

    run.once_at_root(change)


CHECKPOINTING = Change(
    "gradient-checkpointing",
    "compute activations again in backward instead of keeping them: less memory, more time",
    "equal",
    lambda seen: (
        "the script does not train"
        if not seen.trains
        else "activations are recomputed already"
        if seen.calls.get("checkpoint")
        else None
        if seen.root.get("blocks", 0) > 1
        else "no block of the model repeats"
    ),
    _checkpointing,
    excludes=("no-checkpointing", "compile", "compile-block"),
)


# Options of the call itself: all others are the function's.
_OF_CHECKPOINT = (
    "use_reentrant",
    "context_fn",
    "determinism_check",
    "debug",
    "preserve_rng_state",
    "early_stop",
)


def _no_checkpointing(run: Run) -> None:
    from torch.utils import checkpoint as module

    @functools.wraps(module.checkpoint)
    def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        for name in _OF_CHECKPOINT:
            kwargs.pop(name, None)
        run.took_hold()
        return function(*args, **kwargs)

    module.checkpoint = checkpoint


NO_CHECKPOINTING = Change(
    "no-checkpointing",
    "keep activations instead of computing them again: less time, more memory",
    "equal",
    lambda seen: (
        None
        if seen.calls.get("checkpoint")
        else "what compiled code recomputes is not seen"
        if seen.calls.get("compile")
        else "nothing is recomputed"
    ),
    _no_checkpointing,
    edit=Edit("checkpoint", unwraps=_OF_CHECKPOINT),
    excludes=("gradient-checkpointing",),
)

CHANGES = (INFERENCE, EVAL, CACHE, ATTENTION, CHECKPOINTING, NO_CHECKPOINTING)
