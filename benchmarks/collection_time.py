"""What the pytest plugin adds to the collection of tests that do not use it.

    python benchmarks/collection_time.py [--pairs 20] [--tests 500]

`pytest --collect-only` runs with and without the plugin by turns, in fresh processes. Printed is
the ratio of the medians with its interval, from pairs of neighbours.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from profstack.stats.summary import pooled_ratio

_PLUGIN = ("-p", "profstack.pytest_plugin")


def collect_s(folder: Path, plugin: tuple[str, ...]) -> float:
    """Return the seconds of one collection in a fresh process."""
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    began = time.perf_counter()
    subprocess.run(
        [*words, *plugin, str(folder)], check=True, env=environment, stdout=subprocess.DEVNULL
    )
    return time.perf_counter() - began


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
            order = ((), _PLUGIN) if number % 2 else (_PLUGIN, ())
            times = {plugin: collect_s(folder, plugin) for plugin in order}
            if number:
                pairs.append(([times[_PLUGIN]], [times[()]]))
    ratio = pooled_ratio(pairs)
    with_s, without_s = (median(pair[side][0] for pair in pairs) for side in (0, 1))
    print(f"{arguments.tests} tests: {without_s:.3f} s without, {with_s:.3f} s with the plugin")
    print(f"ratio {ratio.factor:.3f} (95 % interval {ratio.low:.3f} to {ratio.high:.3f})")


if __name__ == "__main__":
    main()
