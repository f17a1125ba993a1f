"""dom.js: how figures are written, where they come from, and elements of views."""

import json
import math

import pytest

SECONDS = {
    0: "0 s", 4.56e-9: "4.56 ns", 999.4e-9: "999 ns", 999.6e-9: "1.00 µs", 9.996e-6: "10.0 µs",
    99.94e-6: "99.9 µs", 99.96e-6: "100 µs", 0.9994: "999 ms", 0.9996: "1.00 s", 59.94: "59.9 s",
    59.95: "1 min 0 s", 3599.4: "59 min 59 s", 3599.6: "1 h 0 min", -75: "−1 min 15 s",
}  # fmt: skip
BYTES = {
    0: "0 B", 1023: "1023 B", 1023.4: "1023 B", 1024: "1.00 KiB", 2.5: "2.50 B",
    1023 * 1024: "1023 KiB", 10 * 2**20: "10.0 MiB", 3 * 2**30: "3.00 GiB", 5 * 2**40: "5.00 TiB",
    9000 * 2**50: "9000 PiB", -4096: "−4.00 KiB",
}  # fmt: skip
COUNTS = {
    0: "0", 0.12345: "0.123", 1: "1", 2.5: "2.50", 12: "12", 12.34: "12.3", 999.4: "999",
    999.6: "1.00 k", 3e6: "3.00 M", 4e9: "4.00 G", 5e12: "5.00 T", 6e15: "6.00 P", 7e18: "7.00 E",
    8e21: "8000 E", -2500: "−2.50 k",
}  # fmt: skip
SHARES = {
    0: "0.0 %", 0.0009: "<0.1 %", -0.0009: "<0.1 %", 0.001: "0.1 %", 0.0994: "9.9 %", 0.1: "10 %",
    0.254: "25 %", -0.05: "-5.0 %", -0.25: "-25 %", 1.5: "150 %",
}  # fmt: skip


@pytest.mark.parametrize(("function", "table"), [
    ("formatSeconds", SECONDS), ("formatBytes", BYTES), ("formatCount", COUNTS),
    ("formatPercent", SHARES),
    ("formatFactor", {1: "1.00", 9.994: "9.99", 10: "10.0", 123.44: "123.4"}),
    ("formatPlain", {3: "3", 1234567: "1234567", 1 / 3: "0.333333333", 2.5: "2.5"}),
    ("exactPercent", {0.97235: "97.2 %", 1: "100.0 %", 0.0004: "0.0 %"}),
    ("formatWhole", {999: "999", 1234567: "1,234,567"}),
])  # fmt: skip
def test_figures_have_three_digits_and_the_unit_that_fits(lab, function, table):
    lab.check(f"T.dom.{function}", table)
    if function != "formatWhole":
        assert lab.js(f"[null, NaN, Infinity, '3'].map(T.dom.{function})") == ["–"] * 4


def test_each_unit_has_its_format(lab):
    cases = {
        (2048, "bytes"): "2.00 KiB", (2048, "count"): "2.05 k", (2048, "flop"): "2.05 k",
        (2048, "mac"): "2.05 k", (2048, "rate"): "2.05 k", (2048, "plain"): "2048",
        (0.25, "share"): "25 %", (0.25, "s"): "250 ms", (0.25, "text"): "0.25", ("a", "s"): "a",
        (True, "flag"): "yes", (False, "s"): "no", (None, "s"): "–",
    }  # fmt: skip
    lab.check("T.dom.formatValue", cases)
    wanted = [["span.none role=img title=why aria-label=not measured: why “–”"], "0 s"]
    assert lab.js("[T.dom.shown(undefined, 's', 'why'), T.dom.shown(0, 's')]") == wanted


def test_times_close_together_are_told_apart(lab):
    cases = {
        ("[[0.01285, 0.01294], 0.5]", 0.01285): "12.85 ms",
        ("[[0.01285, 0.0129401], 1]", 0.01285): "12.850 ms", ("[[2, 3, null]]", 2.5): "3 s",
        ("[[2, 2.2, 3]]", 2.25): "2.3 s", ("[[2e-6, 2.0000001e-6], 0, 3]", 2e-6): "2.000 µs",
        ("[[0.004, 0.004]]", 0.004): "4.00 ms", ("[[]]", 61): "1 min 1 s",
    }  # fmt: skip
    assert [
        lab.js(f"T.dom.fineSeconds(...{given})({json.dumps(value)})") for given, value in cases
    ] == list(cases.values())
    spans = {
        (0.0100, 0.0101): "10.00 ms – 10.10 ms", (0.0100, 0.01099): "10.0 ms – 11.0 ms",
        (59.9, 59.94): "59.90 s – 59.94 s", (59.9, 60.1): "59.9 s – 1 min 0 s",
        (None, 1): None, (1, None): None,
    }  # fmt: skip
    lab.check("T.dom.spanText", spans)


def test_medians_paths_and_words_and_signs_that_nobody_sees(lab):
    lab.check("(...v) => T.dom.medianOf(v)", {(7, 1, 3): 3, (9, 2, 5, 4): 4.5, (11, 100): 55.5})
    assert lab.js("T.dom.medianOf([])") is None
    tails = {14: "Net.block.conv", 13: "…block.conv", 11: "…block.conv", 10: "…conv", 2: "…conv"}
    lab.check("(most) => T.dom.tailOf('Net.block.conv', most)", tails)
    short = {("a/b/c",): "a/b/c", ("x/a/b/c",): "…/a/b/c", ("x/a/b", 2): "…/a/b"}
    lab.check("T.dom.shortPath", short)
    counts = {(1, "step"): "1 step", (1234, "step"): "1,234 steps", (2, "is", "are"): "2 are"}
    lab.check("T.dom.plural", counts)
    lab.check("T.dom.asText", {("a",): "a", (None,): "–", ((3, None),): "3, –"})
    # 5381 times 33 xor "s" (0x73), and so on for "ä" (0xE4) and "r" (0x72), in 32 bits.
    lab.check("T.dom.hash", {"sär": 193429184, "": 5381})
    signs = {"a\u202eb": "a\\u202eb", "\x1b[31m": "\\u001b[31m", "\x07\x7f": "\\u0007\\u007f"}
    signs |= {"\u2066\x9b": "\\u2066\\u009b", "a\tb\nc": "a\tb\nc", "ä€": "ä€"}
    lab.check("T.dom.visible", signs)
    made = """
        T.dom.el('i', {title: 'a\\u202e', href: 'b\\u202e', hidden: true, lang: null, open: false,
          role: 0}, 'x', [null, ['y\\u200f'], false, undefined], 0, '').outerHTML
    """
    assert lab.js(made) == '<i title="a\\u202e" href="b\u202e" hidden="" role="0">xy\\u200f0</i>'


BARE, SPEED = " in steps that no layer watched", ", told at the speed of the clean steps"
COST = ", with what watching cost"


def test_every_origin_has_its_words_and_a_number_is_told_in_full(lab):
    rate = "clean: operations counted by shapes, over the time of steps that no layer watched"
    names = {
        "CLEAN": f"clean: measured by the step clock{BARE}",
        "RAW_CLOCK": "raw: by the step clock, with whatever was on in that slice",
        "OWN_COUNT": "counted by profstack", "FACT": "a fact about the run, no measurement",
        "CALIBRATED": f"calibrated: seen by the torch layer{SPEED}",
        "RAW_CPROFILE": f"raw: as the cprofile layer saw it{COST}",
        "{kind: 'raw', layer: 'nsys'}": f"raw: as Nsight Systems saw it{COST}",
        "{kind: 'counted', source: 'shapes', layer: 'torch'}": "counted by shapes",
        "{kind: 'rate', over: 'clean', source: 'shapes'}": rate,
        "{words: 'own words', kind: 'raw'}": "own words", "{kind: 'unheard'}": None,
    }  # fmt: skip
    for name, words in names.items():
        assert lab.js(f"T.dom.provenance({name if name[0] == '{' else 'T.dom.' + name})") == words
    column = "T.dom.byRow({unit: 's'}, (row) => row.clean ? T.dom.CLEAN : T.dom.RAW_CLOCK)"
    title = f"(clean) => T.dom.numberTitle(0.1 + 0.2, T.dom.originIn({column}, {{clean}}))"
    # Nine digits: no rest of the addition.
    lab.check(title, {True: f"0.3 s\n{names['CLEAN']}", False: f"0.3 s\n{names['RAW_CLOCK']}"})
    given = [(0.1, "s"), (2048, "bytes"), (7, "flop"), (7, "mac"), (7, "rate"), (7, "plain")]
    told = lab.values("(value, unit) => T.dom.numberTitle(value, {unit})", given)
    assert told == ["0.1 s", "2048 bytes", "7 FLOP", "7 MAC", "7 per second", ""]
    assert lab.js(f"T.dom.numberTitle({math.pi}, {{unit: 'count', words: 'w'}})") == "3.14159265\nw"
