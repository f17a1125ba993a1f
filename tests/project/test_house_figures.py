"""The figures of the house, on a small checkout whose figures are known."""

import sys

from tests.support.processes import CHECKOUT

sys.path.insert(0, str(CHECKOUT / "scripts"))
import house_figures

FILES = {
    "README.md": "# One\n\nTwo.\n",
    "ARCHITECTURE.md": "## The path of a step\n`store/reader.py`, `profstack/store/reader.py`\n",
    "profstack/__init__.py": '"""Doc."""\n',
    "profstack/store/__init__.py": "",
    "profstack/store/reader.py": """# Reads.
from typing import Any
def read(row: dict[str, Any]) -> None:
    from profstack.store.helper import TEXT
""",
    "profstack/store/helper.py": "TEXT = 1\n\ndef lazily():\n    from .reader import read\n",
    "wrappers/tool.py": "import profstack.store.reader\n",
    "tests/unit/store/test_reader.py": "one\n\nthree\n",
}


def test_a_small_checkout_is_measured(tmp_path, capsys):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    expected = {
        "modules in profstack/ and wrappers/": 5,
        # The helper: a wrapper imports the reader, too.
        "modules with exactly one importer, of the same package, under 150 lines": 1,
        "cycles between modules, lazy imports included": 1,
        "Python lines of code in the package": 3 + 3 + 1,
        "dict[str, Any] and Mapping[str, Any] in annotations": 1,
        "files from a step's hook to its cell on the page": 1,
        "modules without a test file of their name": 2,
        "lines of tests": 3,
    }
    assert house_figures.main([str(tmp_path)]) == 0
    lines = (line.split("|") for line in capsys.readouterr().out.splitlines() if "|" in line)
    found = {cells[1].strip(): cells[2].strip() for cells in lines}
    assert {name: found[name] for name in expected} == {n: str(v) for n, v in expected.items()}
