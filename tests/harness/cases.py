"""The scripts of the harness: how each is started and how it is meant to end."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"


@dataclass(frozen=True)
class Case:
    """One way of starting one script.

    `target` is what follows `python` or `profstack run`; `flags` stand before it in both runs.
    `slow` cases take more than about ten seconds for the pair of runs. `torn` scripts end
    without finalisation, so their last two moments do not exist. `layers` are those that must
    have data.
    """

    name: str
    target: tuple[str, ...]
    flags: tuple[str, ...] = ()
    stdin: str = ""
    python_path: str = ""
    exit_code: int = 0
    slow: bool = False
    torn: bool = False
    layers: tuple[str, ...] = ("cprofile", "torch")


def _script(name: str, *arguments: str, **changes: object) -> Case:
    """The case of a script started by its name."""
    return Case(name, (f"{name}.py", *arguments), **changes)  # type: ignore[arg-type]


_ON_STDIN = (SCRIPTS / "on_stdin.py").read_text(encoding="utf-8")
_NUMBERS = "".join(f"{n % 7 / 7:.3f} {n % 5 / 5:.3f} {n % 3 / 3:.3f}\n" for n in range(51))

CASES = (
    _script("gan"),
    _script("actor_critic"),
    _script("accumulate"),
    _script("lbfgs"),
    _script("eval_between"),
    _script("second_model"),
    _script("generate", slow=True),
    _script("no_guard", "--own-option", "-o", "own value", "--", "--layers"),
    Case("module", ("-m", "pkg.train", "--layers", "own", "-m", "x")),
    Case("standard_input", ("-", "an argument"), stdin=_ON_STDIN),
    Case("command", ("-c", _ON_STDIN, "an argument", "-c")),
    _script("reads_stdin", stdin=_NUMBERS),
    _script("exit_three", exit_code=3),
    _script("exception", exit_code=1),
    _script("backward_error"),
    _script("compile_model", slow=True),
    _script("compile_step", slow=True),
    _script("hot_loop"),
    _script("omp_threads"),
    _script("workers_fork"),
    _script("workers_spawn", slow=True),
    _script("worker_thread"),
    _script("helper_threads"),
    _script("asyncio_train"),
    _script("own_cprofile", layers=("torch",)),
    _script("own_torch_profiler", layers=("cprofile",)),
    _script("own_ranges"),
    _script("sigterm_handler"),
    _script("subprocess_child"),
    _script("inference"),
    _script("frozen_torchscript"),
    _script("fused_encoder"),
    _script("os_exit", exit_code=7, torn=True),
    _script("lstm"),
    _script("checkpoint"),
    _script("no_torch", layers=()),
    _script("switches"),
    Case(
        "interpreter_flags",
        ("no_guard.py",),
        # With -O all of torch would be compiled anew in both runs: -B keeps nothing.
        flags=("-B", "-X", "utf8", "-W", "ignore::ResourceWarning"),
    ),
    Case("own_sitecustomize", ("no_guard.py",), python_path=f"site{os.pathsep}pkg"),
)
