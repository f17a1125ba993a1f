"""For tests: profiler events written out by hand, with the accessors of torch.profiler's own."""

import json
import re
from types import SimpleNamespace

from profstack.readers.torchtrace.events import EVALUATE
from profstack.storage.vocabulary import (
    BACKWARD_RANGE,
    CLOSURE_RANGE,
    MODULE_PREFIX,
    REGION_PREFIX,
)

# Short names of accessors, and what an event answers where nothing else is given.
_SHORT = {"thread": ("start_thread_id", 1), "forward": ("fwd_thread_id", 0), "scope": ("scope", 0)}
_SHORT |= {"sequence": ("sequence_nr", -1), "number": ("correlation_id", 0)}
_SHORT |= {"linked": ("linked_correlation_id", 0), "device": ("device_index", -1)}
_SHORT |= {"stream": ("device_resource_id", 7), "user": ("is_user_annotation", False)}
_SHORT |= {"shapes": ("shapes", []), "dtypes": ("dtypes", []), "inputs": ("concrete_inputs", [])}
_SHORT |= {"nbytes": ("nbytes", 0)}
# Beginnings of names in the text of `events`, and what stands for them in the events.
_PREFIXES = {"module:": MODULE_PREFIX, "function:": EVALUATE, "region:": REGION_PREFIX}
_PREFIXES |= {"pass": BACKWARD_RANGE, "step": "Optimizer.step#SGD.step"}
_PREFIXES |= {"zero": "Optimizer.zero_grad#SGD.zero_grad", "closure": CLOSURE_RANGE}


class Event:
    """One event; `given` are values of accessors by their short names."""

    def __init__(self, name, begin, end, kind="cpu_op", **given):
        device = "CUDA" if kind in ("kernel", "gpu_memcpy", "gpu_memset") else "CPU"
        self.answers = {at: given.pop(key, usual) for key, (at, usual) in _SHORT.items()}
        self.answers |= {"name": name, "activity_type": kind, "start_ns": begin}
        self.answers |= {"duration_ns": end - begin, "device_type": SimpleNamespace(name=device)}
        assert not given


# Readers take accessors from the class, as they are there in torch's own.
for _name in Event("", 0, 0).answers:
    setattr(Event, _name, lambda self, name=_name: self.answers[name])


def instant(at, nbytes, **given):
    """Memory taken (above 0) or given back."""
    return Event("[memory]", at, at, "cpu_instant_event", nbytes=nbytes, **given)


def events(text, **usual):
    """Events written as `name begin-end key=number ...`, one a line or with `;` between them.

    `usual` is given to all; `module:3` and the like stand for names with profstack's prefixes.
    """
    made = []
    for entry in filter(str.strip, re.split("[;\n]", text)):
        name, begin, end, more = re.fullmatch(r"\s*(.+?) (\d+)-(\d+)(.*)", entry).groups()
        prefix = next((p for p in _PREFIXES if name == p or (p[-1] == ":" and p in name[:9])), "")
        given = usual | {k: int(value) for k, value in (each.split("=") for each in more.split())}
        if given.get("user"):
            given.setdefault("kind", "user_annotation")
        name = _PREFIXES.get(prefix, "") + name.removeprefix(prefix)
        made.append(Event(name, int(begin), int(end), **given))
    return made


def saved_event(name, ts, dur=1, *, cat="cpu_op", tid=7, **args):
    """An event of a trace's file, in microseconds; `External_id` stands for `External id`."""
    made = {"ph": "X", "cat": cat, "name": name, "pid": 5, "tid": tid, "ts": ts, "dur": dur}
    return {**made, "args": {key.replace("_", " "): value for key, value in args.items()}}


def saved_file(folder, text, *more, **header):
    """A trace's file with this text, or with these events after a header."""
    if not isinstance(text, str):
        text = json.dumps({**header, "traceEvents": [text, *more]})
    (folder / "made.json").write_text(text, encoding="utf-8")
    return folder / "made.json"
