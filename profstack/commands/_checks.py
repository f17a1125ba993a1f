"""What `profstack doctor` tries out, one line of its answer per thing.

Everything is tried rather than looked up: torch and the packages are imported, and a
multiplication is profiled, by `profstack.probe` in processes of their own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import profstack
from profstack import nvtxpairs
from profstack.environment import rss_bytes
from profstack.privacy import home_relative
from profstack.software import package_version
from profstack.units import format_bytes

# Package -> what it is for. Without these no page can be made.
_REQUIRED = {
    "numpy": "arithmetic of the merge",
    "pandas": "joins the layers",
    "jinja2": "writes the page",
}
_OPTIONAL = {
    "nvtx": "layer nvtx: named ranges for Nsight Systems",
    "memory-profiler": "layer memory: memory by source line",
    "flops-profiler": "layer flops: a cross-check of its operations; in profstack[all]",
    "rich": "progress and tables in the terminal",
    "snakeviz": "profstack view --snakeviz",
}
# Layer -> the package without which there is no such layer, and every other one all the same.
_PACKAGE_OF = {"nvtx": "nvtx", "memory": "memory-profiler"}
_PROBE_TIMEOUT_S = 300
_OLDEST_TORCH = (2, 6)

# With -m the current folder would come first, and a `queue.py` lying there would break torch.
_START_PROBE = """
import sys
sys.path[0] = sys.argv.pop(1)
from profstack.probe import main
main(sys.argv[1:])
"""
_PACKAGE_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(profstack.__file__)))


@dataclass(frozen=True)
class Check:
    """One line of the answer. `works` is None where the thing is absent and nothing needs it."""

    group: str
    name: str
    works: bool | None
    version: str | None
    detail: str
    install: str | None = None
    required: bool = False

    @property
    def state(self) -> str:
        """One word for the table."""
        if self.works is None:
            return "absent"
        return "works" if self.works else "fails"


def gather() -> list[Check]:
    """Try everything out; takes as long as importing torch does, a few times."""
    packages = {**_REQUIRED, **_OPTIONAL}
    layers, layers_problem = _probe("layers")
    torch, torch_problem = _probe("torch")
    found, packages_problem = _probe("packages:" + ",".join(packages))
    return [
        *_layer_checks(layers, layers_problem, torch, torch_problem),
        *_torch_checks(torch, torch_problem),
        *(_package_check(name, found, packages_problem) for name in packages),
        _nsys_check(),
        _memory_check(),
    ]


def _probe(what: str) -> tuple[dict[str, Any], str]:
    """The probe's answer, or an empty one and why there is none."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _START_PROBE, _PACKAGE_ROOT, what],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {}, f"the check did not end within {_PROBE_TIMEOUT_S} s"
    if done.returncode < 0:
        return {}, f"the check was ended by signal {-done.returncode}"
    try:
        answer = json.loads(done.stdout.strip().rpartition("\n")[2])
    except json.JSONDecodeError:
        last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        return {}, f"the check ended with code {done.returncode}: {last}"
    return dict(answer), ""


def _layer_checks(
    layers: dict[str, Any], problem: str, torch: dict[str, Any], torch_problem: str
) -> list[Check]:
    """One line per layer, then one per broken layer of another package."""
    if problem:
        return [Check("layer", "all", False, None, problem, required=True)]
    checks = []
    for name, answer in layers["layers"].items():
        reason = answer["reason"]
        if name == "torch" and reason is None:
            reason = _profiler_reason(torch, torch_problem)
        package = _PACKAGE_OF.get(name)
        checks.append(
            Check(
                "layer",
                name,
                reason is None,
                answer.get("version"),
                reason or f"by {answer['tool']}",
                f"pip install {package}" if reason and package else None,
                # Every layer profiles steps, and steps are found with torch alone.
                required=not (answer.get("third_party", False) or package),
            )
        )
    checks += [Check("layer", "?", False, None, text) for text in layers["problems"]]
    return checks


def _profiler_reason(torch: dict[str, Any], problem: str) -> str | None:
    """Why torch.profiler delivers nothing here; None when it does."""
    reason = problem or torch.get("reason") or torch.get("profiler_reason")
    if reason is None and not torch["cpu_events"]:
        reason = "a profiled multiplication left no event"
    return reason


def _torch_checks(torch: dict[str, Any], problem: str) -> list[Check]:
    """torch itself, Kineto, and what reaches the device's side of a trace."""
    reason = problem or torch.get("reason")
    if not reason and _release(torch["version"]) < _OLDEST_TORCH:
        reason = f"{torch['version']} is older than 2.6"
    if reason:
        install = "pip install 'torch>=2.6'"
        return [Check("tool", "torch", False, None, reason, install, required=True)]
    checks = [
        Check("tool", "torch", True, torch["version"], "the framework", required=True),
        Check(
            "tool",
            "kineto",
            torch["kineto"],
            None,
            "records operators and kernels"
            if torch["kineto"]
            else "this torch was built without it: no trace",
            None if torch["kineto"] else "an official build of torch",
            required=True,
        ),
    ]
    return [*checks, *_device_checks(torch)]


def _release(version: str) -> tuple[int, ...]:
    """First two numbers of a version; a version without them counts as new."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else _OLDEST_TORCH


def _device_checks(torch: dict[str, Any]) -> list[Check]:
    """CUDA, and kernel events by CUPTI."""
    if torch["cuda_build"] is None:
        detail = "this torch is built without CUDA: host time only"
        return [Check("tool", "cuda", None, None, detail)]
    if not torch["cuda"]:
        detail = "no usable GPU or driver: host time only"
        return [Check("tool", "cuda", None, torch["cuda_build"], detail)]
    device = f"{torch['gpu']}, compute capability {torch['capability']}"
    events = torch.get("device_events", 0)
    return [
        Check("tool", "cuda", True, torch["cuda_build"], device),
        Check(
            "tool",
            "cupti",
            bool(events),
            None,
            "kernel events arrive"
            if events
            else "no kernel event arrived: another profiler holds it, or it is not permitted",
        ),
    ]


def _package_check(name: str, found: dict[str, Any], problem: str) -> Check:
    """One package of the base install or of an extra."""
    required = name in _REQUIRED
    purpose = {**_REQUIRED, **_OPTIONAL}[name]
    if problem:
        return Check("tool", name, False, None, problem, required=required)
    version, reason = found[name]["version"], found[name]["reason"]
    if reason is None:
        return Check("tool", name, True, version, purpose, required=required)
    install = f"pip install {name}"
    if reason == "":
        works = False if required else None
        return Check("tool", name, works, None, purpose, install, required)
    return Check("tool", name, False, version, reason, install, required)


def _nsys_check() -> Check:
    """Nsight Systems, wherever it is, asked for its version; and whether it is whole."""
    from profstack.nsys import tool

    purpose = "Nsight Systems: records the ranges of layer nvtx"
    try:
        nsys = tool.find_nsys()
    except tool.NsysError as error:
        if error.where:
            return Check("tool", "nsys", False, None, f"{error.where}: {error.what}")
        return Check("tool", "nsys", None, None, purpose, "the package nsight-systems")
    if shutil.which(tool.NAME) is None:
        purpose += f", found in {home_relative(os.path.dirname(nsys.path))}"
    installed = package_version("nvtx")
    if nvtxpairs.takes_ranges(nsys.version, installed) is False:
        # It works for kernels and copies all the same; what is to be installed is not its own.
        purpose += f"; but {nvtxpairs.limit_of_old_nsys()} (here is {installed}): "
        purpose += nvtxpairs.REMEDY
    if nsys.lacks_importer:
        purpose += f"; without QdstrmImporter, so reports cannot be read: {tool.INSTALL_IMPORTER}"
    return Check("tool", "nsys", True, nsys.version, purpose)


def _memory_check() -> Check:
    """Whether the resident set can be read."""
    size = rss_bytes()
    if size is None:
        return Check("tool", "memory", None, None, "this system does not tell the resident set")
    return Check("tool", "memory", True, None, f"the resident set is {format_bytes(size)} now")
