"""What the recording holds of each layer: what has become of it, its notes, its files."""

from __future__ import annotations

from pathlib import Path

from profstack.engine.layerstate import WITH_DATA, LayerState, told
from profstack.environment import rss_bytes
from profstack.interrupts import is_scripts
from profstack.recording import Writer
from profstack.wrapper import Artifact, Captured


class LayerBook:
    """Keeps the tables `layers` and `artifacts`, and writes `notes`; `layers` are by name."""

    def __init__(self, folder: Path, writer: Writer) -> None:
        self.layers: dict[str, LayerState] = {}
        self._folder = folder
        self._writer = writer
        self._rss_before: int | None = None
        # Reasons for which layers gave way: each is told once.
        self._told: set[str] = set()

    def write(self) -> None:
        """Write the tables as they stand now."""
        self._writer.replace("layers", [state.record() for state in self.layers.values()])
        artifacts = [
            {
                "layer": state.name,
                "path": path.relative_to(self._folder).as_posix(),
                "opens_in": artifact.opens_in,
                "bytes": path.stat().st_size if path.exists() else None,
            }
            for state in self.layers.values()
            for path, artifact in state.artifacts.items()
        ]
        self._writer.replace("artifacts", artifacts)

    def note(self, slug: str, text: str, layer: str | None = None) -> None:
        """Record something the reader of the report should know."""
        self._writer.write({"notes": [{"slug": slug, "layer": layer, "text": text}]})

    def slice_begins(self) -> None:
        """Memory that the process takes from here on is the tools'."""
        self._rss_before = rss_bytes()

    def take_in(self, state: LayerState, taken: Captured) -> None:
        """What a layer has handed over, but for its rows."""
        if any(taken.frames.values()):
            state.status = taken.status
            state.reason = None
        for slug, text in taken.notes:
            self.note(slug, text, state.name)
            if state.status not in WITH_DATA:
                state.reason = text
        state.truncated = taken.truncated or state.truncated
        self.keep(state, taken.artifacts)
        grown = taken.memory_bytes
        after = rss_bytes()
        if grown is None and after is not None and self._rss_before is not None:
            grown = after - self._rss_before
        if grown is not None:
            state.memory_bytes = max(state.memory_bytes or 0, grown)

    def keep(self, state: LayerState, artifacts: list[Artifact]) -> None:
        """A layer has written these files."""
        for artifact in artifacts:
            state.artifacts[artifact.path] = artifact

    def gave_way(self, state: LayerState, reason: str) -> None:
        """A layer leaves a slice to a tool of the script's own."""
        if state.status == "empty":
            state.status = "skipped"
        if state.reason != reason and reason not in self._told:
            self._told.add(reason)
            self.note("gave-way", f"{state.name}: {reason}", state.name)
        if state.status == "skipped":
            state.reason = reason

    def fail(self, state: LayerState, error: BaseException) -> None:
        """End a layer whose wrapper raised, with a note of what and where.

        What is the script's own is raised again.
        """
        if is_scripts(error):
            raise error
        self.end(state, error)

    def end(self, state: LayerState, error: BaseException) -> None:
        """The same, whosever the error is."""
        is_own = is_scripts(error)
        state.end("failed", f"{_cause(error)}: {told(error)}" if is_own else told(error))
        self.note("layer-failed", f"the layer {state.name} failed: {state.reason}", state.name)

    def end_all(self, error: BaseException) -> None:
        """Everything ends in the midst of the run, and this is why."""
        reason = f"{_cause(error)}: {told(error)}"
        self.note("disarmed", f"stopped by {reason}")
        for state in self.layers.values():
            if state.wrapper is not None and state.status not in WITH_DATA:
                state.end("failed", f"before this layer's turn came, all ended by {reason}")
        self.write()


def _cause(error: BaseException) -> str:
    """What an error that ended something is, for the reader."""
    if is_scripts(error):
        return "an interruption of the script's that came in profstack's own work"
    return "a defect of profstack"
