"""Traces of torch.profiler that the ranks of a launch left, as Kineto writes them."""

import json


def rank_trace(late_us, **header):
    """Twelve steps of 1 ms; all leave a collective of 4 KiB after 800 us, to which one is late."""
    found = []
    for at in range(0, 12_000, 1000):
        met = "gloo:all_reduce", 9, at + 400 + late_us, 400 - late_us
        step, work = (f"ProfilerStep#{at}", 1, at, 1000), ("aten::mm", 1, at + 100, 300)
        for name, tid, ts, dur in (step, work, met):
            kind = "cpu_op" if name[:4] == "aten" else "user_annotation"
            found.append({"ph": "X", "cat": kind, "name": name, "pid": 7, "tid": tid, "ts": ts,
                "dur": dur, "args": {"Input Dims": [[1024]], "Input type": ["float"]}})  # fmt: skip
    head = {"schemaVersion": 1, "baseTimeNanoseconds": 10**18, **header}
    return json.dumps({**head, "traceEvents": found})


def told_rank(rank, size, **header):
    """What a trace says of its rank."""
    return {"distributedInfo": {"backend": "gloo", "rank": rank, "world_size": size}, **header}
