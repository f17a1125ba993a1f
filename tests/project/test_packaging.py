"""The package as it is built and installed: one name for every module, with the link and without.

Nothing is downloaded: builds use the setuptools of this environment, and the fresh environments
see this one's packages through a .pth file.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import profstack
from tests.support.processes import CHECKOUT, LEFT_OUT

_WHERE = (
    "import profstack, profstack.wrappers, profstack.wrappers.cprofile as c;"
    "print(profstack.__version__, c.__name__, c.CProfileWrapper.__module__, c.__file__, sep='|')"
)
PIP = [sys.executable, "-m", "pip"]


def _done(*command, cwd):
    # No PYTHONPATH: what is found must be found through the installation.
    dropped = ("PYTHON", "PROFSTACK", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    kept |= {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    options = {"env": kept, "capture_output": True, "text": True, "timeout": 300}
    return subprocess.run(list(map(str, command)), cwd=cwd, check=False, **options)


def _run(*command, cwd):
    done = _done(*command, cwd=cwd)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture
def fresh(tmp_path):
    """The `bin` of a new environment that sees this one's packages, but not profstack."""
    _run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "fresh", cwd=tmp_path)
    site, seen = next((tmp_path / "fresh").glob("lib/python*/site-packages")), tmp_path / "seen"
    seen.mkdir()
    for path in Path(sys.prefix).glob("lib/python*/site-packages/*"):
        # A .pth file is read in site folders alone, so this environment's own editable
        # installation of profstack stays behind.
        if "profstack" not in path.name and path.suffix != ".pth":
            (seen / path.name).symlink_to(path)
    (site / "seen.pth").write_text(f"{seen}\n")
    return tmp_path / "fresh" / "bin"


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """What `python -m build` makes of a copy with the link: (source archive, a wheel of that)."""
    folder = tmp_path_factory.mktemp("build")
    source = folder / "source"
    shutil.copytree(CHECKOUT, source, symlinks=True, ignore=LEFT_OUT)
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, source, cwd=folder)
    return next(folder.glob("*.tar.gz")), next(folder.glob("*.whl"))


def test_wheel_and_archive_hold_every_file_under_its_one_name(built):
    archive, package = zipfile.ZipFile(built[1]), CHECKOUT / "profstack"
    # Every module, and what is shipped besides.
    found = [package / "py.typed", *package.rglob("*.py"), *package.glob("report/templates/**/*")]
    found += package.glob("report/report.schema.json")
    paths = {path.relative_to(CHECKOUT) for path in found if path.is_file()}
    expected = {str(path) for path in paths if "wrappers" not in path.parts}
    expected |= {f"profstack/wrappers/{path.name}" for path in (CHECKOUT / "wrappers").glob("*.py")}
    names = archive.namelist()
    assert {name for name in names if ".dist-info/" not in name} == expected
    metadata = archive.read(next(each for each in names if each.endswith("/METADATA"))).decode()
    lines, version = metadata.splitlines(), f"Version: {profstack.__version__}"
    assert {version, "Requires-Python: >=3.10", "License: Apache-2.0"} <= set(lines)
    # It pins an old importlib-metadata: installing the base must change no installed package.
    assert "Requires-Dist: flops-profiler; extra" in metadata
    assert "Requires-Dist: flops-profiler" not in lines
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"wrappers/cprofile.py", "LICENSE", "README.md", "setup.cfg", "pyproject.toml"} <= names
    assert not any(name.startswith("profstack/wrappers") for name in names)
    assert os.readlink(package / "wrappers") == "../wrappers"


def _install(fresh, what, *options):
    words = ["install", "-q", "--no-deps", "--no-build-isolation", *options, what]
    _run(*PIP, "--python", fresh / "python", *words, cwd=fresh)


def _check_installed(fresh, tmp_path):
    """The command answers and the wrappers have their name; gives the wrapper's file."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for command in ([fresh / "profstack"], [fresh / "python", "-m", "profstack"]):
        assert _run(*command, "--version", cwd=elsewhere) == f"profstack {profstack.__version__}\n"
    return _check_names(fresh / "python", elsewhere)


def _check_names(python, cwd):
    version, *names, file = _run(python, "-c", _WHERE, cwd=cwd).strip().split("|")
    assert (version, {*names}) == (profstack.__version__, {"profstack.wrappers.cprofile"})
    second = _done(python, "-c", "import wrappers", cwd=cwd)
    assert second.returncode == 1, "wrappers can be imported under a second name"
    return Path(file)


def test_an_installed_wheel_works_alone(built, fresh, tmp_path):
    _install(fresh, built[1])
    assert _check_installed(fresh, tmp_path).is_relative_to(fresh.parent)


def test_an_editable_install_without_the_link_works(copy, fresh, tmp_path):
    (copy / "profstack" / "wrappers").unlink()
    _install(fresh, copy, "-e")
    wrapper = copy / "wrappers" / "cprofile.py"
    assert _check_installed(fresh, tmp_path).resolve() == wrapper.resolve()
    wrapper.write_text("raise ImportError('edited')\n")
    done = _done(fresh / "python", "-c", "import profstack.wrappers.cprofile", cwd=tmp_path)
    assert "edited" in done.stderr


def test_a_bare_checkout_without_the_link_runs(copy, fresh):
    (copy / "profstack" / "wrappers").unlink()
    assert "commands:" in _run(fresh / "python", "-m", "profstack", "--help", cwd=copy)
    assert _check_names(fresh / "python", copy) == copy / "wrappers" / "cprofile.py"
