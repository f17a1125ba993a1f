"""The figures of the house, on a small checkout whose figures are known."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from conftest import CHECKOUT

sys.path.insert(0, str(CHECKOUT / "scripts"))
import house_figures

FILES = {
    "README.md": "# One\n\nTwo.\n",
    "profstack/__init__.py": '"""Doc."""\n',
    "profstack/shapes.py": """
        from collections.abc import Mapping
        from typing import TYPE_CHECKING, Any
        if TYPE_CHECKING:
            from profstack.store import reader
        Record = Mapping[str, Any]
        Rows = list[Record]
        """,
    "profstack/store/__init__.py": "",
    "profstack/store/reader.py": '''
        """Two

        lines."""
        from typing import Any

        from profstack import shapes
        from profstack.shapes import Record as Row  # as it is called here

        def read(row: "Row", *rest: dict[str, Any]) -> shapes.Rows:
            """Doc."""
            from profstack.store.helper import TEXT
            return [row, TEXT]
        ''',
    "profstack/store/helper.py": '''
        TEXT = """
        one

        two"""

        def lazily() -> object:
            from .reader import read
            return read
        ''',
    "wrappers/tool.py": "import profstack.store.reader\n",
}
PAGE = """
# The house
## 1. The path of a step
`store/reader.py` reads, [helper](../profstack/store/helper.py) helps `profstack/store/reader.py`.
### More
`wrappers/tool.py`, see section 2.1 and `profstack.store`.
## A new layer
`wrappers/tool.py`, then `README.md`
```
# tests are not counted
```
and `tests/test_tool.py`.
## Another
`shapes.py`
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(line.removeprefix(" " * 8) for line in text.split("\n")))
    return tmp_path


def values(checkout: Path) -> dict[str, int | None]:
    return {one.name: one.value for one in house_figures.figures(checkout)}


def test_a_small_checkout_is_measured(checkout: Path) -> None:
    (checkout / "profstack" / "wrappers").symlink_to("../wrappers")
    assert values(checkout) == {
        "modules in profstack/ and wrappers/": 6,
        "modules at the top of profstack/": 2,
        # helper; reader is imported by a wrapper too, and by shapes for its types.
        "modules with exactly one importer, of the same package, under 150 lines": 1,
        "cycles between modules, lazy imports included": 1,
        "the same with imports under TYPE_CHECKING": 1,
        "cycles between packages, lazy imports included": 0,
        "Python lines of code in the package": 6 + 6 + 6 + 1,
        # The alias's definition, and the argument.
        "dict[str, Any] and Mapping[str, Any] in annotations": 2,
        # Within Rows, and as Row.
        "the same with uses of aliases of them": 4,
        "the same with uses of aliases that contain one": 5,
        "files from a step's hook to its cell on the page": None,
        "files touched by the layer memray": None,
        "files touched by a new column": None,
        "README lines": 3,
    }


def test_a_cycle_has_all_its_modules(checkout: Path) -> None:
    modules = house_figures.read_modules(checkout)
    pair = ["profstack.store.helper", "profstack.store.reader"]
    assert house_figures.cycles(house_figures.import_graph(modules)) == [pair]
    with_types = house_figures.cycles(house_figures.import_graph(modules, with_types=True))
    assert with_types == [sorted([*pair, "profstack.shapes"])]


def test_files_are_counted_by_section(checkout: Path) -> None:
    page = checkout / "docs" / "ARCHITECTURE.md"
    page.parent.mkdir()
    page.write_text(PAGE)
    (checkout / "tests").mkdir()
    (checkout / "tests" / "test_tool.py").touch()
    counted = values(checkout)
    assert counted["files from a step's hook to its cell on the page"] == 3
    assert counted["files touched by the layer memray"] == 1
    found = house_figures.documented_files(checkout, "A new column")
    assert found == "docs/ARCHITECTURE.md has no section 'A new column'"
    page.write_text(PAGE.replace("store/reader.py", "store/gone.py"))
    found = house_figures.documented_files(checkout, "The path of a step")
    assert found == (
        "'The path of a step' names what is not there: profstack/store/gone.py, store/gone.py"
    )


def test_the_table_has_both_checkouts(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert house_figures.main([str(checkout), "--against", str(checkout), "--details"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [cell.strip() for cell in lines[0].split("|")[1:-1]] == [
        *("figure", "before", "now", "at most")
    ]
    assert len({len(line) for line in lines if line.startswith("|")}) == 1
    assert "  profstack.store.helper < profstack.store.reader" in lines
    assert any(line.startswith("null (before), files touched by a new column: ") for line in lines)
