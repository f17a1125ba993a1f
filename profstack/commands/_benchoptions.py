"""The options of `profstack bench`, and what is asked for by them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from profstack.commands._options import chosen_layers, count, number
from profstack.errors import UsageError

if TYPE_CHECKING:
    from profstack.benchmark.benchrun import Asked
    from profstack.benchmark.subject import Request

_NO_LAYERS = "none"
_VARIANTS = ("eager", "compile", "trace", "script")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options, in groups."""
    _add_target(parser)
    _add_length(parser.add_argument_group("how long to measure"))
    _add_parts(parser.add_argument_group("what else to measure"))
    _add_recording(parser.add_argument_group("the recording"))


def _add_target(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("spec", metavar="TARGET", help="file.py:function or module:function")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument(
        "--factory", action="store_const", const="factory", dest="kind", help="it gives a model"
    )
    kind.add_argument(
        "--step", action="store_const", const="step", dest="kind", help="it is what is measured"
    )
    add("--input", action="append", default=[], metavar="SHAPE", help="1x3x224x224[:dtype]")
    add("--device", metavar="D", help="move the model and its inputs there")
    add("--batch-size", type=count, metavar="N", help="items of one call")
    add("--grad", action="store_true", help="record gradients (forward alone is called)")


def _add_length(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--warmup", type=count, metavar="N", help="calls before the samples (default: found out)")
    add("--repeat", type=count, metavar="N", help="samples (default: until --target is reached)")
    add(
        "--target",
        type=number,
        metavar="F",
        help="half-width of the interval, as a part (default: 0.01)",
    )
    add("--max-seconds", type=number, metavar="S", help="of warm-up and samples (default: 10)")
    modes = ("synchronised", "pipelined", "both")
    add("--mode", choices=modes, default="both", help="when a device is waited for")
    add("--processes", type=count, default=1, metavar="N", help="fresh processes, one by one")
    add("--gc", action="store_true", help="leave the garbage collector on while timing")


def _add_parts(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--mistakes", action="store_true", help="what usual mistakes of timing make of it")
    add("--ablation", action="store_true", help="warm-up, waiting and events, each left out")
    add(
        "--compare",
        metavar="A,B",
        help=f"ways to run the model, every call synchronised: {','.join(_VARIANTS)}",
    )
    add("--throughput", action="store_true", help="largest batch, and the rate of each size")
    add("--search", choices=("binary", "linear"), help="for the largest batch (default: binary)")
    add("--dtype", metavar="A,B", help="data types for --throughput: float32,bfloat16")
    add("--memory-limit", type=_size, metavar="SIZE", help="most that a batch may take: 2GiB")
    add("--max-batch", type=count, metavar="N", help="largest batch to try (default: 65536)")
    add("--layers", metavar="A,B", help="only these layers, or none")
    add("--skip", metavar="A,B", help="all layers but these")
    add(
        "--no-peaks", action="store_true", help="do not measure the machine's peaks, once, after it"
    )


def _add_recording(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("-o", "--output", metavar="DIR", help="folder of the recording (default: profstack-runs/)")
    add("--force", action="store_true", help="replace the recording in --output")
    add("--open", action="store_true", help="open the page when it is written")
    add("-q", "--quiet", action="store_true", help="no progress and no summary")
    add("--json", action="store_true", help="print the figures as JSON")


def request_of(arguments: argparse.Namespace) -> Request:
    """The target, and how it is to be called."""
    from profstack.benchmark.subject import Request

    return Request(
        arguments.spec,
        arguments.kind,
        tuple(arguments.input),
        arguments.device,
        arguments.batch_size,
        arguments.grad,
    )


def asked_of(arguments: argparse.Namespace) -> Asked:
    """What is to be measured; raises UsageError for options that contradict each other."""
    from profstack.benchmark.benchrun import Asked

    policy: dict[str, Any] = {"collect": arguments.gc}
    given = {
        "warmup": arguments.warmup,
        "repeat": arguments.repeat,
        "target": arguments.target,
        "max_s": arguments.max_seconds,
        "max_warmup_s": arguments.max_seconds,
    }
    policy.update((key, value) for key, value in given.items() if value is not None)
    if arguments.repeat is not None and arguments.target is not None:
        raise UsageError(
            "--repeat fixes the number of samples, and --target leaves it to them",
            next_step="give one of the two",
        )
    if arguments.target is not None and arguments.target >= 1:
        raise UsageError(
            f"--target {arguments.target:g} is no part of the median",
            next_step="write 0.01 for 1 % to either side",
        )
    _check_search(arguments)
    return Asked(
        mode=arguments.mode,
        policy=policy,
        mistakes=arguments.mistakes,
        ablation=arguments.ablation,
        compare=_compared(arguments.compare),
        throughput=arguments.throughput,
        search=arguments.search or "binary",
        dtypes=_words(arguments.dtype),
        memory_limit=arguments.memory_limit,
        max_batch=arguments.max_batch,
    )


def _check_search(arguments: argparse.Namespace) -> None:
    """Raise UsageError for options of a search that was not asked for."""
    of_search = {
        "--search": arguments.search,
        "--dtype": arguments.dtype,
        "--memory-limit": arguments.memory_limit,
        "--max-batch": arguments.max_batch,
    }
    given = [name for name, value in of_search.items() if value is not None]
    if given and not arguments.throughput:
        raise UsageError(
            f"{given[0]} is of the search for the largest batch", next_step="add --throughput"
        )


def _compared(text: str | None) -> list[str]:
    """The variants of --compare; raises UsageError where there is none, or one is unknown."""
    names = _words(text)
    known = f"it knows {', '.join(_VARIANTS)}"
    if text is not None and not names:
        raise UsageError("--compare names nothing", next_step=known)
    for name in names:
        if name not in _VARIANTS:
            raise UsageError(f"--compare knows no {name!r}", next_step=known)
    return names


def layers_of(arguments: argparse.Namespace) -> list[str]:
    """The layers to record with; none for `--layers none`."""
    if arguments.layers == _NO_LAYERS:
        if arguments.skip is not None:
            raise UsageError("--layers none leaves none to skip", next_step="leave out --skip")
        return []
    return chosen_layers(arguments.layers, arguments.skip)[0]


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()] if text else []


def _size(text: str) -> int:
    """Bytes of `512M`, `2GiB` or `1000000`."""
    import re

    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]?)(?:i?B)?", text, re.IGNORECASE)
    if not found or not float(found[1]):
        raise argparse.ArgumentTypeError(f"{text} is no size; write 512MiB or 2GiB")
    return int(float(found[1]) * _UNITS[found[2].upper()])
