"""Speed and memory of importing a trace of torch.profiler, beside `json.load` of the same file.

Run it with `python benchmarks/import_speed.py TRACE.json`, on a quiet machine. The events of the
trace are repeated, each time later, until the file has `--events` of them. Then the file is read to
all tables, and by `json.load` alone, in fresh processes that take turns. Printed are events per
second of wall time, the largest resident set over the file's size, and the ratio of both speeds.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

_STEP = re.compile(r"(ProfilerStep#)(\d+)")


def repeated(source: Path, events: int, target: Path) -> int:
    """Write a trace with at least `events` events, as Kineto lays it out; return their number."""
    document = json.loads(source.read_text(encoding="utf-8"))
    listed = document.pop("traceEvents")
    timed = [event for event in listed if "ts" in event and event.get("ph") != "M"]
    span = max(event["ts"] + event.get("dur", 0) for event in timed)
    span -= min(event["ts"] for event in timed) - 1000
    rounds = -(-events // len(listed))
    with target.open("w", encoding="utf-8") as file:
        head = json.dumps(document, indent=2)[:-2]
        file.write(f'{head},\n  "traceEvents": [\n')
        for number in range(rounds):
            moved = [_moved(event, number, span) for event in listed]
            text = ",\n".join(
                "  " + json.dumps(event, indent=2).replace("\n", "\n  ") for event in moved
            )
            # Kineto writes arguments in one line.
            file.write((",\n" if number else "") + text)
        file.write("\n  ]\n}\n")
    return rounds * len(listed)


def _moved(event: dict[str, object], number: int, span: float) -> dict[str, object]:
    """Return an event of the round with this number: later, with other numbers."""
    made = dict(event)
    if isinstance(made.get("ts"), (int, float)):
        made["ts"] = round(float(str(made["ts"])) + number * span, 3)
    for name in ("id",):
        if isinstance(made.get(name), int):
            made[name] = int(str(made[name])) + number * 1_000_000
    given = made.get("args")
    if isinstance(given, dict):
        given = dict(given)
        for name in ("External id", "correlation", "Sequence number"):
            if given.get(name):
                given[name] += number * 1_000_000
        made["args"] = given
    name = str(made.get("name", ""))
    made["name"] = _STEP.sub(lambda found: f"{found[1]}{int(found[2]) + 1000 * number}", name)
    return made


def read(part: str, path: Path) -> None:
    """Read the file in this process and print the wall time and the largest resident set."""
    begun = time.perf_counter()
    if part == "json":
        with path.open(encoding="utf-8") as file:
            json.load(file)
    else:
        from profstack.readers.formats import Request
        from profstack.readers.torchtrace.importing import take

        begun = time.perf_counter()
        take([path], Request())
    took = time.perf_counter() - begun
    import resource

    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"s": took, "bytes": 1024 * own}))


def apart(part: str, path: Path) -> dict[str, float]:
    """Read the file in a fresh process."""
    command = [sys.executable, __file__, str(path), "--part", part]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    """Print speeds, memory and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--part", choices=("import", "json"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        read(given.part, given.trace)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        count = repeated(given.trace, given.events, path)
        size = path.stat().st_size
        print(f"{count:,} events, {size / 1e6:,.0f} MB, {size / count:.0f} bytes each")
        found: dict[str, list[dict[str, float]]] = {"import": [], "json": []}
        for _ in range(given.rounds):
            for part, results in found.items():
                results.append(apart(part, path))
    speeds = {
        part: median(count / each["s"] for each in results) for part, results in found.items()
    }
    for part, results in found.items():
        memory = max(each["bytes"] for each in results) / size
        print(f"{part:<7}{speeds[part]:>12,.0f} events/s   {memory:5.2f} times the file in memory")
    print(f"import is {speeds['import'] / speeds['json']:.1f} times as fast as json.load alone")


if __name__ == "__main__":
    main()
