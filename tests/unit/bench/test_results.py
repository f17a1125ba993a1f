"""What several processes left, joined to one recording."""

import sqlite3

import pytest

from profstack.bench.results import join_results, take_layers
from tests.support.tables import of


def test_a_process_that_ended_early_counts_nowhere_and_others_are_joined():
    interrupted = {"figures": None, "error": "KeyboardInterrupt"}
    for result, code in ((interrupted, -2), (None, 130)):
        assert join_results([result], [code])["problems"] == ["interrupted (Ctrl-C)"]
    assert join_results([None], [-9])["problems"] == ["ended by signal 9"]
    last = {"figures": {"median_s": 0.6}, "error": None}
    fact = join_results([{"figures": {"median_s": 0.5}}, None, last], [0, -9, 0])
    between = fact["figures"]["between_process"]
    assert of(between, "medians_s processes median_s") == [[0.5, None, 0.6], 2, 0.55]
    assert of(between, "low_s high_s") == [0.5, 0.6]
    assert of(between, "spread std_s") == pytest.approx([0.2, 0.1 / 2**0.5])
    assert fact["problems"] == ["process 2: ended by signal 9"]
    assert "between_process" not in join_results([{"figures": {"median_s": 0.5}}], [0])["figures"]
    results = []
    for medians in ({"eager": 0.5, "compile": 0.3}, {"compile": 0.2, "eager": 0.4}):
        rows = [{"variant": name, "median_s": each} for name, each in medians.items()]
        results.append({"figures": {"median_s": medians["eager"], "compare": rows}})
    rows = join_results(results, [0, 0])["figures"]["compare"]
    assert [row["between_process"] for row in rows] == [[0.5, 0.4], [0.3, 0.2]]


def test_the_layers_become_part_of_the_recording(tmp_path):
    made = tmp_path / "logs" / "layers"
    texts = {"torch/trace.json.gz": "trace", "logs/progress.jsonl": "", "report.html": "alone"}
    for name, text in texts.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(text)
    sqlite3.connect(made / "recording.sqlite").execute("CREATE TABLE facts (key, value)")
    assert take_layers(tmp_path)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"torch/trace.json.gz", "recording.sqlite", "logs/progress.jsonl"}
    assert (tmp_path / "torch/trace.json.gz").read_text() == "trace"
    assert (made.exists(), take_layers(tmp_path)) == (False, False)
