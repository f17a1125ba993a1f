"""table.js: sorting, searching, bars, copying and addresses of tables, and trees."""

import json

import pytest

COLUMNS = [
    ("name", "function", "text"), ("self_s", "self time", "s"), ("size_bytes", "size", "bytes"),
    ("part", "part", "share"), ("n", "calls", "count"), ("flag", "own", "flag"),
    ("module", "module", "text"), ("gone", "gone", "s"),
]  # fmt: skip
ROWS = [
    ["conv2", 0.004, 4096, 0.25, 7, True, "net.a", None],
    ["Conv10", None, 1_000_000, 0.5, 3, False, "net.ab", None],
    ['relu "x"', 0.0005, None, 0.031, None, None, None, None],
    ["=add|m<n", 0.012, 512, None, 1500, True, "net.a.c", None],
    ["mm", 0.012, 2_097_152, 0.2, 0, False, "net", None],
]
REASONS = {"self_s": "not timed", "gone": "no device"}


def table(rows=ROWS, **more):
    """A table as the page's data has it."""
    columns = [dict(zip(("key", "label", "unit"), one, strict=True)) for one in COLUMNS]
    for one in columns:
        key = one["key"]
        one |= {"meaning": f"what {key} is", "cell_reason": REASONS.get(key), "layer": "torch"}
        one |= {"kind": "raw", "source": None, "reason": REASONS["gone"] if key == "gone" else None}
        one |= {"kind": "counted", "source": "tool"} if key == "n" else {}
    return {"columns": columns, "rows": rows, "total": len(rows), "left_out": None, **more}


def make(lab, more="{}", made=None):
    """Make a table of these columns in a box; `names()` then are those of its rows."""
    lab.script("make_table", TABLE=json.dumps(made or table()), MORE=more)


def walk(lab, *steps):
    """Do one thing after the other, and compare what an expression gives after each."""
    for act, told, wanted in steps:
        assert lab.js(f"({act}, {told})") == wanted, act


FIND = "T.views.keyFinders.get('operators').at(-1)"
KEEP = "T.views.filterKeepers.get('operators').at(-1)"
NAMES, FOCUS = "names()", "document.activeElement."
MORE = "[names().length, ...[...box.querySelectorAll('.more > *')].map((one) => one.textContent)]"


def sought(lab, texts):
    """What rows are left for each text that is typed, by their numbers; the timer is skipped."""
    return lab.script("sought_rows", TABLE=json.dumps(table()), TEXTS=json.dumps(list(texts)))


@pytest.mark.parametrize("direction", [1, -1])
def test_empty_cells_are_last_whichever_way_is_sorted(lab, direction):
    values = [None, 3, 0, None, -2.5, 10]
    found = lab.js(f"""
        {json.dumps([{"v": one} for one in values])}.concat([{{}}]).sort(T.table.compareBy('v',
          {direction})).map((one) => one.v)
    """)
    known = sorted((one for one in values if one is not None), reverse=direction < 0)
    assert found == [*known, None, None, None]
    assert lab.js(f"""
        [[null, 1], [1, null], [null, null], [undefined, null], [2, 1], ['b', 'a'], ['f10', 'f9'],
          ['a', 5]].map(([v, w]) => Math.sign(T.table.compareBy('v', {direction})({{v}}, {{v: w}})))
    """) == [1, -1, 0, 0, direction, direction, direction, direction]


# The rows that are left, by their numbers, and what was typed, a text between two commas.
FOUND = """
-: ,  ,self>x,nothing>4,calls:-,calls>1g,self<500000ns,module=
0: self=4ms,self:4.00,module=net.a
1: CONV net.ab,size>4KiB mm|
2: "relu ,self<4ms,self<=500µs,self<=500000ns,part<20%
4: mm,function="mm",self>4ms mm,size>1MB,size=2MiB,part=0.2,calls<=0,calls=-0
3: size<1kb,size<513b,calls>=1.5k
0 1: conv,part>=25%
0 2: self<=4ms
0 3: own:yes
1 4: own=no,size>4KiB,size>=1MB
3 4: self_time>4ms,self>4000us,self_s:12.0
0 1 3: "net.a,module:net.a
0 1 4: size>=4KiB
0 2 3: flag!=no
0 3 4: self>=4ms,self>=0.004,self>1e-3s
2 3 4: self!=4ms
0 1 3 4: n net,size<1GiB,size<1TB,calls<1m,calls<1t,calls>−1
0 2 3 4: self<1min,self<0.001h
"""
# A figure as it is typed, what it is a figure of, and what it comes to.
FIGURES = """
1.5ms s 1.5e-3, 2µs s 2e-6, 2μs s 2e-6, 3us s 3e-6, 4ns s 4e-9, 5s s 5, 2min s 120, 2h s 7200,
3x s -, ms s -, 1..2 s -, 1KiB bytes 1024, 1kib bytes 1024, 1MiB bytes 1048576, 1kB bytes 1000,
1GB bytes 1e9, 7b bytes 7, 50% share 0.5, 2k count 2000, −3 count -3, +3e2 count 300, 2M plain 2e6,
2g flop 2e9, 2P rate 2e15
"""


def test_words_and_conditions_find_their_rows_and_units_have_their_scales(lab):
    for line in FOUND.strip("\n").splitlines():
        rows, typed = line.split(": ", 1)
        wanted = [int(one) for one in rows.split() if one != "-"]
        texts = [one for one in typed.split(",") if one.strip() and "|" not in one]
        assert sought(lab, texts) == [wanted] * len(texts), line
    assert sought(lab, ["", "  "]) == [None, None]
    for one in FIGURES.split(","):
        text, unit, value = one.split()
        wanted = None if value == "-" else pytest.approx(float(value), rel=1e-11)
        assert lab.values("T.table.figureOf", [(text, unit)]) == [wanted], one


def test_csv_has_full_values_and_no_formula(lab):
    cells = {None: "", "a,b": '"a,b"', 'say "x"': '"say ""x"""', "two\nlines": '"two\nlines"'}
    formulas = {"\rx": '"\'\rx"'} | {one: "'" + one for one in ("=1+1", "+x", "-x", "@x", "\tx")}
    lab.check("T.table.csvCell", cells | formulas | {"a=1": "a=1", True: "true", 0.1: "0.1"})
    made = json.dumps(table())
    told = f"((made) => T.table.HOW(made.columns.slice(0, 4), T.table.asRecords(made)))({made})"
    text = lab.js(told.replace("HOW", "asCsv")).splitlines()
    assert text[:2] == ["name,self_s,size_bytes,part", "conv2,0.004,4096,0.25"]
    assert [text[2], text[-1]] == ["Conv10,,1000000,0.5", "mm,0.012,2097152,0.2"]
    heads, rule, first, *_, fourth, _ = lab.js(told.replace("HOW", "asMarkdown")).splitlines()
    assert heads == "| function | self time | size | part |"
    assert rule == "| --- | ---: | ---: | ---: |"
    assert first == "| conv2 | 4.00 ms | 4.00 KiB | 25 % |"
    assert fourth == "| =add\\|m&lt;n | 12.0 ms | 512 B | – |"


def test_a_table_is_drawn(lab):
    more = """
        {sort: {key: 'self_s', direction: -1}, bars: ['self_s', 'part'], barColour: 'red',
          first: ['part', 'name'], hidden: ['flag'], keyOf: (row) => row.name}
    """
    make(lab, more, table(left_out="5 of 9 rows"))
    rows = "[...one.cells].map((cell) => cell.textContent.replace(/#$/, '')).join('|')"
    wanted = """
        part|function|self time▼|size|calls|module
        –|=add|m<n|12.0 ms|512 B|1.50 k|net.a.c
        20 %|mm|12.0 ms|2.00 MiB|0|net
        25 %|conv2|4.00 ms|4.00 KiB|7|net.a
        3.1 %|relu "x"|500 µs|–|–|–
        50 %|Conv10|–|977 KiB|3|net.ab
    """
    assert lab.all("#box tr", rows) == [one.strip() for one in wanted.strip().splitlines()]
    assert lab.all("#box .count, #box .left-out") == ["5 rows", "5 of 9 rows"]
    # The longest time is 12 ms: 4 ms is a third of it. A share is as long as it says.
    widths = "[...one.querySelectorAll('.fill')].map((fill) => parseFloat(fill.style.width))"
    assert lab.all("#box tbody tr", widths) == [[100], [20, 100], [25, 33.33], [3.1, 4.17], [50]]
    # Where a number is from and what is not measured are told on hovering.
    assert lab.js("cell(2, 2).title").startswith("0.004 s\nraw: as the torch layer saw it")
    assert lab.js("box.querySelectorAll('th button')[4].title") == "what n is\ncounted by tool"
    assert lab.js("cell(4, 2).querySelector('.none').title") == "not timed"
    way = "cell(0, 0).querySelector('a.anchor').getAttribute('href')"
    assert lab.js(way) == "#operators/%3Dadd%7Cm%3Cn"
    # A column without a value is away until it is asked for.
    assert lab.all("#box details li") == ["gone: no device"]
    shown = "[box.querySelector('th:last-child').textContent, cell(0, 6).firstChild.title]"
    walk(lab, ("box.querySelector('.empty-note input').click()", shown, ["gone", "no device"]))


def test_a_heading_sorts_and_the_second_press_turns_round(lab):
    make(lab)
    down = ["=add|m<n", "mm", "conv2", 'relu "x"', "Conv10"]
    up = ['relu "x"', "conv2", "=add|m<n", "mm", "Conv10"]
    names = ["=add|m<n", "conv2", "Conv10", "mm", 'relu "x"']
    told = "[names(), ...[...box.querySelectorAll('th')].slice(0, 2).map((one) => one.ariaSort)]"
    walk(lab,
        ("0", NAMES, [row[0] for row in ROWS]),
        ("press('self time')", told, [down, "none", "descending"]),
        ("press('self time')", told, [up, "none", "ascending"]),
        ("press('function')", told, [names, "ascending", "none"]),
    )  # fmt: skip


def test_a_search_waits_until_nothing_is_typed(lab):
    make(lab)
    hint = "search things, or self_time>1ms"
    assert lab.all("#box input[type=search]", "one.placeholder") == [hint]
    make(lab, "{keyOf: (row) => row.name, reveal: (row) => { window.revealed = row.name; }}")
    assert lab.script("typed_search") == [5, [0, -1], ["=add|m<n", "mm"], "2 of 5 rows"]
    # A row that the search hides is found by its address, and the search is taken off.
    marked = "...[...box.querySelectorAll('.marked td:first-child')].map((one) => one.textContent)"
    walk(lab,
        ("0", f"[{FIND}('mm'), names().length, {marked}, window.revealed]", [True, 2, "mm", "mm"]),
        ("0", f"[{FIND}('conv2'), names().length, box.querySelector('input').value, {marked}]",
            [True, 5, "", "conv2"]),
        ("0", f"{FIND}('nothing')", False),
    )  # fmt: skip


def test_rows_are_shown_by_pages(lab):
    many = table([[f"f{at}", at / 1e3, at, 0.1, at, True, "net", None] for at in range(1, 151)])
    by_n = "{sort: {key: 'n', direction: -1}, keyOf: (row) => row.name}"
    make(lab, by_n, many)
    again = "Show 30 more"
    walk(lab,
        ("0", f"[names()[0], ...{MORE}]", ["f150", 20, "Show 100 more", "Show all 150"]),
        ("press('Show 100 more')", f"[...{MORE}, {FOCUS}textContent]", [120, again, again]),
        ("press('Show 30 more')", f"[...{MORE}, {FOCUS}className]", [150, "scroll rows"]),
    )  # fmt: skip
    make(lab, by_n, many)
    walk(lab, ("press('Show all 150')", MORE, [150]))
    # A row that an address names is shown, and the page that it is on.
    for row, shown in (("f130", 40), ("f131", 20), ("f11", 150)):
        make(lab, by_n, many)
        walk(lab, ("0", f"[{FIND}('{row}'), names().length]", [True, shown]))


def test_a_filter_of_the_address_keeps_the_rows_of_a_module(lab):
    make(lab)
    both = ["conv2", "=add|m<n"]
    walk(lab, (f"{KEEP}({{module: 'net.a'}})", NAMES, both), (f"{KEEP}({{}})", "names().length", 5))
    make(lab, "{moduleOf: (row) => row.flag ? row.module : null}")
    walk(lab, (f"{KEEP}({{module: 'net'}})", NAMES, both))


# ---- Trees

NODES = [
    # path, time, inside
    ("a", 5, [("a.x", 2, [("a.x.deep", 1, [])]), ("a.y", 3, [])]),
    ("b", 9, []),
    ("(part)", 20, []),
]


def grow(lab, more="{}", nodes=NODES):
    """Make a tree of these nodes in the box."""

    def rows(some):
        return [row for path, seconds, inside in some for row in ([path, seconds], *rows(inside))]

    columns = [
        {"key": key, "label": key.removesuffix("_s"), "unit": unit, "reason": None, "meaning": "m"}
        for key, unit in {"path": "text", "self_s": "s"}.items()
    ]
    made = {"columns": columns, "rows": rows(nodes), "total": len(rows(nodes)), "left_out": None}
    spec = f"""
        {{sort: {{key: 'path', direction: 1}}, inOrder: 'path', keyOf: (row) => row.path,
          levels: [['roots', 0], ['all', 9]], ...{more}}}
    """
    make(lab, spec, made)
    lab.script("grow_tree", NODES=json.dumps(nodes))


ALL = ["a", "a.x", "a.x.deep", "a.y", "b", "(part)"]
DEEP, SHUT = ["a", "a.x", "a.x.deep"], ["a", "b", "(part)"]
OPEN = ["a", "a.x", "a.y", "b", "(part)"]
SEEK = "seek('%s'), await lab.rest(120)"


def test_a_tree_folds_sorts_within_levels_and_has_parts_last(lab):
    grow(lab, "{ways: (node) => node.part ? null : [T.dom.el('a', {href: '#x'}, 'source')]}")
    ways = "[...box.querySelectorAll('.row-ways a')].slice(0, 2).map((one) => one.ariaLabel)"
    down = ["b", "a", "a.y", "a.x", "a.x.deep", "(part)"]
    folded = [["b", "a", "a.y", "a.x", "(part)"], "a"]
    walk(lab,
        ("0", "[names(), expanded()]", [SHUT, ["false", None, None]]),
        ("press('all')", NAMES, ALL),
        ("0", "expanded()", ["true", "true", None, None, None, None]),
        ("0", ways, ["source of a", "address of a"]),
        ("0", "box.querySelector('.count').textContent", "6 of 6 rows shown"),
        ("press('self')", NAMES, down),
        ("press('self')", NAMES, ALL),
        ("press('path')", NAMES, ALL),
        ("press('path')", NAMES, down),
        ("press('roots')", NAMES, ["b", "a", "(part)"]),
        ("box.querySelector('button.twig').click()", f"[names(), {FOCUS}dataset.key]", folded),
    )  # fmt: skip


def test_a_tree_is_searched_with_the_rows_around_what_is_found(lab):
    grow(lab)
    marked = "box.querySelector('.marked')?.querySelector('td button:not(.twig)').textContent"
    walk(lab,
        (SEEK % "deep", "[names(), expanded(), box.querySelector('.count').textContent]",
            [DEEP, ["true", "true", None], "3 of 6 rows shown"]),
        ("0", f"[{FIND}('a.y'), names(), {marked}]", [True, OPEN, "a.y"]),
        (SEEK % "self>=5s", NAMES, SHUT),
    )  # fmt: skip
    grow(lab)
    walk(lab,
        (f"{KEEP}({{module: 'a.x'}})", NAMES, DEEP), (f"{KEEP}({{}})", NAMES, SHUT),
        ("tree.put([roots[1]])", NAMES, ["b"]),
    )  # fmt: skip


def test_arrows_walk_through_a_tree(lab):
    grow(lab)
    lab.js("box.querySelector('tbody tr').focus()")
    moves = """
        Right OPEN 0, Right OPEN 1, Right ALL 1, Right ALL 2, Right ALL 2, Left ALL 1, Left OPEN 1,
        End OPEN 4, Down OPEN 4, Left OPEN 4, Up OPEN 3, Home OPEN 0, Up OPEN 0, Left SHUT 0
    """
    states = {"OPEN": OPEN, "ALL": ALL, "SHUT": SHUT}
    for move in moves.split(","):
        name, rows, at = move.split()
        key = name if name in ("End", "Home") else f"Arrow{name}"
        assert lab.js(f"key('{key}')") == [states[rows], int(at), True], move
    tabs = "[...box.querySelectorAll('tbody tr')].map((one) => one.tabIndex)"
    buttons = "[...box.querySelectorAll('td button:not(.twig)')].map((one) => one.tabIndex)"
    searched = SEEK % "deep" + ", box.querySelector('tbody tr').focus()"
    walk(lab,
        ("0", "key('x')", [SHUT, 0, False]),
        ("0", "key('ArrowDown', {ctrlKey: true})", [SHUT, 0, False]),
        ("0", f"[{tabs}, {buttons}]", [[0, -1, -1]] * 2),
        ("location.hash = '', key('Enter')", "location.hash", "#operators/a"),
        ("location.hash = '', roots[0].group = true, key('Enter')", "location.hash", ""),
        ("location.hash = '', key('ArrowDown'), press('self'), press('self')", tabs, [-1, 0, -1]),
        # While a search is on nothing is folded.
        (searched, "key('ArrowRight').slice(0, 2)", [DEEP, 1]),
        ("0", "key('ArrowLeft').slice(0, 2)", [DEEP, 0]),
    )  # fmt: skip


def test_a_long_tree_is_drawn_a_stretch_at_a_time(lab):
    grow(lab, "{}", [(f"n{at:03}", at, []) for at in range(1, 451)])
    left = "[...box.querySelectorAll('.left-out')].map((one) => one.textContent.slice(0, 15))"
    again = "spec.table.total = 500, box.replaceChildren(), T.table.makeTree(box, spec)"
    walk(lab,
        ("0", MORE, [200, "Show 200 more", "250 unfolded rows are left"]),
        ("press('Show 200 more')", f"[at(), ...{MORE}]", [200, 400, "Show 50 more"]),
        (again, f"[{FIND}('n140'), names().length]", [True, 200]),
        ("0", f"[{FIND}('n300'), names().length]", [True, 349]),
        ("0", "[...box.querySelectorAll('tr')].findIndex((one) => one.matches('.marked'))", 300),
        ("0", left, ["450 of 500 rows"]),
    )  # fmt: skip
