"""Match what two sides have: modules, source lines, functions, operators.

Everything is found by dictionaries first; what is left, which is what somebody changed, is compared
text by text. So 50,000 functions take no longer than reading them.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cached_property, partial
from typing import NamedTuple, TypeVar

from profstack.findings.reading import FunctionKey
from profstack.storage.schema.report import Report
from profstack.storage.schema.rows import ModuleRow

Key = TypeVar("Key", bound=Hashable)

# Texts beyond this length are matched by names alone: difflib takes the square of it.
_LONGEST_TEXT = 20_000
# Functions whose texts are compared with one another, on each side.
_MOST_COMPARED = 200
# Files of another name that are compared with one another, on each side.
_MOST_FILES = 20
# Texts that agree by this share are one function that was changed.
_ALIKE = 0.6
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_LIBRARY = re.compile(
    r".*[/\\](?:site-packages|dist-packages)[/\\]|.*[/\\]lib[/\\]python3\.\d+[/\\]"
)


def pair_up(
    before: Iterable[Key], after: Iterable[Key], name: Callable[[Key], Hashable]
) -> tuple[list[tuple[Key, Key]], list[Key], list[Key]]:
    """Pair keys of equal names in their order; return pairs and what is left of both sides."""
    waiting: dict[Hashable, list[Key]] = defaultdict(list)
    for key in after:
        waiting[name(key)].append(key)
    for keys in waiting.values():
        keys.reverse()
    pairs, left = [], []
    for key in before:
        partners = waiting.get(name(key))
        if partners:
            pairs.append((key, partners.pop()))
        else:
            left.append(key)
    return pairs, left, [key for keys in waiting.values() for key in reversed(keys)]


# --- Modules --------------------------------------------------------------------------------------

# Containers that a model is put in, with the name that it then has.
_WRAPPED = re.compile(r"(?:^|(?<=\.))(?:module|_orig_mod|_fsdp_wrapped_module)(?:\.|$)")


@dataclass
class _Node:
    """A module in the tree of its side."""

    path: str
    type: str
    parameters: int | None
    children: dict[str, _Node] = field(default_factory=dict)

    @cached_property
    def shape(self) -> int:
        """A number that equal subtrees share: types, parameters and the children's."""
        return hash((self.kind, tuple(child.shape for child in self.children.values())))

    @property
    def kind(self) -> tuple[str, int | None]:
        return self.type, self.parameters


def _tree(rows: Iterable[ModuleRow]) -> dict[str, _Node]:
    """Return the nodes by path, each child beside its parent; step parts have none."""
    nodes = {row["path"]: _Node(row["path"], row["type"], row["parameters"]) for row in rows}
    for path, node in nodes.items():
        parent, _, name = path.rpartition(".")
        if parent in nodes and not path.startswith("("):
            nodes[parent].children[name] = node
    return nodes


def match_modules(before: Sequence[ModuleRow], after: Sequence[ModuleRow]) -> dict[str, str]:
    """Return the path on the second side of each module of the first that has a partner.

    By path first; then below modules that are matched by the child's type and parameters; then
    whole subtrees that are alike; then what a model is wrapped in is taken off.
    """
    was, now = _tree(before), _tree(after)
    same = [
        path
        for path in was
        if path in now and (path.startswith("(") or was[path].type == now[path].type)
    ]
    found = {path: path for path in same}
    taken = set(same)

    def take(one: _Node, other: _Node) -> None:
        stack = [(one, other)]
        while stack:
            first, second = stack.pop()
            if first.path in found or second.path in taken:
                continue
            found[first.path] = second.path
            taken.add(second.path)
            stack += _children(first, second)

    for path in same:
        for one, other in _children(was[path], now[path]):
            take(one, other)

    def rest() -> tuple[list[_Node], list[_Node]]:
        # The outermost first: a subtree moves as a whole.
        left = [node for path, node in was.items() if path not in found and path[0] != "("]
        free = [node for path, node in now.items() if path not in taken and path[0] != "("]
        return sorted(left, key=_depth), sorted(free, key=_depth)

    ways: tuple[Callable[[_Node], Hashable], ...] = (
        lambda node: node.shape,
        lambda node: (_WRAPPED.sub("", node.path.partition(".")[2]), node.type),
        lambda node: (node.path.rpartition(".")[2], *node.kind),
        lambda node: node.kind if node.parameters else node.path,
    )
    for way in ways:
        for one, other in pair_up(*rest(), way)[0]:
            take(one, other)
    # A root of another class whose children are the same is the same model, renamed.
    left, free = ([node for node in nodes if "." not in node.path] for nodes in rest())
    for one, other in pair_up(left, free, lambda node: node.parameters or node.path)[0]:
        take(one, other)
    return found


def _depth(node: _Node) -> int:
    return node.path.count(".")


def _children(one: _Node, other: _Node) -> list[tuple[_Node, _Node]]:
    """Pair the children of two modules: by name and type, by all below, by kind, by name."""
    ways: tuple[Callable[[tuple[str, _Node]], Hashable], ...] = (
        lambda item: (item[0], item[1].type),
        lambda item: item[1].shape,
        lambda item: item[1].kind,
        lambda item: item[0],
    )
    left, free = list(one.children.items()), list(other.children.items())
    found = []
    for way in ways:
        pairs, left, free = pair_up(left, free, way)
        found += [(first[1], second[1]) for first, second in pairs]
    return found


# --- Source files, lines and functions ------------------------------------------------------------


def library_name(file: str) -> str:
    """Return a library's file without the folder that it is installed in; others as they are."""
    return _LIBRARY.sub("~lib/", file)


@dataclass
class _Text:
    lines: list[str]
    # Name with that of its class, last line and body by the first line of each function.
    spans: dict[int, _Span]


class _Span(NamedTuple):
    name: str
    last: int
    body: str


def _parsed(text: str) -> _Text:
    spans: dict[int, _Span] = {}
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return _Text(text.splitlines(), spans)
    lines = text.splitlines()
    stack: list[tuple[ast.AST, str]] = [(tree, "")]
    while stack:
        node, inside = stack.pop()
        for child in ast.iter_child_nodes(node):
            around = inside
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                around = f"{inside}{child.name}."
                if not isinstance(child, ast.ClassDef):
                    first = min([child.lineno, *(each.lineno for each in child.decorator_list)])
                    last = child.end_lineno or child.lineno
                    body = "\n".join(line.strip() for line in lines[child.lineno : last])
                    spans[first] = _Span(inside + child.name, last, body)
            stack.append((child, around))
    return _Text(lines, spans)


class Sources:
    """Files, lines and functions of the first side on the second, through moved code."""

    def __init__(self, before: Report, after: Report) -> None:
        self._texts: list[dict[str, str]] = [
            {each["file"]: each["text"] for each in report["sources"] if each["text"]}
            for report in (before, after)
        ]
        self._own = [
            {row["file"] for row in report["tables"]["functions"] if row["own"]}
            | {row["file"] for row in report["tables"]["lines"] if row["own"]}
            | set(texts)
            for report, texts in zip((before, after), self._texts, strict=True)
        ]
        self._maps: dict[str, dict[int, int]] = {}
        self._parsed: dict[tuple[int, str], _Text | None] = {}

    @cached_property
    def files(self) -> dict[str, str]:
        """File on the second side of each of the user's own files of the first."""
        pairs: dict[str, str] = {}
        left, free = (sorted(files) for files in self._own)
        for depth in (None, 3, 2, 1):
            found, left, free = pair_up(left, free, partial(_tail, depth))
            pairs.update(found)
        # A renamed file: the one whose text is most alike.
        free = [file for file in free if file in self._texts[1]][:_MOST_FILES]
        for file in [file for file in left if file in self._texts[0]][:_MOST_FILES]:
            score, best = max(((self._alike(file, each), each) for each in free), default=(0.0, ""))
            if score >= _ALIKE:
                pairs[file] = best
                free.remove(best)
        return pairs

    def _alike(self, before: str, after: str) -> float:
        was, now = self._texts[0][before].splitlines(), self._texts[1][after].splitlines()
        if max(len(was), len(now)) > _LONGEST_TEXT:
            return 0.0
        return SequenceMatcher(None, was, now, autojunk=False).ratio()

    def text(self, side: int, file: str) -> _Text | None:
        """Return the parsed text of a file of one side; None where it was not recorded."""
        key = side, file
        if key not in self._parsed:
            text = self._texts[side].get(file)
            self._parsed[key] = None if text is None else _parsed(text)
        return self._parsed[key]

    def line(self, file: str, line: int) -> tuple[str, int] | None:
        """Return the place on the second side of a line of the first; None where it is gone.

        Without both texts it is the same line of the matched file.
        """
        other = self.files.get(file)
        if other is None:
            return None
        if file not in self._maps:
            self._maps[file] = self._line_map(file, other)
        lines = self._maps[file]
        if not lines:
            return other, line
        return (other, lines[line]) if line in lines else None

    def _line_map(self, file: str, other: str) -> dict[int, int]:
        was, now = self.text(0, file), self.text(1, other)
        if was is None or now is None or max(len(was.lines), len(now.lines)) > _LONGEST_TEXT:
            return {}
        found: dict[int, int] = {}
        stripped = [[line.strip() for line in text.lines] for text in (was, now)]
        matcher = SequenceMatcher(None, stripped[0], stripped[1], autojunk=False)
        gone: list[int] = []
        new: list[int] = []
        for tag, first, last, start, end in matcher.get_opcodes():
            same = tag == "equal" or (tag == "replace" and last - first == end - start)
            if same:
                found.update(
                    zip(range(first + 1, last + 1), range(start + 1, end + 1), strict=True)
                )
            else:
                gone += range(first, last)
                new += range(start, end)
        # Lines that moved past others; a short one, such as a bracket, is no sign of that.
        names = pair_up(
            [(0, at) for at in gone if len(stripped[0][at]) > 3],
            [(1, at) for at in new if len(stripped[1][at]) > 3],
            lambda place: stripped[place[0]][place[1]],
        )[0]
        found.update({one[1] + 1: other[1] + 1 for one, other in names})
        return found

    def class_place(self, side: int, name: str) -> tuple[str, int] | None:
        """Return the file and line of a class of the user's own by its name: of its `forward`.

        Of its first method where it has none.
        """
        for file in sorted(self._texts[side]):
            text = self.text(side, file)
            lines = {span.name: first for first, span in text.spans.items()} if text else {}
            methods = [at for method, at in lines.items() if method.rpartition(".")[0] == name]
            if methods:
                return file, lines.get(f"{name}.forward", min(methods))
        return None

    def function_at(self, side: int, file: str, line: int) -> str | None:
        """Return the name, with its class, of the innermost function around a line."""
        text = self.text(side, file)
        spans = text.spans if text else {}
        around = [first for first, span in spans.items() if first <= line <= span.last]
        return spans[max(around)].name if around else None


def _tail(depth: int | None, file: str) -> str:
    parts = re.split(r"[/\\]", file)
    return file if depth is None else "/".join(parts[-depth:])


def match_functions(
    before: Sequence[FunctionKey], after: Sequence[FunctionKey], sources: Sources
) -> tuple[list[tuple[FunctionKey, FunctionKey]], list[FunctionKey], list[FunctionKey]]:
    """Pair functions: by place, by name in a file, by name, and by their text.

    Return the pairs, and what has no partner on either side.
    """
    files = {file: library_name(file) for file in {key.file for key in (*before, *after)}}
    # Files of the first side by the names that they have on the second.
    there = {file: files.get(sources.files.get(file, file), files[file]) for file in files}
    plain = {
        key.name: _ADDRESS.sub("", key.name) if " at 0x" in key.name else key.name
        for key in (*before, *after)
    }
    own = {key: sources.line(key.file, key.line) for key in before if key.file in sources.files}

    def exact(key: FunctionKey, side: int) -> Hashable:
        if side == 1:
            return files[key.file], key.line, plain[key.name]
        place = own.get(key)
        return there[key.file], place[1] if place else key.line, plain[key.name]

    def named(key: FunctionKey, side: int) -> Hashable:
        return (files if side else there)[key.file], plain[key.name]

    pairs, left, free = _sided(before, after, exact)
    more, left, free = _sided(left, free, named)
    pairs += more
    texts = [_bodies(keys, sources, side) for side, keys in enumerate((left, free))]
    alike = _alike_functions(left, free, texts, sources)
    pairs += alike
    partners = {key for pair in alike for key in pair}
    left = [key for key in left if key not in partners]
    free = [key for key in free if key not in partners]
    return pairs, left, free


def _sided(
    before: Sequence[FunctionKey],
    after: Sequence[FunctionKey],
    name: Callable[[FunctionKey, int], Hashable],
) -> tuple[list[tuple[FunctionKey, FunctionKey]], list[FunctionKey], list[FunctionKey]]:
    """Pair keys whose names are made in another way on each side."""
    pairs, left, free = pair_up(
        [(0, key) for key in before],
        [(1, key) for key in after],
        lambda each: name(each[1], each[0]),
    )
    return (
        [(one[1], other[1]) for one, other in pairs],
        [key for _, key in left],
        [key for _, key in free],
    )


def _bodies(keys: Iterable[FunctionKey], sources: Sources, side: int) -> dict[FunctionKey, str]:
    found = {}
    for key in keys:
        text = sources.text(side, key.file)
        span = text.spans.get(key.line) if text else None
        if span is not None:
            found[key] = span.body
    return found


def _alike_functions(
    left: Sequence[FunctionKey],
    free: Sequence[FunctionKey],
    texts: Sequence[dict[FunctionKey, str]],
    sources: Sources,
) -> list[tuple[FunctionKey, FunctionKey]]:
    """Pair functions of other names or files by their text: equal ones, then the most alike.

    Less of the text has to be alike where name or file are the same, and least where both are the
    only ones of their file without a partner.
    """
    pairs, first, second = _sided(
        [key for key in left if texts[0].get(key)],
        [key for key in free if texts[1].get(key)],
        lambda key, side: texts[side][key],
    )
    alone = [Counter(key.file for key in keys) for keys in (first, second)]
    scores = []
    for one in first[:_MOST_COMPARED]:
        there = sources.files.get(one.file, one.file)
        matcher = SequenceMatcher(None, "", texts[0][one], autojunk=False)
        for other in second[:_MOST_COMPARED]:
            matcher.set_seq1(texts[1][other])
            is_there = there == other.file
            is_alone = is_there and alone[0][one.file] == alone[1][other.file] == 1
            bonus = 0.3 if is_alone or one.name == other.name else 0.1 if is_there else 0.0
            if matcher.real_quick_ratio() + bonus >= _ALIKE and (
                matcher.quick_ratio() + bonus >= _ALIKE
            ):
                scores.append((matcher.ratio() + bonus, one, other))
    taken: set[tuple[int, FunctionKey]] = set()
    for score, one, other in sorted(scores, key=lambda each: -each[0]):
        if score >= _ALIKE and (0, one) not in taken and (1, other) not in taken:
            pairs.append((one, other))
            taken |= {(0, one), (1, other)}
    return pairs
