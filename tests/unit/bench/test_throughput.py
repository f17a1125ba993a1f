"""The search for the largest batch: its answer, its numbers, and that nothing takes it down."""

import contextlib
import weakref
from dataclasses import replace

import pytest
import torch

from profstack.bench import batch_trial, throughput
from profstack.bench.batch_trial import ENDED, FAILED, MEASURED, REFUSED, WORKED, Probe, Trial
from profstack.bench.subject import Request, of_model
from profstack.bench.throughput import Options, knee, search
from profstack.errors import UsageError
from tests.support.tables import cases, of
from tests.support.virtual_machine import FakeDevice

QUICK = Trial(batches=20, measure_s=0.1, warmup_s=0.02, calls=2)
ANSWER = "largest_batch limited_by"


class Scripted:
    """A prober whose sizes end where it is told, without any process; counts what was asked."""

    memory_limit_bytes, dtype, about = 1000, "float32", "made up"

    def __init__(self, largest, status=REFUSED, *, timed=None, ctrl_c_at=None, certain=True):
        self.largest, self.status, self.largest_timed = largest, status, timed or largest
        self.asked, self.ctrl_c_at, self.certain = [], ctrl_c_at, certain

    def attempt(self, batch_size, *, timed):
        if batch_size == self.ctrl_c_at:
            raise KeyboardInterrupt
        self.asked.append((batch_size, timed))
        if batch_size > (self.largest_timed if timed else self.largest):
            return Probe(batch_size, self.status, "made up", certain=self.certain)
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


def linear(**changes):
    request = Request("a.py:b")
    subject = of_model(torch.nn.Linear(2, 2), (torch.ones(1, 2),), request=request)
    return replace(subject, **changes)


@pytest.fixture
def scripted(monkeypatch):
    """Search with a scripted prober, on a model of whom nothing else is asked."""

    def run(prober, how="binary", *, keep=None, **options):
        instead = lambda *_: contextlib.nullcontext(prober)  # noqa: E731
        monkeypatch.setattr(throughput, "_prober", instead)
        options = Options(**options)
        rows, (limit,) = search(linear(), search=how, options=options, keep=keep)
        return rows, limit

    return run


@cases("how", "binary", "linear")
def test_it_ends_with_a_size_that_ran_and_the_next_that_did_not(scripted, how):
    for largest in range(1, 70):
        prober = Scripted(largest)
        rows, found = scripted(prober, how)
        refused = f"memory: a batch of {largest + 1} was refused (made up)"
        assert of(found, ANSWER) == [largest, refused]
        assert any(size == largest + 1 for size, _ in prober.asked), "tried, not inferred"
        measured = [row["batch_size"] for row in rows if row["status"] == "measured"]
        assert measured == sorted({*(2**k for k in range(8) if 2**k <= largest), largest})
    for cap in (1, 48, 64):
        prober = Scripted(10**9)
        rows, found = scripted(prober, how, max_batch=cap)
        ended = f"the largest size to try: no batch above {cap} was tried"
        assert (of(found, ANSWER), max(size for size, _ in prober.asked)) == ([cap, ended], cap)
        assert of(rows[-1], "batch_size status") == [cap, "measured"]


def test_what_was_timed_is_kept_as_it_comes_whatever_ends_it(scripted):
    kept = []
    keep = lambda *found: kept.append(found)  # noqa: E731
    with pytest.raises(KeyboardInterrupt):
        scripted(Scripted(10, ctrl_c_at=4), keep=keep)
    rows, (limit,) = kept[-1]
    assert [of(row, "dtype batch_size") for row in rows] == [["float32", 1], ["float32", 2]]
    ended = "the search was ended before it was over"
    assert of(limit, f"{ANSWER} memory_limit_bytes") == [2, ended, 1000]
    assert "batches of 3 to 65536 were not tried" in limit["note"]
    with pytest.raises(KeyboardInterrupt):
        scripted(Scripted(100, ctrl_c_at=41), "linear", keep=keep)
    assert (kept[-1][0], kept[-1][1][0]["largest_batch"]) == ([], 40)
    _, found = scripted(Scripted(10**9), max_search_s=-1.0)
    assert found["largest_batch"] is None
    assert found["limited_by"].startswith("the search's time bound of")


@cases("status says", (FAILED, "an error at a batch of 16"), (ENDED, "time: a batch of 16"))
def test_only_what_memory_refused_is_halved(scripted, status, says):
    prober = Scripted(10, status)
    rows, found = scripted(prober)
    assert [size for size, _ in prober.asked] == [1, 2, 4, 8, 16]
    assert (found["largest_batch"], found["limited_by"].startswith(says)) == (8, True)
    assert "batches of 9 to 15 were not tried" in found["note"]
    assert of(rows[-1], "status items_per_s") == ["failed", None]


def test_the_largest_the_knee_and_the_maximum_are_by_their_rules(scripted):
    rows, found = scripted(Scripted(0))
    assert of(found, "largest_batch knee_batch max_items_per_s") == [None, None, None]
    assert [of(row, "batch_size status") for row in rows] == [[1, "refused"]]
    # A vague error is memory only where smaller batches ran.
    _, found = scripted(Scripted(5, FAILED, certain=False))
    assert of(found, ANSWER) == [5, "a batch of 6 was refused (made up)"]
    _, found = scripted(Scripted(0, FAILED, certain=False))
    assert found["limited_by"] == "an error at a batch of 1: made up"
    # 100, then a sixteenth less each time: the largest is one that was also timed.
    rows, found = scripted(Scripted(100, timed=90))
    assert found["largest_batch"] == 89
    assert {row["batch_size"]: row["status"] for row in rows}[89] == "measured"
    assert "batches up to 100 ran a few times, but not while timed" in found["note"]
    rows, found = scripted(Scripted(1000))
    rates = {row["batch_size"]: row["items_per_s"] for row in rows if row["items_per_s"]}
    assert (found["max_batch"], found["max_items_per_s"]) == (1000, rates[1000])
    assert rates[1000] == pytest.approx(1000 / 126)
    # 8 n / (n + 8) reaches 90 % of 7.94 from n = 67 on.
    assert of(found, "knee_batch knee_items_per_s") == [128, rates[128]]
    assert knee([]) is knee([Probe(1, WORKED)]) is None


@cases(
    "changes arguments says",
    ({"of_batch": None, "why_no_batches": "they share none"}, {}, "they share none; name"),
    *(({"request": None}, {}, "file.py:function"), ({}, {"search": "up"}, "binary or linear")),
    ({"kind": "abacus"}, {"options": Options(memory_limit_bytes=2**20)}, "no limit for abacus"),
)
def test_what_cannot_be_searched_is_said_with_the_next_step(monkeypatch, changes, arguments, says):
    if kind := changes.pop("kind", None):
        monkeypatch.setattr(batch_trial, "device_kind", lambda _: kind)
    with pytest.raises(UsageError, match=says):
        search(linear(**changes), **arguments)


class UpTo(torch.nn.Module):
    """Runs out of memory above a batch size, as a device's allocator says it."""

    def __init__(self, largest):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.largest, self.dtypes, self.held = largest, set(), []

    def forward(self, x, index):
        assert index.dtype == torch.int64
        self.dtypes.add(x.dtype)
        kept = self.linear(x)
        self.held.append(weakref.ref(kept))
        assert not any(ref() is not None for ref in self.held[:-1]), "an earlier batch is held"
        if len(x) > self.largest:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return kept


@pytest.fixture
def device(monkeypatch):
    fake = FakeDevice()
    monkeypatch.setattr(torch, "fakegpu", fake, raising=False)
    monkeypatch.setattr(batch_trial, "device_kind", lambda _: "fakegpu")
    return fake


@cases("how", "binary", "linear")
def test_memory_of_a_device_that_is_out_ends_the_search_and_is_given_back(device, how):
    model, said = UpTo(11), []
    subject = of_model(model, (torch.ones(2, 3), torch.zeros(2, dtype=torch.int64)))
    dtypes, options = ["float32", "bfloat16"], Options(trial=QUICK, memory_limit_bytes=400)
    asked = {"dtypes": [*dtypes, "float32"], "options": options, "tell": said.append}
    rows, limits = search(subject, search=how, **asked)
    found = [of(one, "dtype largest_batch memory_limit_bytes") for one in limits]
    assert found == [[dtype, 11, 400] for dtype in dtypes]
    assert model.dtypes == {torch.float32, torch.bfloat16}
    assert all("OutOfMemoryError: CUDA out of memory" in one["limited_by"] for one in limits)
    # The allocator's limit was what is held and 400 more, of 800, and is off again.
    assert (device.seen.count("fraction 0.75"), device.fraction) == (2, 1.0)
    assert device.seen.count("empty_cache") >= len(said) - 2
    refused = {text.partition(":")[0] for text in said if "OutOfMemoryError" in text}
    assert refused - {"batch of 16"} == {"batch of 12"}
    measured = [row for row in rows if row["status"] == "measured"]
    sizes = [of(row, "batch_size peak_memory_bytes") for row in measured]
    assert sizes == [[size, 500] for size in [1, 2, 4, 8, 11] * 2]


def test_on_a_device_free_memory_is_the_limit_and_a_failing_conversion_is_a_row(device):
    subject = of_model(UpTo(1), (torch.ones(2, 3), torch.zeros(2, dtype=torch.int64)))
    _, (found,) = search(subject, options=Options(trial=QUICK))
    assert of(found, "memory_limit_bytes dtype") == [600, "float32"]
    assert not [one for one in device.seen if one.startswith("fraction")]

    class Picky(torch.nn.Linear):
        def to(self, *_):
            raise TypeError("stays as it is")

    picky = of_model(Picky(2, 2), (torch.ones(1, 2),))
    rows, (found,) = search(picky, dtypes=["bfloat16"])
    assert of(found, "largest_batch dtype") == [None, "bfloat16"]
    assert of(rows[0], "batch_size reason") == [1, "TypeError: stays as it is"]
