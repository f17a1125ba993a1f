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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import quote

from profstack.errors import RecordingError, naming_arguments
from profstack.storage.folder import DATABASE, create_folder
from profstack.storage.schema.report import REPORT, Finding, Report, Verdict
from profstack.storage.untrusted import open_database
from profstack.storage.vocabulary import WITH_DATA
from profstack.units import format_seconds

if TYPE_CHECKING:
    from pandas import DataFrame


# Parts of a report that are lists of rows, beside its tables.
_LISTS = ("run_bar", "findings", "layers", "slices")
PAGE_HEIGHT = "720px"
# Findings in the answer of a line or a notebook's cell.
MOST_FINDINGS = 3


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

    @property
    def verdict(self) -> Verdict | None:
        """The cause that holds a step back: `slug`, `sentence`, `action`; None if it failed."""
        return self.to_dict()["verdict"]

    @property
    def findings(self) -> list[Finding]:
        """The findings, the most severe first: `title`, `evidence`, `gain_s`, `advice` etc."""
        return self.to_dict()["findings"]

    @property
    def steps(self) -> DataFrame:
        """All steps, one row each, with their times, slices and flags."""
        return self.to_pandas("steps")

    def summary(self, *, width: int = 100) -> str:
        """Return what `profstack show` prints of the recording, in lines of `width` characters."""
        from profstack.report import terminal

        return terminal.summary(self.to_dict(), width=width, colour=False)

    def to_pandas(self, name: str) -> DataFrame:
        """Return one table as a data frame; the next call returns the same object.

        `run_bar`, `findings`, `layers` and `slices` of the report are made anew each time. Raises
        KeyError, which names the tables, where there is no such table.
        """
        if name in _LISTS:
            import pandas as pd

            lists = cast(Mapping[str, Sequence[object]], self.to_dict())
            made: DataFrame = pd.DataFrame(lists[name])
            return made
        if name not in REPORT:
            raise KeyError(f"no table {name!r}; the tables are {', '.join(REPORT)}")
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
            # What a link leads to is no part of the recording.
            shutil.copytree(self.folder, target, True, ignored, dirs_exist_ok=True)
            _copy_database(self.folder / DATABASE, target / DATABASE)
        except (OSError, sqlite3.Error, shutil.Error) as error:
            raise RecordingError(
                f"cannot be copied ({error})",
                where=str(self.folder),
                next_step="choose another folder, or see that the recording still exists",
            ) from error
        return target

    def report(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write the page to a file, or as `report.html` into a folder; returns the file.

        Without `path` it is the recording's name with `.html`, in the working folder. Its links
        lead to the recording's own folder: `save` the recording to keep those files.
        """
        from profstack.report import html

        page = Path(f"{folder_name(self.name)}.html" if path is None else path)
        if page.is_dir():
            page = page / "report.html"
        with naming_arguments("path"):
            html.write(self.to_dict(), page, recording=self.folder)
        return page

    def page(self) -> Page:
        """Return the whole page, which a notebook shows in a frame below the cell."""
        from profstack.report import html

        return Page(f"profstack: {self.name}", html.render(self.to_dict()))

    def _repr_html_(self) -> str:
        """Return the answer for a notebook: the verdict, the first findings, and the way on."""
        answer, *findings = map(escaping.escape, self._answer())
        items = "".join(f"<li>{line}</li>" for line in findings)
        page = self.folder / "report.html"
        more = (
            "<code>.page()</code> shows the whole page here, <code>.report(path)</code> writes it"
        )
        if page.is_file() and page.is_relative_to(Path.cwd()):
            link = quote(page.relative_to(Path.cwd()).as_posix())
            more = f'<a href="{link}" target="_blank">The whole page</a>; {more}'
        head = escaping.escape(self._facts())
        return f"<p><b>{head}</b><br>{answer}</p><ol>{items}</ol><p>{more}.</p>"

    def _facts(self) -> str:
        """Return what was recorded, in a line."""
        report = self.to_dict()
        median_s = report["benchmark"]["median_s"]
        speed = "no clean step" if median_s is None else f"{format_seconds(median_s)} a clean step"
        layers = [row["name"] for row in report["layers"] if row["status"] in WITH_DATA]
        steps = sum(report["step"]["counts_by_phase"].values())
        return f"{self.name!r}: {steps} steps, {speed}, layers {', '.join(layers) or 'none'}"

    def _answer(self) -> list[str]:
        """Return the verdict and a line for each of the first findings."""
        from profstack.report import screen

        verdict, found = self.verdict, self.findings[:MOST_FINDINGS]
        said = "There is no verdict."
        if verdict is not None:
            said = " ".join(filter(None, (verdict["sentence"], verdict.get("action"))))
        return [screen.printable(line) for line in (said, *map(screen.finding_line, found))]

    def __repr__(self) -> str:
        answer, *findings = self._answer()
        lines = [f"  {number}. {line}" for number, line in enumerate(findings, 1)]
        return "\n".join([f"<Recording {self._facts()}; {self.folder}>", answer, *lines])


@dataclass(frozen=True)
class Page:
    """A page for a notebook, in a frame that needs no network and no file."""

    title: str
    content: str

    def _repr_html_(self) -> str:
        page, title = (escaping.escape(each, quote=True) for each in (self.content, self.title))
        return (
            f'<iframe title="{title}" srcdoc="{page}" sandbox="allow-scripts" '
            f'style="width: 100%; height: {PAGE_HEIGHT}; border: 1px solid #8888"></iframe>'
        )

    def __repr__(self) -> str:
        return f"<Page {self.title!r}>"


class _Frames(Mapping[str, "DataFrame"]):
    """The tables of a report, each made into a data frame at its first use."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def __getitem__(self, name: str) -> DataFrame:
        """Return the table as a data frame; a KeyError names the tables."""
        return self._recording.to_pandas(name)

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
    with open_database(source) as first, closing(sqlite3.connect(target)) as second:
        first.connection.backup(second)
        second.execute("PRAGMA journal_mode=DELETE")
