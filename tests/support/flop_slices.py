"""For tests of the flops layer: counts a workload the way the engine does, in this process."""

from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import torch

from profstack.layer import SliceContext
from profstack.storage.schema.recorded import RECORDED
from profstack.storage.vocabulary import STEP_PARTS
from profstack.wrappers.flops import FlopsWrapper
from tests.support.wrapped import installed_hooks


def count(step, steps=1):
    """A slice: what was `captured`, and its `rows`, which have the path of their module beside.

    `by_module` has operations forward and backward of each module, without the modules inside it;
    `operators` those by operator, None where any call has no figure.
    """
    wrapper = FlopsWrapper()
    with installed_hooks() as hooks:
        try:
            assert wrapper.busy_reason("count") is None
            wrapper.start(SliceContext(0, "count", steps, Path()))
            hooks.listen(wrapper.listener())
            for number in range(steps):
                step()
                wrapper.listener().step_ended(number + 1)
        finally:
            wrapper.stop()
    assert torch._C._len_torch_dispatch_stack() == 0
    modules = hooks.names.by_number()
    captured = wrapper.take([0.0] * (steps + 1), modules)
    rows = [*captured.frames.get("flop_counts", [])]
    RECORDED["flop_counts"].rows(rows)
    wrapper.close()
    paths = {number: named.path for number, named in modules.items()} | STEP_PARTS
    rows = [row | {"path": paths.get(row["module_id"])} for row in rows]
    by_module, operators = defaultdict(lambda: [0, 0]), defaultdict(int)
    for row in rows:
        flop, known = row["flop"], operators[row["operator"]]
        by_module[row["path"]][row["backward"]] += flop or 0
        operators[row["operator"]] = None if None in (flop, known) else known + flop
    by_module = {path: tuple(both) for path, both in by_module.items()}
    return SimpleNamespace(captured=captured, rows=rows, by_module=by_module, operators=operators)
