"""Find and load a target: `file.py:function` or `module:function`.

Errors of the target's own code are raised unchanged, so that their traceback can be shown. An
error in the name of the target is a `TargetError`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from profstack.bench.subject import Request, Subject, make_input, map_inputs, of_model, split_inputs
from profstack.errors import TargetError
from profstack.stats.blocks import timed_block, undisturbed
from profstack.stats.clock import Clock
from profstack.storage.vocabulary import STATED


def split_spec(spec: str) -> tuple[str, str]:
    """Return the file or module of a target, and the name in it; without one raise TargetError."""
    place, colon, name = spec.rpartition(":")
    if not colon or not place or not name or "/" in name or "\\" in name:
        raise TargetError(
            "names no function",
            where=spec,
            next_step=f"write file.py:function or module:function{_offered(Path(spec))}",
        )
    return place, name


def check(spec: str) -> None:
    """Raise TargetError for errors that show without running anything."""
    place, _ = split_spec(spec)
    if _is_file(place):
        if os.path.isdir(place):
            raise TargetError("is a folder", where=place, next_step="name a file in it")
        if not os.path.isfile(place):
            raise TargetError("no such file", where=place, next_step="check the path")


def short_name(spec: str) -> str:
    """Return a folder's name for the target: its file or module, and the name in it."""
    place, name = split_spec(spec)
    return f"{Path(place).stem if _is_file(place) else place}-{name}"


def imported(spec: str) -> Any:
    """Import the target's file or module and return the named object.

    Raises TargetError, or an error of the target's own code.
    """
    place, name = split_spec(spec)
    check(spec)
    module = _import_file(place) if _is_file(place) else _import_module(place)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise TargetError(f"has no {part!r}", where=place, next_step=_known_names(module, part))
        found = getattr(found, part)
    return found


def _offered(path: Path) -> str:
    """Return the functions of a file as the end of a sentence."""
    import ast

    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return ""
    found = [each for each in tree.body if isinstance(each, (ast.FunctionDef, ast.ClassDef))]
    names = [each.name for each in found if not each.name.startswith("_")]
    return f"; it has {', '.join(names)}" if names else ""


def _is_file(place: str) -> bool:
    return place.endswith(".py") or os.sep in place or "/" in place


def _import_file(place: str) -> ModuleType:
    """Execute a file as a module of its own name, with its folder first on sys.path."""
    path = Path(place).resolve()
    folder = str(path.parent)
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
    # A loaded module may have the same name; it stays loaded.
    name = path.stem if path.stem not in sys.modules else f"{path.stem}_target"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError("is no Python file", where=place, next_step="name a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import_module(place: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        # A missing module that the target imports is the target's own error.
        if error.name is None or not f"{place}.".startswith(f"{error.name}."):
            raise
        hint = f"{place}.py:function" if os.path.isfile(f"{place}.py") else "check its name"
        raise TargetError("no such module", where=place, next_step=hint) from None


def _known_names(module: ModuleType, wanted: str) -> str:
    """Return the names that the module defines, or the one that was probably meant."""
    own = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and callable(value)
        and getattr(value, "__module__", module.__name__) == module.__name__
    ]
    close = get_close_matches(wanted, own, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"it has {', '.join(own)}" if own else "it defines nothing that can be called"


FACTORY, STEP = "factory", "step"
# Parameters of a factory that the command line can give.
_FILLED = ("batch_size", "device")


@dataclass(frozen=True)
class LoadedTarget:
    """A target that is ready to be measured.

    Times in seconds: `first_s` of its first call, where loading had to call it, `import_s` of its
    module's import, `build_s` of its factory's call.
    """

    subject: Subject
    first_s: float | None = None
    import_s: float = 0.0
    build_s: float | None = None


def load(request: Request, initialise: Callable[[], object] | None = None) -> LoadedTarget:
    """Import the target and make the subject of it.

    `initialise` is called after the import and before the first call: there devices may be
    opened. Raises TargetError, or an error of the target's own code.
    """
    _, name = split_spec(request.spec)
    clock = Clock()
    began = clock.now()
    found = imported(request.spec)
    import_s = clock.now() - began
    if initialise is not None:
        initialise()
    if request.device is not None:
        import torch

        try:
            torch.empty(0, device=request.device)
        except (RuntimeError, AssertionError) as error:
            said = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
            raise TargetError(
                f"cannot be used: {said}",
                where=f"--device {request.device}",
                next_step="see 'profstack doctor'",
            ) from None
    return replace(_of_object(found, name, request), import_s=import_s)


def _of_object(found: Any, name: str, request: Request) -> LoadedTarget:
    """Return the target of a model, a class of models, or a function."""
    import torch

    is_class = isinstance(found, type) and issubclass(found, torch.nn.Module)
    if is_class or isinstance(found, torch.nn.Module):
        what = "a class of models" if is_class else "a model"
        if request.kind is not None:
            raise _problem(request, f"is {what}", f"leave out --{request.kind}")
        clock = Clock()
        began = clock.now()
        model = found(**_filled(found, name, request)) if is_class else found
        return _of_model(model, (), request, build_s=clock.now() - began if is_class else None)
    if not callable(found) or isinstance(found, type):
        raise _problem(request, f"is {_a(found)}", "name a function, a model or a class of models")
    if inspect.iscoroutinefunction(found) or inspect.isgeneratorfunction(found):
        what = "a coroutine" if inspect.iscoroutinefunction(found) else "a generator"
        raise _problem(request, f"is {what}", "name a function that does the work when called")
    return _of_function(found, name, request)


def _of_function(function: Callable[..., Any], name: str, request: Request) -> LoadedTarget:
    """Call a function once to see its kind: the result of a factory begins with a model.

    A factory with a parameter `batch_size` makes the subjects of other sizes, too.
    """
    import torch

    filled = _filled(function, name, request)
    call: Callable[[], Any] = functools.partial(function, **filled) if filled else function
    if request.kind == STEP:
        return LoadedTarget(_of_step(call, name, request))
    clock = Clock()
    answers: list[Any] = []
    with undisturbed():
        block = timed_block(lambda: answers.append(call()), 1, 1, clock)
    answer, seconds = answers.pop(), block.host_s[0]
    if isinstance(answer, torch.nn.Module):
        answer = (answer,)
    if isinstance(answer, (tuple, list)) and answer and isinstance(answer[0], torch.nn.Module):
        made = _of_model(answer[0], tuple(answer[1:]), request, build_s=seconds)
        if "batch_size" not in _parameters(function) or request.inputs:
            return made

        def of_batch(batch_size: int) -> Subject:
            other = replace(request, batch_size=batch_size)
            model, *given = function(**_filled(function, name, other))
            subject = _of_model(model, tuple(given), other, build_s=None).subject
            return replace(subject, of_batch=of_batch, why_no_batches=None)

        subject = replace(made.subject, of_batch=of_batch, why_no_batches=None)
        return replace(made, subject=subject)
    if request.kind == FACTORY:
        raise _problem(request, f"gave {_a(answer)}", "a factory returns (model, inputs)")
    return LoadedTarget(_of_step(call, name, request), seconds)


def _of_step(call: Callable[[], Any], name: str, request: Request) -> Subject:
    """Return the subject of a function that is the step itself."""
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
        why_no_batches="the function makes its own inputs: a factory of (model, inputs) "
        "can be given other batch sizes",
        request=request,
    )


def _of_model(
    model: Any, given: tuple[Any, ...], request: Request, *, build_s: float | None
) -> LoadedTarget:
    """Return the subject of a model, with its factory's inputs or those of the command line."""
    inputs, named = split_inputs(given) if given else ((), {})
    if request.inputs:
        inputs, named = tuple(make_input(text) for text in request.inputs), {}
    elif not given:
        raise _problem(
            request, "is a model without inputs", "give their shapes: --input 1x3x224x224"
        )
    if request.device is not None:
        model = model.to(request.device)
        inputs, named = map_inputs(lambda one: one.to(request.device), (inputs, named))
    gradients, size = request.gradients, request.batch_size
    subject = of_model(model, inputs, named, gradients=gradients, batch_size=size, request=request)
    return LoadedTarget(subject, build_s=build_s)


def _filled(function: Callable[..., Any], name: str, request: Request) -> dict[str, Any]:
    """Return the arguments from the command line; raise TargetError where others are needed."""
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
        next_step = f"name a function that calls {name} with them, or a factory of (model, inputs)"
        if len(options) == len(needed):
            next_step = f"give {' and '.join(options)}"
        raise _problem(request, f"needs arguments ({', '.join(needed)})", next_step)
    return arguments


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        # Written in C and without a signature.
        return {}


def _problem(request: Request, what: str, next_step: str) -> TargetError:
    return TargetError(what, where=request.spec, next_step=next_step)


def _a(thing: Any) -> str:
    """Return an object's type with its article."""
    if thing is None:
        return "None"
    name = type(thing).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
