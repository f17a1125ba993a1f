"""Traces of a launch of any number of ranks, made of a small real one, with a planted cause.

    python benchmarks/simulated_ranks.py OUT --ranks 64 --plant straggler [--seed 3] [--steps 40]

A step of a real trace (two ranks with gloo, recorded by this script) is repeated for each rank and
step. What lies between its collectives takes as long as there, times a factor near 1 that is drawn
for each rank and step; a collective begins when the rank comes to it and ends when the last has
come and the bytes are moved at `--bandwidth`. So waits follow from what is planted:

- `equal`: nothing;
- `straggler`: one rank takes longer in the forward pass of each step;
- `late`: the same from the middle of the trace on;
- `node`: all eight ranks of one machine do;
- `imbalance`: ranks take longer the higher they are, in one module;
- `clocks`: machines' clocks are some milliseconds apart, and drift; beside a straggler.

`--links` makes files of so many different ranks only; the others are links to these, whose rank is
told by their name alone. What was planted is in OUT.truth.json. All is drawn from `--seed`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
PLANTS = ("equal", "straggler", "late", "node", "imbalance", "clocks")
# Ranks of a machine.
NODE = 8
# What a planted rank takes longer, of the step.
MORE = 0.4
# How much steps and ranks differ by themselves.
NOISE = 0.02
PAUSE_S = 40e-6
# Differences of clocks, and their drift in a second.
APART_S, DRIFT = 4e-3, 20e-6
# Numbers that have to differ from step to step.
_NUMBERS = ("External id", "Sequence number")
_APART = 1_000_000
_HOST_S = 1.7e9
_BASE = """
import os, sys, torch, torch.distributed as dist
from torch import nn
import torch.multiprocessing as mp

def train(rank, path):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[2])
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.set_num_threads(1)
    blocks = [nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(4)]
    net = nn.Sequential(*blocks)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    schedule = torch.profiler.schedule(wait=3, warmup=3, active=8, repeat=1)
    done = lambda made: rank or made.export_chrome_trace(path)
    with torch.profiler.profile(record_shapes=True, with_stack=True, schedule=schedule,
                                on_trace_ready=done) as profile:
        for _ in range(15):
            x = torch.randn(32, 64)
            optimizer.zero_grad()
            net(x).square().mean().backward()
            for parameter in net.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            profile.step()

if __name__ == "__main__":
    mp.spawn(train, (sys.argv[1],), nprocs=2)
"""


@dataclass(frozen=True)
class Template:
    """A step of the real trace: its text with a place for each number, and what they are.

    `starts` and `ends` are the times of its events in seconds from the step's begin, `numbers`
    those that grow from step to step. `edges` cut the step at its collectives: begin and end of
    each in turn, with its `sizes`. `forward` is where the forward pass lies, `module` one of it.
    """

    text: str
    starts: Floats
    ends: Floats
    is_instant: NDArray[np.bool_]
    numbers: list[int]
    order: list[tuple[str, int]]
    edges: Floats
    sizes: list[int]
    forward: tuple[float, float]
    seconds: float
    header: dict[str, Any]


def recorded() -> Path:
    """Record the small real trace and return its file, which is kept for other runs."""
    path = Path(tempfile.gettempdir()) / "profstack-simulated-ranks.json"
    if not path.is_file():
        with tempfile.TemporaryDirectory() as made:
            script = Path(made) / "base.py"
            script.write_text(_BASE, encoding="utf-8")
            port = str(20_000 + os.getpid() % 20_000)
            command = [sys.executable, str(script), str(path), port]
            subprocess.run(command, check=True, capture_output=True)
    return path


def template(path: Path) -> Template:
    """Return the shortest step of a trace as a template."""
    document = json.loads(path.read_text(encoding="utf-8"))
    events = [each for each in document.pop("traceEvents") if each.get("ph") in "Xisf"]
    marks = [each for each in events if str(each.get("name", "")).startswith("ProfilerStep#")]
    mark = min(marks, key=lambda each: each["dur"])
    first, last = mark["ts"], mark["ts"] + mark["dur"]
    inside = [
        each for each in events
        if first <= each["ts"] and each["ts"] + each.get("dur", 0.0) <= last
        and each.get("cat") != "Trace"
    ]  # fmt: skip
    threads = {tid: at + 1 for at, tid in enumerate(dict.fromkeys(e["tid"] for e in inside))}
    texts, order, numbers = [], list[tuple[str, int]](), list[int]()
    for at, event in enumerate(inside):
        text, places = _with_places(event, threads)
        texts.append(text)
        for name, number in places:
            order.append((name, at if name in ("ts", "dur") else len(numbers)))
            if name not in ("ts", "dur"):
                numbers.append(number)
    starts = np.array([(each["ts"] - first) * 1e-6 for each in inside])
    ends = starts + np.array([each.get("dur", 0.0) * 1e-6 for each in inside])
    met = sorted((starts[at], ends[at], _bytes(each)) for at, each in enumerate(inside)
                 if str(each["name"]).startswith("gloo:"))  # fmt: skip
    forward = [at for at, each in enumerate(inside)
               if str(each["name"]).startswith("nn.Module: Sequential_0")]  # fmt: skip
    return Template(
        ",\n".join(texts), starts, ends, np.array(["dur" not in each for each in inside]),
        numbers, order, np.array([edge for begin, end, _ in met for edge in (begin, end)]),
        [size for _, _, size in met], (starts[forward[0]], ends[forward[0]]),
        mark["dur"] * 1e-6, document,
    )  # fmt: skip


def _bytes(event: dict[str, Any]) -> int:
    sizes = event.get("args", {}).get("Input Dims") or [[1]]
    return int(4 * sum(np.prod(each) for each in sizes))


def _with_places(
    event: dict[str, Any], threads: dict[int, int]
) -> tuple[str, list[tuple[str, int]]]:
    """Return an event's text for `%`, and what its places hold in order."""
    made = {**event, "pid": "@pid@", "tid": threads[event["tid"]], "ts": "@ts@"}
    places: dict[str, int] = {"@ts@": 0}
    if "dur" in event:
        made["dur"], places["@dur@"] = "@dur@", 0
    if isinstance(event.get("id"), int):
        made["id"], places["@id@"] = "@id@", event["id"]
    if given := event.get("args"):
        made["args"] = dict(given)
        for name in _NUMBERS:
            if isinstance(given.get(name), int) and given[name] > 0:
                made["args"][name], places[f"@{name}@"] = f"@{name}@", given[name]
    if str(event["name"]).startswith("ProfilerStep#"):
        made["name"], places["@step@"] = "ProfilerStep#@step@", 0
    text = "  " + json.dumps(made, indent=2).replace("\n", "\n  ").replace("%", "%%")
    text = text.replace('"@pid@"', "@pid@")
    found = re.findall("|".join(map(re.escape, places)), text)
    for place in places:
        form = "%.3f" if place in ("@ts@", "@dur@") else "%d"
        text = text.replace(f'"{place}"', form).replace(place, form)
    return text, [(place.strip("@"), places[place]) for place in found]


# Times ------------------------------------------------------------------------------------------


def arrivals(base: Template, own: Floats, bandwidth: float) -> tuple[Floats, Floats]:
    """Return when each rank's step meets the edges, and when it ends, by rank and step.

    `own` is by what each rank's parts between collectives take longer: by rank, step and part. The
    edges are those of the template in turn: a rank's begin of a collective, and the end for all.
    """
    ranks, steps, _ = own.shape
    lengths = np.diff(np.concatenate(([0.0], base.edges, [base.seconds])))[::2]
    edges = np.zeros((ranks, steps, len(base.edges)))
    ends = np.zeros((ranks, steps))
    now = np.zeros(ranks)
    for step in range(steps):
        for part, length in enumerate(lengths):
            now = now + length * own[:, step, part]
            if 2 * part < len(base.edges):
                edges[:, step, 2 * part] = now
                moved = base.sizes[part] / bandwidth + 20e-6
                now = np.full(ranks, now.max() + moved)
                edges[:, step, 2 * part + 1] = now
        ends[:, step] = now
        # What the profiler does between two steps.
        now = now + PAUSE_S
    return edges, ends


def planted(
    base: Template, ranks: int, steps: int, plant: str, draw: np.random.Generator
) -> tuple[Floats, dict[str, Any]]:
    """Return how much longer each part takes, and what was planted."""
    parts = len(base.edges) // 2 + 1
    own = draw.lognormal(0.0, NOISE, (ranks, steps, 1)) * np.ones((1, 1, parts))
    # The first part has the forward pass: it takes longer by so much of the step.
    first = np.diff(np.concatenate(([0.0], base.edges[:1])))[0]
    more = MORE * base.seconds / first
    truth: dict[str, Any] = {"plant": plant, "ranks": ranks, "more_s": MORE * base.seconds}
    rank = int(draw.integers(ranks))
    if plant in ("straggler", "clocks"):
        own[rank, :, 0] += more
        truth["rank"] = rank
    elif plant == "late":
        own[rank, steps // 2 :, 0] += more
        truth |= {"rank": rank, "since_step": steps // 2}
    elif plant == "node":
        node = rank // NODE
        own[node * NODE : (node + 1) * NODE, :, 0] += more
        truth["node"] = node
    elif plant == "imbalance":
        own[:, :, 0] += more * (np.arange(ranks) / max(ranks - 1, 1))[:, None]
        truth["rank"] = ranks - 1
    return own, truth


def clocks(ranks: int, plant: str, draw: np.random.Generator) -> tuple[Floats, Floats]:
    """Return how far each rank's clock is ahead, and its drift in a second, by its machine."""
    nodes = -(-ranks // NODE)
    is_apart = plant == "clocks"
    ahead = draw.uniform(-APART_S, APART_S, nodes) * is_apart
    drift = draw.uniform(-DRIFT, DRIFT, nodes) * is_apart
    ahead[0] = drift[0] = 0.0
    node = np.arange(ranks) // NODE
    return ahead[node], drift[node]


def text_of(
    base: Template, rank: int, edges: Floats, ends: Floats, clock: tuple[float, float]
) -> str:
    """Return the trace of a rank whose steps meet the edges at these times."""
    steps = []
    begun = 0.0
    known = np.concatenate(([0.0], base.edges, [base.seconds]))
    for step, (met, end) in enumerate(zip(edges, ends, strict=True)):
        new = np.concatenate(([begun], met, [end]))
        starts, stops = np.interp(base.starts, known, new), np.interp(base.ends, known, new)
        starts = (starts * (1.0 + clock[1]) + clock[0]) * 1e6
        lengths = np.maximum(stops * (1.0 + clock[1]) * 1e6 + clock[0] * 1e6 - starts, 0.0)
        values: list[float] = []
        for name, at in base.order:
            if name == "ts":
                values.append(starts[at])
            elif name == "dur":
                values.append(lengths[at])
            elif name == "step":
                values.append(step)
            else:
                values.append(base.numbers[at] + (step + 1) * _APART)
        steps.append(base.text % tuple(values))
        begun = end + PAUSE_S
    header = {**base.header, "baseTimeNanoseconds": int(_HOST_S * 1e9)}
    header["host_name"] = f"node-{rank // NODE}"
    head = json.dumps(header, indent=2)[:-2]
    body = ",\n".join(steps).replace("@pid@", str(1000 + rank))
    return f'{head},\n  "traceEvents": [\n{body}\n  ]\n}}\n'


def write(
    out: Path, ranks: int, steps: int, plant: str, *, seed: int = 0,
    bandwidth: float = 1e9, links: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Write the traces of a launch into a folder, and return what was planted."""
    base, draw = template(recorded()), np.random.default_rng(seed)
    own, truth = planted(base, ranks, steps, plant, draw)
    edges, ends = arrivals(base, own, bandwidth)
    ahead, drift = clocks(ranks, plant, draw)
    truth |= {"ahead_s": ahead.tolist(), "drift": drift.tolist(), "steps": steps}
    out.mkdir(parents=True, exist_ok=True)
    told = base.header.get("distributedInfo", {})
    made = ranks if links is None else min(links, ranks)
    for rank in range(ranks):
        path = out / f"rank{rank}.json"
        path.unlink(missing_ok=True)
        if rank >= made:
            os.link(out / f"rank{rank % made}.json", path)
            continue
        # Of links the name says the rank.
        base.header["distributedInfo"] = {**told, "rank": rank, "world_size": ranks}
        if links is not None:
            base.header.pop("distributedInfo")
        clock = float(ahead[rank]), float(drift[rank])
        path.write_text(text_of(base, rank, edges[rank], ends[rank], clock), encoding="utf-8")
    out.with_name(out.name + ".truth.json").write_text(json.dumps(truth), encoding="utf-8")
    return truth


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the traces, and print what was planted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--plant", choices=PLANTS, default="straggler")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bandwidth", type=float, default=1e9, help="bytes a second")
    parser.add_argument("--links", type=int, help="ranks with a file of their own")
    options = vars(parser.parse_args(arguments))
    truth = write(**options)
    truth.pop("ahead_s"), truth.pop("drift")
    print(json.dumps(truth))


if __name__ == "__main__":
    main()
