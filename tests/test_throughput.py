"""The search for the largest batch: its answer, its numbers, and that nothing takes it down."""

from __future__ import annotations

import contextlib
import errno
import gc
import subprocess
import sys
import weakref
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
from conftest import CHECKOUT, clean_environment

pytestmark = pytest.mark.timed

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402 - torch may be missing

from profstack import environment  # noqa: E402
from profstack.bench import batch_trial, fresh_process, throughput  # noqa: E402
from profstack.bench.batch_trial import (  # noqa: E402
    ENDED,
    FAILED,
    MEASURED,
    REFUSED,
    WORKED,
    DeviceMemory,
    Probe,
    Trial,
    attempt,
    probe_of_error,
)
from profstack.bench.subject import Request, Subject, of_model  # noqa: E402
from profstack.bench.target import load  # noqa: E402
from profstack.bench.throughput import Options, knee, search  # noqa: E402
from profstack.errors import UsageError  # noqa: E402
from profstack.stats.clock import Clock  # noqa: E402

MIB = 2**20
QUICK = Trial(batches=20, measure_s=0.1, warmup_s=0.02, calls=2)

needs_limit = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux limits a process's memory in earnest"
)

# 64 MiB per item, mapped and hardly touched. Three at once are taken in small pieces until there
# are none left, four end the process: what models do that exhaust memory.
TARGET = """
import os
import torch

class Hostile(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.taken = []

    def forward(self, x):
        print("a model that prints, and reads", flush=True)
        if len(x) == 3:
            while True:
                self.taken.append(bytearray(2**20))
        if len(x) >= 4:
            os.kill(os.getpid(), 9)
        assert x.dtype == self.linear.weight.dtype
        torch.empty(len(x), 64 * 2**20, dtype=torch.uint8)
        return self.linear(x)

def hostile():
    return Hostile(), torch.ones(2, 4)
"""


@pytest.fixture(autouse=True, scope="module")
def quick_collections():
    """What other tests left is not looked through at each of the many collections here."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


class Scripted:
    """A prober whose sizes end where it is told, without any process; counts what was asked."""

    def __init__(self, largest: int, status: str = REFUSED) -> None:
        self.memory_limit_bytes = 1000
        self.dtype, self.about = "float32", "made up"
        self.largest, self.status = largest, status
        self.largest_timed = largest
        self.asked: list[tuple[int, bool]] = []

    def attempt(self, batch_size, *, timed):
        self.asked.append((batch_size, timed))
        if batch_size > (self.largest_timed if timed else self.largest):
            return Probe(batch_size, self.status, "made up")
        if not timed:
            return Probe(batch_size, WORKED)
        # A batch takes 1 s and 1 s for each 8 items: half the highest rate at 8.
        latency = 1 + batch_size / 8
        rate = batch_size / latency
        return Probe(batch_size, MEASURED, None, 100, 100 * latency, rate, latency, latency, 10)

    def walk(self, first, last):
        for size in range(first, last + 1):
            probe = self.attempt(size, timed=False)
            yield probe
            if not probe.worked:
                return


@pytest.fixture
def scripted(monkeypatch):
    """Search with a scripted prober, on a model of whom nothing else is asked."""

    def run(prober, how="binary", *, keep=None, tell=None, **options):
        @contextlib.contextmanager
        def instead(*_):
            yield prober

        monkeypatch.setattr(throughput, "_prober", instead)
        subject = of_model(torch.nn.Linear(2, 2), (torch.ones(1, 2),), request=Request("a.py:b"))
        rows, limits = search(subject, search=how, options=Options(**options), keep=keep, tell=tell)
        assert len(limits) == 1
        return rows, limits[0]

    return run


class TestTheSearch:
    def test_ends_with_a_size_that_ran_and_the_next_that_did_not(self, scripted):
        for largest in range(1, 70):
            for how in ("binary", "linear"):
                prober = Scripted(largest)
                rows, found = scripted(prober, how)
                assert found["largest_batch"] == largest
                assert found["limited_by"] == (
                    f"memory: a batch of {largest + 1} was refused (made up)"
                )
                # The neighbour was tried, not inferred.
                assert any(size == largest + 1 for size, _ in prober.asked)
                measured = [row["batch_size"] for row in rows if row["status"] == "measured"]
                powers = [2**k for k in range(8) if 2**k <= largest]
                assert measured == sorted({*powers, largest})

    def test_takes_few_attempts_unless_linear(self, scripted):
        prober = Scripted(1000)
        scripted(prober)
        assert len(prober.asked) == 11 + 9 + 1
        prober = Scripted(1000)
        scripted(prober, "linear")
        assert sum(not timed for _, timed in prober.asked) == 1001

    @pytest.mark.parametrize("how", ["binary", "linear"])
    @pytest.mark.parametrize("cap", [1, 48, 64])
    def test_says_when_its_cap_ended_it(self, scripted, how, cap):
        prober = Scripted(10**9)
        rows, found = scripted(prober, how, max_batch=cap)
        assert found["largest_batch"] == cap
        assert found["limited_by"] == f"the largest size to try: no batch above {cap} was tried"
        assert max(size for size, _ in prober.asked) == cap
        assert rows[-1]["batch_size"] == cap
        assert rows[-1]["status"] == "measured"

    def test_what_was_timed_is_kept_as_it_comes(self, scripted):
        kept = []

        class Interrupted(Scripted):
            def attempt(self, batch_size, *, timed):
                if batch_size == 4:
                    raise KeyboardInterrupt
                return super().attempt(batch_size, timed=timed)

        with pytest.raises(KeyboardInterrupt):
            scripted(Interrupted(10), keep=lambda *found: kept.append(found))
        rows, (limit,) = kept[-1]
        assert [(row["dtype"], row["batch_size"]) for row in rows] == [
            ("float32", 1),
            ("float32", 2),
        ]
        assert limit["largest_batch"] == 2
        assert limit["memory_limit_bytes"] == 1000
        assert limit["limited_by"] == "the search was ended before it was over"
        assert "batches of 3 to 65536 were not tried" in limit["note"]

    def test_a_linear_search_keeps_how_far_it_came(self, scripted):
        kept = []

        class Interrupted(Scripted):
            def walk(self, first, last):
                yield from super().walk(first, 40)
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            scripted(Interrupted(100), "linear", keep=lambda *found: kept.append(found))
        assert kept[-1][0] == []
        assert kept[-1][1][0]["largest_batch"] == 40

    def test_what_is_kept_at_the_end_is_the_answer(self, scripted):
        kept = []
        rows, limit = scripted(Scripted(10), keep=lambda *found: kept.append(found))
        assert [row["batch_size"] for row in kept[-1][0]] == [row["batch_size"] for row in rows]
        assert kept[-1][1][0]["largest_batch"] == limit["largest_batch"] == 10

    def test_a_long_linear_search_is_told_in_few_lines(self, scripted):
        lines = []
        scripted(Scripted(1000), "linear", tell=lines.append)
        untimed = [line for line in lines if line.endswith("worked")]
        assert len(untimed) == 1
        assert any("batch of 1001: refused" in line for line in lines)

    def test_says_when_its_time_ended_it(self, scripted):
        _, found = scripted(Scripted(10**9), max_search_s=-1.0)
        assert found["largest_batch"] is None
        assert found["limited_by"].startswith("the search's time bound of")
        rows, found = scripted(Scripted(10**9), "linear", max_search_s=-1.0)
        # What was found until then is timed all the same.
        assert found["largest_batch"] == 1
        assert [row["status"] for row in rows] == ["measured"]
        assert "batches of 2 to 65536 were not tried" in found["note"]

    @pytest.mark.parametrize(
        ("status", "says"), [(FAILED, "an error at a batch of 16"), (ENDED, "time: a batch of 16")]
    )
    def test_halves_only_what_memory_refused(self, scripted, status, says):
        prober = Scripted(10, status)
        rows, found = scripted(prober)
        assert [size for size, _ in prober.asked] == [1, 2, 4, 8, 16]
        assert found["largest_batch"] == 8
        assert found["limited_by"].startswith(says)
        assert "batches of 9 to 15 were not tried" in found["note"]
        # The report knows sizes with a result, refused ones, and those without one.
        assert rows[-1]["status"] == "failed"
        assert rows[-1]["items_per_s"] is None

    def test_a_first_size_that_does_not_run_is_all_there_is(self, scripted):
        rows, found = scripted(Scripted(0))
        assert found["largest_batch"] is found["knee_batch"] is found["max_items_per_s"] is None
        assert [(row["batch_size"], row["status"]) for row in rows] == [(1, "refused")]

    def test_a_vague_error_is_memory_only_where_smaller_batches_ran(self, scripted):
        class Vague(Scripted):
            def attempt(self, batch_size, *, timed):
                probe = super().attempt(batch_size, timed=timed)
                return replace(probe, certain=probe.worked)

        _, found = scripted(Vague(5, FAILED))
        assert found["largest_batch"] == 5
        assert found["limited_by"] == "a batch of 6 was refused (made up)"
        _, found = scripted(Vague(0, FAILED))
        assert found["limited_by"] == "an error at a batch of 1: made up"

    def test_the_largest_is_one_that_was_also_timed(self, scripted):
        prober = Scripted(100)
        prober.largest_timed = 90
        rows, found = scripted(prober)
        # 100, then a sixteenth less each time.
        assert found["largest_batch"] == 89
        assert {row["batch_size"]: row["status"] for row in rows}[89] == "measured"
        assert "batches up to 100 ran a few times, but not while timed" in found["note"]

    def test_knee_and_maximum_are_by_their_rule(self, scripted):
        rows, found = scripted(Scripted(1000))
        rates = {row["batch_size"]: row["items_per_s"] for row in rows if row["items_per_s"]}
        assert found["max_batch"] == 1000
        assert found["max_items_per_s"] == rates[1000] == pytest.approx(1000 / 126)
        # 8 n / (n + 8) reaches 90 % of 7.94 from n = 67 on.
        assert found["knee_batch"] == 128
        assert found["knee_items_per_s"] == rates[128]
        assert "smallest measured batch with 90 % of the highest rate" in found["note"]


class TestWhatCannotBeSearched:
    def subject(self, **changes):
        request = Request("a.py:b")
        subject = of_model(torch.nn.Linear(2, 2), (torch.ones(1, 2),), request=request)
        return replace(subject, **changes)

    @pytest.mark.parametrize(
        ("changes", "arguments", "says"),
        [
            ({"of_batch": None, "why_no_batches": "they share none"}, {}, "they share none; name"),
            ({"request": None}, {}, "file.py:function"),
            ({}, {"search": "upwards"}, "binary or linear"),
            ({}, {"dtypes": ["float33"]}, "float32, bfloat16"),
            ({}, {"dtypes": ["int8"]}, "no such floating-point type"),
            ({}, {"options": Options(memory_limit_bytes=0)}, "--memory-limit"),
            ({}, {"options": Options(max_batch=0)}, "at least 1"),
        ],
    )
    def test_is_said_with_the_next_step(self, changes, arguments, says):
        with pytest.raises(UsageError, match=says):
            search(self.subject(**changes), **arguments)

    def test_a_limit_that_a_device_cannot_have(self, monkeypatch):
        monkeypatch.setattr(batch_trial, "device_kind", lambda _: "abacus")
        with pytest.raises(UsageError, match="no limit for abacus"):
            search(self.subject(), options=Options(memory_limit_bytes=MIB))


class TestJudgement:
    @pytest.mark.parametrize(
        "error",
        [
            MemoryError(),
            OSError(errno.ENOMEM, "Cannot allocate memory"),
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
            RuntimeError("MPS backend out of memory (MPS allocated: 5 GB)"),
            RuntimeError("XPU out of memory. Tried to allocate 2.00 GiB"),
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
            RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried"),
            RuntimeError("std::bad_alloc"),
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"),
        ],
    )
    def test_memory_is_a_refusal(self, error):
        assert probe_of_error(error, 3).status == REFUSED
        wrapped = RuntimeError("layer 3 failed")
        wrapped.__cause__ = error
        assert probe_of_error(wrapped, 3).status == REFUSED

    @pytest.mark.parametrize(
        "error",
        [
            ValueError("out of memory of the task"),
            OSError(errno.ENOENT, "No such file"),
            RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
            SystemExit(3),
        ],
    )
    def test_another_error_is_none(self, error):
        probe = probe_of_error(error, 3)
        assert (probe.status, probe.certain) == (FAILED, True)
        assert probe.reason.startswith(type(error).__name__)

    def test_what_torch_really_raises_is_known(self):
        with pytest.raises(RuntimeError) as raised:
            torch.empty(2**60, dtype=torch.uint8)
        assert probe_of_error(raised.value, 1).status == REFUSED

    def test_a_reason_is_one_short_line(self):
        reason = probe_of_error(RuntimeError("one " * 200 + "\ntwo"), 1).reason
        assert "\n" not in reason
        assert len(reason) < 250


class FakeDevice:
    """What is used of `torch.cuda`, for machines that have none: an allocator of 800 bytes."""

    def __init__(self) -> None:
        self.fraction = 1.0
        self.seen: list[str] = []

    def empty_cache(self) -> None:
        self.seen.append("empty_cache")

    def reset_peak_memory_stats(self) -> None:
        self.seen.append("reset")

    def max_memory_allocated(self) -> int:
        return 500

    def memory_reserved(self) -> int:
        return 200

    def mem_get_info(self) -> tuple[int, int]:
        return 600, 800

    def get_per_process_memory_fraction(self) -> float:
        return self.fraction

    def set_per_process_memory_fraction(self, fraction: float) -> None:
        self.seen.append(f"fraction {fraction}")
        self.fraction = fraction


class UpTo(torch.nn.Module):
    """Runs out of memory above a batch size, as a device's allocator says it."""

    def __init__(self, largest: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.register_buffer("scale", torch.full((1,), 1 / 3))
        self.largest = largest
        self.dtypes: set[torch.dtype] = set()
        self.held: list[weakref.ref[torch.Tensor]] = []

    def forward(self, x, index):
        assert index.dtype == torch.int64
        self.dtypes.add(x.dtype)
        kept = self.linear(x) * self.scale
        self.held.append(weakref.ref(kept))
        assert not any(ref() is not None for ref in self.held[:-1]), "an earlier batch is held"
        if len(x) > self.largest:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return kept


class TestOnADevice:
    @pytest.fixture
    def device(self, monkeypatch):
        fake = FakeDevice()
        monkeypatch.setattr(torch, "fakegpu", fake, raising=False)
        monkeypatch.setattr(batch_trial, "device_kind", lambda _: "fakegpu")
        return fake

    @pytest.mark.parametrize("how", ["binary", "linear"])
    def test_memory_that_is_out_ends_the_search_and_is_given_back(self, device, how):
        model = UpTo(11)
        subject = of_model(model, (torch.ones(2, 3), torch.zeros(2, dtype=torch.int64)))
        before = {name: value.clone() for name, value in model.state_dict().items()}
        said: list[str] = []
        rows, limits = search(
            subject,
            dtypes=["float32", "bfloat16", "float32"],
            search=how,
            options=Options(trial=QUICK, memory_limit_bytes=400),
            tell=said.append,
        )
        assert [one["dtype"] for one in limits] == ["float32", "bfloat16"]
        assert [one["largest_batch"] for one in limits] == [11, 11]
        assert model.dtypes == {torch.float32, torch.bfloat16}
        assert all("OutOfMemoryError: CUDA out of memory" in one["limited_by"] for one in limits)
        assert [one["memory_limit_bytes"] for one in limits] == [400, 400]
        # The allocator's limit was what is held and 400 more, of 800, and is off again.
        assert device.seen.count("fraction 0.75") == 2
        assert device.fraction == 1.0
        assert device.seen.count("empty_cache") >= len(said) - 2
        for name, value in model.state_dict().items():
            assert value.dtype == torch.float32
            assert torch.equal(value, before[name])
        measured = [row for row in rows if row["status"] == "measured"]
        assert [row["batch_size"] for row in measured] == [1, 2, 4, 8, 11] * 2
        assert {row["peak_memory_bytes"] for row in measured} == {500}
        assert any(line.startswith("batch of 11: measured, ") for line in said)

    def test_without_a_limit_all_that_is_free_is_the_limit(self, device):
        subject = of_model(UpTo(1), (torch.ones(2, 3), torch.zeros(2, dtype=torch.int64)))
        _, (found,) = search(subject, options=Options(trial=QUICK))
        assert found["memory_limit_bytes"] == 600
        assert found["dtype"] == "float32"
        assert not [one for one in device.seen if one.startswith("fraction")]

    def test_an_error_of_the_model_ends_the_search_with_its_words(self, device):
        class Picky(torch.nn.Linear):
            def forward(self, x):
                if len(x) == 4:
                    raise ValueError("not four")
                return super().forward(x)

        rows, (found,) = search(
            of_model(Picky(2, 2), (torch.ones(1, 2),)), options=Options(trial=QUICK)
        )
        assert found["largest_batch"] == 2
        assert found["limited_by"] == "an error at a batch of 4: ValueError: not four"
        assert rows[-1]["status"] == "failed"
        assert rows[-1]["reason"] == "ValueError: not four"

    def test_a_model_that_cannot_be_converted_is_a_row(self, device):
        class Stubborn(torch.nn.Linear):
            def to(self, *_):
                raise TypeError("stays as it is")

        rows, (found,) = search(of_model(Stubborn(2, 2), (torch.ones(1, 2),)), dtypes=["bfloat16"])
        assert found["largest_batch"] is None
        assert found["dtype"] == "bfloat16"
        assert rows[0]["reason"] == "TypeError: stays as it is"


class TestNumbers:
    def test_rate_and_latency_are_of_the_same_batches(self):
        subject = of_model(torch.nn.Linear(64, 64), (torch.ones(2, 64),))
        trial = Trial(batches=120, warmup_s=0.1)
        memory = DeviceMemory(SimpleNamespace())
        probe = attempt(subject.of_batch, 5, trial, Clock(), memory, timed=True)
        assert probe.status == MEASURED
        # Of short calls a sample is several: never fewer batches than asked for.
        assert probe.batches >= 120
        assert probe.items_per_s == pytest.approx(5 * probe.batches / probe.total_s)
        assert 0 < probe.latency_s <= probe.latency_p90_s
        assert probe.latency_s < probe.total_s < probe.batches * probe.latency_p90_s * 50
        assert probe.peak_memory_bytes is None
        assert probe.reason == "this device does not report its peak memory"
        assert Probe(**asdict(probe)) == probe

    def test_fewer_batches_than_asked_for_are_explained(self):
        class Slow(Clock):
            """Each look at the clock is a tenth of a second later than the last."""

            def __init__(self):
                super().__init__()
                self.t = 0.0
                self.now = self.tick

            def tick(self):
                self.t += 0.1
                return self.t

        subject = of_model(torch.nn.Linear(2, 2), (torch.ones(2, 2),))
        trial = Trial(batches=100, measure_s=0.5, warmup_s=1.0)
        memory = DeviceMemory(FakeDevice())
        probe = attempt(subject.of_batch, 1, trial, Slow(), memory, timed=True)
        assert probe.reason == f"{probe.batches} of 100 batches: the time bound is 500 ms"
        assert 3 <= probe.batches <= 5
        assert probe.total_s == pytest.approx(0.1 * probe.batches)
        assert probe.latency_p90_s is None

    def test_gradients_are_as_the_subject_wants_them(self):
        seen = []

        class Looks(torch.nn.Linear):
            def forward(self, x):
                seen.append(torch.is_grad_enabled())
                return super().forward(x)

        for gradients in (True, False):
            subject = of_model(Looks(2, 2), (torch.ones(1, 2),), gradients=gradients)
            memory = DeviceMemory(FakeDevice())
            assert attempt(subject.of_batch, 3, QUICK, Clock(), memory, timed=False).worked
            assert set(seen) == {gradients}
            seen.clear()


class TestConversion:
    def test_inputs_are_converted_before_they_are_made_larger(self):
        class Large(TorchDispatchMode):
            """Sees every tensor with a thousand rows."""

            def __init__(self):
                super().__init__()
                self.dtypes = set()

            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                out = func(*args, **(kwargs or {}))
                if isinstance(out, torch.Tensor) and out.shape[:1] == (1000,):
                    self.dtypes.add((out.dtype, out.dim()))
                return out

        tokens = torch.zeros(2, 3, dtype=torch.int64)
        model = torch.nn.Linear(3, 3)
        subject = of_model(model, (torch.ones(2, 3),), {"tokens": tokens}, gradients=True)
        make = batch_trial.maker(subject, "bfloat16")
        with Large() as seen:
            made = make(1000)
        assert (torch.float32, 2) not in seen.dtypes
        assert (torch.bfloat16, 2) in seen.dtypes
        assert made.inputs[0].dtype == torch.bfloat16
        assert made.named_inputs["tokens"].dtype == torch.int64
        assert made.gradients
        assert model(*made.inputs).dtype == torch.bfloat16
        assert batch_trial.own_dtype(subject) == "bfloat16"

    def test_a_factorys_own_batches_are_converted_too(self):
        def of_batch(size):
            return of_model(torch.nn.Linear(3, 3), (torch.ones(size, 3),))

        subject = replace(of_batch(2), of_batch=of_batch)
        made = batch_trial.maker(subject, "float64")(7)
        assert made.step().dtype == torch.float64
        assert made.step().shape == (7, 3)

    def test_values_come_back_also_after_an_error(self):
        model = torch.nn.BatchNorm1d(3)
        model.weight.data.fill_(1 / 3)
        model.running_mean.fill_(1 / 7)
        tied = model.weight
        subject = of_model(model, (torch.ones(2, 3),))

        def fail():
            assert model.weight.dtype == model.running_mean.dtype == torch.bfloat16
            raise KeyError

        with pytest.raises(KeyError), batch_trial.borrowed(subject, "bfloat16"):
            fail()
        assert model.weight is tied
        assert model.weight.tolist() == torch.full((3,), 1 / 3).tolist()
        assert model.running_mean.tolist() == torch.full((3,), 1 / 7).tolist()
        assert model.num_batches_tracked.dtype == torch.int64


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    path = tmp_path_factory.mktemp("hostile") / "hostile_model.py"
    path.write_text(TARGET)
    return path


@pytest.mark.slow
@needs_limit
def test_a_model_that_exhausts_memory_does_not_take_down_the_search(target):
    subject = load(Request(f"{target}:hostile")).subject
    options = Options(memory_limit_bytes=160 * MIB, trial=QUICK)
    rows, (found,) = search(subject, dtypes=["bfloat16"], options=options)
    by_size = {row["batch_size"]: row for row in rows}
    assert [by_size[size]["status"] for size in (1, 2, 3, 4)] == [
        *("measured", "measured", "refused", "refused")
    ]
    assert "killed by SIGKILL" in by_size[4]["reason"]
    assert by_size[3]["reason"] == "MemoryError"
    assert found["largest_batch"] == 2
    assert found["limited_by"] == "memory: a batch of 3 was refused (MemoryError)"
    assert found["dtype"] == "bfloat16"
    assert found["memory_limit_bytes"] == 160 * MIB
    assert by_size[2]["batches"] >= 1
    peak = by_size[2]["peak_memory_bytes"]
    # What is mapped and not touched is not resident.
    assert peak is None or 0 < peak < 64 * MIB
    # One at a time finds the same, through one process that goes on until it is refused.
    prober = throughput.ChildProber(
        subject.request, "bfloat16", QUICK, limit_bytes=160 * MIB, patience_s=180.0
    )
    walked = list(prober.walk(1, 65536))
    assert [(one.batch_size, one.status) for one in walked] == [
        *((1, WORKED), (2, WORKED), (3, REFUSED))
    ]


@pytest.fixture
def stand_in(monkeypatch):
    """A prober whose processes speak for themselves: real ones, but without torch to wait for."""

    def make(after_ready, before_ready=""):
        code = (
            "import json, os, signal, sys, time\n"
            "asked = json.load(sys.stdin)\n"
            "def say(**answer): os.write(asked['answers'], json.dumps(answer).encode() + b'\\n')\n"
            f"{before_ready}\n"
            "say(ready=dict(allowance_bytes=7, dtype='float16'))\n"
            f"{after_ready}\n"
        )
        monkeypatch.setattr(fresh_process, "_START", code.replace("{", "{{").replace("}", "}}"))
        trial = Trial(measure_s=0.0, warmup_s=0.0)
        return throughput.ChildProber(
            Request("a.py:b"), None, trial, limit_bytes=None, patience_s=5.0
        )

    return make


class TestAProcessThatEnds:
    @pytest.mark.parametrize(
        ("does", "status", "says"),
        [
            ("os.kill(os.getpid(), 9)", REFUSED, "killed by SIGKILL"),
            ("os.abort()", REFUSED, "killed by SIGABRT"),
            ("os.kill(os.getpid(), signal.SIGSEGV)", REFUSED, "killed by SIGSEGV"),
            ("raise MemoryError", REFUSED, "exit code 1 and without an answer: MemoryError"),
            ("sys.exit('no licence')", FAILED, "without an answer: no licence"),
            ("os._exit(0)", FAILED, "exit code 0"),
            ("os.write(asked['answers'], b'{half'); os._exit(4)", FAILED, "exit code 4"),
        ],
    )
    def test_its_end_is_the_answer(self, stand_in, does, status, says):
        prober = stand_in(does)
        probe = prober.attempt(3, timed=False)
        assert (probe.batch_size, probe.status) == (3, status)
        assert says in probe.reason
        assert (prober.memory_limit_bytes, prober.dtype) == (7, "float16")

    def test_one_that_hangs_is_ended_with_what_it_started(self, stand_in, tmp_path):
        note = tmp_path / "pid"
        prober = stand_in(
            "import subprocess\n"
            "other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
            f"open({str(note)!r}, 'w').write(str(other.pid))\n"
            "time.sleep(600)"
        )
        prober._patience_s = 1.5
        probe = prober.attempt(2, timed=True)
        assert (probe.status, probe.reason) == (
            ENDED,
            "no answer after 1.50 s: the process was ended",
        )
        state = subprocess.run(
            ["ps", "-o", "stat=", "-p", note.read_text()],
            capture_output=True,
            text=True,
            check=False,
        )
        assert state.stdout.strip() in ("", "Z", "Zs")

    def test_one_that_dies_while_loading_blames_no_batch(self, stand_in):
        probe = stand_in("", "os.kill(os.getpid(), 9)").attempt(3, timed=False)
        assert probe.status == FAILED
        assert probe.reason == "the target was not loaded (SIGKILL)"
        probe = stand_in("", "say(failed='KeyError: 3'); sys.exit()").attempt(3, timed=False)
        assert probe.reason == "the target was not loaded: KeyError: 3"

    def test_without_a_limit_nothing_is_tried(self, stand_in):
        prober = stand_in("", "say(no_limit='there is none'); sys.exit()")
        with pytest.raises(UsageError, match=r"there is none; .*--memory-limit 4GiB"):
            prober.attempt(1, timed=False)

    def test_a_refusal_among_others_pieces_is_tried_again_alone(self, stand_in, tmp_path):
        # Each process gets three sizes further than where it begins, up to 8.
        starts = tmp_path / "starts"
        prober = stand_in(
            "first, last = asked['sizes']\n"
            f"open({str(starts)!r}, 'a').write(str(first) + ' ')\n"
            "for size in range(first, last + 1):\n"
            "    runs = size < first + 3 and size <= 8\n"
            "    say(probe=dict(batch_size=size, status='worked' if runs else 'refused'))"
        )
        walked = list(prober.walk(1, 100))
        assert [one.batch_size for one in walked if one.worked] == list(range(1, 9))
        assert walked[-1] == Probe(9, REFUSED)
        assert starts.read_text().split() == ["1", "4", "7", "9"]

    def test_it_is_not_armed_and_finds_modules_as_this_one(self, monkeypatch):
        monkeypatch.setenv("PROFSTACK_CHILD", "somewhere")
        assert "PROFSTACK_CHILD" not in fresh_process._plain_environment()
        assert repr(sys.path) in fresh_process._START.format(paths=sys.path, module="some.module")


@needs_limit
class TestTheLimit:
    def test_holds_and_comes_off_again(self):
        code = (
            "from profstack.bench.batch_trial import limit_memory\n"
            "limit = limit_memory(96 * 2**20)\n"
            "held = bytearray(64 * 2**20)\n"
            "try:\n    bytearray(64 * 2**20)\nexcept MemoryError:\n    print('refused')\n"
            "limit.lift()\n"
            "print(len(bytearray(64 * 2**20)) == len(held), limit.allowance_bytes == 96 * 2**20)\n"
            # A limit that the process has already, and that allows less, stays.
            "import resource\n"
            "hard = resource.getrlimit(resource.RLIMIT_DATA)[1]\n"
            "resource.setrlimit(resource.RLIMIT_DATA, (512 * 2**20, hard))\n"
            "print(limit_memory(2**40).allowance_bytes < 512 * 2**20)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env=clean_environment(PYTHONPATH=str(CHECKOUT)),
            check=True,
        )
        assert done.stdout.split() == ["refused", "True", "True", "True"]

    def test_is_a_share_of_what_is_available(self, monkeypatch):
        monkeypatch.setattr(environment, "available_memory_bytes", lambda: 1000)
        assert batch_trial.share_of_available() == 800
        monkeypatch.setattr(environment, "available_memory_bytes", lambda: None)
        with pytest.raises(batch_trial.NoLimitError, match="not known"):
            batch_trial.share_of_available()

    def test_one_that_is_not_held_to_is_not_relied_on(self, monkeypatch):
        import resource

        # As on systems that accept a limit and do nothing.
        monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
        with pytest.raises(batch_trial.NoLimitError, match="holds to no limit"):
            batch_trial.limit_memory(MIB)


def test_knee_of_nothing_is_none():
    assert knee([]) is None
    assert knee([Probe(1, WORKED)]) is None


def test_a_subject_of_functions_is_on_the_cpu():
    assert batch_trial.device_kind(Subject("f", lambda: None)) == "cpu"
    assert batch_trial.own_dtype(Subject("f", lambda: None)) is None
