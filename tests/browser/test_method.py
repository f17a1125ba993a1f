"""method.js: layers and their probe effects, clean steps, slices, environment."""

import pytest

from tests.support.browser import snippet
from tests.support.lab import changed, run_page

RUN = run_page()
SLICE = RUN["slices"][4]


def slices(*some):
    return [SLICE | one for one in some]


UNEVEN = slices(
    {
        "index": 0, "kind": "clean", "layer": None, "mode": None, "started_s": 1.0, "wall_s": 3.0,
        "stop_s": None, "round": 0, "steps": 0, "step_median_s": None,
    },
    {"index": 1, "kind": "torch", "started_s": 4.0, "wall_s": 0.5, "stop_s": 1.5, "mode": "timed"},
    {"index": 2, "kind": "cprofile", "started_s": 4.0, "wall_s": 0.5, "stop_s": 0.0, "mode": None},
    {"index": 3, "kind": "clean", "layer": None, "started_s": 6.5, "wall_s": 3.5, "stop_s": None},
    {"index": 4, "kind": "lost", "started_s": None},
)  # fmt: skip
NARROW = slices({"kind": "clean", "layer": None, "started_s": 0.0, "wall_s": 9.9, "stop_s": None})
for at in range(20):
    NARROW += slices({"kind": "torch", "started_s": 9.9 + at / 100, "wall_s": 0.01, "stop_s": None})


def test_layers_and_intervals_of_probe_effects_have_one_scale(lab):
    effect = RUN["facts"]["probe_effect"][0]
    for high, most in ((1.2, 1.5), (1.8, 1.8), (9.0, 5.0)):
        given = [effect | {"ci95_low": 1.0, "ci95_high": high, "factor": 1.1}]
        lab.draw(changed(RUN, facts__probe_effect=given), "T.method.drawLayers")
        widths = lab.all("#layer-list [style*=width]", "parseFloat(one.style.width)")
        wanted = 100 * (min(high, most) - 1.0) / (most - 0.8)
        assert widths == [pytest.approx(wanted, rel=1e-3)], high
    # The scale begins at 0.8: where the interval lies and its width, where 1 and the factor are.
    cases = [
        ((0.9, 1.4, 2.0), 5, (20 / 4.2, 10 / 4.2, 50 / 4.2, 120 / 4.2)),
        ((1.0, 1.001, 9.0), 1.5, (20 / 0.7, 20 / 0.7, 0.5, 100)),
        ((-1, 8, 3), 5, (20, 0, 100, 60)),
    ]
    found = lab.values(snippet("interval_bar"), [one[:2] for one in cases])
    assert found == [pytest.approx(wanted, rel=1e-4, abs=1e-4) for _, _, wanted in cases]
    base = {
        "factor": 1.1, "step_median_s": 0.004, "clean_median_s": 0.003, "n_layer": 3, "n_clean": 9,
    }  # fmt: skip
    effect = "(one, layer) => T.dom.el('p', {}, T.method.probeEffect(one, layer, 5)).textContent"
    ends = [(1.0, 1.2), (0.8, 1.0), (1.001, 1.2), (0.8, 0.999)]
    effects = [base | {"ci95_low": low, "ci95_high": high} for low, high in ends]
    texts = lab.values(effect, [(one, {"name": "torch"}) for one in effects])
    assert texts[0].startswith("1.10 ×")
    assert ["from 1.00" in one for one in texts] == [True, True, False, False]


@pytest.mark.parametrize("imported", [False, True])
def test_the_watch_of_an_import_is_of_its_samples(lab, imported):
    alone = {"imports": [{}], "script": None, "step": None, "benchmark": None} if imported else {}
    lab.draw(changed(RUN, facts=RUN["facts"] | alone), "T.method.drawWatch")
    assert ("imported file" in lab.all("#watch .lead")[0]) is imported


def pressed(lab):
    return lab.all("#timeline-tools button", "one.getAttribute('aria-pressed')")


@pytest.mark.parametrize(("some", "equal"), [(UNEVEN, False), (NARROW, True)])
def test_slices_lie_over_the_run(lab, some, equal):
    lab.draw(changed(RUN, slices=some), "T.method.drawTimeline", "#timeline", "#timeline-tools")
    assert pressed(lab) == (["false", "true"] if equal else ["true", "false"])
    if not equal:
        data, drawn = lab.chart("#timeline")
        bars, pauses = data.values()
        assert [bars["base"], bars["y"]] == [[1, 4, 4, 6.5], [0, 1, 2, 0]]
        assert [pauses["base"], pauses["x"]] == [[4.5], [1.5]]
        assert drawn["xaxis"]["range"] == [0, pytest.approx(10.1)]
    # The other scale: all as wide, or as wide as they took.
    other = f"document.querySelectorAll('#timeline-tools button')[{int(not equal)}]"
    lab.tell("#timeline", after=f"{other}.click()")
    assert lab.chart("#timeline")[0]["slices"]["x"] == ([9.9, *[0.01] * 20] if equal else [0.9] * 4)


ENVIRONMENT = {
    "python": "3.11", "gpu": None, "memory_bytes": 2**34, "cpu_count": 8, "changed": True,
    "packages": ["a 1", "b 2"], "variables_set": [], "host_name": "",
}  # fmt: skip
RUN_FACTS = {
    "started_at": "2025-11-20T22:30:41.123456+00:00", "duration_s": 61.0, "exit_code": None,
    "signal": "SIGINT", "stopped_by": "time", "world_size": 2, "rank": 1, "id": "r-1",
}  # fmt: skip
TOLD = {
    "command": "train.py --epochs 3 --lr 0.001", "started": "2025-11-20 22:30:41 UTC",
    "took": "1 min 1 s", "exit code": "–", "rank": "1 of 2", "uncommitted changes": "yes",
    "packages": "a 1, b 2", "memory": "16.0 GiB", "cpu count": "8",
}  # fmt: skip


def test_the_environment_is_told_in_pairs(lab):
    values = {
        "facts__environment": ENVIRONMENT, "facts__run": RUN_FACTS,
        "facts__step": {"count": 5, "shapes": [], "counts_by_phase": {}}, "tables__artifacts": None,
    }  # fmt: skip
    lab.view(changed(RUN, **values), "method", "environment")
    told = dict(zip(lab.all("#view-environment dt"), lab.all("#view-environment dd"), strict=True))
    assert {name: told[name] for name in TOLD} == TOLD
    assert not {"gpu", "host name", "variables set"} & {*told}
