"""Compare kept reports with the ones that this checkout makes from the same recordings.

    python scripts/compare_reports.py RECORDINGS               report.json, field by field
    python scripts/compare_reports.py RECORDINGS --pages       and the data inside report.html
    python scripts/compare_reports.py RECORDINGS --terminal    and what `profstack show` prints
    python scripts/compare_reports.py RECORDINGS --ignore 'tables.*.columns[].meaning'
    python scripts/compare_reports.py RECORDINGS --checkout OTHER
    python scripts/compare_reports.py RECORDINGS --keep        keep the new reports from now on

RECORDINGS is a recording's folder, or a folder with recordings in it at any depth. A recording
beside a `report.json` is compared; `recording.sqlite` and the kept reports (`report.json`,
`report.html`, and `show.txt` with the terminal's text) may be compressed by gzip.

Each recording is copied to a temporary folder of the same name (a recording without an identifier
takes its folder's name), and `profstack report` of the checkout rebuilds its report there: nothing
is written beside the kept files. Paths below the home folder are shortened when a report is made,
so HOME must be what it was then.

Values are compared exactly: 1 and 1.0 differ, null and absent differ, and rows keep their order.
Floats may differ by 1e-12 of the larger one, since another processor makes sums in another order.
The order of keys in an object does not count. `profstack_version` is printed where it differs, and
is not counted.

The exit code is 0 without a difference, 1 with one, 2 where nothing could be compared.
"""

from __future__ import annotations

import argparse
import base64
import difflib
import gzip
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
DATABASE = "recording.sqlite"
REPORT, PAGE, TERMINAL = "report.json", "report.html", "show.txt"
# What the terminal says of a recording, each with its options for `profstack show`.
_SHOWN_PARTS = ((), ("--findings",), ("--verdict",))
# Differ between versions by their meaning.
EXPECTED = ("profstack_version",)
# Scripts of the page that hold a library's code, not data.
_CODE = frozenset(("pack-plotly",))
_LONGEST = 160
LAST_DIGITS = 1e-12

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class CannotCompareError(Exception):
    """A report is missing, unreadable, or could not be rebuilt."""


@dataclass(frozen=True)
class Difference:
    """A field with its kept and its new value, as JSON; None where it is absent."""

    path: str
    old: str | None
    new: str | None

    def __str__(self) -> str:
        return f"{self.path}: {_shortened(self.old)} -> {_shortened(self.new)}"


def _shortened(text: str | None) -> str:
    if text is None:
        return "(absent)"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


def differences(old: Json, new: Json, path: str = "") -> Iterator[Difference]:
    """Find every field that differs; of what only one side has, the outermost field."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            inner = f"{path}.{key}" if path else key
            if key not in new:
                yield Difference(inner, json.dumps(old[key]), None)
            elif key not in old:
                yield Difference(inner, None, json.dumps(new[key]))
            else:
                yield from differences(old[key], new[key], inner)
    elif isinstance(old, list) and isinstance(new, list):
        for index in range(max(len(old), len(new))):
            inner = f"{path}[{index}]"
            if index >= len(new):
                yield Difference(inner, json.dumps(old[index]), None)
            elif index >= len(old):
                yield Difference(inner, None, json.dumps(new[index]))
            else:
                yield from differences(old[index], new[index], inner)
    elif isinstance(old, float) and isinstance(new, float):
        if not math.isclose(old, new, rel_tol=LAST_DIGITS):
            yield Difference(path, json.dumps(old), json.dumps(new))
    elif json.dumps(old) != json.dumps(new):
        yield Difference(path, json.dumps(old), json.dumps(new))


def line_differences(old: str, new: str) -> Iterator[Difference]:
    """Find the lines of a text that differ, each by its number in the text that has it."""
    lines = old.splitlines(), new.splitlines()
    matcher = difflib.SequenceMatcher(None, *lines, autojunk=False)
    for tag, old_first, old_end, new_first, new_end in matcher.get_opcodes():
        if tag == "equal":
            continue
        for number in range(old_first, old_end):
            yield Difference(f"terminal[{number}]", json.dumps(lines[0][number]), None)
        for number in range(new_first, new_end):
            yield Difference(f"terminal[{number}]", None, json.dumps(lines[1][number]))


def is_ignored(path: str, patterns: Sequence[str]) -> bool:
    """Whether a pattern names this path or a field around it.

    In a pattern `[]` stands for any place in a list, `*` for any one key.
    """
    for pattern in patterns:
        expression = re.escape(pattern).replace(r"\[\]", r"\[\d+\]").replace(r"\*", r"[^.\[]*")
        if re.match(rf"{expression}(?:$|[.\[])", path):
            return True
    return False


# Folders of recordings ------------------------------------------------------------------------


def find_recordings(places: Sequence[Path]) -> list[Path]:
    """List the folders at or below these places that hold a recording."""
    found = []
    for place in places:
        for suffix in ("", ".gz"):
            found += [path.parent for path in place.rglob(DATABASE + suffix)]
    return sorted(set(found))


def copy_recording(folder: Path, parent: Path) -> Path:
    """Copy a recording without its reports, with its database decompressed."""
    left_out = [name + suffix for name in (REPORT, PAGE, TERMINAL) for suffix in ("", ".gz")]
    target = parent / folder.resolve().name
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns(*left_out))
    packed = target / f"{DATABASE}.gz"
    if packed.exists():
        (target / DATABASE).write_bytes(gzip.decompress(packed.read_bytes()))
        packed.unlink()
    return target


def run_profstack(checkout: Path, *arguments: str) -> str:
    """Run a command of the checkout's profstack; returns what it printed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PROFSTACK")}
    others = [path for path in (kept.get("PYTHONPATH"),) if path]
    paths = os.pathsep.join([str(checkout), *others])
    done = subprocess.run(
        [sys.executable, "-m", "profstack", *arguments],
        cwd=checkout,
        env=kept | {"PYTHONPATH": paths, "PYTHONIOENCODING": "utf-8", "COLUMNS": "100"},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if done.returncode:
        command = " ".join(arguments[:1])
        raise CannotCompareError(f"{command} exits {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def rebuild(folder: Path, options: argparse.Namespace) -> None:
    """Write the reports of a recording anew, by the commands that users have for it."""
    run_profstack(options.checkout, "report", str(folder))
    if options.terminal:
        parts = [run_profstack(options.checkout, "show", *a, str(folder)) for a in _SHOWN_PARTS]
        text = "\n".join(parts).replace(str(folder), "DIR")
        (folder / TERMINAL).write_text(text, encoding="utf-8")


def kept_text(folder: Path, name: str) -> str:
    """Read a kept file, compressed or not."""
    plain, packed = folder / name, folder / f"{name}.gz"
    if plain.exists():
        return plain.read_text("utf-8")
    if packed.exists():
        return gzip.decompress(packed.read_bytes()).decode("utf-8")
    raise CannotCompareError(f"no {name} is kept")


# Data inside a page ---------------------------------------------------------------------------


class _Scripts(HTMLParser):
    """Collects the data that a page carries: plain JSON, and parts as base64 of gzip of JSON."""

    def __init__(self) -> None:
        super().__init__()
        self.plain: list[Json] = []
        self.packed: list[Json] = []
        self._inside: tuple[str, str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Remember the type and the name of a script."""
        if tag == "script":
            given = dict(attrs)
            self._inside = given.get("type") or "", given.get("id") or ""

    def handle_endtag(self, tag: str) -> None:
        """Forget the script that ends."""
        self._inside = None

    def handle_data(self, data: str) -> None:
        """Read a script's data."""
        if self._inside is None:
            return
        kind, name = self._inside
        if kind == "application/json":
            self.plain.append(json.loads(data))
        elif kind == "text/plain" and name not in _CODE:
            self.packed.append(json.loads(gzip.decompress(base64.b64decode(data))))


def page_data(page: str) -> Json:
    """Read the data of a page, with each compressed part put where it was taken from."""
    scripts = _Scripts()
    scripts.feed(page)
    scripts.close()
    if not scripts.plain:
        raise CannotCompareError("the page holds no data that is known how to read")
    whole: dict[str, Json] = {}
    for part in (*scripts.plain, *scripts.packed):
        _merge_into(whole, part)
    return whole


def _merge_into(whole: dict[str, Json], part: Json) -> None:
    if not isinstance(part, dict):
        raise CannotCompareError("a part of the page's data is no object")
    for key, value in part.items():
        present = whole.get(key)
        if isinstance(present, dict) and isinstance(value, dict):
            _merge_into(present, value)
        elif key in whole:
            raise CannotCompareError(f"two parts of the page's data hold {key}")
        else:
            whole[key] = value


# The comparison -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compared:
    """The result of comparing one recording."""

    counted: list[Difference]
    expected: list[Difference]
    ignored: int


def compare(folder: Path, options: argparse.Namespace) -> Compared:
    """Rebuild a recording's reports and compare them with the kept ones."""
    with tempfile.TemporaryDirectory() as temporary:
        copied = copy_recording(folder, Path(temporary))
        rebuild(copied, options)
        if options.keep:
            keep(folder, copied, options)
        found = list(_found(folder, copied, options))
    expected = [one for one in found if one.path.removeprefix("page.facts.") in EXPECTED]
    rest = [one for one in found if one not in expected]
    counted = [one for one in rest if not is_ignored(one.path, options.ignore)]
    return Compared(counted, expected, len(rest) - len(counted))


def _found(folder: Path, copied: Path, options: argparse.Namespace) -> Iterator[Difference]:
    old, new = (json.loads(kept_text(place, REPORT)) for place in (folder, copied))
    yield from differences(old, new)
    if options.pages:
        old, new = (page_data(kept_text(place, PAGE)) for place in (folder, copied))
        yield from differences(old, new, "page")
    if options.terminal:
        yield from line_differences(kept_text(folder, TERMINAL), kept_text(copied, TERMINAL))


def keep(folder: Path, copied: Path, options: argparse.Namespace) -> None:
    """Keep the new reports, compressed where the ones before were."""
    names = [REPORT, *([PAGE] if options.pages else []), *([TERMINAL] if options.terminal else [])]
    for name in names:
        content = (copied / name).read_bytes()
        if (folder / f"{name}.gz").exists():
            # Without a time, so that the same report gives the same file.
            (folder / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))
        else:
            (folder / name).write_bytes(content)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _times(count: int, noun: str) -> str:
    return f"{count or 'no'} {noun}{'' if count == 1 else 's'}"


def _print_fields(counted: Sequence[Difference]) -> None:
    """Print how often each field differs, whatever its row."""
    fields = Counter(re.sub(r"\[\d+\]", "[]", one.path) for one in counted)
    _say(f"{_times(len(counted), 'difference')} in {_times(len(fields), 'field')}:")
    for path, count in fields.most_common():
        _say(f"  {count:6} {path}")


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recordings", nargs="+", type=Path, metavar="RECORDINGS")
    parser.add_argument("--pages", action="store_true", help="compare the pages' data as well")
    parser.add_argument("--terminal", action="store_true", help="and what `profstack show` prints")
    parser.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="PATH",
        help="do not count this field and what is in it: `[]` is any row, `*` any key; may be "
        "given again, and a page's paths begin with `page.`",
    )
    parser.add_argument(
        "--most", type=int, metavar="N", help="print N differences of a recording (default: all)"
    )
    parser.add_argument(
        "--checkout", type=Path, default=CHECKOUT, help="whose code rebuilds (default: this one)"
    )
    parser.add_argument("--keep", action="store_true", help="keep the new reports from now on")
    options = parser.parse_args(arguments)
    options.checkout = options.checkout.resolve()
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare all recordings and print what differs."""
    options = parse_arguments(arguments)
    folders = find_recordings(options.recordings)
    if not folders:
        _say("no recording found")
        return 2
    if not (options.checkout / "profstack").is_dir():
        _say(f"{options.checkout} is no checkout of profstack")
        return 2
    counted: list[Difference] = []
    failed = ignored = 0
    begun = time.monotonic()
    for folder in folders:
        try:
            result = compare(folder, options)
        except (CannotCompareError, OSError, ValueError) as error:
            failed += 1
            _say(f"{folder}: CANNOT BE COMPARED: {error}")
            continue
        counted += result.counted
        ignored += result.ignored
        _say(f"{folder}: {_times(len(result.counted), 'difference')}")
        for one in result.expected:
            _say(f"  expected: {one}")
        for one in result.counted[: options.most]:
            _say(f"  {one}")
        if options.most is not None and len(result.counted) > options.most:
            _say(f"  and {len(result.counted) - options.most} more")
    if counted:
        _print_fields(counted)
    seconds = time.monotonic() - begun
    _say(
        f"{_times(len(folders), 'recording')} in {seconds:.0f} s: "
        f"{_times(len(counted), 'difference')}, "
        f"{ignored} ignored, {failed} could not be compared"
    )
    if failed:
        return 2
    return 1 if counted else 0


if __name__ == "__main__":
    sys.exit(main())
