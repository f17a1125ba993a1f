"""`Recording`: the recorded data of a run as Python objects, and the page made from it.

Its report becomes data frames and a page in a notebook, and its folder is copied elsewhere. Nothing
here imports torch.
"""

from __future__ import annotations

import html as escaping
import os
import re
import shutil
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, cast

from profstack.errors import RecordingError, naming_arguments
from profstack.storage.folder import DATABASE, create_folder
from profstack.storage.schema.report import REPORT, Report
from profstack.units import format_seconds

if TYPE_CHECKING:
    from pandas import DataFrame


PAGE_HEIGHT = "720px"


class Recording:
    """The recorded data of one run or session; `folder` is its place on disk."""

    def __init__(self, folder: Path, *, still_written: bool = False) -> None:
        self.folder = folder
        self._still_written = still_written
        self._report: Report | None = None
        self._frames: dict[str, DataFrame] = {}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Recording:
        """Load the recording in a folder, or beside a `report.html` or `report.json`.

        Raises RecordingError where there is none, or one of another version.
        """
        from profstack.report.files import recording_folder

        recording = cls(recording_folder(os.fspath(path), exactly=True))
        recording.to_dict()
        return recording

    @property
    def frames(self) -> Mapping[str, DataFrame]:
        """The tables of `report.json` by name, each a `pandas.DataFrame`: `modules`, `steps` etc.

        Columns end in their unit; times and counts are per step. A value that was not measured is
        missing (NaN or None), never 0.
        """
        return _Frames(self)

    @property
    def name(self) -> str:
        """The name of the session, or the script that was run."""
        return str(self.to_dict()["script"] or self.folder.name)

    def to_dict(self) -> Report:
        """Return the content of `report.json`; a recording still being written is read anew."""
        from profstack.report import files

        if self._still_written:
            return files.build(self.folder)
        if self._report is None:
            self._report = files.load(self.folder)
        return self._report

    def frame(self, name: str) -> DataFrame:
        """Return one table as a data frame; the next call returns the same object."""
        if name in self._frames:
            return self._frames[name]
        import pandas as pd

        tables = cast(Mapping[str, Sequence[Mapping[str, object]]], self.to_dict()["tables"])
        rows = tables.get(name)
        columns = list(REPORT[name].names)
        frame: DataFrame = pd.DataFrame(rows) if rows else pd.DataFrame(columns=columns)
        if not self._still_written:
            self._frames[name] = frame
        return frame

    def save(self, path: str | os.PathLike[str] | None = None, *, force: bool = False) -> Path:
        """Copy the recording to a folder; without `path` to the next `profstack-runs/NAME-0001`.

        Returns the folder. Raises RecordingError where it is in use, unless it is a recording and
        `force` is given.
        """
        output = None if path is None else os.fspath(path)
        if output is not None and Path(output).resolve() == self.folder.resolve():
            return self.folder
        with naming_arguments("path"):
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
        with naming_arguments("path"):
            html.write(self.to_dict(), page, recording=self.folder)
        return page

    def _repr_html_(self) -> str:
        """Return the page for a notebook, in a frame that needs no network and no file."""
        from profstack.report import html

        page = escaping.escape(html.render(self.to_dict()), quote=True)
        title = escaping.escape(f"profstack: {self.name}", quote=True)
        return (
            f'<iframe title="{title}" srcdoc="{page}" sandbox="allow-scripts" '
            f'style="width: 100%; height: {PAGE_HEIGHT}; border: 1px solid #8888"></iframe>'
        )

    def __repr__(self) -> str:
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
    """The tables of a report, each made into a data frame at its first use."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def __getitem__(self, name: str) -> DataFrame:
        """Return the table as a data frame; a KeyError names the tables."""
        if name not in REPORT:
            raise KeyError(f"no table {name!r}; the tables are {', '.join(REPORT)}")
        return self._recording.frame(name)

    def __iter__(self) -> Iterator[str]:
        return iter(REPORT)

    def __len__(self) -> int:
        return len(REPORT)


def folder_name(name: str) -> str:
    """Return a name as part of a folder's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "session"


def _copy_database(source: Path, target: Path) -> None:
    """Copy the tables at one moment, also while a run writes the next slice."""
    if not source.is_file():
        # A recording may consist of its report alone.
        return
    source_url = f"{source.resolve().as_uri()}?mode=ro"
    with (
        closing(sqlite3.connect(source_url, uri=True, timeout=60)) as first,
        closing(sqlite3.connect(target)) as second,
    ):
        first.backup(second)
        second.execute("PRAGMA journal_mode=DELETE")
