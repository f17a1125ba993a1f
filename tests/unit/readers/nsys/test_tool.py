"""Finding Nsight Systems, and what it makes of its files; programs of the shell stand for it."""

import pytest

from profstack.errors import UsageError
from profstack.readers.nsys import tool
from profstack.readers.nsys.tool import Nsys, NsysError, find_nsys, sqlite_of
from tests.support.tables import cases

ECHOES = '[ "$1" = --version ] && echo 2024.1 && exit; '


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Make a program called nsys in a folder; none but these is on the machine."""
    monkeypatch.setattr(tool, "_USUAL", (f"{tmp_path}/opt/*/bin",))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))

    def make(folder, version="2024.5.1.113-1", does=""):
        program = tmp_path / folder / "nsys"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\n{does or f'echo Nsight Systems version {version}'}\n")
        program.chmod(0o755)
        return program

    return make


def test_that_on_the_path_comes_first_then_the_newest(make):
    with pytest.raises(NsysError, match=r"nsys\) was not found; install .*--nsys-path"):
        find_nsys()
    old = make("opt/2022.4.2/bin", "2022.4.2.1-df9881f")
    assert find_nsys() == Nsys(str(old), "2022.4.2.1-df9881f", None)
    # One whose folder has the release of a CUDA, or a year alone, comes last, whatever its number.
    make("opt/tools-2031/bin", "2021.3")
    make("opt/cuda-92024.1/bin", "2021.1")
    make("opt/cuda-13.1/bin", "2021.2")
    assert find_nsys().path == str(old)
    new = make("opt/2024.10.1/bin", "2024.10.1.1-2")
    make("opt/2024.9.2/bin", "2024.9.2.1-2")
    assert find_nsys().path == str(new)
    on_path = make("path", "2023.1.2.43-32377213v0")
    assert find_nsys() == Nsys(str(on_path), "2023.1.2.43-32377213v0", None)


def test_one_that_does_not_work_gives_way_to_one_that_does(make, tmp_path):
    make("path", does="echo 'cannot open shared object' >&2; exit 127")
    asked, link = tmp_path / "asked", tmp_path / "opt/2025.1/bin"
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "path")
    make("opt/2023.1/bin", does=f"echo >> {asked}; echo not this >&2; exit 3")
    # The first one's problem is told, and one program is asked once, by whatever path.
    with pytest.raises(NsysError, match=r"nsys ended with code 127: cannot open.*; install"):
        find_nsys()
    works = make("opt/2022.1/bin")
    assert (find_nsys().path, asked.read_text()) == (str(works), "\n\n")


def test_a_path_given_is_the_program_or_its_folder(make, tmp_path):
    program = make("opt/2024.1/bin")
    for given in (program, program.parent, program.parent.parent):
        assert find_nsys(str(given)).path == str(program)
    (tmp_path / "text").write_text("no program")
    for given in (tmp_path, tmp_path / "text", tmp_path / "nowhere"):
        with pytest.raises(UsageError, match="no nsys there; name it or its folder"):
            find_nsys(str(given))


def test_an_export_is_made_anew_into_the_folder_given(make, tmp_path):
    nsys = make("opt/2024.1/bin", does=f'{ECHOES}echo "$@" > "$7"')
    report, out, other = tmp_path / "my report.nsys-rep", tmp_path / "out", tmp_path / "b.qdstrm"
    out.mkdir()
    report.with_suffix(".sqlite").write_text("of another run")
    assert sqlite_of(report, out) == out / "my report.sqlite"
    options = f"export --type sqlite --force-overwrite true -o {out}/my report.sqlite {report}\n"
    assert (out / "my report.sqlite").read_text() == options
    assert report.with_suffix(".sqlite").read_text() == "of another run"
    # What nsys left without its importer becomes a report first.
    importer = nsys.parents[1] / "host-linux-x64" / "QdstrmImporter"
    importer.parent.mkdir()
    importer.write_text('#!/bin/sh\n[ -e "$4" ] && exit 9\necho "$1 $2" > "$4"\n')
    importer.chmod(0o755)
    for _ in range(2):
        exported = sqlite_of(other, out, nsys_path=str(nsys))
    assert exported.read_text().endswith(f"{out}/b.nsys-rep\n")
    assert (out / "b.nsys-rep").read_text() == f"-i {other}\n"


def test_without_nsys_or_its_importer_a_report_says_what_is_missing(make, tmp_path, monkeypatch):
    report, out = tmp_path / "a.nsys-rep", tmp_path
    with pytest.raises(NsysError, match=r"a\.nsys-rep: only Nsight Systems.*nsys export"):
        sqlite_of(report, out)
    nsys = make("path")
    with pytest.raises(NsysError, match=r"QdstrmImporter of nsys .* is not installed; inst"):
        sqlite_of(tmp_path / "a.qdstrm", out)
    with pytest.raises(NsysError, match=r"nsys 2024\.5\.1\.113-1 exported nothing; is it"):
        sqlite_of(report, out)
    nsys.write_text(f"#!/bin/sh\n{ECHOES}exec /bin/sleep 60\n")
    assert tool._EXPORT_TIMEOUT_S > 1800
    monkeypatch.setattr(tool, "_EXPORT_TIMEOUT_S", 0.2)
    with pytest.raises(NsysError, match=r"nsys did not end within 0\.2 s"):
        sqlite_of(report, out)


@cases(
    "does reason",
    ("echo out; echo err >&2; exit 3", "code 3: err"),
    ("echo out; echo ' ' >&2; exit 3", "code 3: out"),
    ("exit 4", "code 4: it said nothing"),
    ("printf '[1%%   ]\r[2%%   ]\rdone\r[100%%]'; exit 5", "code 5: done"),
    ("printf 'std::exception::what: Read\n[tag*] = x\n\n'; exit 6", "code 6: Read"),
)
def test_the_reason_is_the_last_line_of_a_tool_that_fails(make, tmp_path, does, reason):
    make("path", does=f"{ECHOES}{does}")
    with pytest.raises(NsysError, match=f"{reason}; is it whole"):
        sqlite_of(tmp_path / "a.nsys-rep", tmp_path)
