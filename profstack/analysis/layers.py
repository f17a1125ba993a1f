"""Layers of a recording: slices, probe effect, and why a layer has no data."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import cast

from profstack import layer as contract
from profstack.analysis.clean_steps import (
    Clean,
    compared,
    known_times,
    times_by_slice,
    why_no_steps,
)
from profstack.analysis.functions import PROFILED, cost_in_words
from profstack.analysis.modules import TIMED
from profstack.layer import Wrapper
from profstack.privacy import home_relative
from profstack.stats.summary import Ratio, ratio_interval
from profstack.storage.reader import (
    NO_SLICES,
    Recorded,
    Row,
    Selection,
    added,
    grouped,
    known,
)
from profstack.storage.schema.report import LayerFacts, ProbeEffect
from profstack.storage.schema.rows import ArtifactRow
from profstack.storage.vocabulary import BENCH_FACT

# The mode of a layer that began before the step rule was known, in the first steps.
DISCOVERY = "discovery"
Selections = Mapping[str, Selection | None]
# The modes that the tables of these layers are made from, the first that has a slice.
_MODES = {"torch": TIMED, "cprofile": PROFILED}
_OF_IMPORT = "an imported trace has no step without its profiler: times are as that saw them"
_NO_SLICE = "it watches what no slice has, and no clean steps of the same kind stand beside that"


# --- Probe effects: how much longer a layer made the steps that it watched ------------------------


def probe_effect(recorded: Recorded, clean: Clean, layer: str, selection: Selection) -> ProbeEffect:
    """Compare step time in the layer's slices with the clean slices next to them.

    If two layers shared a slice the cost of each is unknown: the factor is null, and `note` says
    why. The first steps of a run are slow without any layer: they give no factor. Nor does an
    import, whose step time is that of these very steps.
    """
    own, beside, clock = compared(recorded, clean, selection.slices)
    note = _OF_IMPORT if recorded.is_import else _no_factor(selection, own, beside)
    ratio = Ratio(None, None, None)
    if note is None:
        ratio = ratio_interval(list(times_by_slice(own, clock).values()), beside)
        if all(row["step"] < clean.warm_from for row in own):
            note = "its steps lay in the warm-up, which was slow by itself"
    flat = [step for group in beside for step in group]
    times = known_times(own, clock)
    return {
        "layer": layer,
        "n_layer": len(own),
        "n_clean": len(flat),
        "step_median_s": median(times) if times else None,
        "clean_median_s": median(flat) if flat else None,
        "factor": ratio.factor,
        "ci95_low": ratio.low,
        "ci95_high": ratio.high,
        "note": note,
    }


def _no_factor(selection: Selection, own: Sequence[Row], beside: list[list[float]]) -> str | None:
    """Say why no factor can be given; None where one can."""
    if selection.mode == "shared":
        return "it shared its steps with another layer: the cost of each is not known"
    if selection.mode == "whole":
        return "the script was measured whole: there is no clean step beside it"
    if selection.mode == DISCOVERY:
        return "it watched the first steps alone, which are slow without any layer"
    if not own:
        return "none of its steps has a time of its own"
    return None if beside else "there was no clean step to compare with"


def probe_effects(recorded: Recorded, clean: Clean, selections: Selections) -> list[ProbeEffect]:
    """Return the probe effect of every layer with slices, and of those in the background.

    Sets the factor of each selection.
    """
    effects = []
    for name, selection in selections.items():
        wrapper = wrapper_of(name)
        if selection is not None:
            effect = probe_effect(recorded, clean, name, selection)
            selection.factor = effect["factor"]
            if recorded.is_import:
                selection.factor, selection.fewest = 1.0, 1
            effects.append(effect)
        elif wrapper is not None and wrapper.background:
            nothing = probe_effect(recorded, clean, name, NO_SLICES)
            effects.append({**nothing, "n_clean": 0, "clean_median_s": None, "note": _NO_SLICE})
    return effects


# --- Layers: what their figures are made from, and why one has none -------------------------------


def wrapper_of(name: str) -> type[Wrapper] | None:
    """Return the layer's wrapper; None where it can no longer be loaded.

    A recording outlives the packages that its layers came from.
    """
    try:
        return contract.load(name)
    except Exception:
        return None


def modes_of(name: str) -> tuple[tuple[str, ...], ...]:
    """Return the modes of a layer: first those that are repeated all through a run."""
    if name in _MODES:
        return _MODES[name]
    wrapper = wrapper_of(name)
    modes = sorted(wrapper.modes if wrapper else (), key=lambda mode: (-mode.last_round, mode.turn))
    return (*((mode.name,) for mode in modes), (DISCOVERY,))


def select(recorded: Recorded) -> dict[str, Selection | None]:
    """Select the slices that each layer's figures are made from; None for a layer without any."""
    names = dict.fromkeys([*_MODES, *(row["name"] for row in recorded.table("layers"))])
    return {name: recorded.select(name, modes_of(name)) for name in names}


def layer_rows(recorded: Recorded, clean: Clean, selections: Selections) -> list[LayerFacts]:
    """Return one row per layer of the run, in the order in which the page shows them."""
    artifacts = cast("list[ArtifactRow]", recorded.table("artifacts"))
    slices = recorded.table("slices")
    rows: list[LayerFacts] = []
    for layer in recorded.table("layers"):
        name, reason = layer["name"], layer["reason"]
        wrapper = wrapper_of(name)
        said = wrapper.description if wrapper is not None else None
        if recorded.is_import and wrapper is not None and wrapper.background:
            # Another sampler's samples are not taken as the watch takes them.
            said = None
        own = [row for row in slices if row["layer"] == name]
        # A layer in the background has no slice and no step.
        in_slices = wrapper is None or not wrapper.background or bool(own)
        command = None
        if layer["status"] == "empty":
            command = _command(recorded, name)
            reason = reason or _why_empty(recorded, command)
        row = {
            **dict.fromkeys(LayerFacts.__annotations__),
            **layer,
            **(asdict(said) if said is not None else {}),
            # A file was written by another tool than the layer of this name.
            **({"tool": layer["tool"]} if recorded.is_import else {}),
            "reason": home_relative(reason) if reason else reason,
            "command": command,
            "steps": sum(known(own, "steps")) if in_slices else None,
            "stop_s": added(known(own, "stop_s")),
            "artifacts": [item for item in artifacts if item["layer"] == name],
            "audit": _audit(recorded, clean, name, own, selections) if in_slices else [],
        }
        rows.append(cast("LayerFacts", row))
    return rows


def _audit(
    recorded: Recorded, clean: Clean, name: str, own: Sequence[Row], selections: Selections
) -> list[str]:
    """Say what the figures are made from, and what was observed besides, with its cost."""
    selection = selections.get(name)
    if selection is None:
        if not own or any(row["plan"] == recorded.plan for row in own):
            return []
        return ["all its slices lie in other loops than the one that the figures are of"]
    slices = "1 slice" if len(selection.slices) == 1 else f"{len(selection.slices)} slices"
    lines = [f"{selection.in_words()} in {slices} ({selection.mode})"]
    if name == "cprofile" and (cost := cost_in_words(recorded)) is not None:
        lines.append(cost)
    others = [row for row in own if row["slice"] not in selection.slices and row["mode"]]
    for (mode,), group in sorted(grouped(others, "mode").items()):
        line = f"{sum(known(group, 'steps'))} more in slices of mode {mode}"
        other = recorded.select(name, ((mode,),))
        if other is not None and not set(other.slices) & set(selection.slices):
            watched, beside, clock = compared(recorded, clean, other.slices)
            if _no_factor(other, watched, beside) is None:
                flat = [step for times in beside for step in times]
                factor = median(known_times(watched, clock)) / median(flat)
                line += f", at {factor:.2f} times a clean step, by medians"
        lines.append(line)
    return lines


def _why_empty(recorded: Recorded, command: str | None) -> str:
    count = recorded.count("steps")
    if recorded.rule == "whole":
        return (
            "the script was measured whole, and this layer needs steps: call profstack.step() "
            "where one ends"
        )
    if not count:
        return str(why_no_steps(recorded))
    steps = "1 step" if count == 1 else f"{count} steps"
    if command is None and not _has_turns(recorded):
        return (
            f"the script ended after {steps}, by which it was seen where steps end: this layer "
            "needs one more at least, and no command gives it one while the script makes no more"
        )
    return f"the script ended after {steps}, before this layer's turn came"


def _has_turns(recorded: Recorded) -> bool:
    """Return whether steps were left for layers once it was known where they end."""
    return any((row["round"] or 0) >= 1 and row["steps"] for row in recorded.table("slices"))


def _command(recorded: Recorded, layer: str) -> str | None:
    """Return the command that fills an empty layer; None where none would.

    A layer that can do without steps has data where the script is measured whole. Another one has
    its turn earlier where it is alone: at the first step for which any layer had one here.
    """
    target = recorded.run.get("argv")
    if BENCH_FACT in recorded.facts:
        if "recording_ended" in recorded.facts:
            # It had its turn, and there was nothing for it to see.
            return None
        # Of an option that is given twice the later one counts.
        words = [word for word in target or () if word != "--force"]
        return shlex.join(["profstack", *words, "--layers", layer]) if words else None
    wrapper = wrapper_of(layer)
    whole = wrapper is None or any(mode.name == "whole" for mode in wrapper.modes)
    has_steps = _has_turns(recorded) and recorded.rule != "whole"
    background = wrapper is not None and wrapper.background
    if not target or background or not (whole or has_steps):
        return None
    names = (row["name"] for row in recorded.table("layers"))
    others = (wrapper_of(name) for name in names if name != layer)
    # No other layer's turn could come before this one's: it would be the same again.
    was_alone = all(other is not None and other.background for other in others)
    if was_alone and (not whole or recorded.rule == "whole"):
        return None
    options = ["--step-by", "none"] if whole else []
    return shlex.join(["profstack", "run", *options, "--layers", layer, *target])
