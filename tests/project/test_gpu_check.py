"""The GPU check, tried where there is no GPU: its table and its verdicts."""

import json
import sys

from tests.support.processes import CHECKOUT

sys.path.insert(0, str(CHECKOUT / "scripts"))
import gpu_check
import gpu_wheels
from gpu_rows import FAILED, NOT_MEASURED, OK, Row


def test_no_cuda_or_a_failure_is_the_exit_code(tmp_path, monkeypatch):
    made, path = {"mlp": OK, "gpt2": FAILED, "nsys": NOT_MEASURED}, tmp_path / "table.json"
    monkeypatch.setattr(gpu_check, "head_facts", lambda _: {"gpu": None})
    assert gpu_check.main([]) == 2
    monkeypatch.setattr(gpu_wheels, "missing", list)
    monkeypatch.setattr(gpu_check, "rows_of", lambda part, _: [Row(part, *"i12", made[part], "")])
    for parts, ended in (("mlp,nsys", 0), ("mlp,gpt2,nsys", 1)):
        assert gpu_check.main(["--device", "cpu", "--parts", parts, "--json", str(path)]) == ended
    monkeypatch.setenv("PYTHONPATH", "theirs")
    assert gpu_check.child_environment("ours")["PYTHONPATH"].split(":")[1:] == ["ours", "theirs"]
    rows = json.loads(path.read_text("utf-8"))["rows"]
    assert [row["verdict"] for row in rows] == [OK, FAILED, NOT_MEASURED]
