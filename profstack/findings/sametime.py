"""Findings that name the same time in other words: their gains are not to be added up.

A loop of Python that makes samples is a hot spot, and what the step waits for; a loop over heads
is many small operators, and the module that takes most of the step. Each finding stands, since
each says another way to mend it; both say that they are about one time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from profstack.findings.dataloading import SLUG as STARVED
from profstack.findings.dominating import SLUG as DOMINATES
from profstack.findings.extents import Extents
from profstack.findings.figures import CallGraph, Key
from profstack.findings.hotspots import SLUG as HOT
from profstack.findings.loading import loaders
from profstack.findings.made import Finding
from profstack.findings.smalloperators import SLUG as SMALL
from profstack.findings.synchronising import SLUG as SYNCHRONISES


@dataclass
class _Where:
    """Functions, lines and modules that a finding's time is in."""

    functions: set[Key] = field(default_factory=set)
    lines: set[tuple[str, int]] = field(default_factory=set)
    modules: set[str] = field(default_factory=set)


def tell_same_time(findings: list[Finding], report: Mapping[str, Any]) -> None:
    """Say it in the advice and the evidence of both of each pair that is about one time."""
    chosen = [each for each in findings if each["slug"] in _PLACES]
    if len(chosen) < 2:
        return
    known = _Known(report)
    places = [_PLACES[each["slug"]](known, each) for each in chosen]
    for (one, here), (other, there) in combinations(zip(chosen, places, strict=True), 2):
        if known.meet(here, there):
            _say(one, other)
            _say(other, one)


def _say(told: Finding, other: Finding) -> None:
    told["evidence"].append({"same_time_as": other["slug"], "link": f"overview/{other['slug']}"})
    told["advice"] += f" '{other['title']}' is about some of the same time: gains do not add up."


class _Known:
    """What the report tells of functions, lines and modules."""

    def __init__(self, report: Mapping[str, Any]) -> None:
        self.graph = CallGraph(report)
        self.extents = Extents(report)
        rows = report["tables"].get("module_lines") or ()
        self._modules = {
            (row["file"], row["line"]): row["module"] for row in rows if row["module"] is not None
        }

    def meet(self, one: _Where, other: _Where) -> bool:
        """Whether two have a function, a line or a module in common."""
        return (
            bool(one.functions & other.functions or one.lines & other.lines)
            or self._within(one, other)
            or self._within(other, one)
        )

    def _within(self, inner: _Where, outer: _Where) -> bool:
        for file, line in inner.lines:
            span = self.extents.around(file, line)
            if span is not None and (file, span.first, span.name) in outer.functions:
                return True
        modules = inner.modules | {self._modules.get(place, "") for place in inner.lines}
        return any(_is_in(module, whole) for module in modules for whole in outer.modules)

    def lines_in(self, key: Key) -> set[tuple[str, int]]:
        """The lines of a function that ran in a module."""
        return {
            (file, line)
            for file, line in self._modules
            if file == key[0] and self.extents.holds(key, line)
        }


def _is_in(module: str, whole: str) -> bool:
    return bool(module) and (module == whole or module.startswith(f"{whole}."))


def _hot(known: _Known, told: Finding) -> _Where:
    first = told["evidence"][0]
    key = (first["file"], first["line"], first["function"])
    # Its own time alone: what it calls is not what is told of it.
    return _Where({key}, known.lines_in(key))


def _starved(known: _Known, told: Finding) -> _Where:
    named = {
        (row["file"], row["line"], row["function"])
        for row in told["evidence"]
        if "function" in row and row.get("file")
    }
    roots = named | set(loaders(known.graph))
    return _Where(roots | known.graph.below(roots))


def _site(known: _Known, told: Finding) -> _Where:
    return _Where(lines={(told["file"], told["line"])} if told["file"] else set())


def _small(known: _Known, told: Finding) -> _Where:
    where = _site(known, told)
    where.modules = {told["module"]} if told["module"] else set()
    return where


def _module(known: _Known, told: Finding) -> _Where:
    return _Where(modules={told["module"]} if told["module"] else set())


_PLACES = {HOT: _hot, STARVED: _starved, SYNCHRONISES: _site, SMALL: _small, DOMINATES: _module}
