"""Recordings in the making: steps of exact times, or as a seeded model of a real run draws them.

`realistic(tmp_path / "rec", Model(seed=3, evaluation=7))` is a whole run with every layer.
`Run(folder, Model())` draws slice by slice: `run.clean(20)`, `run.torch(5)`; a list gives exact
times: `run.torch([0.012, 0.017, 0.013])`. `run.drawn` keeps each step, `run.rows` each row that was
written: expected values are computed from them by the test's own arithmetic. Every report is held
against the schema that ships with the package.
"""

import json
import math
import random
from collections import namedtuple
from itertools import accumulate
from types import SimpleNamespace

from profstack.analysis.build import build_report
from profstack.report import files
from profstack.storage.folder import Writer
from profstack.storage.reader import Recorded
from profstack.storage.schema.report import REPORT
from tests.support.made_up import made_up
from tests.support.reports import validate

CLEAN_S = 0.010
TORCH_S = 0.012
# Of the steps that `Sampled.even` makes.
STEP_S = 0.02
# A step as it was written.
Step = namedtuple("Step", "step slice kind layer wall_s cpu_s wait_s device_s batch_size flags")
PROBES = {"torch": 1.23, "cprofile": 1.38, "flops": 4.6, "nvtx": 1.07, "memory": 3.7}
_MODEL = {
    "seed": 1, "step_s": 0.0137, "noise": 0.05, "autocorrelation": 0.3, "wait": 0.08,
    "outliers": 0.05, "outlier": 2.7, "batch": 32, "last_batch": 12, "epoch": 11, "evaluation": 0,
    "evaluation_factor": 4.3, "startup": (11.0, 3.1, 1.7), "switch": 1.35, "cores": 1.37,
    "device": None, "probe": PROBES,
}  # fmt: skip


class Model(SimpleNamespace):
    """A run in which no two figures are the same: what its steps take, and what happens in them.

    Times are lognormal about `step_s`, neighbours correlated by `autocorrelation`. A share of
    `outliers` takes `outlier` times longer. The last of `epoch` batches is smaller, and three
    quarters of a step's time are in proportion to the batch.
    Each `evaluation`-th step, if set, holds an evaluation and is flagged. A step waits for its data
    for about the share `wait` of its time. The first steps take `startup` times longer, those
    right after an observer `switch` times; a layer's own the factor in `probe`. `device` is
    the share of device time in a step: None without a device.
    """

    def __init__(self, **own):
        assert own.keys() <= _MODEL.keys()
        super().__init__(**_MODEL | own)


class Run:
    """A recording in the making: slices of steps, one after the other.

    Steps of a number (`run.clean(20)`) are drawn from the model; without one they are constant.
    """

    def __init__(self, folder, rule="optimizer", phase="train", *, model=None):
        (folder / "logs").mkdir(parents=True)
        self.folder = folder
        self.writer = Writer(folder)
        self.steps, self.slices, self.plan, self.now = 0, 0, 0, 1.0
        self.model, self.drawn, self.rows = model, [], {}
        self._chance, self._noise = random.Random(model.seed if model else 0), 0.0
        self.begin_plan(rule, phase)

    @property
    def clean_s(self):
        return [step.wall_s for step in self.drawn if step.kind == "clean" and not step.flags]

    def of(self, *slices):
        return [step for step in self.drawn if step.slice in slices]

    def total(self, table, column, *slices, **keys):
        rows = (row for row in self.rows.get(table, ()) if row.get("slice") in slices)
        same = (row for row in rows if all(row.get(key) == keys[key] for key in keys))
        return math.fsum(row[column] for row in same)

    def begin_plan(self, rule, phase):
        self.plan += 1
        self.phase = phase
        self.writer.facts({f"plan_{self.plan}": {"rule": rule, "phase": phase}})

    def write(self, frames):
        for table, records in frames.items():
            self.rows.setdefault(table, []).extend(records)
        self.writer.write({table: list(records) for table, records in frames.items()})

    def slice(self, kind, walls, *, layer=None, mode=None, left_out=(), frames=None, **own):
        """Write a slice of steps with these times, or as many as the model draws; its number.

        `frames` are the layer's rows, without their slice, or a function that makes them from the
        steps; `left_out` the steps that are not in them. `cpus` are the steps' readings of the CPU
        clock, half of their times if not given.
        """
        index, first, begun = self.slices, self.steps, self.now
        number, settle = own.pop("number", 2), own.pop("settle", 1)
        if isinstance(walls, int):
            flags = own.get("flags") or {}
            steps = [self._draw(kind, layer, place, flags) for place in range(walls)]
        else:
            steps = self._given(kind, layer, walls, **own)
        records = []
        for step in steps:
            record = step._asdict()
            del record["kind"], record["layer"]
            where = {"plan": self.plan, "phase": self.phase, "started_s": self.now}
            records.append({**record, **where, "shape": f"{step.batch_size}x8"})
            self.now += step.wall_s
        counted = [step.wall_s for place, step in enumerate(steps) if place not in left_out]
        row = {"slice": index, "kind": kind, "layer": layer, "mode": mode, "round": number}
        row |= {"plan": self.plan, "phase": self.phase, "first_step": first, "steps": len(steps)}
        row |= {"started_s": begun, "wall_s": sum(step.wall_s for step in steps)}
        row |= {"cpu_s": sum(step.cpu_s for step in steps), "counted_steps": len(counted)}
        row |= {"counted_wall_s": sum(counted), "settle_steps": settle}
        row["stop_s"] = 0.5 if layer else None
        row["switch_s"] = own.pop("switch", 0.001 if index else None)
        given = frames(steps) if callable(frames) else frames or {}
        rows = {table: [{**record, "slice": index} for record in records] for table,
            records in given.items()}  # fmt: skip
        self.steps += len(steps)
        self.slices += 1
        self.drawn += steps
        self.write({"slices": [row], "steps": records, **rows})
        return index

    def _given(
        self, kind, layer, walls, flags=None, batches=None, cpus=None, waits=None, devices=None
    ):
        none, flags, batches = [None] * len(walls), flags or {}, batches or {}
        cpus = cpus or [wall / 2 for wall in walls]
        times = zip(walls, cpus, waits or none, devices or none, strict=True)
        place, at = (self.slices, kind, layer), self.steps
        return [Step(at + n, *place, *each, batches.get(n, 32), flags.get(n, "")) for n,
            each in enumerate(times)]  # fmt: skip

    def _draw(self, kind, layer, place, flags):
        model, chance = self.model or Model(), self._chance
        number = self.steps + place
        share = model.autocorrelation
        fresh = math.sqrt(1.0 - share**2) * model.noise * chance.gauss(0.0, 1.0)
        self._noise = share * self._noise + fresh
        is_last = number % model.epoch == model.epoch - 1
        batch = model.last_batch if is_last else model.batch
        wall = model.step_s * math.exp(self._noise) * (0.25 + 0.75 * batch / model.batch)
        wall *= model.probe.get(layer or "", 1.0)
        words = flags.get(place, "").split()
        if chance.random() < model.outliers:
            wall *= model.outlier
        if kind == "startup" and place < len(model.startup):
            wall *= model.startup[place]
        if "switch" in words:
            wall *= model.switch
        if model.evaluation and number % model.evaluation == model.evaluation - 1:
            words.append("eval")
            wall *= model.evaluation_factor
        cpu = wall * model.cores * chance.uniform(0.93, 1.04)
        wait = model.wait * wall * math.exp(chance.gauss(0.0, 0.4))
        device = None if model.device is None else wall * model.device * chance.uniform(0.97, 1.01)
        flag = " ".join(dict.fromkeys(words))
        return Step(number, self.slices, kind, layer, wall, cpu, wait, device, batch, flag)

    def _times(self, count, wall):
        constant = CLEAN_S if wall is None else wall
        return count if wall is None and self.model is not None else [constant] * count

    def clean(self, count=5, wall=None, **keywords):
        return self.slice("clean", self._times(count, wall), **keywords)

    def torch(self, walls, mode="timed", **keywords):
        return self.slice("torch", walls, layer="torch", mode=mode, **keywords)

    def cprofile(self, walls, mode="timed", **keywords):
        return self.slice("cprofile", walls, layer="cprofile", mode=mode, **keywords)

    def layers(self, **statuses):
        records = [{"name": name, "status": status} for name, status in statuses.items()]
        self.writer.replace("layers", records)

    def recorded(self):
        return Recorded(self.folder)

    def close(self, *, ended=True, run=None):
        if ended:
            self.writer.facts({"counts_by_phase": {self.phase: self.steps}, "recording_ended": 1.0})
        self.writer.close()
        ran = {"id": "x", "exit_code": 0, "signal": None}
        facts = {"script": "train.py", "argv": ["train.py", "--size", "a b"], "run": ran}
        facts["environment"] = {"python": "3", "torch": "2"}
        (self.folder / "logs" / "run.json").write_text(json.dumps(facts if run is None else run))

    def finish(self, **how):
        self.close(**how)
        return report_of(self.folder)


class Sampled(Run):
    """A recording into which samples are put by hand."""

    def __init__(self, folder):
        super().__init__(folder)
        self.frames = {}
        self.rss = 100 * 2**20

    def even(self, count, kind="watch"):
        return self.begins(kind, [STEP_S] * count)

    def begins(self, kind, walls, **frames):
        begins = list(accumulate(walls[:-1], initial=self.now))
        layer = kind if kind == "cprofile" else None
        self.slice(kind, walls, layer=layer, mode="timed" if layer else None, frames=frames)
        self.now += 0.001
        return begins

    def frame(self, stack):
        parent = self.frame(stack[:-1]) if stack else None
        if stack and stack not in self.frames:
            self.frames[stack] = len(self.frames) + 1
            file, line, name = stack[-1]
            row = {"frame": self.frames[stack], "parent": parent, "file": file, "line": line}
            self.writer.write({"watch_frames": [{**row, "name": name, "function_line": 1}]})
        return self.frames.get(stack)

    def samples(self, begin, *found):
        """Samples so long after a time: weight, bytes grown, and the stack."""
        for after_s, weight, grown, *stack in found:
            self.sample(begin + after_s, *stack, weight=weight, grown=grown)

    def sample(self, t_s, *stack, weight=1.0, grown=0, region=None, **flags):
        self.rss += grown
        row = {"t_s": t_s, "frame": self.frame(stack), "region": region, "weight": weight}
        self.writer.write({"watch_samples": [{**row, **flags, "rss_bytes": self.rss}]})


_TREE, _FUNCTIONS = (made_up("recordings")[name] for name in ("tree", "functions"))


def work(layer, steps, chance):
    wall, count = sum(step.wall_s for step in steps), len(steps)

    def spent(share):
        return wall * share * math.exp(chance.gauss(0.0, 0.07))

    if layer == "cprofile":
        rows = []
        for file, line, name, calls, share in _FUNCTIONS:
            own = spent(share)
            times = {"self_s": own, "total_s": own * (1.0 + 3.0 / calls)}
            row = {"file": file, "line": line, "name": name, "calls": calls * count}
            rows.append({**row, "primitive_calls": calls * count - count // 2, **times})
        return {"functions": rows}
    if layer == "nvtx":
        names = [(path, calls) for _, path, _, calls, *_ in _TREE]
        ranges = [{"kind": "module", "name": name, "calls": n * count} for name, n in names]
        return {"ranges": [{**row, "emit_s": spent(0.001) * row["calls"]} for row in ranges]}
    if layer == "flops":
        counts = [{"module_id": number, "operator": name, "backward": backward,
            "calls": calls * count} for number, _, _, calls, *_, operators in _TREE
            for name in operators for backward in (0, 1)]  # fmt: skip
        batches = sum(step.batch_size for step in steps)
        for row in counts:
            row["flop"] = batches * row["calls"] // count * (2 + 3 * row["backward"]) * 1009
        return {"flop_counts": [{"counter": "FlopCounterMode", **row} for row in counts]}
    forward = {number: spent(share) for number, *_, share, _, _ in _TREE}
    backward = {number: spent(share) for number, *_, share, _ in _TREE}
    times, operators = [], []
    for number, path, _, calls, _, _, shares in _TREE:
        under = [other for other, name, *_ in _TREE if name == path or name.startswith(f"{path}.")]
        row = {"forward_self_s": forward[number], "backward_self_s": backward[number]}
        row["forward_s"] = math.fsum(forward[other] for other in under)
        row["backward_s"] = math.fsum(backward[other] for other in under)
        times.append({"module_id": number, "calls": calls * count, **row})
        for is_backward, own in enumerate((forward[number], backward[number])):
            for place, (name, share) in enumerate(shares.items()):
                figures = {"self_s": own * share, "total_s": own * share * (1.0 + 0.1 * place)}
                row = {"module_id": number, "backward": is_backward, "calls": calls * count}
                where = {"name": name, "shapes": f"[[32, {8 + number}]]", "dtype": "float"}
                operators.append({**where, **row, **figures})
    return {"module_times": times, "operators": operators}


def realistic(folder, model=None, *, rounds=3, clean=14, observed=5):
    """A whole run, open for more: start-up, a first round of counts, later rounds of timed layers.

    Slices of a layer grow by 2 steps from round to round, the clean ones by 3.
    """
    model = model or Model()
    run = Run(folder, model=model)
    chance = random.Random(model.seed + 1)
    run.writer.replace("modules", [module(number, path, up) for number, path, up, *_ in _TREE])
    run.slice("startup", 6, number=0, settle=0, flags={0: "discovery"})

    def layer(name, count, mode, **more):
        def frames(steps):
            return work(name, steps, chance)

        run.slice(name, count, layer=name, mode=mode, frames=frames, **more)

    layer("flops", 1, "count", number=1, settle=0)
    for number in range(1, rounds + 1):
        # The first round spends no steps to settle.
        run.clean(clean + 3 * number, number=number, flags={0: "switch"} if number == 1 else {})
        for name in ("torch", "cprofile", "nvtx")[: 3 if number > 1 else 2]:
            settle = 0 if number == 1 else chance.randint(1, 3)
            if settle:
                run.slice("settle", settle, number=number, flags={0: "switch"}, settle=0)
            count = observed + 2 * number if number > 1 else 2
            layer(name, count, "timed", number=number, settle=settle)
            if number > 1:
                run.slice("settle", 2, number=number, flags={0: "switch"}, settle=0)
            run.clean(clean, number=number, flags={0: "switch"} if number == 1 else {})
    run.layers(flops="recorded", torch="recorded", cprofile="recorded", nvtx="emitted")
    return run


def report_of(folder):
    report = json.loads(files.text(build_report(Recorded(folder))))
    validate(report)
    for name, table in REPORT.items():
        for row in report["tables"][name]:
            assert set(table.names) <= set(row), name
    return report


def module_times(module, calls, total_s, **more):
    times = {"forward_s": total_s, "forward_self_s": total_s, "backward_s": 0.0}
    return {"module_id": module, "calls": calls, **times, "backward_self_s": 0.0, **more}


def module(number, path, parent=None):
    row = {"module_id": number, "path": path, "type": path.rpartition(".")[2], "instance": 1}
    return {**row, "parent_id": parent, "aliases": "[]", "parameters": 10}


def operator(name, calls, self_s, **more):
    return {"name": name, "calls": calls, "self_s": self_s, "total_s": self_s, **more}


def function(name, calls, self_s, **more):
    place = {"file": "train.py", "line": 3, "name": name}
    return {**place, "calls": calls, "primitive_calls": calls, "self_s": self_s, **more}


def by(rows, key):
    return {row[key]: row for row in rows}
