"""One point of the roofline: its rate, the roof over it, and what holds it back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# A roof holds a point back where it explains at least this share of the point's time.
EXPLAINS = 0.5

_NO_FLOP = "its operations are not counted: no formula is known for them"
_CACHED = "it finds its data in caches"
_NO_TIME = "its time is not calibrated: too few steps, or too much disturbed"
_NO_PEAK = "no peak is known for it"


class Roofs:
    """The rates that hold a point back: as measured, or as stated where nothing was measured."""

    def __init__(self, peaks: Mapping[str, Any]) -> None:
        self._flop_per_s: dict[str, float] = {}
        for source in ("datasheet", "measured"):
            # What was measured takes the place of what is stated.
            self._flop_per_s.update(
                {
                    peak["dtype"]: peak["value"]
                    for peak in peaks["flop_per_s"]
                    if peak["source"] == source and peak["value"]
                }
            )
        rates = {peak["source"]: peak["value"] for peak in peaks["bytes_per_s"] if peak["value"]}
        self.bytes_per_s: float | None = rates.get("measured") or rates.get("datasheet")

    def flop_per_s(self, dtype: str | None) -> float | None:
        """The peak for a type, or for `tf32`; None where it is not known."""
        return self._flop_per_s.get(dtype) if dtype is not None else None


def point(
    roofs: Roofs,
    kind: str,
    name: str,
    dtype: str | None,
    flop: float | None,
    moved: float | None,
    seconds: float | None,
    seconds_is: str,
    lacking: str | None,
) -> dict[str, Any]:
    """A row of `points`; `lacking` says what is not in `moved`, or why there is no `moved`."""
    seconds = seconds if seconds is not None and seconds > 0 else None
    intensity = flop / moved if flop and moved else None
    rate = flop / seconds if flop and seconds else None
    share, bound, reason = _judge(roofs, dtype, flop, moved, seconds, intensity, lacking)
    return {
        "kind": kind,
        "name": name,
        "dtype": dtype,
        "flop": flop,
        "moved_bytes": moved,
        "seconds": seconds,
        "seconds_is": seconds_is if seconds is not None else None,
        "intensity": intensity,
        "flop_per_s": rate,
        "share_of_peak": share,
        "bound": bound,
        "reason": reason,
    }


def _judge(
    roofs: Roofs,
    dtype: str | None,
    flop: float | None,
    moved: float | None,
    seconds: float | None,
    intensity: float | None,
    lacking: str | None,
) -> tuple[float | None, str | None, str | None]:
    """The share of the roof that is reached, what holds it back, and why or why not."""
    peak, memory = roofs.flop_per_s(dtype), roofs.bytes_per_s
    if seconds is None:
        return None, None, _NO_TIME
    if memory is None or (flop and peak is None):
        return None, None, _NO_PEAK
    if moved is None:
        return None, None, lacking
    if not flop or peak is None or intensity is None:
        return _without_flop(moved / seconds / memory)
    share = flop / seconds / min(peak, memory * intensity)
    below = intensity < peak / memory
    of_peak = flop / seconds / peak
    if share < EXPLAINS:
        roof = "memory" if below else "peak"
        return (
            share,
            "overhead",
            _joined(f"{percent(share)} of the rate that the {roof} allows", lacking),
        )
    if below and share > 1:
        # What outruns the memory is not held back by it.
        bound = "compute" if of_peak >= EXPLAINS else "memory"
        over = (
            f"it is above the memory's roof: {_CACHED}, and reaches {percent(of_peak)} of the peak"
        )
        return share, bound, _joined(over, lacking)
    bound = "memory" if below else "compute"
    if share > 1:
        # No share of anything.
        why = "it is above the peak: its operations, its time or the peak is wrong"
        return None, bound, _joined(why, lacking)
    return share, bound, lacking


def _without_flop(share: float) -> tuple[float | None, str | None, str | None]:
    """The bytes alone may explain the time."""
    if not share:
        return None, None, "it moves no bytes and nothing in it is counted: views, mostly"
    text = (
        f"{_NO_FLOP}; its bytes alone would take {percent(share)} of its time at the memory's rate"
    )
    if share > 1:
        text += f": {_CACHED}"
    return None, "memory" if share >= EXPLAINS else None, text


def percent(share: float) -> str:
    """A share in words, as the page writes the same share as a figure beside them."""
    if 0 < share < 0.001:
        return "less than 0.1 %"
    words = f"{100 * share:.{1 if share < 0.1 else 0}f} %"
    # 49.9 % is not the half that a label asks for.
    just_below = share < EXPLAINS <= round(100 * share) / 100
    return f"just under {words}" if just_below else words


def _joined(*texts: str | None) -> str | None:
    return "; ".join(text for text in texts if text) or None
