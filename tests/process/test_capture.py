"""Processes of their own: one run of everything a script may do, children."""

import sys

import pytest

from tests.support.agreement import contradictions
from tests.support.recorded_runs import rows_of


def test_a_run_records_the_regions_of_its_script(recorded_run):
    run = recorded_run("loading")
    assert (run.code, run.stdout) == (0, "trained 120\n"), run.stderr
    rows = rows_of(
        run.recording,
        "SELECT kind, steps, slices.wall_s, path, calls, region_times.wall_s "
        "FROM region_times JOIN slices USING (slice) WHERE source = 'profstack.region'",
    )
    assert {row[0] for row in rows if row[3] == "whole"} >= {"clean", "torch", "cprofile"}
    for _, steps, slice_s, path, calls, inside_s in rows:
        if path == "whole":
            # It is open all the time, and was entered before the first slice.
            assert (calls, inside_s) == (0, pytest.approx(slice_s))
        else:
            assert (path in ("whole/load", "whole/update"), calls) == (True, steps)
            assert 0 < inside_s < slice_s
    # A range of torch's own around the loader is there too.
    regions = [row for row in run.report["tables"]["regions"] if row["source"] != "torch"]
    table = {(row["source"], row["path"]): row for row in regions}
    own = "profstack.region"
    updates = ((own, "whole"), (own, "whole/update"), ("record_function", "update"))
    once = dict.fromkeys((*updates, (own, "whole/load"), ("nvtx", "batch")), 1.0)
    assert {key: row["calls"] for key, row in table.items()} == {**once, (own, "whole"): 0.0}
    # The products of forward and of the weights' gradient.
    products = 2 * 2 * 16 * 512 * 512
    flop = {key: row["flop"] for key, row in table.items() if row["flop"] is not None}
    assert flop == dict.fromkeys(updates, products)
    assert 0 < table[own, "whole/load"]["operator_s"] < table[own, "whole"]["operator_s"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads' clocks: Linux alone")
def test_a_run_records_its_threads_and_workers(recorded_run):
    report = recorded_run("loading").report
    assert contradictions(report) == []
    rows = report["tables"]["threads"]
    kinds = {row["kind"] for row in rows}
    assert kinds == {"main", "DataLoader worker", "native", "profstack", "other"}
    (main,) = (row for row in rows if row["kind"] == "main")
    (augment,) = (row for row in rows if row["name"] == "augment")
    (sampler,) = (row for row in rows if row["kind"] == "profstack")
    workers = [row for row in rows if row["name"] == "pt_data_worker"]
    assert sorted(row["process"] for row in workers) == [1, 2]
    assert all(row["cpu_s"] > 0 for row in (main, augment, *workers))
    # The sampler stands still in clean steps.
    assert sampler["cpu_s"] < main["cpu_s"] / 20
    assert {"cprofile", "torch", "watch"} <= set(main["layers"])
    assert all(row["layers"] == [] for row in (*workers, augment))
