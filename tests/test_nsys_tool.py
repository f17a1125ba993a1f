"""Finding Nsight Systems, and what it makes of its files; pairs with nvtx that do not work."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from nsys_runs import find_importer, is_old, nsys

from profstack.errors import ProfstackError, UsageError
from profstack.readers import nvtx
from profstack.readers.nsys import tool

__all__ = ["is_old", "nsys"]

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Make a program called nsys in a folder; none but these is on the machine."""
    monkeypatch.setattr(tool, "_USUAL", (f"{tmp_path}/opt/*/bin",))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))

    def make(folder: str, version: str = "2024.5.1.113-1", does: str = "") -> Path:
        program = tmp_path / folder / "nsys"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\n{does or f'echo Nsight Systems version {version}'}\n")
        program.chmod(0o755)
        return program

    return make


def test_that_on_the_path_comes_first_then_the_newest(make: Make) -> None:
    with pytest.raises(tool.NsysError, match=r"nsys\) was not found; install .*--nsys-path"):
        tool.find_nsys()
    old = make("opt/2022.4.2/bin", "2022.4.2.1-df9881f")
    assert tool.find_nsys() == tool.Nsys(str(old), "2022.4.2.1-df9881f", None)
    new = make("opt/2024.10.1/bin", "2024.10.1.1-2")
    make("opt/2024.9.2/bin", "2024.9.2.1-2")
    assert tool.find_nsys().path == str(new)
    on_path = make("path", "2023.1.2.43-32377213v0")
    assert tool.find_nsys().path == str(on_path)
    assert tool.find_nsys().version == "2023.1.2.43-32377213v0"


def test_one_that_does_not_work_gives_way_to_one_that_does(make: Make) -> None:
    make("path", does="echo 'cannot open shared object' >&2; exit 127")
    with pytest.raises(tool.NsysError, match="nsys ended with code 127: cannot open shared object"):
        tool.find_nsys()
    works = make("opt/2024.1/bin")
    assert tool.find_nsys().path == str(works)


def test_a_path_given_is_the_program_or_its_folder(make: Make, tmp_path: Path) -> None:
    program = make("opt/2024.1/bin")
    for given in (program, program.parent, program.parent.parent):
        assert tool.find_nsys(str(given)).path == str(program)
    (tmp_path / "text").write_text("no program")
    for given in (tmp_path, tmp_path / "text", tmp_path / "nowhere"):
        with pytest.raises(UsageError, match="no nsys there; name it or its folder"):
            tool.find_nsys(str(given))


@pytest.mark.parametrize(
    ("program", "importer"),
    [
        ("opt/2024.1/bin", "opt/2024.1/host-linux-x64"),
        ("opt/2024.1/bin", "opt/2024.1/lib/nsight-systems/host-linux-x64"),
        ("path/lib/x86/nsight-systems/target-linux-x64", "path/lib/nsight-systems/host-linux-x64"),
        # Of an nsys of the system's, next to which another one is installed.
        ("path/local/cuda/bin", None),
    ],
)
def test_the_importer_is_found_beside_it(
    make: Make, tmp_path: Path, program: str, importer: str | None
) -> None:
    nsys = make(program)
    for folder in (importer or "", "path/lib/nsight-systems/host-linux-x64"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "QdstrmImporter").touch()
    found = tool.find_nsys(str(nsys)).importer
    assert found == (importer and str(tmp_path / importer / "QdstrmImporter"))


def test_a_link_on_the_path_leads_to_the_importer(make: Make, tmp_path: Path) -> None:
    program = make("opt/2024.1/target-linux-x64")
    importer = tmp_path / "opt/2024.1/host-linux-x64/QdstrmImporter"
    importer.parent.mkdir()
    importer.touch()
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "nsys").symlink_to(program)
    assert tool.find_nsys().importer == str(importer)


def test_an_export_is_made_anew_into_the_folder_given(make: Make, tmp_path: Path) -> None:
    make("path", does='[ "$1" = --version ] && echo 2024.1 && exit; echo "$@" > "$7"')
    (tmp_path / "mine").mkdir()
    report = tmp_path / "mine" / "my report.nsys-rep"
    report.touch()
    (tmp_path / "mine" / "my report.sqlite").write_text("of another run")
    out = tmp_path / "out"
    out.mkdir()
    exported = tool.sqlite_of(report, out)
    assert exported == out / "my report.sqlite"
    assert "--force-overwrite true" in exported.read_text()
    assert (tmp_path / "mine" / "my report.sqlite").read_text() == "of another run"


def test_without_nsys_or_its_importer_a_report_says_what_is_missing(
    make: Make, tmp_path: Path
) -> None:
    report = tmp_path / "a.nsys-rep"
    with pytest.raises(tool.NsysError, match=r"a\.nsys-rep: only Nsight Systems.*nsys export"):
        tool.sqlite_of(report, tmp_path)
    make("path")
    with pytest.raises(tool.NsysError, match=r"QdstrmImporter of nsys .* is not installed; inst"):
        tool.sqlite_of(tmp_path / "a.qdstrm", tmp_path)
    with pytest.raises(tool.NsysError, match=r"nsys 2024\.5\.1\.113-1 exported nothing; is it"):
        tool.sqlite_of(report, tmp_path)


def test_a_tool_that_hangs_is_left(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("path", does='[ "$1" = --version ] && echo 2024.1 && exit; exec /bin/sleep 60')
    monkeypatch.setattr(tool, "_EXPORT_TIMEOUT_S", 1)
    with pytest.raises(tool.NsysError, match="nsys did not end within 1 s"):
        tool.sqlite_of(tmp_path / "a.nsys-rep", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bad.nsys-rep", "bad.qdrep", "bad.qdstrm"])
@pytest.mark.parametrize("content", [b"", b"abc", b"SQLite format 3\0" + bytes(200)])
def test_what_is_no_report_is_one_line(
    nsys: str, tmp_path: Path, name: str, content: bytes
) -> None:
    if name.endswith(".qdstrm"):
        find_importer(nsys)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ProfstackError) as caught:
        tool.sqlite_of(tmp_path / name, tmp_path)
    assert "bad" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert re.search(r"ended with code \d+: \S+", str(caught.value))


@pytest.mark.slow
def test_a_real_recording_becomes_an_export(nsys: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [nsys, "profile", "-t", "osrt", "-s", "none", "--cpuctxsw", "none", "-o", "a b", "true"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    [recorded] = [path for path in tmp_path.iterdir() if path.suffix in (".qdstrm", ".nsys-rep")]
    assert done.returncode == 0
    out = tmp_path / "out"
    out.mkdir()
    exported = tool.sqlite_of(recorded, out)
    assert exported.read_bytes().startswith(b"SQLite format 3")
    # Twice into one folder: what is there is of the run before.
    assert tool.sqlite_of(recorded, out) == exported


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("", "it said nothing"),
        ("one\ntwo\n\n", "two"),
        ("[1%   ]\r[2%   ]\rdone\r[100%]", "done"),
        ("std::exception::what: ReadStreamException\n[tag*] = x\n", "ReadStreamException"),
    ],
)
def test_a_tools_last_word(text: str, last: str) -> None:
    assert tool.last_line(text) == last


@pytest.mark.parametrize(
    ("nsys_version", "nvtx_version", "takes"),
    [
        ("2022.4.2.1-df9881f", "0.2.12", False),
        ("2022.4.2.1-df9881f", "0.2.11", True),
        ("2022.4.2.1-df9881f", "0.2.10", True),
        ("2021.3.1.54", "1.0", False),
        ("2022.4.2.1-df9881f", "0.2.12rc1", False),
        ("2023.1.2.43-32377213v0", "0.2.17", True),
        (None, "0.2.17", None),
        ("2022.4.2.1-df9881f", None, None),
        ("unknown", "0.2.17", None),
        ("2022.4.2.1-df9881f", "unknown", None),
    ],
)
def test_pairs(nsys_version: str | None, nvtx_version: str | None, takes: bool | None) -> None:
    assert nvtx.takes_ranges(nsys_version, nvtx_version) is takes
