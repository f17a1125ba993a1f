"""memory.js: bytes by owner, holders of the peak, memory over the run, and lines that took some."""

import pytest

from tests.support.lab import changed, run_page, with_rows
from tests.support.tables import rows_of

RUN = run_page()
MIB = 2**20


def sample(t_s, rss, allocated=None):
    figures = {"rss_bytes": rss, "device_allocated_bytes": allocated}
    return {"t_s": t_s, "step": round(t_s * 3), **figures}


SAMPLES = [
    sample(0.5, 300 * MIB), sample(0.1, 120 * MIB), sample(0.3, 410 * MIB, 64 * MIB),
    sample(0.4, None, 16 * MIB), sample(0.2, 200 * MIB),
]  # fmt: skip
KINDS = ((0.0, 0.2, "startup"), (0.2, 0.5, "clean"), (0.6, 0.5, "torch"), (None, 1.0, "nvtx"))
SLICES = [
    RUN["slices"][at] | {"started_s": start, "wall_s": wall, "kind": kind}
    for at, (start, wall, kind) in enumerate(KINDS)
]
OWNERS = [("unheard", 50, -5), ("activations", 300, 20), ("not attributed", 40, 0)]
OWNERS += [("parameters", 110, 80)]
OWNERS = rows_of("kind peak_bytes end_bytes", *OWNERS, device="cpu", start_bytes=None)
UNEVEN = {"tables__memory": with_rows(RUN, "memory", SAMPLES), "slices": SLICES}
ONE_DEVICE = {
    "tables__memory_owners": with_rows(RUN, "memory_owners", OWNERS),
    "facts__attribution__memory_peak_bytes": None,
}


def test_tables_have_what_leads_and_the_largest_first(lab):
    lab.view(RUN, "memory")
    wanted = {
        "memory-table": "0 s|–|310 MiB", "memory-owners": "activations|181 MiB|0 B|0 B|181 MiB|cpu",
        "peak-holders": "activations|Digits.features.2|96.0 MiB|25 %|aten::mkldnn_convolution|2|no",
        "memory-lines": "train.py:68|loss.backward()|64.0 MiB|64.1 MiB|64.0 MiB|11|472 MiB|–",
    }  # fmt: skip
    for box, (_heads, row) in lab.tables("memory").items():
        assert row.startswith(wanted[box])
    ways = lab.all("#peak-holders tbody tr:first-child a", "one.getAttribute('href')")
    assert ways == ["#modules/Digits.features.2", "#operators/aten%3A%3Amkldnn_convolution"]
    assert lab.all("#memory-owners h4") == ["cpu", "cuda:0"]


def test_pieces_of_a_stack_are_as_wide_as_their_bytes(lab):
    lab.view(changed(RUN, **ONE_DEVICE), "memory")
    # All to the scale of the peak, 500 bytes; what is below 0 or not measured has no piece. A name
    # has room in more than a tenth.
    pieces = lab.all(".stack span", "[parseFloat(one.style.width), one.textContent]")
    peak = [[22, "parameters"], [60, "activations"], [10, ""], [8, ""]]
    assert pieces == [*peak, [16, "parameters"], [4, ""]]
    assert lab.all(".stack-sum") == ["–", "500 B", "100 B"]


def test_the_scale_is_as_near_as_the_samples_lie(lab):
    lab.view(changed(RUN, **UNEVEN), "memory")
    data, drawn = lab.chart("#memory-chart")
    assert data["resident set"]["y"] == [120 * MIB, 200 * MIB, 410 * MIB, None, 300 * MIB]
    span = (410 - 120) * MIB
    ends = [120 * MIB - 0.1 * span, 410 * MIB + 0.12 * span]
    assert drawn["yaxis"]["range"] == pytest.approx(ends)
    assert drawn["yaxis2"]["range"] == pytest.approx([16 * MIB - 4.8 * MIB, 64 * MIB + 5.76 * MIB])
    assert [(one["x0"], one["x1"]) for one in drawn["shapes"]] == [(0.1, 0.2), (0.2, 0.5)]
