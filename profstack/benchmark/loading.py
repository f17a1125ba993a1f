"""Makes what the target of `profstack bench` names ready: a function, a model or a class of models.

What the target's own code raises is raised as it is, so that its traceback can be shown; what is
wrong with the target itself is a `TargetError`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from profstack.benchmark.blocks import timed_block
from profstack.benchmark.clock import Clock
from profstack.benchmark.conditions import undisturbed
from profstack.benchmark.inputs import make_input, moved, split_inputs
from profstack.benchmark.subject import STATED, Request, Subject, of_model
from profstack.benchmark.targetname import imported, split_spec
from profstack.errors import TargetError

FACTORY, STEP = "factory", "step"
# Parameters of a factory that the command line can fill in.
_FILLED = ("batch_size", "device")


@dataclass(frozen=True)
class Loaded:
    """A target that is ready to be measured.

    `first_s` is the time of its first call in seconds, where it had to be called to see what it
    is; `import_s` is what its module took, `build_s` what its factory took.
    """

    subject: Subject
    first_s: float | None
    import_s: float
    build_s: float | None


def load(request: Request, initialise: Callable[[], object] | None = None) -> Loaded:
    """Import the target and make the subject of it.

    `initialise` is called between the import and the first call of anything, where devices may be
    opened. Raises TargetError, or what the target's own code raises.
    """
    _, name = split_spec(request.spec)
    clock = Clock()
    began = clock.now()
    found = imported(request.spec)
    import_s = clock.now() - began
    if initialise is not None:
        initialise()
    if request.device is not None:
        _check_device(request.device)
    return replace(_make(found, name, request), import_s=import_s)


def _check_device(device: str) -> None:
    """Raise TargetError for one that this torch has not, in one line."""
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        said = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise TargetError(
            f"cannot be used: {said}",
            where=f"--device {device}",
            next_step="see 'profstack doctor'",
        ) from None


def _make(found: Any, name: str, request: Request) -> Loaded:
    """The subject of what the target names: a model, a class of models, or a function."""
    import torch

    if isinstance(found, type) and issubclass(found, torch.nn.Module):
        _refuse_kind(request, "a class of models")
        clock = Clock()
        began = clock.now()
        model = found(**_filled(found, name, request))
        return _of_model(model, (), request, build_s=clock.now() - began)
    if isinstance(found, torch.nn.Module):
        _refuse_kind(request, "a model")
        return _of_model(found, (), request, build_s=None)
    if not callable(found) or isinstance(found, type):
        raise _problem(request, f"is {_a(found)}", "name a function, a model or a class of models")
    if inspect.iscoroutinefunction(found) or inspect.isgeneratorfunction(found):
        what = "a coroutine" if inspect.iscoroutinefunction(found) else "a generator"
        raise _problem(request, f"is {what}", "name a function that does the work when called")
    return _of_function(found, name, request)


def _of_function(function: Callable[..., Any], name: str, request: Request) -> Loaded:
    """Call a function once to see what it is: a factory's answer begins with a model."""
    import torch

    call = functools.partial(function, **_filled(function, name, request))
    call = call if call.keywords else function  # type: ignore[assignment]  # either is called
    if request.kind == STEP:
        return Loaded(_of_step(call, name, request), None, 0.0, None)
    clock = Clock()
    answers: list[Any] = []
    with undisturbed():
        block = timed_block(lambda: answers.append(call()), 1, 1, clock)
    answer, seconds = answers.pop(), block.host_s[0]
    if isinstance(answer, torch.nn.Module):
        answer = (answer,)
    if isinstance(answer, (tuple, list)) and answer and isinstance(answer[0], torch.nn.Module):
        made = _of_model(answer[0], tuple(answer[1:]), request, build_s=seconds)
        return _with_batches(made, function, name, request)
    if request.kind == FACTORY:
        raise _problem(request, f"gave {_a(answer)}", "a factory returns (model, inputs)")
    return Loaded(_of_step(call, name, request), seconds, 0.0, None)


def _of_step(call: Callable[[], Any], name: str, request: Request) -> Subject:
    """The subject of a function that is the step itself."""
    if request.inputs:
        raise _problem(request, "is a function without inputs", "--input is for a model")
    if request.device is not None and "device" not in getattr(call, "keywords", {}):
        raise _problem(
            request,
            "makes its own model and inputs, which --device cannot move",
            "give the function a parameter 'device', or write a factory of (model, inputs)",
        )
    return Subject(
        name,
        call,
        batch_size=request.batch_size,
        batch_size_is=STATED if request.batch_size is not None else None,
        gradients=request.gradients,
        spec=request.spec,
        why_no_batches="the function makes its own inputs: a factory of (model, inputs) "
        "can be given other batch sizes",
        request=request,
    )


def _of_model(
    model: Any, given: tuple[Any, ...], request: Request, *, build_s: float | None
) -> Loaded:
    """The subject of a model, with the inputs its factory gave or those of the command line."""
    inputs, named = split_inputs(given) if given else ((), {})
    if request.inputs:
        inputs, named = tuple(make_input(text) for text in request.inputs), {}
    elif not given:
        raise _problem(
            request, "is a model without inputs", "give their shapes: --input 1x3x224x224"
        )
    if request.device is not None:
        model = model.to(request.device)
        inputs, named = moved((inputs, named), request.device)
    subject = of_model(
        model,
        inputs,
        named,
        gradients=request.gradients,
        batch_size=request.batch_size,
        request=request,
    )
    return Loaded(subject, None, 0.0, build_s)


def _with_batches(
    made: Loaded, function: Callable[..., Any], name: str, request: Request
) -> Loaded:
    """A factory that takes a batch size makes the subject of another one itself."""
    if "batch_size" not in _parameters(function) or request.inputs:
        return made

    def of_batch(batch_size: int) -> Subject:
        other = replace(request, batch_size=batch_size)
        model, *given = function(**_filled(function, name, other))
        subject = _of_model(model, tuple(given), other, build_s=None).subject
        return replace(subject, of_batch=of_batch, why_no_batches=None)

    subject = replace(made.subject, of_batch=of_batch, why_no_batches=None)
    return replace(made, subject=subject)


def _filled(function: Callable[..., Any], name: str, request: Request) -> dict[str, Any]:
    """Those arguments that the command line gives; raises TargetError where others are needed."""
    parameters = _parameters(function)
    stated = {key: getattr(request, key) for key in _FILLED}
    arguments = {
        key: value for key, value in stated.items() if value is not None and key in parameters
    }
    needed = [
        key
        for key, parameter in parameters.items()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and key not in arguments
    ]
    if needed:
        options = [f"--{key.replace('_', '-')}" for key in needed if key in _FILLED]
        raise _problem(
            request,
            f"needs arguments ({', '.join(needed)})",
            f"give {' and '.join(options)}"
            if len(options) == len(needed)
            else f"name a function that calls {name} with them, or a factory of (model, inputs)",
        )
    return arguments


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        # Written in C and without a signature: it is called as it is.
        return {}


def _refuse_kind(request: Request, what: str) -> None:
    if request.kind is not None:
        raise _problem(request, f"is {what}", f"leave out --{request.kind}")


def _problem(request: Request, what: str, next_step: str) -> TargetError:
    return TargetError(what, where=request.spec, next_step=next_step)


def _a(thing: Any) -> str:
    """What kind of thing it is, for a sentence."""
    if thing is None:
        return "None"
    name = type(thing).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
