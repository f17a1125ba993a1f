"""Collectives of a slice: bytes, begin and end, and the work beside them, counted by hand."""

import pytest

from profstack.readers.torchtrace.attribution import attribute
from profstack.readers.torchtrace.collectives import collective_records
from profstack.readers.torchtrace.events import read_host
from tests.support.events import Event, events
from tests.support.tables import in_ns

COLUMNS = "slice step name bytes started_s ended_s hidden_s"
UNIX_NS = 1_763_000_000_123_456_789


def collective(name, begin, end, elements=(), **more):
    shapes = [[each] for each in elements]
    types = ["float"] * len(shapes)
    kind = {"kind": "user_annotation", "user": True, "shapes": shapes, "dtypes": types}
    return Event(name, begin, end, **{**kind, **more})


def records(host, kernels=(), left_out=(), *, shapes=True):
    read = read_host(host, [event.activity_type() for event in host])
    owned = attribute(read, [0, 1000, 2000], bool, left_out)
    return in_ns(collective_records(owned, 4, kernels, shapes=shapes), COLUMNS)


# Two steps; the backend has a thread of its own, whose operators are the collective itself.
WORK = events("""
    module:1 0-400; aten::addmm 50-150; aten::mm 60-140; aten::relu 150-190; aten::mm 1100-1500
    aten::add_ 520-560 thread=7
""")


def test_each_has_its_bytes_and_the_time_in_which_operators_ran_beside_it():
    host = [
        *WORK,
        collective("gloo:all_reduce", 500, 900, (300, 20), thread=7),
        collective("gloo:all_reduce", 100, 300, (300, 20), thread=8),
        collective("gloo:broadcast", 1400, 1700, (5,), thread=7, dtypes=["long int"]),
        collective("my:all_reduce", 1400, 1700, (5,), thread=9),
    ]
    first = (4, 0, "gloo:all_reduce", 1280, 100, 300, 90)
    second = (4, 0, "gloo:all_reduce", 1280, 500, 900, 0)
    third = (4, 1, "gloo:broadcast", 40, 1400, 1700, 100)
    assert records(host) == [first, second, third]
    assert records(host, left_out=[0]) == [third]
    assert [row[3] for row in records(host, shapes=False)] == [None, None, None]
    assert records(WORK) == []
    [row] = records([*WORK, collective("gloo:allgather", 5, 6, (3,), dtypes=["TensorList"])])
    assert row[3] is None


def test_on_a_device_it_is_the_time_of_its_kernels():
    host = [
        *events("module:1 0-400; aten::mm 100-200 number=3"),
        collective("nccl:all_reduce", 210, 240, (8,), number=4),
        *events("c10d::allreduce_ 215-235 number=5"),
        collective("nccl:barrier", 250, 260, number=6),
    ]
    kernels = events("""
        gemm 150-300 linked=3; ncclKernel 400-700 linked=5; ncclKernel 650-800 linked=5
    """, kind="kernel", device=0)  # fmt: skip
    rows = records(host, kernels)
    # What the host did alone is not told.
    assert [row[2:] for row in rows] == [("nccl:all_reduce", 32, 400, 800, 0)]


def test_beside_it_on_a_device_ran_the_kernels_that_compute_there():
    host = [
        *events("module:1 0-400; aten::mm 100-200 number=3; aten::addmm 350-390 number=7"),
        collective("nccl:all_reduce", 210, 240, (8,), number=4),
        collective("nccl:broadcast", 250, 280, (8,), number=5),
    ]
    # Of both collectives each has its kernel on a stream of its own; `add` is launched by the
    # first, and computes for it. What overlaps on two streams counts once.
    text = """
        ncclDevKernel_AllReduce 400-700 linked=4; add 650-720 linked=4
        ncclDevKernel_Broadcast 600-900 linked=5; ncclDevKernel_Before 390-690
        gemm 300-450 linked=3; gemm 420-460 linked=7 stream=9; gemm 690-710; tail 890-1100 linked=7
    """
    moves = events("Memcpy HtoD 500-520", kind="gpu_memcpy", device=0)
    moves += events("Memset 530-540", kind="gpu_memset", device=0)
    elsewhere = events("gemm 0-1000", kind="kernel", device=1)
    kernels = events(text, kind="kernel", device=0) + moves + elsewhere
    assert [row[2:] for row in records(host, kernels)] == [
        ("nccl:all_reduce", 32, 400, 720, 60 + 20),
        ("nccl:broadcast", 32, 600, 900, 20 + 10),
    ]
    # On two devices it is the larger part.
    kernels += events("ncclDevKernel_AllReduce 420-430 linked=4", kind="kernel", device=1)
    assert [row[-1] for row in records(host, kernels)] == [320, 30]


def test_its_time_is_exact_though_unix_time_as_a_float_is_not():
    at = UNIX_NS
    host = [
        *events(f"aten::mm {at}-{at + 90}"),
        collective("gloo:all_reduce", at + 10, at + 147, thread=7),
    ]
    read = read_host(host, [event.activity_type() for event in host])
    owned = attribute(read, [at, at + 1000], bool, ())
    [row] = collective_records(owned, 0, [], shapes=False)
    assert (row["wall_s"], row["hidden_s"]) == (pytest.approx(137e-9), pytest.approx(80e-9))
    # A float of today's seconds is good to 2**-22 s.
    assert row["ended_s"] - row["started_s"] != pytest.approx(137e-9)
