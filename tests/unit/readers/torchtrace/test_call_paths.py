"""Call paths: functions, operators and kernels of one step in one tree whose sums are exact."""

import os
import random
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from profstack.guard import PACKAGE
from profstack.readers.torchtrace.call_paths import Definitions, path_records
from profstack.readers.torchtrace.events import EVALUATE, SLICE_RANGE
from tests.support.events import events, instant
from tests.support.tables import in_ns


def by_path(rows):
    """Rows by the names from the root; checks that callers come first and times add up."""
    paths, inner = {None: ()}, defaultdict(float)
    for number, row in enumerate(rows, 1):
        assert row["node"] == number
        paths[number] = (*paths[row["parent"]], row["name"])
        inner[row["parent"]] += row["total_s"] or 0.0
    for row in rows:
        if row["kind"] != "kernel":
            whole = row["self_s"] + inner[row["node"]]
            assert (row["self_s"] >= 0, whole) == (True, pytest.approx(row["total_s"], abs=1e-12))
    return {paths[row["node"]]: row for row in rows}


def numbers():
    yield 1
    yield 2


TORCH, NUMBERS = os.path.dirname(torch.__file__), numbers.__code__.co_firstlineno
# Running when the step begins, and when it ends; before it, after it, and on another thread. The
# function `mm` and the operator that it calls begin and end together; `late` ends after its caller,
# since a clock was read between the two. Of profstack's code nothing is shown but what it calls of
# the script's. The generator is entered where it had yielded, which is not where it is defined.
FUNCTIONS = f"""
/x/train.py(3): train 5-10000; /x/train.py(60): before 10-90; /x/train.py(61): after 9500-9600
/x/train.py(9): elsewhere 5-10000 thread=3; nn.Module: Net_0 120-1100
<built-in function len> 130-140; {TORCH}/nn/modules/module.py(1): _call_impl 150-1050
/x/net.py(20): forward 160-1000; <built-in method mm of type object at 0x7fA9> 200-800
/x/net.py(30): late 900-1020; {PACKAGE}capture/hooks.py(9): call 1200-1500
<built-in function isinstance> 1210-1220; {TORCH}/compiler/__init__.py(8): is_compiling 1230-1240
/x/train.py(40): callback 1300-1400; <built-in function abs> 1310-1330
{TORCH}/compiler/__init__.py(8): is_compiling 1340-1350
<frozen importlib._bootstrap>(241): _call 1600-1700; /x/late.py(1): <module> 1610-1690
/x/train.py(50): again 1800-1837; /x/train.py(50): again 1900-1937
/x/train.py(50): again 2000-2037; {__file__}({NUMBERS + 2}): numbers 2200-2219
<built-in method run of pybind11_builtins.pybind11_object object at 0x7f> 2100-2117
"""
EVENTS = [
    *events(f"{SLICE_RANGE} 0-1; module:1 165-990; aten::mm 200-800 sequence=7 number=11"),
    *(instant(350, 64), *events(FUNCTIONS, kind="python_function")),
    *events("aten::mul 300-420 number=12; aten::mm 3200-4000 number=14 thread=2"),
    *events("function:MmBackward0 3000-5000 sequence=7 forward=1 number=13 thread=2"),
    *events("function:XBackward0 5100-5150 forward=1 thread=2"),
    *events("gemm 1000-3000 linked=11; gemm 3000-4500 linked=11", kind="kernel"),
    *events("mul 4600-4700 linked=12; gemm 6000-9000 linked=14", kind="kernel"),
    *events("Memcpy 9000-9100 linked=99", kind="gpu_memcpy"),
]


def test_calls_kernels_and_backward_work_of_a_step():
    modules = {1: SimpleNamespace(path="Net", is_loss=False)}
    shuffled = random.Random(3).sample(EVENTS, len(EVENTS))
    rows = path_records(shuffled, [100, 9_500], modules, 4, device=True)
    paths = by_path(rows)
    names = "total_s self_s device_s"
    found = {" > ".join(path): in_ns([row], names)[0] for path, row in paths.items()}
    mm = "train > forward > <built-in method mm of type>"
    net, nobodys = "backward of Net", "backward of (not attributed)"
    evaluated, inside = f"{net} > {EVALUATE}MmBackward0", 840 + 100 + 80 + 3 * 37 + 17 + 19
    assert found == {
        "train": (9_400, 9_400 - inside, 3_600),
        mm: (600, 0, 3_600),
        "train > forward": (840, 840 - 600 - 100, 3_600),
        "train > forward > late": (100, 100, 0),
        f"{mm} > aten::mm": (600, 480, 3_600),
        f"{mm} > aten::mm > aten::mul": (120, 120, 100),
        f"{mm} > aten::mm > aten::mul > mul": (None, None, 100),
        f"{mm} > aten::mm > gemm": (None, None, 3_500),
        "train > callback": (100, 70, 0),
        "train > callback > <built-in function abs>": (20, 20, 0),
        "train > callback > is_compiling": (10, 10, 0),
        "train > <module>": (80, 80, 0),
        "train > again": (111, 111, 0),
        "train > numbers": (19, 19, 0),
        "train > <built-in method run>": (17, 17, 0),
        net: (2_000, 0, 3_000),
        evaluated: (2_000, 1_200, 3_000),
        f"{evaluated} > aten::mm": (800, 800, 3_000),
        f"{evaluated} > aten::mm > gemm": (None, None, 3_000),
        nobodys: (50, 0, 0),
        f"{nobodys} > {EVALUATE}XBackward0": (50, 50, 0),
        "Memcpy": (None, None, 100),
    }
    calls = {" > ".join(path[-2:]): row["calls"] for path, row in paths.items()}
    wanted = {"train": 0, "train > again": 3, "forward > late": 1, "Memcpy": 1}
    assert calls.items() >= wanted.items()
    assert paths[(*mm.split(" > "), "aten::mm", "gemm")]["calls"] == 2
    places = {row["name"]: (row["kind"], row["file"], row["line"]) for row in rows}
    wanted = {"forward": ("function", "/x/net.py", 20), "<module>": ("function", "/x/late.py", 1)}
    wanted |= {"numbers": ("function", __file__, NUMBERS), "mul": ("kernel", None, None)}
    wanted |= {"<built-in function abs>": ("function", "~", 0)}
    wanted |= dict.fromkeys(("aten::mul", "backward of Net"), ("operator", None, None))
    assert {name: places[name] for name in wanted} == wanted
    assert {row["slice"] for row in rows} == {4}
    without = path_records(EVENTS, [100, 9_500], modules, 4, device=False)
    assert {row["device_s"] for row in without} == {None}
    assert {row["kind"] for row in without} == {"function", "operator"}


SOURCE = """
@decorator\n@decorator(\n    1\n)\ndef made():\n    yield 1\n    def made():\n        yield 2
    yield 3\n\nclass Thing:\n    value = [\n        each\n        for each in range(3)\n    ]\n
"""
# Line and the first line of the definition there.
FIRST = {"made": "2:2 7:2 9:8 10:2 8:8 99:99 0:0", "Thing": "14:12", "<listcomp>": "14:14"}
FIRST |= {"<lambda>": "7:7", "<module>": "12:1", "absent": "7:7"}


def test_definitions_are_found_from_any_line(tmp_path):
    (tmp_path / "source.py").write_text(SOURCE)
    for name, pairs in FIRST.items():
        for line, first in (map(int, pair.split(":")) for pair in pairs.split()):
            found = Definitions().first_line(str(tmp_path / "source.py"), name, line)
            assert found == first, (name, line)
    # Without a source the line stays.
    (tmp_path / "broken.py").write_text("def f():\n  1 +\n  2\n")
    for file in (tmp_path / "broken.py", tmp_path / "none.py", "<string>"):
        assert Definitions().first_line(str(file), "f", 3) == 3
