"""`profstack doctor`: say which layers and tools work here, and what to install."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import profstack
from profstack.commands.options import terminal_of
from profstack.environment import __version__, environment_facts, rss_bytes
from profstack.launch.probe import LayersAnswer, PackageAnswer, TorchAnswer
from profstack.privacy import home_relative, package_version
from profstack.readers import nvtx
from profstack.units import format_bytes

# Everything is tried rather than looked up: torch and the packages are imported, and a
# multiplication is profiled, by `profstack.launch.probe` in processes of their own.

# Purpose of each package. Without the required ones no page can be made.
_REQUIRED = {"numpy": "arithmetic of the merge"}
_PURPOSES = {
    **_REQUIRED,
    "pandas": "tables as data frames, and files of Nsight Systems",
    "nvtx": "layer nvtx: named ranges for Nsight Systems",
    "memory-profiler": "layer memory: memory by source line",
    "flops-profiler": "layer flops: a cross-check of its operations; in profstack[all]",
    "thop": "layer flops: counts a model too, in bench and Session.run; optional",
    "fvcore": "layer flops: counts a model too, in bench and Session.run; optional",
    "rich": "progress and tables in the terminal",
    "snakeviz": "profstack view --snakeviz",
}
# The package without which one layer is missing and all others work.
_PACKAGE_OF = {"nvtx": "nvtx", "memory": "memory-profiler", "memray": "'profstack[memray]'"}
_STYLES = {"works": "green", "fails": "red", "absent": "dim"}
_PROBE_TIMEOUT_S = 300
_OLDEST_TORCH = (2, 6)

# With -m the current folder would come first, and a `queue.py` lying there would break torch.
_START_PROBE = """
import sys
sys.path[0] = sys.argv.pop(1)
from profstack.launch.probe import main
main(sys.argv[1:])
"""
_PACKAGE_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(profstack.__file__)))


@dataclass(frozen=True)
class Check:
    """One line of the answer; `works` is None where the tool is absent and nothing needs it."""

    group: str
    name: str
    works: bool | None
    version: str | None
    detail: str
    install: str | None = None
    required: bool = False

    @property
    def state(self) -> str:
        """Return the state in one word."""
        return {None: "absent", True: "works", False: "fails"}[self.works]


def gather() -> list[Check]:
    """Try everything out; takes a few times as long as importing torch."""
    layers, layers_problem = _probe("layers")
    torch, torch_problem = _probe("torch")
    found, packages_problem = _probe("packages:" + ",".join(_PURPOSES))
    memory = "this system does not report the resident set"
    if (size := rss_bytes()) is not None:
        memory = f"the resident set is {format_bytes(size)} now"
    return [
        *_layer_checks(layers, layers_problem, torch, torch_problem),
        *_torch_checks(torch, torch_problem),
        *(_package_check(name, found, packages_problem) for name in _PURPOSES),
        _nsys_check(),
        Check("tool", "memory", None if size is None else True, None, memory),
    ]


def _probe(what: str) -> tuple[Any, str]:
    """Return the probe's answer, or an empty one and the reason."""
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
    return answer, ""


def _layer_checks(
    layers: LayersAnswer, problem: str, torch: TorchAnswer, torch_problem: str
) -> list[Check]:
    """Return a line per layer, then one per broken layer of another package."""
    if problem:
        return [Check("layer", "all", False, None, problem, required=True)]
    checks = []
    for name, answer in layers["layers"].items():
        reason = answer.get("reason")
        if name == "torch" and reason is None:
            reason = torch_problem or torch.get("reason") or torch.get("profiler_reason")
            if reason is None and not torch["cpu_events"]:
                reason = "a profiled multiplication left no event"
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


def _torch_checks(torch: TorchAnswer, problem: str) -> list[Check]:
    """Return the lines on torch, Kineto, CUDA and CUPTI."""
    reason = problem or torch.get("reason")
    # A version without numbers counts as new.
    numbers = re.match(r"(\d+)\.(\d+)", torch.get("version") or "")
    if not reason and numbers and (int(numbers[1]), int(numbers[2])) < _OLDEST_TORCH:
        reason = f"{torch['version']} is older than 2.6"
    if reason:
        install = "pip install 'torch>=2.6'"
        return [Check("tool", "torch", False, None, reason, install, required=True)]
    kineto, detail = torch["kineto"], "records operators and kernels"
    if not kineto:
        detail = "this torch was built without it: no trace"
    remedy = None if kineto else "an official build of torch"
    return [
        Check("tool", "torch", True, torch["version"], "the framework", required=True),
        Check("tool", "kineto", kineto, None, detail, remedy, required=True),
        *_device_checks(torch),
    ]


def _device_checks(torch: TorchAnswer) -> list[Check]:
    """Return the lines on CUDA, and on kernel events by CUPTI."""
    build, detail = torch["cuda_build"], "no usable GPU or driver: host time only"
    if build is None:
        detail = "this torch is built without CUDA: host time only"
    if build is None or not torch["cuda"]:
        return [Check("tool", "cuda", None, build, detail)]
    device = f"{torch['gpu']}, compute capability {torch['capability']}"
    events, detail = bool(torch.get("device_events", 0)), "kernel events arrive"
    if not events:
        detail = "no kernel event arrived: another profiler holds it, or it is not permitted"
    return [
        Check("tool", "cuda", True, torch["cuda_build"], device),
        Check("tool", "cupti", events, None, detail),
    ]


def _package_check(name: str, found: dict[str, PackageAnswer], problem: str) -> Check:
    """Return the line on one package of the base install or of an extra."""
    required, purpose = name in _REQUIRED, _PURPOSES[name]
    if problem:
        return Check("tool", name, False, None, problem, required=required)
    version, reason = found[name]["version"], found[name]["reason"]
    if reason is None:
        return Check("tool", name, True, version, purpose, required=required)
    install = f"pip install {name}"
    if reason == "":
        return Check("tool", name, False if required else None, None, purpose, install, required)
    return Check("tool", name, False, version, reason, install, required)


def _nsys_check() -> Check:
    """Return the line on Nsight Systems: its version and place, and what it lacks."""
    from profstack.readers.nsys import tool

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
    if nvtx.takes_ranges(nsys.version, installed) is False:
        # It works for kernels and copies all the same; nvtx is to be installed, not nsys.
        purpose += f"; but {nvtx.limit_of_old_nsys()} (here is {installed}): "
        purpose += nvtx.REMEDY
    if nsys.lacks_importer:
        purpose += f"; without QdstrmImporter, so reports cannot be read: {tool.INSTALL_IMPORTER}"
    return Check("tool", "nsys", True, nsys.version, purpose)


HELP = """Say which layers and tools work here, in which version, and what to install.

The exit code is 1 if something that profstack cannot do without does not work."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--format", choices=("text", "json"), default="text")


def execute(arguments: argparse.Namespace) -> int:
    """Print what works; return 1 if a required tool does not."""
    checks = gather()
    failed = any(check.required and not check.works for check in checks)
    if arguments.format == "json":
        answer = {
            "profstack_version": __version__,
            "executable": home_relative(sys.executable),
            "ok": not failed,
            "environment": environment_facts(),
            "checks": [asdict(check) for check in checks],
        }
        print(json.dumps(answer, indent=2, ensure_ascii=False))
    else:
        _print_text(checks, failed)
    return int(failed)


def _print_text(checks: list[Check], failed: bool) -> None:
    """Print the answer for people."""
    facts = environment_facts()
    python = f"{facts['implementation']} {facts['python']}"
    print(f"profstack {__version__}, {python}, {facts['platform']}")
    print(f"{facts['cpu']}, {facts['usable_cores']} cores usable\n")
    _print_table(checks)
    absent = (check for check in checks if check.install and not check.works)
    if missing := [f"  {check.name}: {check.install}" for check in absent]:
        print("\nTo install what is missing:", *missing, sep="\n")
    if failed:
        broken = [check.name for check in checks if check.required and not check.works]
        print(f"\nprofstack does not work here: {', '.join(broken)}")


def _print_table(checks: list[Check]) -> None:
    """Print the lines: as a coloured table on a terminal, as aligned columns elsewhere."""
    header = ("", "name", "state", "version", "")
    rows = [(one.group, one.name, one.state, one.version or "–", one.detail) for one in checks]
    if sys.stdout.isatty():
        # Without rich, doctor is all the more needed.
        with suppress(ImportError):
            from profstack.report.screen import Screen

            screen = Screen(*terminal_of(sys.stdout))
            screen.table(
                [(title, "l") for title in header],
                ((*row[:2], (row[2], _STYLES[row[2]]), *row[3:]) for row in rows),
            )
            sys.stdout.write(screen.text())
            return
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(4)]
    for row in (header, *rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        print("  ".join([*cells, row[4]]).rstrip())
