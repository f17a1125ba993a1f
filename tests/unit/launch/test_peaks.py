"""Peaks of the machine: measured once in a process of their own, kept whole, never an exception."""

import json
import os
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from profstack.analysis.roofline import read_peaks
from profstack.launch import peaks
from profstack.launch.peaks import Machine, better, cached, keep, keep_peaks, measured
from tests.support.recordings import Run

HERE = Machine("cpu", "A CPU", "A CPU", 1, "2.13.0")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PROFSTACK_PEAKS", raising=False)
    return tmp_path / "cache" / "profstack" / "peaks.json"


def entry(dtype, value, hours=0.0, **more):
    then = (datetime.now(timezone.utc) - timedelta(hours=hours)).isoformat()
    known = {"dtype": dtype, "value": value, "how": "by hand", "measured_at": then}
    return {**known, "disturbed": False, **more}


MEMORY = entry("memory", 1e10)


def ticks(seconds, busy=1.0):
    """A clock of virtual time; a call takes `seconds` and busies the CPU for `busy` of them."""
    clock = SimpleNamespace(calls=0, wall=0.0, used=0.0, waits=0)

    def call():
        taken = seconds(clock.calls)
        clock.calls += 1
        clock.wall += taken
        clock.used += taken * busy

    clock.now, clock.cpu, clock.call = lambda: clock.wall, lambda: clock.used, call
    clock.synchronize = lambda: vars(clock).update(waits=clock.waits + 1)
    return clock


def test_a_rate_is_that_of_the_fastest_of_some_long_blocks():
    # Every third call is three times as fast; the block of 20 ms has one call each.
    clock = ticks(lambda calls: 0.02 if calls % 3 == 2 else 0.06, busy=0.75)
    assert peaks._fastest(clock.call, 0.3, "cpu", clock) == pytest.approx((0.02, 0.75))
    # Three calls to find out how long one takes, then blocks for 0.3 s.
    assert clock.waits == clock.calls == 3 + 7
    # A block lasts 20 ms on a CPU, 50 ms on a GPU; there are three at least, fewer of slow calls.
    for seconds, kind, blocks, calls in (
        *((0.005, "cpu", 3, 4), (0.005, "cuda", 3, 10), (0.011, "cpu", 3, 2), (0.02, "cpu", 3, 1)),
        *((0.059, "cpu", 3, 1), (0.061, "cpu", 2, 1), (0.5, "cpu", 1, 1)),
    ):
        clock = ticks(lambda _, seconds=seconds: seconds)
        peaks._fastest(clock.call, 0.03, kind, clock)
        assert clock.calls == 3 + blocks * calls


class Device:
    """Stands for torch on a device: what was multiplied and copied, on a clock of its own."""

    float32, float16, bfloat16, __version__ = "float32", "float16", "bfloat16", "2.13.0"
    set_num_threads = init = get_num_threads = lambda self, *_: self.threads
    get_device_name = lambda self: "G"  # noqa: E731
    zeros_like = lambda self, tensor: tensor  # noqa: E731

    def __init__(self, rate, threads=1, busy=1.0):
        self.rate, self.threads, self.products, self.copied = rate, threads, {}, 0
        self.clock, self.matmul = ticks(lambda _: self.next_s, busy), SimpleNamespace()
        self.cuda, self.backends = self, SimpleNamespace(cuda=self)

    def _tensor(self, size, *_, device="", dtype=""):
        made = SimpleNamespace(size=size, dtype=dtype, copy_=self._copy)
        made.to = lambda dtype: SimpleNamespace(**{**vars(made), "dtype": dtype})
        return made

    rand = empty = ones = _tensor

    def mm(self, a, b, out=None):
        self.products[a.size, a.dtype, self.matmul.allow_tf32] = True
        self.next_s = 2 * a.size**3 / self.rate(a.size)
        self.clock.call()

    def _copy(self, source):
        self.copied = source.size
        self.next_s = 8 * source.size / self.rate(0)
        self.clock.call()


@pytest.fixture
def found(monkeypatch):
    """What is found on a made-up device: the rates, how much is told of them, and the machine."""

    def found(device, dtypes, kind="cpu", load=0.0, cores=8, limit=None):
        facts = {"memory_limit_bytes": limit, "cpu": "C"}
        monkeypatch.setattr(peaks, "Clock", lambda torch: device.clock)
        monkeypatch.setattr(peaks, "environment_facts", lambda: facts)
        monkeypatch.setattr(os, "cpu_count", lambda: cores)
        monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0), raising=False)
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, "torch", device)
            said = peaks.peaks(dtypes, kind, device.threads)
        names = ("dtype", "value", "disturbed", "how")
        return [tuple(each[name] for name in names) for each in said["peaks"]], said["machine"]

    return found


PRODUCT = "product of two %d x %d matrices, the best of several sizes"
COPY = "copy of %d MiB, bytes read and bytes written counted once each (a line fetched only to be "
COPY += "overwritten is not)"
BUSY = f"; {peaks.OTHER_WORK} (%s): it may be more"


def test_rates_of_a_cpu(found):
    # In FLOP/s; 512 is best, and 2048 would take longer than there is time for. Copies in bytes/s.
    rates = {0: 3e9, 256: 30e9, 512: 70e9, 1024: 50e9}
    device = Device(lambda size: rates.get(size, 90e9), threads=4, busy=3.0)
    rate, busy = pytest.approx(70e9), BUSY % "this had 75 % of it"
    rows, machine = found(device, ["float32", "tf32"])
    assert rows == [
        ("float32", rate, True, PRODUCT % (512, 512) + busy),
        ("tf32", None, False, "ValueError: TF32 is a mode of CUDA's tensor cores"),
        ("memory", pytest.approx(3e9), True, COPY % 256 + busy),
    ]
    assert machine == vars(Machine("cpu", "C", "C", 4, "2.13.0"))
    assert list(device.products) == [(size, "float32", False) for size in (256, 512, 1024)]
    assert device.copied == 256 << 18
    # More than half of the cores is a crowd, besides two threads of our own; limits of memory.
    for load, cores, crowd, limit, mib in (
        *((9.0, 8, True, None, 256), (6.1, 8, True, 1 << 40, 256), (6.0, 8, False, 800 << 20, 100)),
        (2.6, None, True, None, 256),
    ):
        device = Device(lambda size: 3e9, threads=2, busy=1.62)
        rows, _ = found(device, [], load=load, cores=cores, limit=limit)
        how = BUSY % f"the load average was {load} on {cores or 1} cores" if crowd else ""
        assert rows == [("memory", pytest.approx(3e9), crowd, COPY % mib + how)]


def test_on_a_gpu_the_precision_is_chosen_and_no_share_of_the_cpu_is_asked_for(found):
    device = Device(lambda size: size * 1e10 or 3e12, threads=64, busy=0.1)
    types = {"tf32": "float32", "float32": "float32", "float16": "float16"}
    rows, machine = found(device, list(types), "cuda:0", load=99.0, limit=1 << 20)
    rate, how = pytest.approx(8192 * 1e10), PRODUCT % (8192, 8192)
    products = [(dtype, rate, False, how) for dtype in types]
    assert rows == [*products, ("memory", pytest.approx(3e12), False, COPY % 512)]
    assert machine == vars(Machine("cuda", "G", "C", None, "2.13.0"))
    # The first small product opens the device.
    assert list(device.products) == [
        (size, stored, dtype == "tf32")
        for dtype, stored in types.items()
        for size in (64, 2048, 4096, 8192)
    ]


def test_every_part_of_a_machine_has_its_own_peaks():
    keep(HERE, [entry("float32", 3e9), MEMORY])
    rate = {"value": 3e9, "how": "by hand", "source": "measured"}
    known = {"device": "A CPU", "threads": 1, "torch": "2.13.0", "reason": None}
    known["measured_at"] = MEMORY["measured_at"]
    rates = {"flop_per_s": [{"dtype": "float32", **rate}], "bytes_per_s": [{**rate, "value": 1e10}]}
    assert cached(HERE, ["float32"]) == known | rates
    assert cached(HERE, ["float32", "float64"]) is None
    for change in ("device cuda", "name B", "cpu B", "threads 2", "torch 2.14"):
        changed = {**vars(HERE), **dict([change.split()])}
        assert cached(Machine(**changed), ["float32"]) is None
    assert Machine("cuda", "G", None, None, "2").key("tf32") == "cuda | G |  |  | 2 | tf32"


def test_a_damaged_file_is_replaced_and_where_there_can_be_none_nothing_is_lost(cache, monkeypatch):
    def damaged(**change):
        rows = [{**entry("float32", 3e9), **change}, MEMORY]
        return json.dumps({"version": 1, "peaks": {HERE.key(row["dtype"]): row for row in rows}})

    cache.parent.mkdir(parents=True)
    for text in (
        *("", "{", "[]", "null", '{"version": 1}', '{"version": 1, "peaks": {"a": 3}}', "\x00"),
        *(damaged(value=value) for value in ("fast", -1.0, 0.0, float("inf"), float("nan"), True)),
        damaged().replace('"how"', '"why"'),
        damaged().replace('"version": 1', '"version": 2'),
    ):
        cache.write_text(text)
        assert cached(HERE, ["float32"]) is None
        keep(HERE, [entry("float32", 3e9), MEMORY])
        assert cached(HERE, ["float32"]) is not None
        assert [path.name for path in cache.parent.iterdir()] == ["peaks.json"]
    # A file stands where its folder would be.
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    keep(HERE, [MEMORY])
    assert cached(HERE, []) is None


def test_what_may_be_better_is_measured_again_an_hour_later_and_the_higher_rate_stands():
    for hours, known, change in (
        (1000, True, {}),
        *((0.9, True, {"disturbed": True}), (1.1, False, {"disturbed": True})),
        *((0.9, True, {"value": None}), (1.1, False, {"value": None})),
        (0, False, {"disturbed": True, "measured_at": "soon"}),
    ):
        keep(HERE, [{**entry("float32", 3e9, hours), **change}, MEMORY])
        assert (cached(HERE, ["float32"]) is not None) is known
    old = entry("float32", 3e9, 2, disturbed=True)
    keep(HERE, [old, MEMORY])
    slower = entry("float32", 2e9)
    # The machine did reach it, whatever slows it down now; the next try is an hour away.
    found = better(HERE, slower)
    assert found == {**old, "tried_at": slower["measured_at"]}
    assert better(HERE, entry("float32", None))["value"] == 3e9
    keep(HERE, [found])
    assert cached(HERE, ["float32"]) is not None


@pytest.fixture
def process(monkeypatch):
    """The process that measures: how it ends, and by `run` how it was started."""
    told = Mock(stdout="", stderr="", returncode=3)
    told.run.return_value = told
    told.answer = lambda rows, **own: json.dumps({"machine": vars(HERE) | own, "peaks": rows})
    known = {**vars(subprocess), "run": told.run}
    monkeypatch.setattr(peaks, "subprocess", SimpleNamespace(**known))
    return told


def test_only_what_is_lacking_is_measured(process):
    keep(HERE, [entry("float32", 9e9), entry("memory", 1e9)])
    rows = [entry("bfloat16", None, how="no"), entry("float16", 2e10), entry("memory", 1e10)]
    process.stdout = "noise\n" + process.answer(rows) + "\n"
    found = measured(HERE, ["float32", "bfloat16", "float16"])
    process.run.assert_called_once()
    (command,) = process.run.call_args.args
    assert command[0] == sys.executable
    assert command[3:] == ["--device", "cpu", "--dtypes", "bfloat16,float16", "--threads", "1"]
    rates = [(rate["dtype"], rate["value"], rate["source"]) for rate in found["flop_per_s"]]
    assert rates == [("float32", 9e9, "measured"), ("float16", 2e10, "measured")]
    assert (found["bytes_per_s"][0]["value"], found["reason"]) == (1e10, "bfloat16: no")
    assert cached(HERE, ["float32", "bfloat16", "float16"]) == found


def test_a_failure_is_a_reason(process, cache):
    usual = {"stdout": "", "stderr": "", "run.side_effect": None}
    for ends, why in (
        ({"stderr": "first\nno torch here\n"}, "no torch here"),
        ({"stdout": "what is this"}, "exit code 3"),
        ({"run.side_effect": OSError("none")}, "OSError: none"),
        ({"stdout": process.answer([], name="B")}, "is B, not A CPU"),
    ):
        process.configure_mock(**usual | ends)
        found = measured(HERE, ["float32"])
        assert (found["flop_per_s"], found["bytes_per_s"], why in found["reason"]) == ([], [], True)
    assert not cache.exists()


def test_a_gpu_has_the_rates_of_its_sheet_by_its_exact_name():
    # Dense; one generation has no TF32 and no bfloat16.
    for names, memory, rates in (
        ("Tesla V100-SXM2-16GB, Tesla V100-SXM2-32GB", 900, {"float64": 7.8, "float16": 125}),
        ("NVIDIA H100 PCIe", 2000, {"float32": 51.2, "tf32": 378, "bfloat16": 756}),
    ):
        for name in names.split(", "):
            found = peaks.sheet(name)
            known = {dtype: found.flop_per_s[dtype] / 1e12 for dtype in rates}
            assert (known, found.bytes_per_s) == (pytest.approx(rates), memory * 1e9)
    assert set(peaks.sheet("Tesla V100-SXM2-16GB").flop_per_s) == {"float64", "float32", "float16"}
    for name in ("NVIDIA H100", "H100 80GB HBM3", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "", None):
        assert peaks.sheet(name) is None


def recording(folder, **environment):
    """A recording of float32, a little float16, and too little float64."""
    run = Run(folder)
    facts = {"device": "cpu", "torch": "2.13.0", "torch_threads": 1, "gpu": None, **environment}
    run.writer.facts({"environment": facts})
    moved = {"module_id": None, "operator": "aten::mm", "backward": 0, "calls": 1}
    # The least that counts is a hundredth of the time; what has no type counts for nothing.
    times = [("float32", 0.5), ("float32", 0.485), ("float16", 0.01), ("float64", 0.005)]
    rows = [
        {**moved, "dtype": dtype, "total_s": time, "moved_bytes": 10}
        for dtype, time in [*times, (None, 9.0)]
    ]
    run.torch([0.1] * 3, frames={"moved_bytes": rows})
    run.writer.close()
    return folder


@pytest.fixture
def asked(monkeypatch):
    """What was to be measured: a CPU has some rates, a GPU none."""
    asked = []

    def instead(machine, dtypes, _):
        asked.append((machine, dtypes))
        if machine.device == "cuda":
            return peaks.not_measured(machine, "there is none here")
        keep(machine, [*(entry(dtype, 3e9) for dtype in dtypes), MEMORY])
        return cached(machine, dtypes)

    monkeypatch.setattr(peaks, "processor_name", lambda: "A CPU")
    monkeypatch.setattr(peaks, "measured", instead)
    return asked


def test_a_recording_keeps_the_peaks_that_it_was_given_first(tmp_path, asked):
    folder, told = recording(tmp_path / "run"), []
    keep_peaks(folder, tell=told.append)
    assert asked == [(HERE, ["float32", "float16"])]
    assert told == ["profstack: measuring this machine's peaks, once (about 2 s)"]
    kept = read_peaks(folder)
    assert [peak["dtype"] for peak in kept["flop_per_s"]] == ["float32", "float16"]
    assert kept["reason"] is None
    keep(HERE, [entry("float32", 5e9)])
    keep_peaks(folder, tell=told.append)
    keep_peaks(recording(tmp_path / "next"), tell=told.append)
    assert len(told) == len(asked) == 1
    rates = [read_peaks(tmp_path / name)["flop_per_s"][0]["value"] for name in ("run", "next")]
    assert rates == [3e9, 5e9]


def test_later_peaks_are_pending_until_they_are_known(tmp_path, asked):
    folder = recording(tmp_path / "run")
    assert keep_peaks(folder, later=True)
    kept = read_peaks(folder)
    assert ("profstack report" in kept["reason"], kept["flop_per_s"]) == (True, [])
    # What is to be measured again is better than nothing.
    old = entry("float32", 2e9, 2, disturbed=True)
    keep(HERE, [old, entry("float16", 7e9), MEMORY])
    assert (keep_peaks(folder, later=True), asked) == (True, [])
    assert [peak["value"] for peak in read_peaks(folder)["flop_per_s"]] == [2e9, 7e9]
    keep(HERE, [entry("float32", 3e9)])
    assert (keep_peaks(folder, later=True), peaks.are_pending(folder)) == (False, False)
    keep(HERE, [entry("float32", 5e9)])
    assert (keep_peaks(folder, later=True), asked) == (False, [])
    assert read_peaks(folder)["flop_per_s"][0]["value"] == 3e9


def test_a_gpu_has_both_peaks_and_tf32_beside_float32(tmp_path, asked):
    name = "NVIDIA A100-SXM4-40GB"
    folder = recording(tmp_path / "run", device="cuda", gpu=name)
    keep_peaks(folder)
    types = ["float32", "tf32", "float16"]
    assert asked == [(Machine("cuda", name, "A CPU", None, "2.13.0"), types)]
    kept = read_peaks(folder)
    stated = {peak["dtype"]: peak["value"] for peak in kept["flop_per_s"]}
    assert (stated["tf32"], kept["bytes_per_s"][0]["value"]) == (156e12, 1555e9)
    assert {peak["source"] for peak in kept["flop_per_s"]} == {"datasheet"}
    assert "there is none here" in kept["reason"]
