"""A snapshot of a CUDA allocator as torch's documentation describes it: a history by hand.

No GPU is needed. `ALLOCATED` and `RESERVED` are the bytes before and after each entry.
"""

from tests.support.made_up import made_up

_MADE = made_up("snapshots")
SEGMENT = 1 << 20
# At A a block was taken before the history began, and another one that is still there.
_ADDRESSES = {"A": 1 << 24, "B": 1 << 26, "C": 1 << 28}
C = _ADDRESSES["C"]
ALLOCATED = [6000, 36_000, 36_000, 86_000, 82_000, 82_000, 91_000, *[61_000] * 3, 61_700]
ALLOCATED += [11_700, 11_700, 13_200]
RESERVED = [SEGMENT * count for count in (1, 1, 2, 2, 2, 2, 2, 2, 3, 2, 2, 2, 2, 2)]


def frames(*places):
    return [dict(zip(("filename", "line", "name"), place, strict=True)) for place in places]


STACKS = {name: frames(*places) for name, places in _MADE["stacks"].items()}


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
    history = [(action, _ADDRESSES[at] + of, *more) for action, at, of, *more in _MADE["history"]]
    return {
        "segments": [segment(_ADDRESSES[at], blocks) for at, blocks in _MADE["blocks"].items()],
        "device_traces": [[entry(number, *each) for number, each in enumerate(history)]],
        "allocator_settings": {"max_split_size": -1, "expandable_segments": False},
        "external_annotations": [],
    }
