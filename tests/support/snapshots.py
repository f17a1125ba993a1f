"""A snapshot of a CUDA allocator as torch's documentation describes it: a history by hand.

No GPU is needed. `ALLOCATED` and `RESERVED` are the bytes before and after each entry.
"""

TORCH = "/usr/lib/python3/dist-packages/torch/"
CALL = (TORCH + "nn/modules/module.py", 1740, "_call_impl")


def frames(*places):
    return [dict(zip(("filename", "line", "name"), place, strict=True)) for place in places]


# Stacks, innermost first.
STACKS = {
    "forward": frames(
        (TORCH + "nn/functional.py", 550, "linear"), ("/home/u/model.py", 41, "attend"), CALL,
        ("/home/u/train.py", 80, "<module>"),
    ),
    "backward": frames(
        (TORCH + "autograd/graph.py", 820, "_engine_run_backward"),
        (TORCH + "autograd/__init__.py", 340, "backward"), ("/home/u/train.py", 86, "<module>"),
    ),
    "optimizer": frames(
        (TORCH + "optim/adam.py", 150, "_init_group"), (TORCH + "optim/adam.py", 220, "step"),
        ("/home/u/train.py", 88, "<module>"),
    ),
    "elsewhere": frames(("/home/u/data.py", 12, "to_device")),
    "unknown": [],
}  # fmt: skip
SEGMENT = 1 << 20
A, B, C = 1 << 24, 1 << 26, 1 << 28
# At A a block was taken before the history began, and another one that is still there.
HISTORY = (
    ("alloc", A + 16384, 30_000, "forward"),
    ("segment_alloc", B, SEGMENT, "forward"),
    ("alloc", B, 50_000, "backward"),
    ("free_requested", A, 4000, "unknown"),
    ("free_completed", A, 4000, "unknown"),
    ("alloc", B + 65536, 9000, "optimizer"),
    ("free_requested", A + 16384, 30_000, "unknown"),
    ("segment_alloc", C, SEGMENT, "forward"),
    ("segment_free", C, SEGMENT, "unknown"),
    ("alloc", B + 131072, 700, "elsewhere"),
    ("free_requested", B, 50_000, "unknown"),
    ("free_completed", B, 50_000, "unknown"),
    ("alloc", B, 1500, "forward"),
)
ALLOCATED = [6000, 36_000, 36_000, 86_000, 82_000, 82_000, 91_000, *[61_000] * 3, 61_700]
ALLOCATED += [11_700, 11_700, 13_200]
RESERVED = [SEGMENT * count for count in (1, 1, 2, 2, 2, 2, 2, 2, 3, 2, 2, 2, 2, 2)]
# Bytes with those for rounding, bytes that were asked for, and the stack; None for a gap.
BLOCKS = {
    A: [
        *((8192, 0, None), (2048, 2000, "elsewhere"), (6144, 0, None)),
        *((30_208, 30_000, "pending"), (1_001_984, 0, None)),
    ],
    B: [
        *((1536, 1500, "forward"), (64_000, 0, None), (9216, 9000, "optimizer")),
        *((56_320, 0, None), (1024, 700, "elsewhere"), (916_480, 0, None)),
    ],
}


def entry(number, action, address, size, stack):
    names = ("action", "addr", "size", "stream", "time_us", "frames", "pool_id")
    values = (action, address, size, 0, 10**15 + 1500 * number, STACKS[stack], (0, 0))
    return dict(zip(names, values, strict=True))


def segment(address, blocks, device=0):
    made, at = [], address
    for size, requested, stack in blocks:
        state = {None: "inactive", "pending": "active_pending_free"}.get(stack, "active_allocated")
        block = {"address": at, "size": size, "requested_size": requested, "state": state}
        made.append(block | {"frames": STACKS.get(stack, [])})
        at += size
    active = sum(size for size, _, stack in blocks if stack)
    return {
        "device": device, "address": address, "total_size": at - address, "stream": 0,
        "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False,
        "allocated_size": active, "active_size": active, "blocks": made, "frames": [],
    }  # fmt: skip


def snapshot():
    return {
        "segments": [segment(address, blocks) for address, blocks in BLOCKS.items()],
        "device_traces": [[entry(number, *each) for number, each in enumerate(HISTORY)]],
        "allocator_settings": {"max_split_size": -1, "expandable_segments": False},
        "external_annotations": [],
    }
