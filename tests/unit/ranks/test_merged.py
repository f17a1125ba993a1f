"""The report of all ranks: its sentence, the rank that it shows, and the tables that join them."""

import copy

import pytest

from profstack.ranks.collectives import Call
from profstack.ranks.merged import MOST_BINS, merged, numbered
from profstack.ranks.straggler import LEAST_LATE
from tests.support.launches import CLEAN, launch
from tests.support.tables import cases, missing, near, of, rows_of

MIB = 1 << 20


def of_reports(kept, recorded=None, calls=lambda _: ()):
    """The report of all by the reports in their folders."""
    kind, summary = numbered([*kept], kept.__getitem__, calls)
    return merged(kind, summary, kept.__getitem__, recorded)


def joined(ranks, recorded=None, calls=lambda _: ()):
    """The report of all; a report that was read is changed by nobody."""
    kept = {rank.folder: copy.deepcopy(rank.report) for rank in ranks}
    report = of_reports(kept, recorded, calls)
    assert kept == {rank.folder: rank.report for rank in ranks}
    return report


def said(ranks, recorded=None):
    return joined(ranks, recorded)["verdict"]["sentence"]


def test_the_straggler_is_shown_with_what_takes_longer_on_it():
    ranks = launch(3, late={2: lambda step: 0.011}, noise=0.0)
    report = joined(ranks)
    assert report["verdict"]["sentence"] == (
        "Rank 2 makes the other 2 ranks wait 11.0 ms of each step (55 %): its data wait takes "
        "11.0 ms more than theirs."
    )
    assert of(report["ranks"], "count world_size missing shown") == [3, 3, [], 2]
    assert report["ranks"]["spread_s"] == pytest.approx(0.011)
    assert report["tables"]["modules"] == ranks[2].report["tables"]["modules"]
    columns = "rank folder steps part cause"
    rows = report["tables"]["ranks"]
    assert [of(row, columns) for row in rows] == [
        [0, "rank-00000", 120, None, "balanced"],
        [1, "rank-00001", 120, None, "balanced"],
        [2, "rank-00002", 120, "data wait", "balanced"],
    ]
    assert [row["waits_s"] for row in rows] == pytest.approx([0.012, 0.012, 0.001])
    assert [row["late_s"] for row in rows] == pytest.approx([-0.0055, -0.0055, 0.011])
    ranks[1].report["tables"]["steps"][3]["cpu_s"] += 1.2
    assert joined(ranks)["tables"]["ranks"][1]["cpu_s"] == pytest.approx(0.007 + 1.2 / 120)
    path = ranks[2].report["tables"]["artifacts"][0]["path"]
    assert report["tables"]["artifacts"][0]["path"] == f"rank-00002/{path}"


def test_parts_of_a_rank_add_up_and_its_steps_are_in_few_columns():
    ranks = launch(2, late={1: lambda step: 0.04 * (step == CLEAN[9])}, noise=0.0)
    tables = joined(ranks)["tables"]
    for rank in ranks:
        parts = [row["time_s"] for row in tables["rank_parts"] if row["rank"] == rank.number]
        assert sum(parts) == pytest.approx(rank.rank.step_s)
    rows = [row for row in tables["rank_steps"] if row["rank"] == 1]
    assert [(row["first_step"], row["last_step"]) for row in rows] == [(at, at) for at in CLEAN]
    assert [row["first_step"] for row in rows if row["late_s"]] == [CLEAN[9]]
    assert rows[9]["late_s"] == pytest.approx(0.04)
    assert rows[9]["wait_s"] == pytest.approx(0.041)
    for rank in ranks:
        rank.report["tables"]["steps"] = rows_of(
            "index wait_s cpu_s", *((at, 0.001 * (at % 7), 0.002) for at in range(1000)),
            wall_s=0.01, phase="train", slice=0, flags=None,
        )  # fmt: skip
    rows = joined(ranks)["tables"]["rank_steps"]
    assert len(rows) == 2 * MOST_BINS
    # The largest of each column.
    assert {row["wait_s"] for row in rows} == {0.006}
    assert rows[MOST_BINS - 1]["last_step"] == 999


def test_late_steps_of_one_rank_are_said_with_their_share_and_distance():
    ranks = launch(late={0: lambda step: 0.05 * (step % 10 == 4)}, traced={}, noise=0.0)
    doing = {"index": 44, "doing": "save, train.py:9"}
    ranks[0].report["tables"]["outliers"] = [{"index": 3, "doing": "load"}, doing]
    slow = [step for step in CLEAN if step % 10 == 4]
    assert said(ranks) == (
        f"Rank 0 makes the other rank wait 50.0 ms in {100 * len(slow) / len(CLEAN):.0f} % of the "
        "steps, every 10th: that time goes by before its model's first call (save, train.py:9)."
    )
    since = launch(late={1: lambda step: 0.03 * (step >= 60)}, noise=0.0)
    for row in since[1].report["tables"]["steps"]:
        row["wall_s"] = 0.04 if row["index"] >= 60 else 0.01
    # The share is of the steps that are late.
    told = " 30.0 ms of each step (75 %) from step 60 on: its data wait takes longer than theirs."
    assert missing(said(since), told) == []


def test_equal_ranks_have_no_straggler_and_the_words_say_what_collectives_cost():
    ranks = launch(3, noise=0.0, traced={1: 0.0004})
    assert said(ranks) == (
        "None of 3 ranks makes the others wait: their own times are 400 µs apart, and each spends "
        "16 % of a step in collectives. Rank 0: Of 0."
    )
    for rank in ranks:
        rank.report["verdict"]["evidence"][0]["share"] = 0.05
    assert said(ranks).startswith("None of 3 ranks makes the others wait: their own times are 0 ")
    ranks[0].report["verdict"]["evidence"] = ranks[1].report["verdict"]["evidence"] = []
    assert said(ranks).startswith("Of 3 ranks it is not known how long they wait for each other.")
    assert said(ranks[2:], recorded=[2]) == "Of 2."


def test_collectives_of_all_ranks_are_said_and_stand_beside_the_shown_ranks_own():
    def call(begin, end, step=4):
        return Call(step, "gloo:all_reduce", 4 * MIB, begin, end)

    ranks = launch(2, noise=0.0, traced={})
    calls = {"rank-00000": [call(1.0, 1.032)], "rank-00001": [call(1.024, 1.032)]}
    own = {"name": "gloo:all_reduce", "calls": 1.0, "wall_s": 0.032, "hidden_s": 0.008}
    own |= dict.fromkeys(("skew_s", "transfer_s", "bytes_per_s", "last_rank", "last_share"))
    report = ranks[0].report
    report["tables"]["collectives"] = [own | {"bytes": 4 * MIB}, own | {"bytes": 8}]
    report["columns_reason"] = {"collectives.skew_s": "of one alone", "steps.cpu_s": "too short"}
    found = joined(ranks, calls=calls.__getitem__)
    assert found["verdict"]["sentence"].endswith(
        " In the collectives of a step a rank waits 12.0 ms for the last one to come. The transfer "
        "then takes 8.00 ms (500 MiB/s). Other work overlaps 25 % of their time. Rank 0: Of 0."
    )
    matched, alone = found["tables"]["collectives"]
    columns = "skew_s transfer_s bytes_per_s last_rank last_share"
    assert of(matched, columns) == near(0.012, 0.008, 500 * MIB, 1, 1.0)
    assert alone == report["tables"]["collectives"][1]
    assert found["ranks"]["collectives"]["skew_s"] == pytest.approx(0.012)
    assert "collectives.skew_s" not in found["columns_reason"]
    assert "no step that all ranks" in found["cells_reason"]["collectives.skew_s"]
    assert found["columns_reason"]["steps.cpu_s"] == "too short"
    for each in calls.values():
        each += [call(at, at + 1.0, step=at) for at in (3, 5)]
    calls["rank-00001"].append(call(1.1, 1.2)._replace(name="gloo:barrier"))
    told = joined(ranks, calls=calls.__getitem__)["warnings"][0]
    assert told["slug"] == "collectives-differ"
    assert told["text"].startswith("from step 4 on ")


def test_where_no_step_is_clean_the_rank_that_comes_last_is_the_one_that_is_waited_for():
    ranks = launch(3, noise=0.0, traced={})
    step_s = ranks[0].rank.step_s

    def found(late, *, steps=12, mode="profiled", since=0):
        for rank in ranks:
            rank.report["benchmark"]["mode"] = mode

        def calls(folder):
            late_s = late * step_s * (folder == ranks[2].folder)
            return [
                Call(at, "gloo:all_reduce", 8, at + late_s * (at >= since), at + 0.5)
                for at in range(steps)
            ]

        return joined(ranks, calls=calls)["ranks"]["straggler"]

    told = found(LEAST_LATE * 1.01)
    assert of(told, "rank late_s since_step") == near(2, LEAST_LATE * 1.01 * step_s, None)
    # From some step on, which has to be neither among the first nor among the last.
    told = found(0.6, steps=40, since=12)
    assert of(told, "rank late_s since_step") == near(2, 0.6 * step_s, 12)
    told = found(0.6, steps=40, since=4)
    assert of(told, "rank since_step") == [2, None]
    # By less of the step, by chance, or where clean steps decide, it is nobody.
    assert found(LEAST_LATE * 0.99) is None
    assert (found(0.5, steps=7) is None, found(0.5, steps=8) is None) == (True, False)
    assert found(0.5, mode="pipelined") is None
    # A trace without the number of its machine is of no machine of the others: clocks may differ.
    for rank, node in zip(ranks, (None, 1), strict=False):
        rank.report["benchmark"]["mode"], rank.report["run"]["node"] = "profiled", node

    def calls(folder):
        at = 9.0 * (folder == ranks[1].folder)
        return [Call(5, "gloo:all_reduce", 8, at, at + 1)]

    assert joined(ranks[:2], calls=calls)["ranks"]["collectives"]["skew_s"] == 0.0


def test_steps_of_traces_are_late_by_their_collectives():
    ranks = launch(3, noise=0.0, traced={})
    for rank in ranks:
        rank.report["benchmark"]["mode"] = "profiled"
        rank.report["tables"]["steps"] = rows_of(
            "index wall_s", *((at, 0.5 + 0.01 * rank.number) for at in range(6)),
            wait_s=None, cpu_s=None, phase="train", slice=0, flags=None,
        )  # fmt: skip

    def calls(folder):
        """Two collectives a step: rank 2 is late by 20 ms to the second one of steps 3 and 4."""
        late_s = dict.fromkeys((3, 4), 0.02 * (folder == ranks[2].folder))
        own_s = 0.001 * int(folder[-1])
        return [
            Call(at, "gloo:all_reduce", size, at + begin, at + 0.4)
            for at in range(6)
            for size, begin in ((8, own_s), (16, 0.2 + late_s.get(at, 0.0)))
        ]

    tables = joined(ranks, calls=calls)["tables"]
    by_rank = {at: [row for row in tables["rank_steps"] if row["rank"] == at] for at in range(3)}
    assert [row["first_step"] for row in by_rank[2]] == [*range(6)]
    # Of the others 0.5 ms is the middle; rank 1 is as late as the middle of its others.
    late = [*[0.0015] * 3, 0.02, 0.02, 0.0015]
    assert [row["late_s"] for row in by_rank[2]] == pytest.approx([*late[:3], *late[3:]])
    assert {row["late_s"] for row in by_rank[0]} == {0.0}
    assert {row["wall_s"] for row in by_rank[1]} == {0.51}
    assert {row["wait_s"] for row in by_rank[1]} == {None}
    # Of a rank without a collective, and of steps that have none, it is not known.
    tables = joined(ranks, calls=lambda of: calls(of)[2:] if of != ranks[1].folder else [])[
        "tables"
    ]
    late = {
        at: [row["late_s"] for row in tables["rank_steps"] if row["rank"] == at] for at in (1, 2)
    }
    assert late[1] == [None] * 6
    assert late[2] == near(None, 0.002, 0.002, 0.02, 0.02, 0.002)


def test_a_machine_whose_ranks_come_last_in_turn_is_waited_for_as_a_whole():
    late_s = 0.004
    ranks = launch(6, late={at: lambda step: late_s for at in (2, 3)}, noise=0.0)
    for at, rank in enumerate(ranks):
        rank.report["benchmark"]["mode"], rank.report["run"]["node"] = "profiled", at // 2
        # As a trace has it: no step is known to be clean.
        rank.report["tables"]["steps"] = []

    def calls(folder):
        rank = int(folder[-1])
        # The last one is now the one, now the other.
        own = {2: (0.005, 0.004), 3: (0.004, 0.005)}.get(rank, (0.0, 0.0))
        return [Call(at, "gloo:all_reduce", 8, at + own[at % 2], at + 0.5) for at in range(14)]

    found = joined(ranks, calls=calls)
    assert of(found["ranks"]["straggler"], "whole_node late_s") == near(True, late_s)
    said = found["verdict"]["sentence"]
    assert said.startswith("Node 1 (such as rank ")
    assert "makes the other 4 ranks wait" in said
    # Where nobody knows the machines, or all ranks are of one, no machine is late.
    for node in (None, 0):
        for rank in ranks:
            rank.report["run"]["node"] = node
        assert joined(ranks, calls=calls)["ranks"]["straggler"] is None


def test_who_ended_first_and_who_left_nothing_is_said_before_all_else():
    ranks = launch(4, noise=0.0)
    for rank, reason, end in ((ranks[0], "it ended with RuntimeError at t.py:7", "12:00:05"),
                              (ranks[2], "it was ended by SIGKILL", "12:00:01"),
                              (ranks[3], "no step was found", None)):  # fmt: skip
        rank.report["status"], rank.report["status_reason"] = "partial", reason
        rank.report["run"]["finished_at"] = end and f"2026-01-01T{end}"
    found = joined([ranks[0], *ranks[2:]])
    assert found["verdict"]["sentence"].startswith("Rank 2 was ended by SIGKILL, after 120 steps. ")
    texts = [each["text"] for each in found["warnings"] if each["slug"].startswith("rank-")]
    assert texts == [
        "rank 2 was ended by SIGKILL, after 120 steps",
        "rank 0 ended with RuntimeError at t.py:7, after 120 steps",
        "rank 3: no step was found, after 120 steps",
        "rank 1 left no report",
    ]
    assert found["ranks"]["missing"] == [1]
    last = found["tables"]["ranks"][-1]
    assert of(last, "rank folder status step_s") == [1, "rank-00001", "missing", None]
    # Only ranks that were to record can be missing; of some that are not named none is.
    ranks[2].report["run"]["recorded_ranks"] = 2
    assert joined(ranks[2:])["ranks"]["missing"] == []
    assert joined(ranks[3:], [2, 3])["ranks"]["missing"] == [2]
    assert joined(ranks[2:], [2, 3, 9])["ranks"]["missing"] == []


@cases(
    "second told",
    ("    dist.broadcast(t, 0)", "rank 0 all_reduce (t.py:2); rank 1 broadcast (t.py:2). "),
    *(("    dist.all_reduce(t)", None), ("    work(t)", None)),
)
def test_ranks_that_ended_in_different_collectives_are_named_with_their_lines(second, told):
    ranks = launch(2, noise=0.0)
    for rank, line in zip(ranks, ("    dist.all_reduce(t)", second), strict=True):
        report = rank.report
        report["status"], report["status_reason"] = "partial", "it ended with RuntimeError"
        report["sources"] = [{"file": "/a/t.py", "text": f"if True:\n{line}\n"}]
        report["run"]["ended_at"] = {"file": "/a/t.py", "line": 2}
    words = "The ranks called different collectives and waited for each other: "
    verdict = joined(ranks)["verdict"]
    start = f"{words}{told}" if told else "Rank 0 ended with RuntimeError"
    assert verdict["sentence"].startswith(start)
    assert verdict["action"].endswith("Load less.")
    assert verdict["action"].startswith("Let all ranks") is (told is not None)


def test_unequal_work_of_the_ranks_is_a_warning():
    ranks = launch(3, noise=0.0)
    for rank, batch, flop in zip(ranks, (16, 96, 16), (1e9, 1.009e9, None), strict=True):
        rank.report["step"]["batch_size"] = batch
        counted = [{"forward_flop": flop, "backward_flop": 0.0}] if flop else []
        rank.report["tables"]["flops"] = counted
    texts = [each["text"] for each in joined(ranks)["warnings"] if each["slug"] == "ranks-differ"]
    assert len(texts) == 1
    assert "batch size: 16 on rank 0, 96 on rank 1" in texts[0]


def test_processes_without_ranks_are_numbered_and_the_busiest_is_shown():
    ranks = launch(2, late={1: lambda step: 0.011}, noise=0.0)
    kept = {f"process-{9 + rank.number}": copy.deepcopy(rank.report) for rank in ranks}
    # With their ranks they are those of a launch.
    report = of_reports(kept)
    assert of(report["ranks"], "kind shown") == ["rank", 1]
    assert report["ranks"]["straggler"]["rank"] == 1
    for each in kept.values():
        each["run"]["rank"] = None
    kept["process-10"]["slices"][0]["wall_s"] += 1.0
    report = of_reports(kept)
    assert of(report["ranks"], "kind count shown straggler") == ["process", 2, 10, None]
    assert [of(row, "rank folder") for row in report["tables"]["ranks"]] == [
        [9, "process-9"],
        [10, "process-10"],
    ]
    own = kept["process-10"]["verdict"]["sentence"]
    words = "Of 2 processes, process 10 spent most time in steps."
    assert report["verdict"]["sentence"] == f"{words} {own}"
