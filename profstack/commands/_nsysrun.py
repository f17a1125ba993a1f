"""`profstack run --nsys`: the second run, under Nsight Systems, once the ordinary one is over.

To ask for it is the user's consent to a second run. It ends after its steps, adds what nsys saw
to the recording, and whatever goes wrong in it takes nothing from what the first one recorded.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profstack import launch, nvtxpairs
from profstack.environment import under_nsys
from profstack.errors import ProfstackError, UsageError
from profstack.nsys import driven, tool
from profstack.privacy import presentable_argv
from profstack.recording import DATABASE, Writer
from profstack.software import package_version
from profstack.target import Target

# Steps let go by before the capture, and captured, where the script has so many.
_WARMUP, _STEPS = 10, 10
# What the engine takes to find out how steps end.
_FOUND_OUT = 2
# Under nsys everything is slower; a script without steps runs to its end.
_SLOWER, _AT_LEAST_S = 3, 60


def check(target: Target, layers: Sequence[str], rank: int | None) -> None:
    """Raise UsageError where there can be no second run under nsys."""
    if under_nsys():
        raise UsageError(
            "Nsight Systems observes this run already",
            where="--nsys",
            next_step="leave --nsys away, or start profstack without nsys",
        )
    if rank is not None:
        raise UsageError(
            "one rank of several cannot be run a second time",
            where="--nsys",
            next_step="start nsys by hand: nsys profile ... torchrun ... -m profstack run ...",
        )
    if target.kind == "stdin":
        raise UsageError(
            "a script on standard input can be read once alone",
            where="--nsys",
            next_step="save it to a file and name that",
        )
    if "nvtx" not in layers:
        raise UsageError(
            "the layer nvtx makes the ranges that nsys records, and is left out",
            where="--nsys",
            next_step="leave it in --layers, and out of --skip",
        )


class NsysRun:
    """The second run of a script that an ordinary run has measured."""

    def __init__(self, options: argparse.Namespace, target: Target) -> None:
        self.options = options
        self.target = target
        self.problem: str | None = None
        self.nsys: tool.Nsys | None = None
        self._tell: Callable[[str], None] = print

    @classmethod
    def prepared(
        cls, options: argparse.Namespace, target: Target, layers: Sequence[str], rank: int | None
    ) -> NsysRun:
        """Look for nsys before anything runs: the user may stop here, and install what lacks.

        Raises UsageError where there can be no second run, or `--nsys-path` names no nsys.
        """
        check(target, layers, rank)
        run = cls(options, target)
        try:
            run.nsys = tool.find_nsys(options.nsys_path)
        except tool.NsysError as error:
            if options.nsys_path is not None:
                raise
            run.problem = f"no run under Nsight Systems: {error}"
        return run

    def announce(self, tell: Callable[[str], None]) -> None:
        """Say what is in the way; `tell` writes a line for the user, here and from here on."""
        self._tell = tell
        if self.nsys is None:
            tell(f"profstack: {self.problem}")
            return
        blind = self._blind()
        if blind is not None:
            tell(f"profstack: {blind}")

    def _blind(self) -> str | None:
        """Why this nsys sees no range, and what to do; None where it may see them."""
        nsys = self.nsys.version if self.nsys is not None else None
        nvtx = package_version("nvtx")
        if nvtxpairs.takes_ranges(nsys, nvtx) is not False:
            return None
        words = f"{nvtxpairs.limit_of_old_nsys()}; {nvtxpairs.REMEDY}"
        return f"nsys {nsys} sees no range of nvtx {nvtx}: {words}"

    def execute(
        self, folder: Path, code: int, child_options: Mapping[str, Any], duration_s: float
    ) -> None:
        """Run the script again and add what nsys saw to the recording in `folder`.

        `code` and `duration_s` are those of the first run. What goes wrong is told and noted.
        """
        if self.problem is None:
            if code != 0:
                how = f"exit code {code}" if code > 0 else f"signal {-code}"
                self.problem = f"no run under Nsight Systems: the script ended with {how}"
            else:
                self._try(folder, child_options, duration_s)
            if self.problem is not None:
                self._tell(f"profstack: {self.problem}")
        if self.problem is not None:
            note(folder, self.problem)

    def _try(self, folder: Path, child_options: Mapping[str, Any], duration_s: float) -> None:
        try:
            self._run(folder, child_options, duration_s)
        except KeyboardInterrupt:
            self.problem = "the run under Nsight Systems was interrupted"
        except Exception as error:
            # What the first run recorded is whole, and gets its page.
            name = "" if isinstance(error, ProfstackError) else f"{type(error).__name__}: "
            self.problem = f"the run under Nsight Systems came to nothing: {name}{error}"

    def _run(self, folder: Path, child_options: Mapping[str, Any], duration_s: float) -> None:
        from profstack.nsys.importing import import_file

        assert self.nsys is not None
        first = _FirstRun.read(folder)
        blind = self._blind()
        if blind is not None and not first.on_device:
            # Without a device to trace there is nothing but ranges.
            self.problem = f"no run under Nsight Systems, which has nothing to see: {blind}"
            return
        limit_s = int(duration_s * _SLOWER + _AT_LEAST_S)
        self._tell(f"profstack: running again under Nsight Systems {self.nsys.version}")
        with tempfile.TemporaryDirectory(prefix="profstack-nsys-") as name:
            again = Path(name) / "again"
            (again / "logs").mkdir(parents=True)
            content = second_options(child_options, first)
            (again / "logs" / "options.json").write_text(json.dumps(content), encoding="utf-8")
            command = [sys.executable, *launch.interpreter_flags(), *self.target.arguments]
            captured = driven.capture(
                self.nsys,
                command,
                launch.child_environment(again, []),
                Path(name),
                on_device=first.on_device,
                limit_s=limit_s,
            )
            report = driven.keep(captured.report, folder, force=self.options.force)
        self._tell(
            f"profstack: the report of Nsight Systems is {report}; it holds the environment's "
            "variables, the page does not"
        )
        try:
            fact = import_file(report, folder, nsys_path=self.nsys.path)
        except ProfstackError as error:
            words = ["profstack", "import", str(report), "--into", str(folder)]
            self.problem = (
                f"the report of Nsight Systems was not taken in ({error}): {shlex.join(words)}"
            )
            return
        self._judge(folder, captured, first, limit_s, fact)

    def _judge(
        self,
        folder: Path,
        captured: driven.Captured,
        first: _FirstRun,
        limit_s: int,
        fact: Mapping[str, Any],
    ) -> None:
        """Say what the capture is not, if it is not what was wanted."""
        problems = []
        if captured.timed_out:
            problems.append(f"was ended after {limit_s} s, before the steps it was for were over")
        elif captured.exit_code:
            problems.append(f"ended with exit code {captured.exit_code}")
            from profstack.report.textparts import printable

            # On the terminal alone: what a script says of its error may hold anything.
            self._tell(f"profstack: the script's last words there: {printable(captured.said)}")
        if first.steps and not fact["steps"]:
            why = self._blind() if first.has_ranges else first.nvtx_reason
            problems.append(f"has no range of a step{f': {why}' if why else ''}")
        for problem in problems:
            text = f"the run under Nsight Systems {problem}"
            self._tell(f"profstack: {text}")
            note(folder, text)


@dataclass(frozen=True)
class _FirstRun:
    """What the first run tells of the second: how many steps there are, and what they use."""

    steps: int
    on_device: bool
    has_ranges: bool
    nvtx_reason: str

    @classmethod
    def read(cls, folder: Path) -> _FirstRun:
        database = sqlite3.connect(folder / DATABASE, timeout=60)
        try:
            last = dict(database.execute("SELECT plan, max(step) FROM steps GROUP BY plan"))
            facts = dict(database.execute("SELECT key, value FROM facts"))
            rows = database.execute("SELECT status, reason FROM layers WHERE name = 'nvtx'")
            status, reason = next(iter(rows), ("skipped", None))
        finally:
            database.close()
        environment = json.loads(facts.get("environment", "{}"))
        # A script measured as a whole has one row, which is no step of it.
        rules = {plan: json.loads(facts.get(f"plan_{plan}", "{}")).get("rule") for plan in last}
        steps = max((last[plan] + 1 for plan in last if rules[plan] != "whole"), default=0)
        has_ranges = status in ("recorded", "emitted")
        return cls(steps, environment.get("device") == "cuda", has_ranges, reason or "")


def second_options(child_options: Mapping[str, Any], first: _FirstRun) -> dict[str, Any]:
    """The child's options for the second run: the layer nvtx alone, and its end after the slice."""
    targets = child_options["targets"]
    left = max(first.steps - _FOUND_OUT, 2)
    warmup = min(_WARMUP, max(1, left // 3))
    steps = max(1, min(max(_STEPS, targets["slice_steps"]), left - warmup))
    return {
        **child_options,
        "layers": ["nvtx"],
        "left_out": {},
        "capture": {"warmup": warmup, "steps": steps},
        "startup": None,
        "whole": False,
        "sync": False,
        # Nobody writes a page of it, so that none is waited for.
        "lockstep": True,
    }


def note(folder: Path, text: str) -> None:
    """Leave word of the second run in the recording, and with the layer that it was for.

    What looks like a secret in it is masked.
    """
    text = presentable_argv([text])[0]
    writer = Writer(folder)
    try:
        writer.write({"notes": [{"slug": "nsys-run", "layer": "nvtx", "text": text}]})
        writer.reason("nvtx", text)
    finally:
        writer.close()
