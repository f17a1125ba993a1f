"""Finding Nsight Systems, and what it makes of its files; programs of the shell stand for it."""

import pytest

from profstack.errors import UsageError
from profstack.readers.nsys import tool
from profstack.readers.nsys.tool import Nsys, NsysError, find_nsys, sqlite_of

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
    with pytest.raises(NsysError, match=r"nsys ended with code 127: cannot open.*; install"):
        find_nsys()
    works = make("opt/2022.1/bin")
    assert find_nsys().path == str(works)


def test_a_path_given_is_the_program_or_its_folder(make, tmp_path):
    program = make("opt/2024.1/bin")
    for given in (program, program.parent, program.parent.parent):
        assert find_nsys(str(given)).path == str(program)
    with pytest.raises(UsageError, match="no nsys there; name it or its folder"):
        find_nsys(str(tmp_path))


def test_an_export_is_made_anew_into_the_folder_given(make, tmp_path):
    make("opt/2024.1/bin", does=f'{ECHOES}echo "$@" > "$7"')
    report, out = tmp_path / "my report.nsys-rep", tmp_path / "out"
    out.mkdir()
    report.with_suffix(".sqlite").write_text("of another run")
    assert sqlite_of(report, out) == out / "my report.sqlite"
    options = f"export --type sqlite --force-overwrite true -o {out}/my report.sqlite {report}\n"
    assert (out / "my report.sqlite").read_text() == options
    assert report.with_suffix(".sqlite").read_text() == "of another run"


def test_what_nsys_does_not_export_says_why(make, tmp_path, monkeypatch):
    report, out = tmp_path / "a.nsys-rep", tmp_path
    with pytest.raises(NsysError, match=r"a\.nsys-rep: only Nsight Systems.*nsys export"):
        sqlite_of(report, out)
    nsys = make("path")
    with pytest.raises(NsysError, match=r"nsys 2024\.5\.1\.113-1 exported nothing; is it"):
        sqlite_of(report, out)
    nsys.write_text(f"#!/bin/sh\n{ECHOES}echo out; echo err >&2; exit 3\n")
    with pytest.raises(NsysError, match="code 3: err; is it whole"):
        sqlite_of(report, out)
    nsys.write_text(f"#!/bin/sh\n{ECHOES}exec /bin/sleep 60\n")
    assert tool._EXPORT_TIMEOUT_S > 1800
    monkeypatch.setattr(tool, "_EXPORT_TIMEOUT_S", 0.2)
    with pytest.raises(NsysError, match=r"nsys did not end within 0\.2 s"):
        sqlite_of(report, out)
