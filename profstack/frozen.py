"""`Recording`: the frozen data of a run as Python sees it, and the page made from it.

The folder on disk is the business of `recording`; here its report becomes data frames, a page in
a notebook, and copies elsewhere. Nothing in here imports torch.
"""

from __future__ import annotations

import html as escaping
import os
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profstack.errors import RecordingError, told_to_callers
from profstack.recording import DATABASE, create_folder

if TYPE_CHECKING:
    from pandas import DataFrame

PAGE_HEIGHT = "720px"


class Recording:
    """What one run or session has measured; `folder` is where it lies on disk."""

    def __init__(self, folder: Path, *, still_written: bool = False) -> None:
        self.folder = folder
        self._still_written = still_written
        self._report: dict[str, Any] | None = None
        self._made: dict[str, DataFrame] = {}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Recording:
        """The recording in a folder; its `report.html` or `report.json` names it as well.

        Raises RecordingError where there is none, or one of another version.
        """
        from profstack.report.newest import recording_folder

        recording = cls(recording_folder(os.fspath(path), exactly=True))
        recording.to_dict()
        return recording

    @property
    def frames(self) -> Mapping[str, DataFrame]:
        """The tables of `report.json` by name, each a `pandas.DataFrame`: `modules`, `steps` etc.

        Columns end in their unit; times and counts are per step. What was not measured is missing
        (NaN or None), never 0.
        """
        return _Frames(self, self._made)

    @property
    def name(self) -> str:
        """The name of the session, or the script that was run."""
        return str(self.to_dict()["script"] or self.folder.name)

    def to_dict(self) -> dict[str, Any]:
        """Everything that `report.json` holds; a recording still being written is read anew."""
        from profstack.report import stored

        if self._still_written:
            return stored.build(self.folder)
        if self._report is None:
            self._report = stored.load(self.folder)
        return self._report

    def save(self, path: str | os.PathLike[str] | None = None, *, force: bool = False) -> Path:
        """Copy the recording to a folder; without `path` to the next `profstack-runs/NAME-0001`.

        Returns the folder. Raises RecordingError where it is in use, unless `force` is given and
        it is a recording.
        """
        output = None if path is None else os.fspath(path)
        if output is not None and Path(output).resolve() == self.folder.resolve():
            return self.folder
        with told_to_callers("path"):
            target = create_folder(folder_name(self.name), output, force=force)
        try:
            ignored = shutil.ignore_patterns(f"{DATABASE}*")
            shutil.copytree(self.folder, target, ignore=ignored, dirs_exist_ok=True)
            _copy_database(self.folder / DATABASE, target / DATABASE)
        except (OSError, sqlite3.Error, shutil.Error) as error:
            raise RecordingError(
                f"cannot be copied ({error})",
                where=str(self.folder),
                next_step="choose another folder, or see that the recording still exists",
            ) from error
        return target

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file, or as `report.html` into a folder; returns the file.

        Its links lead to the recording's own folder: `save` the recording to keep those files.
        """
        from profstack.report import html

        page = Path(path)
        if page.is_dir():
            page = page / "report.html"
        with told_to_callers("path"):
            html.write(self.to_dict(), page, recording=self.folder)
        return page

    def _repr_html_(self) -> str:
        """The page, for a notebook: in a frame of its own, which needs no network and no file."""
        from profstack.report import html

        page = escaping.escape(html.render(self.to_dict()), quote=True)
        title = escaping.escape(f"profstack: {self.name}", quote=True)
        return (
            f'<iframe title="{title}" srcdoc="{page}" sandbox="allow-scripts" '
            f'style="width: 100%; height: {PAGE_HEIGHT}; border: 1px solid #8888"></iframe>'
        )

    def __repr__(self) -> str:
        from profstack.units import format_seconds

        report = self.to_dict()
        median_s = report["benchmark"]["median_s"]
        speed = "no clean step" if median_s is None else f"{format_seconds(median_s)} a clean step"
        layers = [row["name"] for row in report["layers"] if row["status"] == "recorded"]
        steps = sum(report["step"]["counts_by_phase"].values())
        return (
            f"<Recording {self.name!r}: {steps} steps, {speed}, "
            f"layers {', '.join(layers) or 'none'}; {self.folder}>"
        )


class _Frames(Mapping[str, "DataFrame"]):
    """The tables of a report, each made into a data frame when it is first asked for."""

    def __init__(self, recording: Recording, made: dict[str, DataFrame]) -> None:
        self._recording = recording
        self._made = made

    def __getitem__(self, name: str) -> DataFrame:
        """The table as a data frame; KeyError names the tables there are."""
        from profstack.schema import REPORT

        if name not in REPORT:
            raise KeyError(f"no table {name!r}; the tables are {', '.join(REPORT)}")
        if name in self._made:
            return self._made[name]
        import pandas as pd

        rows = self._recording.to_dict()["tables"].get(name, [])
        frame: DataFrame = (
            pd.DataFrame(rows) if rows else pd.DataFrame(columns=list(REPORT[name].names))
        )
        if not self._recording._still_written:
            self._made[name] = frame
        return frame

    def __iter__(self) -> Iterator[str]:
        from profstack.schema import REPORT

        return iter(REPORT)

    def __len__(self) -> int:
        from profstack.schema import REPORT

        return len(REPORT)


def folder_name(name: str) -> str:
    """A name as part of a folder's name."""
    import re

    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "session"


def _copy_database(source: Path, target: Path) -> None:
    """Copy the tables as they stand at one moment, also while a run writes the next slice."""
    if not source.is_file():
        # A recording may have been sent without its tables: the report is there.
        return
    first = sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True, timeout=60)
    second = sqlite3.connect(target)
    try:
        first.backup(second)
        second.execute("PRAGMA journal_mode=DELETE")
    finally:
        second.close()
        first.close()
