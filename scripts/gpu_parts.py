"""The parts of the GPU check: what each one runs, and the rows that come of it.

Everything runs in processes of its own, as a user would start it; what is compared is read from
the reports and from what the workloads print.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpu_rows
from gpu_rows import FAILED, NEEDS_CUDA, NOT_MEASURED, Row

CHECKOUT = Path(__file__).resolve().parent.parent
WORKLOADS = CHECKOUT / "scripts" / "gpu_workloads.py"
MODELS = ("resnet18", "gpt2", "mlp")
PARTS = (*MODELS, "mistakes", "lock", "compare", "throughput", "nsys")
# What is planted and in which workload: a wait costs little beside a long step.
PLANTED = (
    ("mlp", None),
    ("small", None),
    ("small", "item"),
    ("mlp", "pageable"),
    ("mlp", "float32"),
)
# A part that takes longer hangs.
_TIMEOUT_S = 900.0
_NSYS_STEPS = 60


class PartError(Exception):
    """A program that a part of the check runs failed."""


@dataclass
class Bench:
    """Where and how the check runs its commands."""

    folder: Path
    device: str
    scale: str
    environment: dict[str, str]
    nsys_path: str | None = None

    @property
    def on_cuda(self) -> bool:
        """Whether what needs CUDA can be measured."""
        return self.device == "cuda"

    def python(self, *arguments: str, code: int = 0) -> str:
        """Standard output of a Python that sees the checkout; PartError with its last words.

        It must end with the exit code `code`.
        """
        try:
            done = subprocess.run(
                [sys.executable, *arguments],
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise PartError(f"no end after {_TIMEOUT_S:.0f} s: {' '.join(arguments)}") from None
        if done.returncode != code:
            last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
            raise PartError(f"exit code {done.returncode} of {' '.join(arguments)}: {last}")
        return done.stdout

    def workload(self, model: str, *options: str) -> list[str]:
        """The workload's own part of a command line."""
        return [str(WORKLOADS), model, "--device", self.device, "--scale", self.scale, *options]

    def profiled(
        self, name: str, model: str, *options: str, before: Sequence[str] = ()
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Report of a run of a workload, and what the workload said itself."""
        output = self.folder / name
        command = ["-m", "profstack", "run", "-q", "-o", str(output), *before]
        said = self.python(*command, *self.workload(model, *options))
        return _report(output), _last(said)

    def by_hand(self, model: str) -> dict[str, Any]:
        """Return the workload's own figures without profstack."""
        return _last(self.python(*self.workload(model, "--hand")))


def _report(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return content


def _last(said: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
    return content


# -- the parts -------------------------------------------------------------------------------------


def check_model(bench: Bench, model: str) -> Iterator[Row]:
    """One model under every layer, and by hand."""
    report, said = bench.profiled(model, model)
    yield from gpu_rows.layer_rows(model, report)
    yield from gpu_rows.kernel_rows(model, report, on_cuda=bench.on_cuda)
    yield from gpu_rows.flop_rows(model, report, _flop_by_hand(bench) if model == "mlp" else None)
    hand = bench.by_hand(model)
    yield from gpu_rows.median_rows(model, report, hand, on_cuda=bench.on_cuda)
    yield from gpu_rows.memory_rows(model, report, said, hand, on_cuda=bench.on_cuda)
    yield gpu_rows.loss_row(model, said, hand, on_cuda=bench.on_cuda)


def _flop_by_hand(bench: Bench) -> int:
    """Operations of the MLP's products in one training step, from its sizes alone."""
    code = (
        f"import sys; sys.path.insert(0, {str(WORKLOADS.parent)!r}); import gpu_workloads as w; "
        f"print(w.mlp_flop(w.SIZES[{bench.scale!r}]['mlp']))"
    )
    return int(bench.python("-c", code))


def check_mistakes(bench: Bench) -> Iterator[Row]:
    """Nothing planted, nothing found; each planted mistake is found with its cost."""
    for model, mistake in PLANTED:
        part = gpu_rows.planted_part(model, mistake)
        if not bench.on_cuda:
            yield Row(part, "findings", "-", gpu_rows.slug_of(mistake), NOT_MEASURED, NEEDS_CUDA)
            continue
        try:
            options = ("--mistake", mistake) if mistake else ()
            report, _ = bench.profiled(f"{model}-{mistake}", model, *options)
            yield from gpu_rows.mistake_rows(part, mistake, report)
        except (PartError, OSError, ValueError) as error:
            yield Row(part, "findings", "-", gpu_rows.slug_of(mistake), FAILED, str(error))


def check_lock(bench: Bench) -> Iterator[Row]:
    """Two locks of one script are equal, and a check names the line of a planted wait."""
    plain = bench.workload("small")
    locks = [bench.folder / name for name in ("first.lock", "second.lock")]
    for lock in locks:
        bench.python("-m", "profstack", "lock", "-q", "--runs", "2", "-o", str(lock), *plain)
    yield from gpu_rows.lock_rows(
        *(lock.read_text("utf-8") for lock in locks), on_cuda=bench.on_cuda
    )
    planted = bench.workload("small", "--mistake", "item")
    check = ("-m", "profstack", "check", "-q", "-o", str(locks[0]))
    bench.python(*check, *plain)
    yield gpu_rows.check_row(bench.python(*check, *planted, code=1), _waiting_line())


def check_compare(bench: Bench) -> Iterator[Row]:
    """A step that waits for the device is told from one that does not, with the line."""
    sides: list[list[str]] = []
    for mistake in ((), ("--mistake", "item")):
        names = [f"small-{len(mistake)}-{number}" for number in range(2)]
        for name in names:
            bench.profiled(name, "small", *mistake)
        sides.append([str(bench.folder / name) for name in names])
    output = bench.folder / "comparison"
    compare = ("-m", "profstack", "compare", "-q", "-o", str(output))
    bench.python(*compare, *sides[0], "--with", *sides[1])
    content: dict[str, Any] = json.loads((output / "compare.json").read_text("utf-8"))
    yield from gpu_rows.compare_rows(content, _waiting_line(), on_cuda=bench.on_cuda)


def _waiting_line() -> int:
    """Line of the workloads' first wait for the loss."""
    lines = WORKLOADS.read_text("utf-8").splitlines()
    return 1 + next(number for number, text in enumerate(lines) if "+= loss.item()" in text)


def check_throughput(bench: Bench) -> Iterator[Row]:
    """The search for the largest batch: to where a GPU's memory ends, on a CPU a few sizes."""
    output = bench.folder / "throughput"
    target = f"{WORKLOADS}:throughput_{bench.scale}"
    most = () if bench.on_cuda else ("--max-batch", "4")
    bench.python(
        *("-m", "profstack", "bench", "-q", "--throughput", "--layers", "none", "--no-peaks"),
        *("--repeat", "20", "--device", bench.device, "-o", str(output), *most, target),
    )
    yield from gpu_rows.throughput_rows(_report(output), on_cuda=bench.on_cuda)


_USABLE = """
import sys
from importlib.metadata import version
from profstack.readers.nsys import tool
from profstack.readers.nvtx import takes_ranges
try:
    found = tool.find_nsys(sys.argv[1] or None)
    print("no" if takes_ranges(found.version, version("nvtx")) is False else "yes")
except tool.NsysError:
    print("no")
"""


def check_nsys(bench: Bench) -> Iterator[Row]:
    """The second run under Nsight Systems, where there is one."""
    helped = bench.python("-m", "profstack", "run", "--help")
    if "--nsys" not in helped:
        reason = "this profstack has no 'run --nsys'"
        yield Row("nsys", "ranges seen", "-", "above 0", NOT_MEASURED, reason)
        return
    path = ("--nsys-path", bench.nsys_path) if bench.nsys_path else ()
    report, _ = bench.profiled(
        *("nsys", "mlp", "--steps", str(_NSYS_STEPS)), before=("--nsys", *path)
    )
    # "no": none is there, or one that takes no range of this nvtx: no fault of profstack's.
    usable = bench.python("-c", _USABLE, bench.nsys_path or "").strip() != "no"
    yield from gpu_rows.nsys_rows(report, on_cuda=bench.on_cuda, usable=usable)


def rows_of(part: str, bench: Bench) -> Iterator[Row]:
    """The rows of one part; what fails in it is its last row."""
    checks: dict[str, Callable[[Bench], Iterator[Row]]] = {
        "mistakes": check_mistakes,
        "lock": check_lock,
        "compare": check_compare,
        "throughput": check_throughput,
        "nsys": check_nsys,
    }
    try:
        yield from checks[part](bench) if part in checks else check_model(bench, part)
    except PartError as error:
        yield Row(part, "the part as a whole", "-", "an end", FAILED, str(error))
    except Exception as error:
        # A report without what a row is made of is a failure of this part, whatever it lacks.
        text = f"{type(error).__name__}: {error}"
        yield Row(part, "the part as a whole", "-", "an end", FAILED, text)
