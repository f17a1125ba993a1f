"""What became of each layer: its slices, its probe effect, and why it has no data."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from profstack import registry
from profstack.benchfolder import FACT
from profstack.merge.cleansteps import Clean
from profstack.merge.functions import PROFILED, cost_in_words
from profstack.merge.modules import TIMED
from profstack.merge.nosteps import why_no_steps
from profstack.merge.probeeffect import DISCOVERY, no_effect, plain_factor, probe_effect
from profstack.merge.recorded import Recorded, Selection, nullable, records
from profstack.privacy import home_relative
from profstack.wrapper import Wrapper

Groups = tuple[tuple[str, ...], ...]
Selections = Mapping[str, Selection | None]
# The modes that the tables of these layers rest on, the first that has a slice.
_MODES: dict[str, Groups] = {"torch": TIMED, "cprofile": PROFILED}
_WORDS = ("measures", "does_not_measure", "usual_slowdown", "conflicts")
_NO_SLICE = "it watches what no slice has, and no clean steps of the same kind stand beside that"


def wrapper_of(name: str) -> type[Wrapper] | None:
    """The layer's wrapper; None where it can no longer be loaded.

    A recording outlives the packages that its layers came from.
    """
    try:
        return registry.load(name)
    except Exception:
        return None


def modes_of(name: str) -> Groups:
    """The modes of a layer, each by itself: first those that are repeated all through a run."""
    if name in _MODES:
        return _MODES[name]
    wrapper = wrapper_of(name)
    modes = sorted(wrapper.modes if wrapper else (), key=lambda mode: (-mode.last_round, mode.turn))
    return (*((mode.name,) for mode in modes), (DISCOVERY,))


def select(recorded: Recorded) -> dict[str, Selection | None]:
    """The slices that each layer's figures rest on; None for a layer without any."""
    names = dict.fromkeys([*_MODES, *recorded.frames["layers"]["name"].tolist()])
    return {name: recorded.select(name, modes_of(name)) for name in names}


def probe_effects(recorded: Recorded, clean: Clean, selections: Selections) -> list[dict[str, Any]]:
    """The probe effect of every layer that has slices, and why those in the background have none.

    `selections` learn their factor.
    """
    effects = []
    for name, selection in selections.items():
        wrapper = wrapper_of(name)
        if selection is not None:
            effect = probe_effect(recorded, clean, name, selection)
            selection.factor = effect["factor"]
            effects.append(effect)
        elif wrapper is not None and wrapper.background:
            effects.append({**no_effect(name), "note": _NO_SLICE})
    return effects


def layer_rows(
    recorded: Recorded, clean: Clean, run: Mapping[str, Any], selections: Selections
) -> list[dict[str, Any]]:
    """One row per layer of the run, in the order in which the page shows them."""
    artifacts = records(recorded.frames["artifacts"])
    rows = []
    for layer in records(recorded.frames["layers"]):
        _add_words(layer)
        _add_slices(layer, recorded, clean, selections.get(layer["name"]))
        layer["artifacts"] = [item for item in artifacts if item["layer"] == layer["name"]]
        layer["command"] = None
        if layer["status"] == "empty":
            layer["command"] = _command(recorded, run, layer["name"])
            layer["reason"] = layer["reason"] or _why_empty(recorded, layer["command"])
        if layer["reason"]:
            layer["reason"] = home_relative(layer["reason"])
        rows.append(layer)
    return rows


def _add_words(layer: dict[str, Any]) -> None:
    """What the layer's wrapper says of itself."""
    wrapper = wrapper_of(layer["name"])
    if wrapper is None:
        layer.update(dict.fromkeys(_WORDS))
        return
    said = wrapper.description
    layer.update(technique=said.technique, tool=said.tool)
    layer.update({word: getattr(said, word) for word in _WORDS})


def _add_slices(
    layer: dict[str, Any], recorded: Recorded, clean: Clean, selection: Selection | None
) -> None:
    """Its steps, pauses and modes; a layer in the background has no slice and no step."""
    wrapper = wrapper_of(layer["name"])
    slices = recorded.frames["slices"]
    own = slices[slices["layer"] == layer["name"]]
    if wrapper is not None and wrapper.background and not len(own):
        layer.update(steps=None, stop_s=None, audit=[])
        return
    layer.update(
        steps=int(own["steps"].sum()),
        stop_s=nullable(own["stop_s"].sum(min_count=1)) if len(own) else None,
        audit=_audit(layer["name"], own, recorded, clean, selection),
    )


def _audit(
    name: str, own: Any, recorded: Recorded, clean: Clean, selection: Selection | None
) -> list[str]:
    """What the figures rest on, and what was observed besides, with what that cost."""
    if selection is None:
        return []
    slices = "1 slice" if len(selection.slices) == 1 else f"{len(selection.slices)} slices"
    lines = [f"{selection.in_words()} in {slices} ({selection.mode})"]
    cost = cost_in_words(recorded) if name == "cprofile" else None
    if cost is not None:
        lines.append(cost)
    others = own[~own["slice"].isin(selection.slices)]
    for mode, group in others.groupby("mode"):
        line = f"{int(group['steps'].sum())} more in slices of mode {mode}"
        other = recorded.select(name, ((str(mode),),))
        apart = other is not None and not set(other.slices) & set(selection.slices)
        factor = plain_factor(recorded, clean, other) if apart and other is not None else None
        lines.append(
            line if factor is None else f"{line}, at {factor:.2f} times a clean step, by medians"
        )
    return lines


def _why_empty(recorded: Recorded, command: str | None) -> str:
    count = len(recorded.frames["steps"])
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
    """Whether steps were left for layers once it was known where they end."""
    slices = recorded.frames["slices"]
    return bool(slices.loc[slices["round"] >= 1, "steps"].sum() > 0)


def _was_alone(recorded: Recorded, layer: str) -> bool:
    """Whether no other layer was there whose turn could come before this one's."""
    for name in recorded.frames["layers"]["name"].tolist():
        wrapper = wrapper_of(name)
        if name != layer and not (wrapper is not None and wrapper.background):
            return False
    return True


def _command(recorded: Recorded, run: Mapping[str, Any], layer: str) -> str | None:
    """The command that fills an empty layer; None where none would.

    A layer that can do without steps has data where the script is measured whole. Another one has
    its turn earlier where it is alone: at the first step for which any layer had one here.
    """
    target = run.get("argv")
    if FACT in recorded.facts:
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
    if _was_alone(recorded, layer) and (not whole or recorded.rule == "whole"):
        # It would be the same again.
        return None
    options = ["--step-by", "none"] if whole else []
    return shlex.join(["profstack", "run", *options, "--layers", layer, *target])
