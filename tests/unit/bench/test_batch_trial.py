"""One batch size tried: its figures, what a refusal by memory is, and conversion."""

import errno
from types import SimpleNamespace

import pytest
import torch

from profstack.bench import batch_trial
from profstack.bench.batch_trial import FAILED, MEASURED, REFUSED, DeviceMemory, Trial
from profstack.bench.subject import of_model
from profstack.stats.clock import Clock
from tests.support.tables import cases
from tests.support.virtual_machine import FakeDevice

REFUSALS = [MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory")]
REFUSALS += [torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")]
TEXTS = """MPS backend out of memory (MPS allocated: 5 GB)
[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried
std::bad_alloc
CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"""
REFUSALS += map(RuntimeError, TEXTS.splitlines())
OTHERS = [
    ValueError("out of memory of the task"), OSError(errno.ENOENT, "No such file"),
    RuntimeError("mat1 and mat2 shapes cannot be multiplied"), SystemExit(3)]  # fmt: skip


@cases("error", *REFUSALS, *OTHERS)
def test_memory_is_a_refusal_and_another_error_is_none(error):
    wrapped = RuntimeError("layer 3 failed")
    wrapped.__cause__ = error
    status, probe = (REFUSED if error in REFUSALS else FAILED), batch_trial.probe_of_error(error, 3)
    assert probe.status == batch_trial.probe_of_error(wrapped, 3).status == status
    assert probe.certain
    assert probe.reason.startswith(type(error).__name__)


def tried(model, size, trial, clock=None, memory=None):
    subject = of_model(model, (torch.ones(2, model.in_features),))
    memory = DeviceMemory(memory or FakeDevice())
    return batch_trial.attempt(subject.of_batch, size, trial, clock or Clock(), memory, timed=True)


def test_rate_and_latency_are_of_the_same_batches():
    trial, nothing = Trial(batches=120, warmup_s=0.1), SimpleNamespace()
    probe = tried(torch.nn.Linear(64, 64), 5, trial, memory=nothing)
    # Of short calls a sample is several: never fewer batches than asked for.
    assert (probe.status, probe.batches >= 120) == (MEASURED, True)
    assert probe.items_per_s == pytest.approx(5 * probe.batches / probe.total_s)
    assert 0 < probe.latency_s <= probe.latency_p90_s
    assert probe.latency_s < probe.total_s < probe.batches * probe.latency_p90_s * 50
    assert probe.peak_memory_bytes is None
    assert probe.reason == "this device does not report its peak memory"
    # Each look at the clock is a tenth of a second later than the last.
    clock, time = Clock(), [0.0]
    clock.now = lambda: time.append(time[-1] + 0.1) or time[-1]
    trial = Trial(batches=100, measure_s=0.5, warmup_s=1.0)
    probe = tried(torch.nn.Linear(2, 2), 1, trial, clock)
    assert probe.reason == f"{probe.batches} of 100 batches: the time bound is 500 ms"
    assert (3 <= probe.batches <= 5, probe.latency_p90_s) == (True, None)
    assert probe.total_s == pytest.approx(0.1 * probe.batches)


def test_inputs_are_converted_and_values_come_back():
    model = torch.nn.Linear(3, 3)
    tokens = {"tokens": torch.zeros(2, 3, dtype=torch.int64)}
    subject = of_model(model, (torch.ones(2, 3),), tokens, gradients=True)
    made = batch_trial.maker(subject, "bfloat16")(1000)
    assert (made.inputs[0].dtype, made.gradients) == (torch.bfloat16, True)
    assert made.named_inputs["tokens"].dtype == torch.int64
    assert model(*made.inputs).dtype == torch.bfloat16
    assert batch_trial.own_dtype(subject) == "bfloat16"
    model = torch.nn.BatchNorm1d(3)
    model.weight.data.fill_(1 / 3)
    model.running_mean.fill_(1 / 7)
    tied, subject = model.weight, of_model(model, (torch.ones(2, 3),))

    def fail():
        assert model.weight.dtype == model.running_mean.dtype == torch.bfloat16
        raise KeyError

    with pytest.raises(KeyError), batch_trial.borrowed(subject, "bfloat16"):
        fail()
    assert model.weight is tied
    assert model.weight.tolist() == torch.full((3,), 1 / 3).tolist()
    assert model.running_mean.tolist() == torch.full((3,), 1 / 7).tolist()
    assert model.num_batches_tracked.dtype == torch.int64
