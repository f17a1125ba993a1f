"""`profstack doctor`: what it says is what an honest try finds."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from importlib import metadata

import pytest
from conftest import CHECKOUT, clean_environment

from profstack import layer as profstack_layer
from profstack.commands import doctor, main
from profstack.errors import UsageError
from profstack.layer import layer_names
from profstack.readers.nsys.tool import Nsys


@pytest.fixture(scope="module")
def answer():
    """What doctor finds here, asked once."""
    return {(check.group, check.name): check for check in doctor.gather()}


def test_every_built_in_layer_works_here(answer):
    for name in layer_names():
        assert answer["layer", name].works, answer["layer", name].detail


def test_versions_are_those_installed(answer):
    import torch

    assert answer["layer", "cprofile"].version
    assert answer["tool", "torch"].version == torch.__version__
    for name in ("numpy", "pandas", "jinja2", "rich", "snakeviz", "nvtx", "memory-profiler"):
        assert answer["tool", name].works
        assert answer["tool", name].version == metadata.version(name)


def test_the_device_is_stated_truly(answer):
    import torch

    if torch.version.cuda is None:
        assert answer["tool", "cuda"].works is None
        assert "without CUDA" in answer["tool", "cuda"].detail
    else:
        assert bool(answer["tool", "cuda"].works) == torch.cuda.is_available()


def test_absent_tools_are_absent_with_a_way_to_have_them(answer):
    if importlib.util.find_spec("flops_profiler") is None:
        assert answer["tool", "flops-profiler"].works is None
        assert answer["tool", "flops-profiler"].install == "pip install flops-profiler"
    if shutil.which("nsys"):
        assert answer["tool", "nsys"].works is True


def test_text_and_json_say_the_same_and_leave_with_0(run_profstack):
    text = run_profstack(["doctor"])
    assert text.returncode == 0, text.stdout + text.stderr
    assert "\x1b" not in text.stdout
    told = json.loads(run_profstack(["doctor", "--format", "json"]).stdout)
    assert told["ok"] is True
    for check in told["checks"]:
        start = f"{check['group']:<5}  {check['name']} "
        line = next(line for line in text.stdout.splitlines() if line.startswith(start))
        assert (check["version"] or "–") in line
    assert str(CHECKOUT) not in text.stdout


def test_files_of_the_current_folder_are_not_imported(run_profstack, tmp_path):
    (tmp_path / "queue.py").write_text("raise SystemExit('shadowed')\n")
    code = "import sys; sys.path.pop(0); from profstack.commands import doctor;"
    code += "print(doctor._probe('packages:jinja2'))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "'reason': None" in done.stdout, done.stderr


@pytest.fixture
def without(monkeypatch):
    """Make the probe's answer be what a broken installation would give."""
    real = doctor._probe

    def install(what, answer):
        monkeypatch.setattr(
            doctor, "_probe", lambda asked: answer if asked == what else real(asked)
        )

    return install


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (({"reason": "ModuleNotFoundError: No module named 'torch'"}, ""), "No module named"),
        (({}, "the check was ended by signal 11"), "signal 11"),
        (({"version": "2.5.1+cpu"}, ""), "2.5.1+cpu is older than 2.6"),
    ],
)
def test_a_torch_that_cannot_be_used_is_a_failure(found, said, without, capsys):
    answer, problem = found
    full = {"cuda_build": None, "kineto": True, "cuda": False, "cpu_events": 5, "device_events": 0}
    without("torch", ({**full, **answer} if answer else {}, problem))
    assert main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert said in printed
    assert "pip install 'torch>=2.6'" in printed
    assert "profstack does not work here: torch" in printed


def test_a_profiler_that_delivers_nothing_fails_its_layer(without):
    silent = {
        "version": "2.13.0",
        "cuda_build": None,
        "kineto": True,
        "cuda": False,
        "cpu_events": 0,
        "device_events": 0,
    }
    without("torch", (silent, ""))
    layer = next(c for c in doctor.gather() if c.group == "layer" and c.name == "torch")
    assert layer.works is False
    assert layer.detail == "a profiled multiplication left no event"


def test_a_probe_that_dies_is_told(monkeypatch):
    monkeypatch.setattr(doctor, "_START_PROBE", "import os; os.kill(os.getpid(), 11)")
    assert doctor._probe("torch") == ({}, "the check was ended by signal 11")
    monkeypatch.setattr(doctor, "_START_PROBE", "raise OSError('no driver')")
    assert doctor._probe("torch") == ({}, "the check ended with code 1: OSError: no driver")


@pytest.mark.parametrize("layer", ["nvtx", "memory"])
def test_a_layer_without_its_package_is_told_and_the_others_work(layer):
    layers = {
        name: {"tool": name, "version": "1", "reason": None}
        for name in profstack_layer.layer_names()
    }
    layers[layer] = {"tool": layer, "version": None, "reason": f"no package for {layer}"}
    answer = {"layers": layers, "problems": []}
    checks = doctor._layer_checks(answer, "", {"cpu_events": 5}, "")
    (failed,) = [check for check in checks if not check.works]
    assert (failed.name, failed.detail) == (layer, f"no package for {layer}")
    package = {"nvtx": "nvtx", "memory": "memory-profiler"}[layer]
    assert failed.install == f"pip install {package}"
    assert not failed.required
    assert all(check.required for check in checks if check.name in ("cprofile", "torch"))


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A folder on the path with an nsys that says its version, and nothing else of that name."""

    def make(version, code=0, importer=True):
        folder = tmp_path / "bin"
        folder.mkdir()
        program = folder / "nsys"
        program.write_text(
            f"#!/bin/sh\necho 'NVIDIA Nsight Systems version {version}'\nexit {code}\n"
        )
        program.chmod(0o755)
        if importer:
            (tmp_path / "host-linux-x64").mkdir()
            (tmp_path / "host-linux-x64" / "QdstrmImporter").touch()
        return folder

    monkeypatch.setattr("profstack.readers.nsys.tool._USUAL", ())
    return make


@pytest.mark.parametrize(
    ("nsys", "nvtx", "said"),
    [
        ("2022.4.2.1-df9881f", "0.2.17", True),
        ("2021.3.1.54-ee9c30a", "0.3", True),
        ("2022.4.2.1-df9881f", "0.2.11", False),
        ("2024.6.2.225-246235244400v0", "0.2.17", False),
        ("2022.4.2.1-df9881f", None, False),
        ("unknown", "0.2.17", False),
    ],
)
def test_an_nsys_too_old_for_the_nvtx_there_is(nsys, nvtx, said, tools, monkeypatch):
    monkeypatch.setenv("PATH", str(tools(nsys)))
    monkeypatch.setattr(doctor, "package_version", {"nvtx": nvtx}.get)
    check = doctor._nsys_check()
    assert check.works
    assert check.version == (None if nsys == "unknown" else nsys)
    assert ("0.2.11 alone" in check.detail) is said
    assert (f"(here is {nvtx}): pip install nvtx==0.2.11" in check.detail) is said
    assert "QdstrmImporter" not in check.detail


def test_an_nsys_outside_the_path_is_found_and_said_where(tools, monkeypatch, tmp_path):
    folder = tools("2024.6.2.225-1")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert doctor._nsys_check().works is None
    assert doctor._nsys_check().install == "the package nsight-systems"
    monkeypatch.setattr("profstack.readers.nsys.tool._USUAL", (f"{tmp_path}/b*",))
    check = doctor._nsys_check()
    assert (check.works, check.version) == (True, "2024.6.2.225-1")
    assert f"found in {folder}" in check.detail


def test_an_nsys_without_its_importer_or_that_fails_is_told(tools, monkeypatch, tmp_path):
    folder = tools("2022.4.2.1-df9881f", importer=False)
    monkeypatch.setenv("PATH", str(folder))
    # A script may start an nsys that lies anywhere; this one is to be the program itself.
    monkeypatch.setattr(
        "profstack.readers.nsys.tool._checked", lambda path: Nsys(sys.executable, "2022.4", None)
    )
    assert "without QdstrmImporter" in doctor._nsys_check().detail
    monkeypatch.undo()
    monkeypatch.setattr("profstack.readers.nsys.tool._USUAL", ())
    monkeypatch.setenv("PATH", str(folder))
    (folder / "nsys").write_text("#!/bin/sh\necho no driver >&2\nexit 3\n")
    check = doctor._nsys_check()
    assert check.works is False
    assert "nsys ended with code 3: no driver" in check.detail


def test_cuda_without_kernel_events_is_told():
    found = {
        "version": "2.13.0",
        "cuda_build": "12.8",
        "kineto": True,
        "cuda": True,
        "gpu": "H200",
        "capability": "9.0",
        "cpu_events": 5,
        "device_events": 0,
    }
    cuda, cupti = doctor._device_checks(found)
    assert (cuda.works, cuda.detail) == (True, "H200, compute capability 9.0")
    assert (cupti.works, cupti.required) == (False, False)


# The registry behind it.


def test_an_unknown_layer_names_the_known_ones():
    with pytest.raises(UsageError, match="no layer 'cprofil'; the layers are cprofile, torch"):
        profstack_layer.load("cprofil")


@pytest.fixture
def other_package(tmp_path, monkeypatch):
    """A package of other people's that names wrappers, one sound and the rest broken."""
    info = tmp_path / "others-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[profstack.wrappers]\n"
        "sound = others_layers:Sound\n"
        "absent = no_such_module:Thing\n"
        "wrong = others_layers:NotOne\n"
        "misnamed = others_layers:Sound\n"
        "cprofile = others_layers:Sound\n"
    )
    (tmp_path / "others_layers.py").write_text(
        "from profstack.layer import Description, Wrapper\n"
        "class NotOne: name = 'wrong'\n"
        "class Sound(Wrapper):\n"
        "    name = 'sound'\n"
        "    occupies = frozenset()\n"
        "    description = Description('counting', 'sounder', '', '', '', '')\n"
        "    def start(self, context): ...\n"
        "    def stop(self): ...\n"
        "    def take(self): ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("others_layers", None)


@pytest.mark.usefixtures("other_package")
def test_wrappers_of_other_packages_are_found_and_broken_ones_reported():
    wrappers, problems = profstack_layer.third_party()
    assert list(wrappers) == ["sound"]
    assert profstack_layer.load("sound") is wrappers["sound"]
    assert profstack_layer.load("cprofile").__module__ == "profstack.wrappers.cprofile"
    told = "\n".join(sorted(problems))
    assert "layer 'absent' of others: ModuleNotFoundError" in told
    assert "layer 'wrong' of others: TypeError" in told
    assert "calls its layer 'sound', not 'misnamed'" in told
    assert "layer 'cprofile' of others: the name is taken" in told
    assert len(problems) == 4
    with pytest.raises(UsageError, match=r"layer 'absent' of others.*; mend or uninstall others"):
        profstack_layer.load("absent")
    assert "sound" not in profstack_layer.layer_names()


@pytest.mark.usefixtures("other_package")
def test_doctor_reports_broken_wrappers_but_does_not_fail_for_them(tmp_path, run_profstack):
    done = run_profstack(["doctor", "--format", "json"], env={"PYTHONPATH": str(tmp_path)})
    told = json.loads(done.stdout)
    layers = {check["name"]: check for check in told["checks"] if check["group"] == "layer"}
    assert layers["sound"]["works"] is True
    assert "no_such_module" in done.stdout
    assert told["ok"] is layers["torch"]["works"]
