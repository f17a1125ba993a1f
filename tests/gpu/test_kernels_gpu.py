"""Device kernels find the modules that launched them, forward and backward."""

import pytest

from tests.support.gpu_programs import NEEDS_GPU, module, program, reported_program

pytestmark = NEEDS_GPU


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return reported_program(tmp_path_factory.mktemp("kernels"), program())


def test_products_are_their_modules_and_busy_time_is_the_kernels(report):
    columns = ("forward_device_s", "backward_device_s")
    whole, wide, out = (
        [module(report, path)[column] for column in columns]
        for path in ("Net", "Net.wide", "Net.out")
    )
    assert min(*wide, *out) > 0
    # The same products forward; the inputs of the first one need no gradient.
    assert wide[0] == pytest.approx(out[0], rel=0.3)
    assert 1.4 < out[1] / out[0] < 3.0
    assert wide[1] < 0.8 * out[1]
    assert module(report, "(optimizer)")["forward_device_s"] > 0
    # A module holds what is inside.
    assert all(each >= one + other for each, one, other in zip(whole, wide, out, strict=True))
    assert {row["device"] for row in report["tables"]["kernels"]} == {"cuda:0"}
    copies = ("Memcpy", "Memset")
    kernels = [row for row in report["tables"]["kernels"] if not row["name"].startswith(copies)]
    rows = report["tables"]["launches"]
    busy = sum(row["device_busy_s"] for row in rows) / len(rows)
    # One stream: nothing runs beside another.
    assert sum(row["device_s"] for row in kernels) == pytest.approx(busy, rel=0.1)
    calls = sum(row["calls"] for row in kernels)
    assert report["launching"]["kernels"] == pytest.approx(calls, rel=0.2)
    assert all(row["launched_by"] == "runtime calls" for row in rows)
