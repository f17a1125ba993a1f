"""What the pytest plugin adds to the collection of tests that do not use it.

    python benchmarks/collection_time.py [--pairs 20] [--tests 500]

`pytest --collect-only` runs with and without the plugin by turns, in fresh processes. Printed is
the ratio of the medians of their CPU times with its interval, from pairs of neighbours. The plugin
is handed over as a module: `-p` would read the entry points of all packages once more, which costs
several times what the plugin does. Python may keep its compiled files, as it does by default.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from profstack.stats.summary import pooled_ratio

_WITHOUT = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
_WITH = (
    "import sys, pytest; from profstack import pytest_plugin; "
    "sys.exit(pytest.main(sys.argv[1:], plugins=[pytest_plugin]))"
)


def collect_s(folder: Path, program: str) -> float:
    """Return the CPU seconds of one collection in a fresh process."""
    words = [sys.executable, "-c", program, "--collect-only", "-q", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    began = _children_s()
    subprocess.run([*words, str(folder)], check=True, env=environment, stdout=subprocess.DEVNULL)
    return _children_s() - began


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--tests", type=int, default=500)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tests = "\n".join(f"def test_{number}(): pass" for number in range(arguments.tests))
        (folder / "test_many.py").write_text(tests, encoding="utf-8")
        pairs = []
        for number in range(arguments.pairs + 1):
            # The first of a pair may find other caches than the second.
            order = (_WITHOUT, _WITH) if number % 2 else (_WITH, _WITHOUT)
            times = {program: collect_s(folder, program) for program in order}
            if number:
                pairs.append(([times[_WITH]], [times[_WITHOUT]]))
    ratio = pooled_ratio(pairs)
    with_s, without_s = (median(pair[side][0] for pair in pairs) for side in (0, 1))
    print(f"{arguments.tests} tests: {without_s:.3f} s without, {with_s:.3f} s of CPU time with")
    print(f"ratio {ratio.factor:.3f} (95 % interval {ratio.low:.3f} to {ratio.high:.3f})")


if __name__ == "__main__":
    main()
