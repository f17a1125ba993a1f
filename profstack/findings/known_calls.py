"""Calls that are known to be slow at what they do, by the text of a line, and what to do instead.

A finding knows which line takes the time; where that line says why, its advice begins with it.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache

from profstack.findings import reading
from profstack.storage.schema.report import Place, Report


@dataclass(frozen=True)
class KnownCall:
    """A call by its text; one that is `around` the time may be on another line of the function.

    One `in_loop` is slow only in a loop of its function, or on an attribute, which stays. The
    pattern of one of `two_lines` goes over a line and the next one.
    """

    pattern: re.Pattern[str]
    advice: str
    around: bool = False
    in_loop: bool = False
    two_lines: bool = False


def _known(
    pattern: str,
    advice: str,
    *,
    around: bool = False,
    in_loop: bool = False,
    two_lines: bool = False,
) -> KnownCall:
    return KnownCall(re.compile(pattern), advice, around, in_loop, two_lines)


_JOINS = r"(?:torch\.(?:cat|hstack|vstack)|np\.(?:append|concatenate|[hv]stack)|pd\.concat)"
# Along another dimension two different things are joined.
_ALONG_FIRST = r"(?!.*\b(?:dim|axis)\s*=\s*(?!0\b))(?!.*[\])]\s*,\s*-?[1-9])"
# What torchmetrics and the like call their results.
_METRIC = r"(?:metric|accuracy|acc|precision|recall|f1|auroc|auc|score|loss|iou|map)s?"
KNOWN_CALLS = (
    _known(
        r"\.(?:iterrows|itertuples)\(",
        "Rows of the table are gone through one by one ({text}): compute with whole columns.",
        around=True,
    ),
    _known(
        r"\.apply\(.*\baxis\s*=\s*(?:1|[\"']columns[\"'])",
        "apply(axis=1) calls Python for each row: compute with whole columns.",
        around=True,
    ),
    _known(
        rf"(?<![\w.])(\w[\w.]*)\s*=\s*{_JOINS}\(\s*[\[(]?\s*\1(?![\w.]){_ALONG_FIRST}",
        "What grows is copied as a whole each time ({text}): collect the parts in a list, and join "
        "them once at the end.",
        around=True,
        in_loop=True,
    ),
    _known(
        r"\bnot in ([\w.]+)\s*:\s*\1\.append\(",
        "Each is searched for in the list `{0}` from its start: keep a set, or a dictionary, "
        "beside it.",
        around=True,
        in_loop=True,
        two_lines=True,
    ),
    _known(
        r"(?<![\w.])(?!operator\.)([a-z_][\w.]*)\.index\((?![\"'])",
        "`{0}` is searched from its start each time ({text}): beside a list, keep a dictionary "
        "from each item to its place.",
        around=True,
        in_loop=True,
    ),
    _known(
        r"\bdeepcopy\(",
        "deepcopy copies all of an object each time: read what is needed without a copy of it (of "
        "a model its state_dict(), which shares memory), or copy it once and update the copy.",
    ),
    _known(
        r"\bchoice\(.*\breplace\s*=\s*False",
        "A draw without replacement puts all of them in a new order (numpy.random.choice): "
        "numpy.random.default_rng().choice draws as few as are asked for.",
    ),
    _known(
        r"\bchoices?\(.*\b(?:p|weights)\s*=",
        "A draw with probabilities goes through all of them: draw many at once, or keep their sums "
        "(numpy.searchsorted, a tree of sums).",
    ),
    _known(
        r"(?<![\w.])(\w[\w.]*)\s*/\s*(?:\1\.sum\(|(?:np|torch)\.sum\(\1\b)",
        "All of `{0}` is summed up and divided each time: keep the sum up to date, or keep the "
        "result where nothing has changed.",
    ),
    _known(
        rf"(?i:(?<![a-z]){_METRIC}\w*(?:\[[^\]]*\])?\.compute\(\))",
        "compute() goes through all that was collected so far: collect in each step, and compute "
        "once per epoch or every N steps.",
    ),
    _known(
        r"\bhistogram\(|\bhistc\(|\.add_histogram\(",
        "A histogram is made each time: where it is only looked at, every N steps are enough.",
    ),
    _known(
        r"\bImage\.open\(|\bimread\(|\bread_image\(|\bdecode_(?:jpeg|png|image)\(",
        "Files are decoded again each time: keep them decoded (in memory, or in an array on disk) "
        "where they fit, or decode them in a DataLoader's workers.",
    ),
    _known(
        r"(?<![\w.])open\((?!.*[\"'][rbt]*[wax+])|\bread_(?:csv|parquet|json|text|bytes)\(|\bnp\.load\(",
        "A file is read each time: read it once, and keep what was read.",
    ),
    _known(
        r"\blinalg\.(?:inv|pinv|solve|svd|eigh?|cholesky)\(|\.(?:inverse|pinverse)\(\)",
        "A matrix is factorised each time: do that once for as long as it stays the same.",
    ),
    _known(
        r"\bplt\.|\.savefig\(|\bimsave\(|\.imshow\(",
        "A picture is drawn each time: draw it every N steps, or after the run.",
    ),
    _known(
        r"\btime\.sleep\(",
        "It waits on purpose (time.sleep).",
    ),
)
_LONGEST = 60


def hint(report: Report, place: Place, *, once: bool = False) -> str:
    """Return what is known of the call on a line, and what to do instead; empty without any.

    Of what may be done once only loops are told, and not what is slow each time.
    """
    text = reading.text_of_file(report, place["file"])
    if not text:
        return ""
    lines = text.splitlines()
    at = place["line"]
    own = lines[at - 1] if 0 < at <= len(lines) else ""
    span = (reading.spans_by_line(text) or {}).get(at)
    around = range(span.first, span.last + 1) if span is not None else ()
    for number, line in ((at, own), *((each, lines[each - 1]) for each in around)):
        for known in KNOWN_CALLS:
            if not known.around and (once or number != at):
                continue
            after = lines[number] if known.two_lines and number < len(lines) else ""
            found = known.pattern.search(_code(line) + after)
            if found and (not known.in_loop or "." in found[1] or _is_in_loop(text, number)):
                return _said(known, found, line)
    return ""


@cache
def _is_in_loop(text: str, number: int) -> bool:
    """Return whether a line of a text is in a loop."""
    loops = (ast.For, ast.AsyncFor, ast.While)
    tree = reading.parse_source(text)
    return tree is not None and any(
        node.lineno < number <= (node.end_lineno or node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, loops)
    )


def _code(line: str) -> str:
    """Return a line without a comment behind it."""
    return re.sub(r"(?:^|\s)#.*", "", line)


def _said(known: KnownCall, found: re.Match[str], line: str) -> str:
    text = _code(line).strip()
    short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return known.advice.format(*found.groups(), text=short) + " "
