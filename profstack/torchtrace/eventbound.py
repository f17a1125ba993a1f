"""Bounds the slices of torch.profiler, by the events that a step of this run was seen to make."""

from __future__ import annotations

# One slice holds at most this many events, and this much memory of the profiler's.
MAX_EVENTS = 500_000
MAX_BYTES = 1 << 30
# The profiler's own memory per event, nine tenths of it taken when the profile stops; measured
# with shapes on torch 2.13.
BYTES_PER_EVENT = 5_000
# What a slice of mode `detail` has more of, with the memory that is taken and given back.
_MORE_IN_DETAIL = 2


def _most_events() -> int:
    return min(MAX_EVENTS, MAX_BYTES // BYTES_PER_EVENT)


class EventBound:
    """How many steps a slice may have, and whether one may be traced again at all."""

    def __init__(self) -> None:
        self._per_step = 0.0

    def learn(self, events: int, steps: int) -> None:
        """A slice is over that had so many events and steps."""
        self._per_step = max(self._per_step, events / steps)

    def step_limit(self) -> int | None:
        """Steps that stay within the bounds; None as long as no slice has been."""
        return max(1, int(_most_events() / self._per_step)) if self._per_step else None

    def refusal(self, mode: str) -> str | None:
        """Why a step cannot be traced once more in this mode; None where it can."""
        events = self._per_step * (_MORE_IN_DETAIL if mode == "detail" else 1)
        if events <= _most_events():
            return None
        return (
            f"no more slices of mode {mode}: a step makes about {events:,.0f} events, of which the "
            f"profiler would hold {events * BYTES_PER_EVENT / 1e9:.1f} GB; a slice is bounded to "
            f"{_most_events():,} events"
        )
