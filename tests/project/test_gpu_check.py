"""The GPU check, tried where there is no GPU: its table and its verdicts."""

import json
import sys

from tests.support.processes import CHECKOUT

sys.path.insert(0, str(CHECKOUT / "scripts"))
import gpu_check
import gpu_rows
import gpu_wheels
from gpu_rows import FAILED, NOT_MEASURED, OK, Row

MIB = 1 << 20


def verdicts(rows):
    return [row.verdict for row in rows]


def test_no_cuda_or_a_failure_is_the_exit_code(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu_check, "head_facts", lambda _: {"gpu": None})
    said = "gpu_check: torch finds no CUDA device; --device cpu checks what needs none\n"
    assert (gpu_check.main([]), capsys.readouterr().err) == (2, said)
    monkeypatch.setattr(gpu_wheels, "missing", list)
    made = {"mlp": OK, "gpt2": FAILED, "nsys": NOT_MEASURED}
    monkeypatch.setattr(
        gpu_check, "rows_of", lambda part, _: [Row(part, "it", "1", "2", made[part], "too small")]
    )
    path = tmp_path / "table.json"
    for parts, ended in (("mlp,nsys", 0), ("mlp,gpt2,nsys", 1)):
        assert gpu_check.main(["--device", "cpu", "--parts", parts, "--json", str(path)]) == ended
    rows = json.loads(path.read_text("utf-8"))["rows"]
    assert [row["verdict"] for row in rows] == [OK, FAILED, NOT_MEASURED]
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    head = lines.index(["part", "what", "value", "expected", "verdict"])
    assert lines[head + 1 : head + 3] == [["mlp", "it", "1", "2", OK], ["too", "small"]]


def kernels(joined_s, lost_s, backward_s):
    net, optimizer = {"path": "Net", "depth": 0}, {"path": "(optimizer)", "depth": 0}
    return {
        "kernels": [{"module": "Net", "device_s": joined_s}, {"module": None, "device_s": lost_s}],
        "modules": [
            {**net, "forward_device_s": 1.0, "backward_device_s": backward_s},
            {**optimizer, "forward_device_s": 9.0, "backward_device_s": None},
        ],
        "launches": [{"device_busy_s": 3.0, "device_idle_s": 1.0}],
    }


def test_figures_beyond_their_limits_fail():
    found = [gpu_rows.judged("a", "b", value, (0.95, 1.05)) for value in (0.94, 0.95, 1.06, None)]
    assert verdicts(found) == [FAILED, OK, FAILED, NOT_MEASURED]
    nothing = {"kernels": [], "modules": [], "launches": []}
    for tables, expected in (
        (kernels(97.0, 3.0, 2.0), [OK, OK, OK]),
        (kernels(90.0, 10.0, 0.1), [FAILED, FAILED, OK]),
        (nothing, [FAILED] * 3),
    ):
        rows = gpu_rows.kernel_rows("mlp", {"tables": tables}, on_cuda=True)
        assert verdicts(rows) == expected
    figures = {"clock": "device", "device_median_s": 0.0104, "host_median_s": 0.002, "n": 9}
    for changes, verdict in (({}, OK), ({"clock": "host", "device_median_s": None}, FAILED)):
        report = {"benchmark": {**figures, **changes}}
        rows = gpu_rows.median_rows("mlp", report, {"median_s": 0.010}, on_cuda=True)
        assert verdicts(rows) == [verdict] * 2
    peaks = (("cuda:0", 90), ("cuda:0", 10), ("cpu", 500))
    owners = [{"device": device, "peak_bytes": most * MIB} for device, most in peaks]
    report, said = {"tables": {"memory_owners": owners}}, {"max_memory_allocated": 100 * MIB}
    for alone, expected in ((100 * MIB, [OK, OK]), (50 * MIB, [OK, FAILED])):
        hand = {"max_memory_allocated": alone}
        assert verdicts(gpu_rows.memory_rows("mlp", report, said, hand, on_cuda=True)) == expected
