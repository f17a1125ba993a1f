"""`profstack merge` of many ranks on a cluster: as without one, whatever is lost."""

import json
import subprocess
import sys
import time

import psutil
import pyarrow.parquet
import pytest

from tests.support.rank_traces import rank_trace, told_rank

RANKS = 24


@pytest.fixture
def traces(tmp_path):
    folder = tmp_path / "traces"
    folder.mkdir()
    for rank in range(RANKS):
        text = rank_trace(300 * (rank == 5), **told_rank(rank, RANKS, host_name=f"n{rank // 8}"))
        (folder / f"rank{rank}.json").write_text(text)
    (folder / "rank9.json").write_text('{"schema')
    (folder / "rank11.json").write_text('{"settings": 1}')
    return folder


def begin(*words, cwd):
    command = [sys.executable, "-m", "profstack", "merge", *map(str, words)]
    return subprocess.Popen(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def report_of(folder):
    return json.loads((folder / "report.json").read_text())


def test_a_cluster_gives_what_one_process_gives_though_a_worker_is_killed(traces, tmp_path):
    one = begin(traces, "-o", "one", "--workers", 0, cwd=tmp_path)
    many = begin(traces, "-o", "many", "--workers", 2, "--memory-limit", "1GB", cwd=tmp_path)
    killed = None
    for line in many.stderr:
        if " of 24 ranks in " in line and killed is None:
            workers = [
                each for each in psutil.Process(many.pid).children(recursive=True)
                if "spawn_main" in " ".join(each.cmdline())
            ]  # fmt: skip
            killed = max(workers, key=lambda each: sum(each.cpu_times()[:2]))
            killed.kill()
    assert many.wait(120) == 0
    _, said = one.communicate(timeout=120)
    assert one.returncode == 0, said
    for line in ("rank9.json is left out: ", "rank11.json is left out: "):
        assert line in said
    assert killed is not None
    found, alone = report_of(tmp_path / "many"), report_of(tmp_path / "one")
    assert found["ranks"] == alone["ranks"]
    assert (found["ranks"]["count"], found["ranks"]["missing"]) == (RANKS - 2, [9, 11])
    assert found["ranks"]["collectives"]["last_rank"] == 5
    sentence = "Rank 5 makes the other 21 ranks wait 300 µs of each step"
    assert sentence in found["verdict"]["sentence"]
    for name in ("ranks", "rank_work", "rank_parts", "collectives"):
        assert found["tables"][name] == alone["tables"][name]
        table = pyarrow.parquet.read_table(tmp_path / "many" / "tables" / f"{name}.parquet")
        assert table.to_pylist() == found["tables"][name]
    own = {row["folder"] for row in found["tables"]["ranks"]} - {None, "rank-00009", "rank-00011"}
    assert "rank-00005" in own
    assert len(own) <= 5
    assert all((tmp_path / "many" / each / "report.html").is_file() for each in own)
    # A second start takes up what is finished.
    (traces / "rank9.json").write_text(rank_trace(0, **told_rank(9, RANKS, host_name="n1")))
    begun = time.monotonic()
    again = begin(traces, "-o", "many", "--workers", 0, cwd=tmp_path)
    _, said = again.communicate(timeout=120)
    assert again.returncode == 0, said
    assert f"{RANKS - 2} of {RANKS} ranks are there from an earlier start" in said
    assert report_of(tmp_path / "many")["ranks"]["missing"] == [11]
    assert time.monotonic() - begun < 60
