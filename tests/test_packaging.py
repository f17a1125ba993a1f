"""The package as it is built and installed: one name for every module, with the link and without.

Nothing is downloaded: builds use the setuptools of this environment, and the fresh environments
see this one's packages through a .pth file.
"""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from conftest import CHECKOUT, LEFT_OUT

import profstack

# What belongs to a checkout as git would hand it out, without history and caches.
_WHERE = (
    "import profstack, profstack.wrappers, profstack.wrappers.cprofile as c;"
    "print(profstack.__version__, c.__name__, c.CProfileWrapper.__module__, c.__file__, sep='|')"
)


def _environment() -> dict[str, str]:
    """No PYTHONPATH: what is found must be found through the installation."""
    dropped = ("PYTHON", "PROFSTACK", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return kept | {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def _run(*command: object, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture
def copy_without_link(copy: Path) -> Path:
    """The copy as a system without symbolic links hands it out."""
    (copy / "profstack" / "wrappers").unlink()
    return copy


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    """The `bin` of a new environment that sees this one's packages, but not profstack."""
    folder = tmp_path / "fresh"
    _run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=tmp_path)
    site = next(folder.glob("lib/python*/site-packages"))
    seen = tmp_path / "seen"
    seen.mkdir()
    for path in Path(sys.prefix).glob("lib/python*/site-packages/*"):
        # A .pth file is read in site folders alone, so this environment's own editable
        # installation of profstack stays behind.
        if "profstack" not in path.name and path.suffix != ".pth":
            (seen / path.name).symlink_to(path)
    (site / "seen.pth").write_text(f"{seen}\n")
    return folder / "bin"


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """What `python -m build` makes of a copy without the link: (source archive, wheel)."""
    folder = tmp_path_factory.mktemp("build")
    source = folder / "source"
    shutil.copytree(CHECKOUT, source, symlinks=True, ignore=LEFT_OUT)
    (source / "profstack" / "wrappers").unlink()
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, source, cwd=folder)
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))


def _sources(folder: Path) -> set[str]:
    """Every module under a folder of the checkout, relative to it."""
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*.py")
        if "wrappers" not in path.relative_to(folder).parts
    }


def _data_files() -> set[str]:
    """What is shipped besides modules."""
    package = CHECKOUT / "profstack"
    found = [package / "py.typed", *package.glob("report/templates/**/*")]
    found += package.glob("report/report.schema.json")
    return {str(path.relative_to(package)) for path in found if path.is_file()}


def test_the_wheel_holds_every_file_under_its_one_name(built):
    names = {name for name in zipfile.ZipFile(built[1]).namelist() if ".dist-info/" not in name}
    wrappers = {f"profstack/wrappers/{path.name}" for path in (CHECKOUT / "wrappers").glob("*.py")}
    expected = wrappers | {
        f"profstack/{name}" for name in _sources(CHECKOUT / "profstack") | _data_files()
    }
    assert names == expected
    assert not any(name.startswith("wrappers") for name in names)


def test_the_source_archive_holds_the_wrappers_once(built):
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"wrappers/cprofile.py", "LICENSE", "README.md", "setup.cfg", "pyproject.toml"} <= names
    assert not any(name.startswith("profstack/wrappers") for name in names)


def test_a_wheel_is_the_same_with_the_link(built, copy, tmp_path):
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q"]
    _run(*pip, "-w", tmp_path, copy, cwd=tmp_path)
    wheel = next(tmp_path.glob("*.whl"))
    assert zipfile.ZipFile(wheel).namelist() == zipfile.ZipFile(built[1]).namelist()


def test_the_metadata_keep_the_promises(built):
    archive = zipfile.ZipFile(built[1])
    name = next(name for name in archive.namelist() if name.endswith("/METADATA"))
    metadata = archive.read(name).decode()
    assert f"\nVersion: {profstack.__version__}\n" in metadata
    assert "\nRequires-Python: >=3.10\n" in metadata
    assert "\nLicense: Apache-2.0\n" in metadata
    # It pins an old importlib-metadata: installing the base must change no installed package.
    assert "Requires-Dist: flops-profiler; extra" in metadata
    assert "Requires-Dist: flops-profiler\n" not in metadata
    assert any(name.endswith("/licenses/LICENSE") for name in archive.namelist())


def _install(fresh: Path, what: Path, *options: str) -> None:
    """Install into the fresh environment by this environment's pip."""
    pip = [sys.executable, "-m", "pip", "--python", fresh / "python", "install", "-q"]
    _run(*pip, "--no-deps", "--no-build-isolation", *options, what, cwd=fresh)


def _check_installed(fresh: Path, tmp_path: Path) -> Path:
    """The command answers and the wrappers have their name; gives the wrapper's file."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    version = f"profstack {profstack.__version__}\n"
    assert _run(fresh / "profstack", "--version", cwd=elsewhere) == version
    assert _run(fresh / "python", "-m", "profstack", "--version", cwd=elsewhere) == version
    return _check_names([fresh / "python"], elsewhere)


def _check_names(python: list[object], cwd: Path) -> Path:
    answer = _run(*python, "-c", _WHERE, cwd=cwd).strip().split("|")
    assert answer[0] == profstack.__version__
    assert answer[1] == answer[2] == "profstack.wrappers.cprofile"
    second = subprocess.run(
        [*map(str, python), "-c", "import wrappers"],
        cwd=cwd,
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert second.returncode == 1, "wrappers can be imported under a second name"
    return Path(answer[3])


def test_an_installed_wheel_works_alone(built, fresh, tmp_path):
    _install(fresh, built[1])
    file = _check_installed(fresh, tmp_path)
    assert file.is_relative_to(fresh.parent)
    doctor = _run(fresh / "profstack", "doctor", cwd=tmp_path)
    assert "cprofile" in doctor


@pytest.mark.parametrize("link", ["with the link", "without the link"])
def test_an_editable_install_works(link, copy, fresh, tmp_path):
    if link == "without the link":
        (copy / "profstack" / "wrappers").unlink()
    _install(fresh, copy, "-e")
    file = _check_installed(fresh, tmp_path)
    assert file.resolve() == (copy / "wrappers" / "cprofile.py").resolve()
    # What is edited is seen.
    (copy / "wrappers" / "cprofile.py").write_text("raise ImportError('edited')\n")
    done = subprocess.run(
        [fresh / "python", "-c", "import profstack.wrappers.cprofile"],
        cwd=tmp_path,
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "edited" in done.stderr


def test_a_bare_checkout_runs(copy, fresh):
    assert "commands:" in _run(fresh / "python", "-m", "profstack", "--help", cwd=copy)
    _check_names([fresh / "python"], copy)


def test_a_bare_checkout_without_the_link_runs(copy_without_link, fresh):
    copy = copy_without_link
    assert "commands:" in _run(fresh / "python", "-m", "profstack", "--help", cwd=copy)
    file = _check_names([fresh / "python"], copy)
    assert file == copy / "wrappers" / "cprofile.py"
    assert "cprofile" in _run(fresh / "python", "-m", "profstack", "doctor", cwd=copy)


def test_setup_cfg_lists_every_package():
    parser = configparser.ConfigParser()
    parser.read(CHECKOUT / "setup.cfg")
    listed = parser["options"]["packages"].split()
    package = CHECKOUT / "profstack"
    found = {
        ".".join(path.parent.relative_to(CHECKOUT).parts)
        for path in package.rglob("__init__.py")
        if "wrappers" not in path.parts
    }
    assert set(listed) == found | {"profstack.wrappers"}
    assert listed == sorted(listed)


def test_the_link_is_relative_and_committed():
    assert os.readlink(CHECKOUT / "profstack" / "wrappers") == "../wrappers"
