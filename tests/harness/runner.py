"""Runs a case plain and under `profstack run`, and says in words how the two differ.

Both runs happen in a folder of the same name, one after the other, so that every path a script
sees, prints or fails with is the same.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from conftest import clean_environment

from harness.cases import SCRIPTS, Case
from profstack.findings.rules import TITLES

MOMENTS = ("first", "last", "atexit", "final")
TIME_LIMIT_S = 240

# What may differ, and nothing else: profstack's own modules, and the finder that waits for
# torch, which must be gone in the last moment. Patched functions and observers need no entry:
# they are looked at in the last moment only.
OWN_ITEMS = {
    "first.modules": re.compile("profstack"),
    "first.meta_path": re.compile("_Finder profstack"),
    "last.meta_path": re.compile("_Finder profstack"),
    "atexit.meta_path": re.compile("_Finder profstack"),
    # A script that never imports torch is waited for to its end.
    "final.meta_path": re.compile("_Finder profstack"),
}
OWN_LINES = re.compile(
    # The others come from torch.profiler, whoever uses it: Kineto's stamps of start and stop,
    # and the allocator's remark that memory was there before.
    rb"^(profstack:|Wrote |USDT:|\[W[0-9 :.]+ CPUAllocator\.cpp:\d+\] Memory block |"
    rb"ERROR: External init callback must run in same thread).*\n",
    re.MULTILINE,
)
# The screen at the end, when the script is no longer there to be disturbed: the verdict's few
# lines, then the one that begins with the script's name.
_VERDICT = "|".join(re.escape(title) for title in TITLES.values()).encode()
SUMMARY = re.compile(
    rb"^(?:(?:" + _VERDICT + rb")[^\n]*\n(?:[^\n]+\n){0,5}?)?"
    rb"[^\n]+: [^\n]*(complete|partial|failed)(: [^\n]*)?\n.*(?=^Wrote )",
    re.MULTILINE | re.DOTALL,
)
# An address in the process, which Inductor leaves in the environment.
ADDRESSES = {"_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"}


@dataclass(frozen=True)
class Outcome:
    """What one run left behind."""

    stdout: bytes
    stderr: bytes
    exit_code: int
    files: dict[str, str]
    written: dict[str, str]  # what the probe wrote at each moment, as Python text

    @cached_property
    def facts(self) -> dict[str, dict[str, Any]]:
        """What the probe saw, by moment; to be asked for by one thread of a process.

        Python counts the depth of all syntax trees under construction together: up to 3.11,
        two threads that parse at once end each other in `SystemError`.
        """
        return {moment: ast.literal_eval(text) for moment, text in self.written.items()}

    @property
    def steps(self) -> int:
        """The script's own count: the number after the last `steps` it printed."""
        counts = [line for line in self.stdout.splitlines() if line.startswith(b"steps ")]
        return int(counts[-1].split()[1])


def run_plain(case: Case, base: Path) -> Outcome:
    """The reference: `python TARGET`."""
    return _run(case, base, [sys.executable, *case.flags, *case.target])


def run_profiled(case: Case, base: Path, recording: Path, *options: str) -> Outcome:
    """The same under `python -m profstack run -o RECORDING`."""
    command = [sys.executable, *case.flags, "-m", "profstack", "run", "-o", str(recording)]
    return _run(case, base, [*command, *options, *case.target])


def report_of(recording: Path) -> dict[str, Any]:
    """The recording's report.json."""
    report: dict[str, Any] = json.loads((recording / "report.json").read_text(encoding="utf-8"))
    return report


def environment(case: Case, base: Path) -> dict[str, str]:
    """The environment of both runs; what is fixed in it keeps two plain runs equal."""
    environ = clean_environment(
        PYTHONHASHSEED="0", HF_HUB_OFFLINE="1", TORCHINDUCTOR_CACHE_DIR=str(base / "inductor")
    )
    if case.python_path:
        paths = [case.python_path, environ.get("PYTHONPATH", "")]
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return environ


def _run(case: Case, base: Path, command: list[str]) -> Outcome:
    """Run one command in a fresh copy of the scripts, always at the same place."""
    work, facts = base / "work", base / "facts"
    for folder in (work, facts, base / "inductor"):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(SCRIPTS, work, ignore=shutil.ignore_patterns("__pycache__", "ruff.toml"))
    facts.mkdir()
    given = hash_files(work)
    done = subprocess.run(
        command,
        cwd=work,
        env=environment(case, base),
        input=case.stdin.encode(),
        capture_output=True,
        timeout=TIME_LIMIT_S,
        check=False,
    )
    return Outcome(
        stdout=done.stdout,
        stderr=done.stderr,
        exit_code=done.returncode,
        files={name: sha for name, sha in hash_files(work).items() if given.get(name) != sha},
        written={path.name: path.read_text() for path in facts.iterdir()},
    )


def hash_files(folder: Path) -> dict[str, str]:
    """Content hashes of the files a script left; of byte code, only that it exists."""
    hashes = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content = b"" if path.suffix == ".pyc" else path.read_bytes()
            hashes[str(path.relative_to(folder))] = hashlib.sha256(content).hexdigest()[:16]
    return hashes


def differences(plain: Outcome, profiled: Outcome) -> list[str]:
    """Every way in which two outcomes differ, one line each; empty when no harm was done."""
    found = []
    if plain.exit_code != profiled.exit_code:
        found.append(f"exit code: {plain.exit_code} -> {profiled.exit_code}")
    found += _text_differences("stdout", plain.stdout, profiled.stdout)
    errors = [without_own_lines(outcome.stderr) for outcome in (plain, profiled)]
    found += _text_differences("stderr", *errors)
    found += compare("files", plain.files, profiled.files)
    for moment in MOMENTS:
        found += compare(moment, plain.facts.get(moment), profiled.facts.get(moment))
    return found


def without_own_lines(text: bytes) -> bytes:
    """Standard error less what profstack and the tools it uses write there."""
    return OWN_LINES.sub(b"", SUMMARY.sub(b"", text))


def _text_differences(name: str, before: bytes, after: bytes) -> list[str]:
    """The first lines that differ, as a unified difference without context."""
    if before == after:
        return []
    texts = [data.decode(errors="replace").splitlines() for data in (before, after)]
    lines = list(difflib.unified_diff(*texts, lineterm="", n=0))[2:]
    return [f"{name}: {line}" for line in lines[:12]] or [f"{name}: line ends differ"]


def compare(where: str, before: Any, after: Any) -> list[str]:
    """Differences of two nested facts, each with its path."""
    if isinstance(before, dict) and isinstance(after, dict):
        found = []
        keys = before.keys() | after.keys()
        if where == "final.namespaces":
            # A class or module that only one run has loaded is patched in neither.
            keys = before.keys() & after.keys()
        for key in sorted(keys - ADDRESSES):
            pair = (facts.get(key, "<absent>") for facts in (before, after))
            found += compare(f"{where}.{key}", *pair)
        return found
    if isinstance(before, list) and isinstance(after, list):
        own = OWN_ITEMS.get(where)
        after = [item for item in after if own is None or not own.match(item)]
        if before == after:
            return []
        lost = [item for item in before if item not in after]
        gained = [item for item in after if item not in before]
        return [f"{where}: lost {lost}, gained {gained}" if lost or gained else f"{where}: order"]
    return [] if before == after else [f"{where}: {before!r} -> {after!r}"]
