"""How a wrapper on a function of the script's stays unseen: by dynamo, and in tracebacks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any


def compiling(torch: Any) -> tuple[Callable[[], bool], Any]:
    """The two halves of `torch.compiler.is_compiling()`, without the calls it makes.

    Dynamo takes the first for true, and so never reads the second.
    """
    return torch.compiler.is_dynamo_compiling, torch.compiler


def dynamo_callback(torch: Any) -> Callable[[], Any]:
    """What dynamo does with the frames of this thread: None for nothing.

    Otherwise a call is part of something compiled that dynamo could not take in as a whole: a
    wrapper passes it on at once, so that the frame behind it is the one dynamo looks at. To be
    asked after `compiling`, since dynamo cannot trace it.
    """
    # The question that comes first is a frame too, and dynamo would compile it.
    unseen_by_dynamo(torch, torch.compiler.is_dynamo_compiling)
    found: Callable[[], Any] = torch._C._dynamo.eval_frame.get_eval_frame_callback
    return found


def unseen_by_dynamo(torch: Any, wrapper: Any, *, with_callees: bool = False) -> Any:
    """The same function; where dynamo meets its frame, it looks at what that calls instead.

    With `with_callees` it looks at nothing that happens inside, which is for what calls no code of
    the script's (torch before 2.7 cannot say that, and looks at the callees).
    """
    frames = torch._C._dynamo.eval_frame
    if hasattr(frames, "set_code_exec_strategy"):
        action = frames._FrameAction
        inside = action.SKIP if with_callees else action.DEFAULT
        strategy = frames._FrameExecStrategy(action.SKIP, inside)
        frames.set_code_exec_strategy(wrapper.__code__, strategy)
    elif hasattr(frames, "skip_code"):
        frames.skip_code(wrapper.__code__)
    return wrapper


def traced_as(wrapper: Any, original: Any) -> Any:
    """The same wrapper; where dynamo takes a call of it into a graph, it reads `original` instead.

    Whatever it read of the wrapper would become a guard of the graph, and the graph be compiled
    anew with every exchange of wrappers.
    """
    wrapper.__dict__ = _Uncopied(wrapper.__dict__)
    wrapper._torchdynamo_inline = original
    return wrapper


class _Uncopied(dict[str, Any]):
    """Attributes of a function, of which `functools.wraps` copies all but what dynamo reads.

    Else dynamo would pass by what a script has put around our wrapper.
    """

    def keys(self) -> Any:
        """The names of those to be copied."""
        return [name for name in dict.__iter__(self) if name != "_torchdynamo_inline"]

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())


def strip_frame(error: BaseException) -> None:
    """Take the calling wrapper's own entry out of the traceback of `error`.

    To be followed by a bare `raise`, which adds no entry for the frame it stands in.
    """
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


def has_compiled() -> bool:
    """Whether dynamo has compiled anything in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(utils.counters["frames"]["total"])
