"""The layer of named ranges with CUDA in use: the profiler's range is begun and ended once."""

import json
import subprocess
import sys

import pytest

from profstack.privacy import package_version
from profstack.readers import nvtx as readers_nvtx
from profstack.readers.nsys import tool
from tests.support.gpu_programs import NEEDS_GPU, program, python
from tests.support.processes import clean_environment
from tests.support.tables import cases

pytestmark = NEEDS_GPU
_COUNTED = """
import json
import pathlib
import torch
from profstack.layer import SliceContext
from profstack.wrappers.nvtx import NvtxWrapper
{first}
calls = []
import torch.cuda.profiler as profiler
for name in ("start", "stop"):
    real = getattr(profiler, name)
    def counted(real=real, name=name):
        calls.append(name)
        return real()
    counted.__name__ = name
    setattr(profiler, name, counted)
wrapper = NvtxWrapper()
for index in range(2):
    wrapper.start(SliceContext(index, "timed", 1, pathlib.Path("."), 0))
    wrapper.stop()
wrapper.stop()
print(json.dumps([calls, wrapper.take([0.0, 1.0], {{}}).notes, torch.cuda.is_initialized()]))
"""


# A device that nobody uses is not woken.
@cases("first is_used", ('torch.ones(1, device="cuda")', True), ("pass", False))
def test_the_profiler_is_started_and_stopped_with_each_slice(tmp_path, first, is_used):
    calls, notes, initialised = json.loads(python(tmp_path, "-c", _COUNTED.format(first=first)))
    assert (calls, initialised) == (["start", "stop", "start", "stop"] * is_used, is_used)
    assert not [note for note in notes if note[0] == "cuda-profiler"]


def an_nsys_for_ranges():
    """An nsys that takes the ranges of the nvtx here, and can make a report; or skip the test."""
    try:
        found = tool.find_nsys()
    except tool.NsysError as error:
        pytest.skip(str(error))
    nvtx = package_version("nvtx")
    if readers_nvtx.takes_ranges(found.version, nvtx) is False:
        limit = readers_nvtx.limit_of_old_nsys()
        pytest.skip(f"nsys {found.version} and nvtx {nvtx}: {limit}; {readers_nvtx.REMEDY}")
    if found.lacks_importer:
        pytest.skip(tool.INSTALL_IMPORTER)
    return found


def test_nsys_captures_the_slice_and_its_kernels(tmp_path):
    nsys = an_nsys_for_ranges()
    (tmp_path / "program.py").write_text(program(steps=60), encoding="utf-8")
    command = [nsys.path, "profile", "-t", "cuda,nvtx", "--sample=none", "--cpuctxsw=none"]
    # The program goes on after its first slice, which nsys would end it with.
    command += ["--capture-range=cudaProfilerApi", "--capture-range-end=stop", "-o", "captured"]
    command += [sys.executable, "-m", "profstack", "run", "-q", "-o", "rec", "program.py"]
    quiet = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    environment = clean_environment()
    done = subprocess.run(command, cwd=tmp_path, env=environment, timeout=600, check=False, **quiet)
    assert done.returncode == 0, done.stderr[-2000:]
    # Some leave a report, and some what the importer makes one of.
    captured = sorted(tmp_path.glob("captured.*"))
    assert captured, done.stderr[-2000:]
    python(tmp_path, "-m", "profstack", "import", captured[0].name, "--into", "rec")
    tables = json.loads((tmp_path / "rec" / "report.json").read_text("utf-8"))["tables"]
    modules = {row["name"] for row in tables["nsys_ranges"] if row["kind"] == "module"}
    assert {"Net", "Net.wide", "Net.out"} <= modules
    kernels = tables["nsys_kernels"]
    joined = [row for row in kernels if row["range_kind"] not in (None, "step")]
    total, owned = (sum(row["device_s"] for row in rows) for rows in (kernels, joined))
    assert owned > 0.8 * total > 0
