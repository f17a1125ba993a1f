"""Runs a script under one profiling tool the way a person would, for `one_run.py` to time.

    python by_hand.py torch FOLDER script.py ARGS     torch.profiler: shapes, trace, key_averages
    python by_hand.py flops FOLDER script.py ARGS     flops-profiler on one training step

cProfile and mprof have command lines of their own.
"""

from __future__ import annotations

import gc
import runpy
import sys
from pathlib import Path
from typing import Any

# The step that flops-profiler looks at: warm, and well before the end.
OBSERVED = 5


def under_torch_profiler(folder: Path, script: str) -> None:
    """The whole script with shapes, then the trace and the table that everybody prints."""
    import torch

    with torch.profiler.profile(record_shapes=True) as profiler:
        runpy.run_path(script, run_name="__main__")
    profiler.export_chrome_trace(str(folder / "trace.json"))
    table = profiler.key_averages(group_by_input_shape=True).table(sort_by="self_cpu_time_total")
    (folder / "table.txt").write_text(table, encoding="utf-8")


def under_flops_profiler(folder: Path, script: str) -> None:
    """One step of the script's largest model, found when its optimizer has stepped."""
    import torch
    from flops_profiler.profiler import FlopsProfiler
    from torch.optim.optimizer import register_optimizer_step_post_hook

    steps = 0
    profiler: Any = None

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        nonlocal steps, profiler
        steps += 1
        if steps == OBSERVED:
            models = [each for each in gc.get_objects() if isinstance(each, torch.nn.Module)]
            largest = max(models, key=lambda each: sum(p.numel() for p in each.parameters()))
            profiler = FlopsProfiler(largest)
            profiler.start_profile()
        elif steps == OBSERVED + 1:
            profiler.stop_profile()
            profiler.print_model_profile(output_file=str(folder / "flops.txt"))
            profiler.end_profile()

    register_optimizer_step_post_hook(stepped)
    runpy.run_path(script, run_name="__main__")


def main() -> None:
    """Run the script that the command line names."""
    tool, folder, script = sys.argv[1:4]
    sys.argv = sys.argv[3:]
    sys.path[0] = str(Path(script).parent)
    tools = {"torch": under_torch_profiler, "flops": under_flops_profiler}
    tools[tool](Path(folder), script)


if __name__ == "__main__":
    main()
