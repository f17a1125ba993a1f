"""Say what differences mean: likely causes, each with its line, and the facts that follow from it.

One change of a script changes many facts. A cause takes those that it explains; what no cause takes
is listed as it is.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from profstack.lock.differences import Difference
from profstack.lock.facts import (
    BACKWARD,
    COMPILE,
    COPIES,
    FUNCTIONS,
    GRAPH_BREAKS,
    KERNEL,
    MEMORY,
    MODULE,
    OPERATOR,
    STEP,
    SYNCHRONISATIONS,
    CountedRun,
    Facts,
    Key,
    Value,
    compiled_name,
)
from profstack.lock.lockfile import natural
from profstack.lock.places import Place, Sources
from profstack.storage.untrusted import json_cell
from profstack.storage.vocabulary import ACCUMULATION, OPTIMIZER, STEP_PARTS
from profstack.units import format_count

_OPTIMIZER, _ACCUMULATION = STEP_PARTS[OPTIMIZER], STEP_PARTS[ACCUMULATION]
# Operators that end in a value for Python, by the fact that counts what they do.
_ASKING = {
    "values read by the host": ("aten::item", "aten::is_nonzero", "aten::_local_scalar_dense"),
    "sizes that depend on values (nonzero)": ("aten::nonzero", "aten::index", "aten::where"),
    "sizes that depend on values (masked_select)": ("aten::masked_select",),
    "sizes that depend on values (unique)": ("aten::_unique2", "aten::unique_dim"),
    "comparisons of whole tensors (equal)": ("aten::equal",),
}
# Other sizes of modules, each with a sentence of its own.
_MOST_SIZES = 3
_CONVERSIONS = ("aten::to", "aten::_to_copy", "ToCopyBackward0")
_FLOATS = ("float16", "bfloat16", "float64", "float8_e4m3fn", "float8_e5m2")
_OPTIMIZERS = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adamax")


@dataclass
class Cause:
    """A likely change: a sentence, the places, and the differences that follow from it.

    `of` is the path of the module that the sentence is on, if it is on one.
    """

    text: str
    places: list[Place] = field(default_factory=list)
    takes: list[Difference] = field(default_factory=list)
    of: str = ""


class _Left:
    """The differences that no cause has taken yet."""

    def __init__(self, differences: Sequence[Difference]) -> None:
        self.rows = list(differences)

    def of(self, chosen: Callable[[Key], bool]) -> list[Difference]:
        return [row for row in self.rows if chosen(row.key)]

    def take(self, rows: Iterable[Difference]) -> list[Difference]:
        taken = list(rows)
        keys = {row.key for row in taken}
        self.rows = [row for row in self.rows if row.key not in keys]
        return taken


def explain(
    differences: Sequence[Difference], locked: Facts, now: Facts, run: CountedRun, sources: Sources
) -> tuple[list[Cause], list[Difference]]:
    """Return the likely causes, and the differences that none of them explains."""
    explaining = _Explaining(_Left(differences), locked, now, run, sources)
    causes = [cause for part in explaining.parts() for cause in part]
    return _joined(causes), explaining.left.rows


def _joined(causes: Sequence[Cause]) -> list[Cause]:
    """Return causes with those of one kind that the blocks of a model have in common as one."""
    groups: dict[tuple[str, str], list[Cause]] = defaultdict(list)
    for number, cause in enumerate(causes):
        family = re.sub(r"\d+", "*", cause.of) if cause.of else str(number)
        groups[family, cause.text.replace(cause.of, family) if cause.of else ""].append(cause)
    joined = []
    for alike in groups.values():
        first, more = alike[0], len(alike) - 1
        if more:
            modules = "1 more module" if more == 1 else f"{more} more modules"
            takes = [row for cause in alike for row in cause.takes]
            first = replace(first, text=f"{first.text}; the same in {modules} like it", takes=takes)
        joined.append(first)
    return joined


@dataclass
class _Explaining:
    left: _Left
    locked: Facts
    now: Facts
    run: CountedRun
    sources: Sources

    def parts(self) -> Iterator[list[Cause]]:
        """Yield the causes of each kind, those first that others follow from."""
        for part in (
            self._compiled,
            self._waits,
            self._modules,
            self._dtypes,
            self._inputs,
            self._functions,
            self._optimizer,
            self._module_calls,
            self._batches,
        ):
            yield list(part())
        yield list(self._operators())
        yield list(self._launches())
        yield list(self._memory())

    # -- what is compiled ----------------------------------------------------------------------

    def _compiled(self) -> Iterator[Cause]:
        reasons = {
            compiled_name(self.run, row): str(row["reason"]).strip().splitlines()[0]
            for row in self.run.rows("compilations")
            if row["reason"]
        }
        rows = self.left.take(self.left.of(lambda key: key.section == COMPILE))
        breaks = [row for row in rows if row.key.of == GRAPH_BREAKS]
        others = [row for row in rows if row not in breaks]
        # What follows a break is a graph of its own.
        parts = [row for row in others if breaks and row.key.name == "graphs"]
        for row in breaks:
            text = f"torch.compile breaks a graph {_change(row)} times: {row.key.name}"
            yield Cause(text, self._break_places(row.key.name), [row, *parts])
            parts = []
        for row in others:
            name, kind = row.key.of, row.key.name
            if kind == "recompiled":
                why = f", since {reasons[name]}" if name in reasons and _more(row) else ""
                text = f"{name} is compiled again {_change(row)} times{why}"
            elif kind == "failures":
                text = f"torch.compile gives {name} up {_change(row)} times"
            elif breaks:
                continue
            else:
                text = f"{name} is compiled to {_change(row)} graphs"
            yield Cause(text, self.sources.of_function(name), [row])

    def _break_places(self, reason: str) -> list[Place]:
        found = []
        for row in self.run.rows("graph_breaks"):
            if (row["reason"] or "").strip().startswith(reason):
                frames = json_cell(row["stack"], list[tuple[str, int | None, str | None]])
                own = [(file, line) for file, line, *_ in frames if self.run.is_own(file)]
                found += [self.sources.place(*each) for each in own[-1:]]
        return sorted(set(found))

    # -- what waits for a device -----------------------------------------------------------------

    def _waits(self) -> Iterator[Cause]:
        rows = self.left.of(lambda key: key.section == SYNCHRONISATIONS)
        asking = {name for names in _ASKING.values() for name in names}
        methods = [row for row in rows if row.key.name.endswith("()")]
        values = [row for row in rows if not row.key.name.endswith("()")]
        operators = self.left.of(
            lambda key: (
                key.name.removeprefix(OPERATOR).split(" ")[0] in asking and key.of != _OPTIMIZER
            )
        )
        if methods or values:
            self.left.take([*rows, *operators])
        read_by = (".item()", ".tolist()", ".nonzero()")
        for row in methods:
            word, follow = row.key.name, []
            if word in read_by:
                # The call and the value that it reads are one synchronisation.
                follow, values = [*values, *operators], []
                operators = []
            places = self.sources.waits(word) if _more(row) else []
            if places:
                follow = [*follow, *self._only_at(places)]
            self.left.take(follow)
            yield Cause(f"{word} {_times(row)}: {_synchronises(row)}", places, [row, *follow])
        for row in values:
            places = []
            if _more(row):
                names = _ASKING[row.key.name]
                places = self.sources.of_operators(names, but=_OPTIMIZER)
            text = f"{row.key.name} {_times(row)}: {_synchronises(row)}"
            yield Cause(text, places, [row, *operators])
            operators = []

    # -- the model -------------------------------------------------------------------------------

    def _type(self, path: str) -> str | None:
        facts = self.now if Key(MODULE, path, "type") in self.now else self.locked
        value = facts.get(Key(MODULE, path, "type"))
        return None if value is None else str(value)

    def _modules(self) -> Iterator[Cause]:
        types = self.left.of(lambda key: key.section == MODULE and key.name == "type")
        for row in sorted(types, key=lambda row: natural(row.key.of)):
            if row.locked and row.now and row in self.left.rows:
                takes = [*self._take_module(row.key.of), *self._take_totals()]
                places = self.sources.of_module(row.key.of, self._type)
                text = f"the module {row.key.of} is a {row.now}, and was a {row.locked}"
                yield Cause(text, places, takes, row.key.of)
        left = [row for row in types if row in self.left.rows]
        new = [row.key.of for row in left if row.locked == 0]
        gone = [row.key.of for row in left if row.now == 0]
        for paths, verb in ((new, "new"), (gone, "gone")):
            yield from self._new_or_gone(paths, verb)
        yield from self._parameters()

    def _new_or_gone(self, paths: Sequence[str], verb: str) -> Iterator[Cause]:
        outer = [path for path in paths if path.rpartition(".")[0] not in paths]
        groups: dict[tuple[str, str | None], list[str]] = defaultdict(list)
        for path in sorted(outer, key=natural):
            groups[path.rpartition(".")[0], self._type(path)].append(path)
        for (_, kind), alike in groups.items():
            takes = [row for path in alike for row in self._take_module(path)]
            takes += self._take_totals()
            places = self.sources.of_module(alike[0], self._type) if verb == "new" else []
            inner = sum(each.startswith(f"{alike[0]}.") for each in paths)
            inside = f", with {inner} modules in it," if inner else ""
            one = f"the module {alike[0]} ({kind}){inside} is {verb}"
            many = f"{len(alike)} modules of type {kind} are {verb}: {', '.join(alike[:4])}"
            yield Cause(one if len(alike) == 1 else many, places, takes)

    def _take_module(self, path: str) -> list[Difference]:
        """Take what differs in a module and in those inside it."""
        return self.left.take(self.left.of(lambda key: _is_in(key, path)))

    def _take_part(self, path: str) -> list[Difference]:
        """Take what differs in a module or step part alone."""
        return self.left.take(self.left.of(lambda key: key.of == path))

    def _take_totals(self) -> list[Difference]:
        """Take the totals that follow from another model."""
        totals = (Key(STEP, "", name) for name in ("parameters", "forward_flop", "backward_flop"))
        keys, parts = set(totals), {_ACCUMULATION}
        if _way(self.locked) == _way(self.now):
            # An optimizer has as much more to do.
            parts.add(_OPTIMIZER)
        return self.left.take(self.left.of(lambda key: key in keys or key.of in parts))

    def _parameters(self) -> Iterator[Cause]:
        rows = self.left.of(lambda key: key.section == MODULE and "parameter" in key.name)
        by_path: dict[str, dict[str, Difference]] = defaultdict(dict)
        for row in rows:
            by_path[row.key.of][row.key.name] = row
        narrower: list[str] = []
        frozen: list[Difference] = []
        sizes: list[Cause] = []
        for path, found in sorted(by_path.items(), key=lambda each: natural(each[0])):
            if "parameters" in found:
                row = found["parameters"]
                takes = [*self._take_module(path), *self._take_totals()]
                takes += self.left.take(self.left.of(lambda key, at=path: _holds(key, at)))  # type: ignore[misc]  # mypy knows no default of a lambda
                places = self.sources.of_module(path, self._type)
                sizes.append(Cause(f"{path} has {_change(row)} parameters", places, takes, path))
            elif "parameter_bytes" in found:
                narrower.append(path)
            elif "frozen_parameters" in found:
                frozen.append(found["frozen_parameters"])
        yield from sizes if len(_joined(sizes)) <= _MOST_SIZES else [_as_one(sizes)]
        if narrower:
            takes = self.left.take(
                self.left.of(lambda key: key.of in narrower and key.name == "parameter_bytes")
            )
            one = by_path[narrower[0]]["parameter_bytes"]
            text = (
                f"parameters of {len(narrower)} modules have another number type: "
                f"{narrower[0]} has {_change(one)} bytes"
            )
            names = ("half", "bfloat16", "double", "float", "to", "type", "set_default_dtype")
            takes += self.left.take(self._typed())
            yield Cause(text, self.sources.calls_of(names), takes)
        if frozen:
            takes = [*self.left.take(frozen), *self._take_totals()]
            takes += self.left.take(self.left.of(lambda key: key.name.startswith(BACKWARD)))
            modules = "1 module trains" if len(frozen) == 1 else f"{len(frozen)} modules train"
            text = f"{modules} another part of the parameters: {frozen[0].key.of} has "
            text += f"{_change(frozen[0])} frozen ones"
            yield Cause(text, self.sources.calls_of(("requires_grad_",)), takes)

    def _typed(self) -> list[Difference]:
        """Return operators on other numbers than float32, with those that they take the place of.

        Conversions between types belong to them.
        """
        rows = self.left.of(_has_float_type)
        plain = {(row.key.of, row.key.name.rpartition(" ")[0]) for row in rows}
        if rows:
            rows += self.left.of(lambda key: (key.of, key.name) in plain)
            rows += [row for row in self.left.rows if _operator(row) in _CONVERSIONS]
        return list(dict.fromkeys(rows))

    def _dtypes(self) -> Iterator[Cause]:
        rows = self._typed()
        typed = [row for row in rows if _has_float_type(row.key)]
        if not typed:
            return
        kinds = sorted({row.key.name.rpartition(" ")[2] for row in typed})
        verb = "compute in" if any(map(_more, typed)) else "no longer compute in"
        modules = len({row.key.of for row in typed})
        text = f"operators of {modules} modules and parts {verb} {' and '.join(kinds)}"
        names = ("autocast", "half", "bfloat16", "double", "to")
        yield Cause(text, self.sources.calls_of(names), self.left.take(rows))

    # -- inputs, functions, optimizer ------------------------------------------------------------

    def _inputs(self) -> Iterator[Cause]:
        for row in self.left.of(lambda key: key == Key(STEP, "", "inputs")):
            follows = self.left.of(lambda key: _is_flop(key) or _is_memory(key))
            locked, now = str(row.locked), str(row.now)
            same = locked.partition("x")[2] == now.partition("x")[2]
            if same and "," not in locked + now:
                text = f"a batch holds {_samples(now):g} samples instead of {_samples(locked):g}"
                places = self.sources.with_keyword("batch_size")
            else:
                text, places = f"the inputs are {now or 'none'} instead of {locked or 'none'}", []
            # What is done once for every sample is done as many times as often.
            follows += [each for each in self.left.rows if _by_sample(each, locked, now)]
            yield Cause(text, places, self.left.take([row, *follows]))

    def _functions(self) -> Iterator[Cause]:
        for row in self.left.of(lambda key: key.section == FUNCTIONS):
            name = row.key.name.rpartition("::")[2]
            defined = self.sources.of_function(row.key.name)
            if row.now == 0:
                text = f"{name}() is no longer called: {row.locked} times before"
                yield Cause(text, defined, self.left.take([row]))
                continue
            calls = self.sources.calls_of([name.rpartition(".")[2]]) if _more(row) else []
            where = f" ({defined[0]})" if defined and calls else ""
            text = f"{name}(){where} is called {_change(row)} times a step"
            follows = self._operators_in(row.key.name)
            yield Cause(text, calls or defined, self.left.take([row, *follows]))

    def _operators_in(self, function: str) -> list[Difference]:
        """Return the operators that differ and are called in a function alone."""
        return self._operators_at(lambda places: self.sources.inside(function, places))

    def _only_at(self, allowed: Sequence[Place]) -> list[Difference]:
        """Return the operators that differ and are called on some lines alone."""
        return self._operators_at(lambda places: bool(places) and set(places) <= set(allowed))

    def _operators_at(self, chosen: Callable[[list[Place]], bool]) -> list[Difference]:
        rows = self.left.of(lambda key: key.name.startswith(OPERATOR) and key.of != _OPTIMIZER)
        return [
            row for row in rows if chosen(self.sources.of_operators([_operator(row)], row.key.of))
        ]

    def _optimizer(self) -> Iterator[Cause]:
        rows = self.left.of(lambda key: key.of == _OPTIMIZER)
        operators = [row for row in rows if row.key.name.startswith(OPERATOR)]
        if not operators:
            return
        before, after = (self._optimizer_calls(facts) for facts in (self.locked, self.now))
        ways = [_way(facts) for facts in (self.locked, self.now)]
        how = f": it was {ways[0]}, and is {ways[1]}" if ways[0] != ways[1] else ""
        text = f"the optimizer makes {after} calls of operators instead of {before}{how}"
        yield Cause(text, self.sources.calls_of(_OPTIMIZERS), self.left.take(rows))

    @staticmethod
    def _optimizer_calls(facts: Facts) -> int:
        return sum(
            value
            for key, value in facts.items()
            if key.of == _OPTIMIZER and key.name.startswith(OPERATOR) and isinstance(value, int)
        )

    # -- calls of modules, and what is left --------------------------------------------------------

    def _module_calls(self) -> Iterator[Cause]:
        rows = self.left.of(lambda key: key.section == MODULE and key.name == "calls")
        paths = {row.key.of for row in rows}
        for row in rows:
            path = row.key.of
            if path.rpartition(".")[0] in paths:
                continue
            takes = self._take_module(path)
            places = self.sources.of_operators(path=path)
            text = f"the module {path} is called {_change(row)} times a step"
            yield Cause(text, places, takes, path)

    def _batches(self) -> Iterator[Cause]:
        for row in self.left.of(lambda key: key == Key(STEP, "", "batches asked for")):
            yield Cause(
                f"a step asks a DataLoader for {_change(row)} batches",
                self.sources.calls_of(("DataLoader",)),
                self.left.take([row]),
            )

    def _operators(self) -> Iterator[Cause]:
        def is_operator(key: Key) -> bool:
            return key.section == MODULE and key.name.startswith((OPERATOR, BACKWARD))

        by_path: dict[str, list[Difference]] = defaultdict(list)
        for row in self.left.of(is_operator):
            by_path[row.key.of].append(row)
        for path, rows in sorted(by_path.items(), key=lambda each: natural(each[0])):
            forward = [row for row in rows if row.key.name.startswith(OPERATOR)]
            takes = self._take_part(path)
            names = [
                row.key.name.removeprefix(OPERATOR).split(" ")[0] for row in forward if _more(row)
            ]
            places = self.sources.of_operators(names, path) if names else []
            shown = ", ".join(
                f"{row.key.name.removeprefix(OPERATOR)} {_change(row)}"
                for row in (forward or rows)[:4]
            )
            more = len(forward or rows) - 4
            text = f"{path} calls other operators: {shown}"
            yield Cause(f"{text} and {more} more" if more > 0 else text, places, takes, path)

    def _launches(self) -> Iterator[Cause]:
        rows = self.left.of(lambda key: key.section == STEP and key.name.startswith(KERNEL))
        for row in rows:
            kind = row.key.name.removeprefix(KERNEL).removeprefix(": ")
            if kind:
                places = self.sources.calls_of(("to", "cuda", "cpu", "copy_")) if _more(row) else []
                text = f"the device does {_change(row)} of {kind} a step"
                yield Cause(text, places, self.left.take([row]))
            else:
                takes = self.left.take(self.left.of(lambda key: key.name == KERNEL))
                yield Cause(f"a step launches {_change(row)} kernels", [], takes)

    def _memory(self) -> Iterator[Cause]:
        rows = self.left.of(lambda key: _is_memory(key) or key.name == KERNEL or key.name == COPIES)
        peaks = [row for row in rows if row.key.name.startswith("peak_bytes")]
        if peaks:
            row = peaks[0]
            text = f"tensors take {_change(row)} bytes of {row.key.of} at the peak"
            kinds = [
                each
                for each in rows
                if each.key.of == row.key.of and each.key.name.startswith("peak: ")
            ]
            kinds.sort(key=lambda each: -abs(_number(each.now) - _number(each.locked)))
            most = ", ".join(
                f"{each.key.name.removeprefix('peak: ')} {_change(each)}" for each in kinds[:2]
            )
            yield Cause(f"{text} ({most})" if most else text, [], self.left.take(rows))


def _samples(shape: str) -> float:
    """Return the leading dimension of a shape as it is recorded; 0 where there is none."""
    first = shape.partition("x")[0]
    return float(first) if first.isdecimal() else 0.0


def _by_sample(row: Difference, locked: str, now: str) -> bool:
    """Return whether a count is a multiple of the batch's samples, the same one on both sides."""
    before, after = _samples(locked), _samples(now)
    if not (before and after and isinstance(row.locked, int) and isinstance(row.now, int)):
        return False
    times = row.locked / before
    return times > 0 and times.is_integer() and row.now == times * after


# Words --------------------------------------------------------------------------------------------


def _is_in(key: Key, path: str) -> bool:
    return key.section == MODULE and (key.of == path or key.of.startswith(f"{path}."))


def _holds(key: Key, path: str) -> bool:
    """Return whether a fact is on the FLOP of a module around the one of that path."""
    return _is_flop(key) and key.section == MODULE and path.startswith(f"{key.of}.")


def _as_one(causes: Sequence[Cause]) -> Cause:
    """Return one cause for many modules of another size."""
    takes = [row for cause in causes for row in cause.takes]
    text = f"{len(causes)} modules have another number of parameters: {causes[0].text}"
    return Cause(text, causes[0].places, takes)


def _is_flop(key: Key) -> bool:
    return key.name in ("forward_flop", "backward_flop")


def _is_memory(key: Key) -> bool:
    return key.section == MEMORY or key.name.startswith("allocated_")


def _has_float_type(key: Key) -> bool:
    return key.section == MODULE and key.name.rpartition(" ")[2] in _FLOATS


def _operator(row: Difference) -> str:
    """Return the name of the operator of a fact, without its type of numbers."""
    return row.key.name.removeprefix(OPERATOR).removeprefix(BACKWARD).split(" ")[0]


def _way(facts: Facts) -> str:
    """Return how an optimizer works, by the names of its operators."""
    names = [key.name for key in facts if key.of == _OPTIMIZER]
    if any("_fused_" in name for name in names):
        return "fused"
    return "foreach" if any("_foreach_" in name for name in names) else "one tensor at a time"


def _number(value: Value) -> float:
    """Return a value as a number; a text as what it begins with, per step."""
    if isinstance(value, int):
        return value
    match = re.fullmatch(r"(\d+) in (\d+) steps", value)
    return int(match[1]) / int(match[2]) if match else 0.0


def _more(row: Difference) -> bool:
    return _number(row.now) > _number(row.locked)


def shown(value: Value) -> str:
    """Return a value for people."""
    return format(value, ",d") if isinstance(value, int) else value


def _change(row: Difference) -> str:
    return f"{shown(row.now)} instead of {shown(row.locked)}"


def _times(row: Difference) -> str:
    return f"is called {_change(row)} times a step" if row.key.name.endswith("()") else _change(row)


def _synchronises(row: Difference) -> str:
    difference = _number(row.now) - _number(row.locked)
    count = format_count(abs(difference)) if abs(difference) >= 1 else "some"
    more = "more" if difference > 0 else "fewer"
    word = "synchronisation" if count == "1" else "synchronisations"
    return f"{count} {more} {word} a step on an accelerator"
