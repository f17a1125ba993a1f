"""Backward passes under anomaly detection, and those that go again through the same graph."""

import pytest

from profstack.findings import rules
from profstack.findings.backward import anomaly_detection, graph_again
from tests.support.findings import MS, STEP_S, TRAIN, asked, built_in, line, report_of
from tests.support.recordings import Sampled
from tests.support.tables import cases, near, of, rows_of

MAIN, STACKS = (TRAIN, 3, "<module>"), ("/lib/python3.11/linecache.py", 52, "checkcache")
SOURCES = [
    {"file": "/lib/a.py", "text": "set_detect_anomaly(True)"},
    {"file": TRAIN, "text": "# set_detect_anomaly(True)\n\ntorch.autograd.set_detect_anomaly(1)\n"},
]


@pytest.fixture
def seen(tmp_path):
    def seen(recorded, others):
        made = Sampled(tmp_path / "rec")
        made.even(100)
        for number in range(recorded + others):
            stack = (MAIN, STACKS) if number < recorded else (MAIN,)
            made.sample(made.now - 0.9 + 0.005 * number, *stack)
        return made.recorded()

    return seen


@cases("recorded others share severity", (30, 70, 0.3, "high"), (3, 97, 0.03, "low"),
       (20, 29, None, "medium"))  # fmt: skip
def test_anomaly_detection_is_told_with_what_the_samples_see_of_it(
    seen, recorded, others, share, severity
):
    setup = {"steps": 3, "backward_passes": 12, "anomaly_passes": 9}
    rows = {"functions": [built_in("format_stack", MS, calls=201.0)], "lines": [line(3)]}
    report = report_of(parts={"setup": setup, "sources": SOURCES}, **rows)
    (told,) = anomaly_detection(seen(recorded, others), report)
    expected = ["anomaly-detection", severity, None, TRAIN, 3]
    assert of(told, "slug severity gain_s file line") == expected
    assert "75 %" in told["title"]
    assert "201 tracebacks" in told["advice"]
    assert ("30 % of the step" in told["gain_reason"]) is (share == 0.3)
    assert of(told["evidence"][0], "step_share tracebacks") == near(share, 201.0)


@pytest.mark.parametrize("setup", [{"anomaly_passes": 0}, {"backward_passes": 0}, {}])
def test_without_it_nothing_is_told(setup):
    report = report_of(parts={"setup": {"steps": 3, "backward_passes": 3} | setup})
    assert anomaly_detection(None, report) == []


NODE = "autograd::engine::evaluate_function: {}Backward0"


def passes(*operators, backward_s=6 * MS, kept=8, of=8):
    """A report of operators: name, its calls, its function's name, and runs and time of that."""
    rows = rows_of("name calls", *(each[:2] for each in operators), total_s=MS)
    rows += rows_of("name calls total_s", *(
        (NODE.format(name), runs, seconds) for _, _, name, runs, seconds in operators))  # fmt: skip
    bar = {"time_line": "host", "total_s": STEP_S,
           "parts": rows_of("name seconds is", ("backward", backward_s, "measured"))}  # fmt: skip
    setup = {"steps": 2, "backward_passes": of, "kept_graphs": kept}
    lines = [line(7, "loss.backward(retain_graph=True)", python_s=MS), line(9, "add(1)")]
    return report_of(parts={"setup": setup, "step_bar": bar}, operators=rows, lines=lines)


RNN = ("aten::mkldnn_rnn_layer", 16.0, "MkldnnRnnLayer", 136.0, 8 * MS)
SUM = ("aten::sum", 16.0, "Sum", 16.0, 2 * MS)


def test_runs_of_functions_beyond_their_operators_calls_are_done_again():
    (told,) = asked(graph_again, None, passes(RNN, SUM))
    share = 0.8 * (1 - 16 / 136)
    assert of(told, "slug severity gain_s file line") == near(
        "graph-again", "high", share * 6 * MS, TRAIN, 7)  # fmt: skip
    assert told["title"].startswith("71 % of the backward pass goes again")
    evidence = of(told["evidence"][0], "function runs operator_calls passes")
    assert evidence == ["aten::mkldnn_rnn_layer", 136.0, 16.0, 4.0]


def test_who_keeps_no_graph_or_goes_once_through_it_is_told_nothing():
    # Half as often again, at least; and half of the passes keep their graph.
    often = ("aten::mkldnn_rnn_layer", 16.0, "MkldnnRnnLayer", 24.0, 8 * MS)
    few = (*often[:3], 23.9, 8 * MS)
    assert [len(graph_again(None, passes(each))) for each in (often, few)] == [1, 0]
    assert [len(graph_again(None, passes(RNN, kept=kept))) for kept in (4, 3)] == [1, 0]
    # A tenth of the step, by what ran again.
    limit = rules.GRAPH_AGAIN.threshold * STEP_S / (1 - 16 / 136)
    assert [len(graph_again(None, passes(RNN, backward_s=part * limit))) for part in (1.01, 0.99)] \
        == [1, 0]  # fmt: skip
    # In place, the operator has the same function. Time of functions of unknown operators counts.
    both = [("aten::relu_", 20.0, "Relu", 20.0, MS), ("aten::relu", 4.0, "None", 0.0, 0.0)]
    assert graph_again(None, passes(*both)) == []
    rest = ("aten::none", 1.0, "MyFn", 1.0, 8 * MS)
    (told,) = graph_again(None, passes(RNN, rest))
    assert told["evidence"][0]["backward_share"] == pytest.approx(0.5 * (1 - 16 / 136))
    # With more calls than runs it is not known, and as the others that have most of the time.
    product = ("aten::mm", 300.0, "Mm", 136.0, 7.9 * MS)
    (told,) = graph_again(None, passes(RNN, product))
    assert told["evidence"][0]["backward_share"] == pytest.approx(1 - 16 / 136)
    # An operator that is not known has no function that ran again.
    assert graph_again(None, passes(("aten::other", 1.0, "MkldnnRnnLayer", 136.0, MS))) == []
