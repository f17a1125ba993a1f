"""Own times that are corrected for cProfile's cost, against the clean time of the same code."""

from time import perf_counter

from profstack.layer import SliceContext
from profstack.wrappers.cprofile import CProfileWrapper
from tests.support.recordings import Run


def tiny():
    """So short that its time under cProfile is mostly cProfile's."""


def many_calls():
    for _ in range(20_000):
        tiny()


def test_corrected_own_time_is_nearer_to_the_clean_time(tmp_path):
    clean, raw, corrected = [], [], []
    for number in range(5):
        begun = perf_counter()
        many_calls()
        clean.append(perf_counter() - begun)
        wrapper = CProfileWrapper()
        wrapper.start(SliceContext(0, "timed", 1, tmp_path / "cprofile"))
        many_calls()
        wrapper.stop()
        taken, run = wrapper.take([0.0, 1.0], {}), Run(tmp_path / str(number))
        run.clean()
        run.cprofile(
            [0.01] * 3, frames={name: [*taken.frames[name]] for name in ("functions", "calls")}
        )
        run.writer.write({"facts": taken.frames["facts"]})
        rows = run.finish()["tables"]["functions"]
        ours = [row for row in rows if row["name"] in ("tiny", "many_calls")]
        assert len(ours) == 2
        raw.append(3 * sum(row["self_s"] for row in ours))
        # An empty function has nothing left that could be told.
        corrected.append(3 * sum(row["corrected_self_s"] or 0.0 for row in ours))
    # The least disturbed of five: other programs only add.
    assert abs(min(corrected) - min(clean)) < 0.7 * abs(min(raw) - min(clean))
