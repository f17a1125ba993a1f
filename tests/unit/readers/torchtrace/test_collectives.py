"""Collectives of a slice: bytes, begin and end, and the work beside them, counted by hand."""

from profstack.readers.torchtrace.attribution import attribute
from profstack.readers.torchtrace.collectives import collective_records
from profstack.readers.torchtrace.events import read_host
from tests.support.events import Event, events
from tests.support.tables import in_ns

COLUMNS = "slice step name bytes started_s ended_s hidden_s"


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
    # What the host did alone is not told, nor what ran beside.
    assert [row[2:] for row in rows] == [("nccl:all_reduce", 32, 400, 800, None)]
