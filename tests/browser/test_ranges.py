"""ranges.js: regions as they nest, launches, gaps, and emitted ranges."""

from tests.support.lab import changed, records_of, run_page, with_rows

RUN = run_page()


def launches(**values):
    """The table of launches with other values in some columns."""
    first = records_of(RUN, "launches")[0]
    rows = zip(*values.values(), strict=True)
    return with_rows(RUN, "launches", [first | dict(zip(values, row, strict=True)) for row in rows])


def test_what_is_not_there_is_said(lab):
    nothing = {"tables__gaps": None, "tables__launches": None}
    for device, words in (("cpu", "is under Operators"), ("cuda", "recorded no kernel")):
        lab.view(changed(RUN, facts__environment__device=device, **nothing), "ranges")
        assert words in lab.all("#launches")[0]


def test_launches_are_medians_and_ranges_and_gaps_have_their_rows(lab):
    columns = {
        "kernels": [40, 52, 41], "operators": [5, 9, 6], "device_busy_s": [0.003, 0.001, 0.002],
        "device_idle_s": [0.001, 0.004, 0.0005], "launch_s": [1e-6, 3e-6, 9e-6],
    }  # fmt: skip
    lab.view(changed(RUN, tables__launches=launches(**columns)), "ranges")
    told = lab.all("#launches")[0]
    assert [one in told for one in ("41", "3.00 µs", "1.00 ms")] == [True] * 3
    lab.view(RUN, "ranges")
    cells = "[...one.cells].map((cell) => cell.textContent.replace(/[▾#]/g, '')).join('|')"
    gaps = [
        "host late|520 µs|31|40.0 µs|aten::mm in Digits.classifier.0|aten::add",
        "synchronisation|210 µs|1|210 µs|aten::item in (loss)|aten::add",
        "data wait|170 µs|1|170 µs|aten::add in (optimizer)|aten::mm",
    ]
    assert lab.all("#gap-table tbody tr", cells) == gaps


def test_regions_lie_in_the_nearest_region_around_them(lab):
    some = [("a/x/deep", 0.02), ("a", 0.05), ("a/b", None), ("ab", 0.01)]
    usual = {"timed_in": "raw", "source": "s", "calls": 2.0, "operator_s": 0.01}
    made = [usual | {"path": path, "wall_s": wall} for path, wall in some]
    page = changed(RUN, tables__regions=with_rows(RUN, "regions", made))
    lab.draw(page, "T.ranges.drawRegions", "#region-table")
    # Its level, its name, and how long its bar is: 50 ms are the longest.
    told = """
        [Number(one.ariaLevel), one.cells[0].textContent.replace(/[▾▸]/, ''),
          parseFloat(one.cells[1].querySelector('.fill')?.style.width ?? 0)]
    """
    wanted = [[1, "a", 100], [2, "x/deep", 40], [2, "b", 0], [1, "ab", 20]]
    assert lab.all("#region-table tbody tr", told) == wanted
