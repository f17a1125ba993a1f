"""source.js: the files of the program, the figures of each line, and what they are spent on."""

import pytest

from tests.support.browser import snippet
from tests.support.lab import changed, run_page, with_rows
from tests.support.tables import rows_of

RUN = run_page()
ROWS = """
[...document.querySelectorAll('#source-listing tbody tr')].map((row) =>
  row.matches('.fold') ? row.textContent : Number(row.dataset.line))
"""


def line(file, number, python, operators, **more):
    is_own = not file.startswith("/lib")
    own = {"own": is_own, "package": "(own files)" if is_own else "lib"}
    own |= {"file": file, "line": number, "source": f" code {number}"}
    return {"python_s": python, "operator_s": operators, **own, **more}


def page(lines, **values):
    return changed(RUN, tables__lines=with_rows(RUN, "lines", lines), **values)


TEXT = "import x\ndef outer():\n    a = 1\n\n    def inner(\n        b,\n    ):\n"
TEXT += "        return b\n    c = 2\n" + "".join(f"    d{at} = {at}\n" for at in range(10, 100))
OWN = [
    line("/w/train.py", 8, 0.003, 0.001, backward_s=0.0005, calls=7.0, memory_source="malloc r3"),
    line("/w/train.py", 9, 0.0, 0.012, device_s=0.002, reason="cut short r2", calls=2.0),
    line("/w/train.py", 40, None, None, largest_bytes=4096, watch_share=0.5),
    line("/w/train.py", 95, 0.0005, None),
]
OTHERS = [line("sub/b.py", 5, 0.02, 0.01), line("sub/b.py", 2, None, None, calls=1.0)]
OTHERS += [line("/lib/site/x.py", 3, 0.5, 0.1), line("/lib/site/y.py", 3, 0.2, None)]
SOURCES = [
    {"file": "/w/train.py", "text": TEXT, "reason": None},
    {"file": "/w/untold.py", "text": None, "reason": "too long r1"},
]
PAGE = page(OWN + OTHERS, sources=SOURCES, facts__script="./train.py")


def test_what_tracing_the_lines_cost_is_said(lab):
    traced = rows_of(
        "mode layer round step_median_s steps",
        *(("lines", "torch", 2, 0.012, 5), ("lines", "torch", 3, 0.016, 6)),
        *(("lines", "torch", 1, 0.09, 9), ("lines", "memory", 2, 0.5, 7)),
        ("stacks", "torch", 2, 0.5, 8),
    )
    slices = [RUN["slices"][1] | one for one in traced]
    made = changed(PAGE, slices=slices, facts__benchmark__median_s=0.004)
    (note,) = lab.draw(made, "T.source.drawLineNote", "#line-note")
    # The first round warms up: 12 and 16 ms are left, of 4.
    assert "11 steps" in note
    assert " 4.00 times" in note


def test_stretches_without_figures_are_folded(lab):
    lab.view(PAGE, "source")
    # Figures are at 8, 9, 40 and 95: of what is longer than 20 lines five stay at each end.
    first, second = (f"⋯ {count} lines without figures" for count in (20, 44))
    assert lab.js(ROWS) == [*range(1, 15), first, *range(35, 46), second, *range(90, 100)]
    assert lab.all("#source-listing .left-out") == ["† not whole: cut short r2."]
    lab.js("document.querySelector('#source-listing .fold button').click() || 0")
    assert lab.js(ROWS)[:45] == [*range(1, 46)]
    folds = snippet("folded_stretches")
    for (first, last), folded in {(20, 39): [], (20, 40): [[25, 35]], (1, 21): [[1, 16]]}.items():
        told = [[at, {"calls": 1}] for at in range(1, 100) if not first <= at <= last]
        assert lab.values(folds, [(told, first, last)]) == [folded], (first, last)


def test_a_line_opens_with_what_its_time_was_spent_on(lab):
    file = "/w/train.py"
    parts = [line(file, 9, 0.001 * at, 0.002, module=f"Net.{at}") for at in range(1, 15)]
    parts += [line(file, 9, None, 0.0301, module=None), line(file, 9, 0.001, 0.0, module="(loss)")]
    parts += [line("sub/b.py", 9, 9, 9, module="Other"), line(file, 8, 9, 9, module="Other")]
    lab.view(changed(PAGE, tables__module_lines=with_rows(PAGE, "module_lines", parts)), "source")
    press = "document.querySelector('tr[data-line=\"9\"] button').click()"
    lab.tell("#source-listing", after=press)
    items = lab.all("#source-listing .line-detail .parts li")
    assert items[0].startswith("outside modules30.1 ms")
    assert items[1].startswith("Net.14operators16.0 ms")
    assert items[12].startswith("4 more modules")
    widths = lab.all("#source-listing .line-detail .fill", "parseFloat(one.style.width)")
    assert widths[:2] == pytest.approx([100, 100 * 16 / 30.1], rel=1e-4)


def test_bars_and_sums_of_lines(lab):
    lab.view(PAGE, "source")
    # The longest line of all files takes 600 ms.
    places = lab.all('#source-listing tr[data-line="8"] .fill', "[one.style.left, one.style.width]")
    assert places == [["0%", "0.5%"], ["0.5%", "0.17%"]]
    heat = "one.style.getPropertyValue('--heat')"
    heats = lab.all('#source-listing tr[data-line="9"] .heat', heat)
    assert heats[0] == f"{100 * (0.012 / 0.6) ** 0.5:.1f}%"
    sums = lab.all("#source-listing tfoot td", "[one.dataset.sum, one.textContent]")[1:-1]
    wanted = {"time_s": "16.5 ms", "backward_s": "500 µs", "device_s": "2.00 ms"}
    assert dict(sums) == wanted | {"largest_bytes": "", "calls": ""}
    for name, figure in (("time", "3.50 ms"), ("watch", "50 %")):
        lab.press("#line-tools", name)
        assert figure in lab.all("#source-listing tfoot td")
    widths = lab.all("#source-files .fill", "parseFloat(one.style.width)")
    assert widths == pytest.approx([100 * 0.0165 / 0.6, 0, 100 * 0.03 / 0.6], rel=1e-4)
    cases = {
        (None, 0.2): ["python –, operators 200 ms", "200 ms"],
        (None, None): ["", "–"],
        (0.1, 0.3): ["python 100 ms, operators 300 ms", "400 ms"],
    }
    lab.check(snippet("time_cell"), cases)


# A key of the address, whether it is known, and the line that is marked then.
PLACES = """
/w/train.py:9 yes 9
train.py:60 yes 60
train.py:100 no 60
b.py:3 no 60
sub/b.py:5 yes 5
/x/sub/b.py:2 yes 2
other.py:1 no 2
b.py yes -
train.py:0 no -
/w/untold.py yes -
"""


def test_files_are_chosen_and_lines_are_found(lab):
    lab.view(PAGE, "source")
    told = """
        [document.querySelector('#source-listing .scroll').getAttribute('aria-label'),
          [...document.querySelectorAll('.file-card')].map((one) => one.ariaPressed === 'true'),
          document.querySelector('#source-count').textContent]
    """
    assert lab.js(told) == ["/w/train.py", [True, False, False], "16.5 ms on 4 lines"]
    lab.js("(document.querySelectorAll('.file-card')[2].click(), 0)")
    assert lab.js(told) == ["sub/b.py", [False, False, True], "30.0 ms on 2 lines"]
    assert lab.js(ROWS) == ["⋯ 1 line not recorded", 2, "⋯ 2 lines not recorded", 5]
    find = "T.views.keyFinders.get('source')[0]"
    marked = "document.querySelector('#source-listing .marked')?.dataset.line ?? '-'"
    for place in PLACES.strip().splitlines():
        key, known, at = place.split()
        assert lab.js(f"[{find}('{key}'), {marked}]") == [known == "yes", at], place
