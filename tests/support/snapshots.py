"""Snapshots of a CUDA allocator as torch's documentation describes them, with what was alive when.

No GPU is needed: an allocator is played, its history is written down as torch does, and every byte
alive at every moment is counted beside it.
"""

import random
from dataclasses import dataclass, field

TORCH = "/usr/lib/python3/dist-packages/torch/"
CALL = (TORCH + "nn/modules/module.py", 1740, "_call_impl")
ROUND = 512


def frames(*places):
    return [dict(zip(("filename", "line", "name"), place, strict=True)) for place in places]


# Stacks, innermost first: the part of a step, the user's place, and the frames.
STACKS = {
    "forward": ("model.py", 41, frames(
        (TORCH + "nn/functional.py", 550, "linear"), ("/home/u/model.py", 41, "attend"), CALL,
        ("/home/u/train.py", 80, "<module>"),
    )),
    "backward": ("train.py", 86, frames(
        (TORCH + "autograd/graph.py", 820, "_engine_run_backward"),
        (TORCH + "autograd/__init__.py", 340, "backward"), ("/home/u/train.py", 86, "<module>"),
    )),
    "optimizer": ("train.py", 88, frames(
        (TORCH + "optim/adam.py", 150, "_init_group"), (TORCH + "optim/adam.py", 220, "step"),
        ("/home/u/train.py", 88, "<module>"),
    )),
    "elsewhere": ("data.py", 12, frames(("/home/u/data.py", 12, "to_device"))),
    "unknown": (None, None, []),
}  # fmt: skip


@dataclass
class Played:
    """A snapshot, and the truth: bytes alive by kind of stack before and after each entry."""

    snapshot: dict
    held: list[dict] = field(default_factory=list)
    reserved: list[int] = field(default_factory=list)


class _Allocator:
    """Gives out blocks of segments without splitting one twice; writes its history if asked."""

    def __init__(self, device, segment_bytes):
        self.device, self.segment_bytes = device, segment_bytes
        self.trace, self.segments, self.alive, self.free = [], {}, {}, []
        self.next = 0x7F00_0000_0000 + (device << 40)
        self.time_us, self.pending, self.recording = 10**15, [], False
        self.held, self.reserved = [], []

    def _note(self, action, address, size, stack, **more):
        if not self.recording:
            return
        names = ("action", "addr", "size", "stream", "time_us", "frames", "pool_id")
        entry = (action, address, size, 0, self.time_us, STACKS[stack][2], (0, 0))
        self.trace.append({**dict(zip(names, entry, strict=True)), **more})
        self.count()

    def count(self):
        held = {}
        for _, size, stack in self.alive.values():
            held[stack] = held.get(stack, 0) + size
        self.held.append(held)
        self.reserved.append(self.segment_bytes * len(self.segments))

    def take(self, size, stack):
        rounded = -(-size // ROUND) * ROUND
        if not self.free:
            self.segments[self.next] = None
            places = range(self.next, self.next + self.segment_bytes, self.segment_bytes // 8)
            self.free += places
            self._note("segment_alloc", self.next, self.segment_bytes, stack)
            self.next += self.segment_bytes * 2
        address = self.free.pop()
        self.alive[address] = (rounded, size, stack)
        self._note("alloc", address, size, stack)

    def give_back(self, address, *, at_once):
        _, size, _ = self.alive.pop(address)
        self._note("free_requested", address, size, "unknown")
        self.pending.append((address, size))
        if at_once:
            self.complete()

    def complete(self):
        for address, size in self.pending:
            self._note("free_completed", address, size, "unknown")
            self.free.insert(0, address)
        self.pending = []

    def trim(self):
        """Return the segments that nothing is in to the device."""
        for start in list(self.segments):
            places = range(start, start + self.segment_bytes, self.segment_bytes // 8)
            if set(places) <= set(self.free):
                self.free = [place for place in self.free if place not in places]
                del self.segments[start]
                self._note("segment_free", start, self.segment_bytes, "unknown")

    def snapshot(self):
        found = []
        for start in self.segments:
            blocks, each = [], self.segment_bytes // 8
            for address in range(start, start + self.segment_bytes, each):
                rounded, size, stack = self.alive.get(address, (0, 0, "unknown"))
                waits = dict(self.pending).get(address)
                if rounded or waits:
                    state = "active_allocated" if rounded else "active_pending_free"
                    used = rounded or -(-waits // ROUND) * ROUND
                    blocks.append(_block(address, used, size or waits, state, STACKS[stack][2]))
                    address, left = address + used, each - used
                else:
                    left = each
                if left:
                    blocks.append(_block(address, left, 0, "inactive", []))
            active = [block["size"] for block in blocks if block["state"] != "inactive"]
            found.append({
                "device": self.device, "address": start, "total_size": self.segment_bytes,
                "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0),
                "is_expandable": False, "allocated_size": sum(active), "active_size": sum(active),
                "blocks": blocks, "frames": [],
            })  # fmt: skip
        return found


def _block(address, size, requested, state, stack):
    names = ("address", "size", "requested_size", "state", "frames")
    return dict(zip(names, (address, size, requested, state, stack), strict=True))


def play(seed, *, actions=120, before=15, devices=1, segment_bytes=1 << 20, release=0.45):
    """Play an allocator: `before` actions without a history, then `actions` with one."""
    chance = random.Random(seed)
    allocators = [_Allocator(device, segment_bytes) for device in range(devices)]
    for number in range(before + actions):
        allocator = chance.choice(allocators)
        if number == before:
            for each in allocators:
                each.recording = True
                each.count()
        allocator.time_us += chance.randint(1, 5000)
        if number % 15 == 14:
            allocator.trim()
        if allocator.pending and chance.random() < 0.5:
            allocator.complete()
        if allocator.alive and chance.random() < release:
            address = chance.choice(sorted(allocator.alive))
            allocator.give_back(address, at_once=chance.random() < 0.7)
        else:
            size = chance.randint(1, segment_bytes // 8)
            allocator.take(size, chance.choice(sorted(STACKS)))
    snapshot = {
        "segments": [segment for each in allocators for segment in each.snapshot()],
        "device_traces": [each.trace for each in allocators],
        "allocator_settings": {"max_split_size": -1, "expandable_segments": False},
        "external_annotations": [],
    }
    return [Played(snapshot, each.held, each.reserved) for each in allocators]
