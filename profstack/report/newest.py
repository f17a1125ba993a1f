"""Which recording a command means: the folder it was given, or the newest one here."""

from __future__ import annotations

from pathlib import Path

from profstack.errors import RecordingError

RUNS = "profstack-runs"
_DATABASE = "recording.sqlite"
_REPORT = "report.json"
_NEXT_STEP = "make one with 'profstack run script.py'"


def newest_recording(folder: Path) -> Path:
    """The recording in `folder` whose database was written last."""
    found = [home for entry in _entries(folder) if (home := _home(entry)) is not None]
    if not found:
        raise RecordingError("no recording yet", where=str(folder), next_step=_NEXT_STEP)
    return max(found, key=_written)


def recording_folder(given: str | None, *, exactly: bool = False) -> Path:
    """The recording a user means by `given`: its folder or a file in it; None is the newest.

    A folder of recordings stands for its newest one, unless `exactly` that folder is meant, as
    where something is added to a recording.
    """
    if given is None:
        return newest_recording(Path(RUNS))
    path = Path(given)
    if not path.exists():
        raise RecordingError("no such folder", where=given, next_step=_NEXT_STEP)
    folder = path if path.is_dir() else path.parent
    home = _home(folder)
    if home is not None:
        return home
    if not exactly and path.is_dir() and any(_home(entry) for entry in _entries(path)):
        return newest_recording(path)
    lacks = f"{_DATABASE} is not {'in' if path.is_dir() else 'beside'} it"
    raise RecordingError(f"not a recording: {lacks}", where=given, next_step=_NEXT_STEP)


def _entries(folder: Path) -> list[Path]:
    """The folders in `folder`; none where it does not exist or cannot be read."""
    try:
        return [entry for entry in folder.iterdir() if entry.is_dir()]
    except OSError:
        return []


def _home(folder: Path) -> Path | None:
    """The folder that holds the recording itself: under several ranks, that of the lowest."""
    if any((folder / name).is_file() for name in (_DATABASE, _REPORT)):
        return folder
    ranks = sorted(entry for entry in _entries(folder) if entry.name.startswith("rank-"))
    return next((rank for rank in ranks if (rank / _DATABASE).is_file()), None)


def _written(home: Path) -> float:
    """When the recording was last written."""
    for name in (_DATABASE, _REPORT):
        try:
            return (home / name).stat().st_mtime
        except OSError:
            continue
    return 0.0
