"""Data loading: how long a step waits for it, which functions take it, what workers save."""

import pytest

from profstack.analysis.functions import COST
from profstack.findings import data_loading
from profstack.findings.data_loading import gain_of, loading_functions, wait_share
from tests.support import findings as made
from tests.support.findings import LOADER, MS, STEP_S, TRAIN, call, function, line, row
from tests.support.tables import cases, missing, near, of, rows_of

ASKED = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
NEXT = function("__next__", 0.1 * MS, 8 * MS, file=LOADER, line=700)


def starving(
    *, share=0.5, ranges=((1.0, 4),), wait=5, tables=None, parts=None, asked_ms=None, **processes
):
    """A step of 10 ms on four cores of which a share goes by before its first work.

    The torch layer saw `wait` ms of that, and each of the loader's `ranges`: calls and ms.
    """
    cores = {"usable_cores": processes.pop("cores", 4), "logical_cores": 64}
    times = {name: ms and ms * MS for name, ms in processes.items() if name != "workers"}
    known = {"processes": processes | times, "environment": cores}
    known["layers"] = [{"name": "torch", "status": "recorded"}]
    asked = [(calls, ms * MS) for calls, ms in ranges]
    return made.report_of(
        parts=known | (parts or {}),
        steps=[
            {"index": 3, "wait_s": share * STEP_S, "wall_s": STEP_S}
            | ({"before_loader_s": 0.0, "loader_s": asked_ms * MS} if asked_ms else {})
        ],
        modules=[{"path": "(wait)", "self_s": wait * MS, "calibrated_s": wait * 0.8 * MS}],
        regions=rows_of("calls wall_s", *asked, source="torch", path=ASKED),
        **(tables or {}),
    )


def loading_of(**changes):
    report = starving(**changes)
    return data_loading.loading_of(report, STEP_S, wait_share(report) or 0.0)


def starved(report, factor=1.0):
    recording = made.recorded({COST: {"bytecode_factor": factor}})
    return made.asked(data_loading.data_starved, recording, report, "regions", "functions", "lines")


def by_cprofile(*rows):
    """Loaders' functions by cProfile (whole, calibrated ms), without the torch layer's ranges."""
    functions = [
        function("__next__", MS, whole * MS, file=LOADER, calibrated_s=ms and ms * MS, line=at)
        for at, (whole, ms) in enumerate(rows)
    ]
    return {"ranges": (), "tables": {"functions": functions}}


@cases("wait_ms load_ms changes",
       # Of the traced wait four fifths are the loader's.
       *((5, 4, {}), (3, 2.4, {"share": 0.3}), (5, 2.5, {"ranges": ((0.5, 1), (0.75, 1.5))})),
       # What the clean steps tell takes precedence.
       *((5, 4.5, {"asked_ms": 4.5}), (5, 5, {"asked_ms": 5.5})),
       # Of several batches the later ones are waited for within the step.
       *((5, 5, {"ranges": ((1, 7),)}), (5, 5, {"ranges": ((1.4, 8),)})),
       *((6.4, 6.4, {"ranges": ((1.5, 8),)}), (10, 10, {"ranges": ((4, 30),)})),
       # Without the torch layer's ranges it is cProfile's slowest loader, at clean speed.
       *((5, 3, by_cprofile((6, 0.5))), (5, 5, by_cprofile((60, 0.5)))),
       *((5, 3.6, by_cprofile((6, 0.5), (4, 0.9))), (5, 5, {"ranges": ((4, 6),)})))  # fmt: skip
def test_loading_is_the_loaders_part_of_the_wait(wait_ms, load_ms, changes):
    assert [*loading_of(**changes)[:3]] == near(STEP_S, wait_ms * MS, load_ms * MS)


def test_times_of_processes_are_of_a_mean_step_and_loading_of_the_median():
    means = {"step_s": 25, "cpu_s": 30, "no_core_s": 5, "off_cpu_s": 9}
    known = {"step_s": 25, "workers": 3, "worker_cpu_s": 45}
    for changes, *expected in (
        (means | known, 12 * MS, 2 * MS, 0.0, 3, 1.0),
        (means | {"workers": 0, "ranges": ((3.0, 9),)}, 12 * MS, 0.0, 2 * MS, 0, 3.0),
        ({"cpu_s": 1.0}, None, 0.0, 0.0, 0, 1.0),
    ):
        found = loading_of(**changes)
        names = ("cpu_s", "no_core_s", "crowded_s", "workers", "batches")
        assert [getattr(found, name) for name in names] == near(*expected)
    assert data_loading.busy_share(starving(**known)) == pytest.approx(0.6)


@cases("waits processes",
       # Of 4 ms of loading the thread had no CPU for more than half; lacking a core is no waiting.
       "True off_cpu_s=2.05; False off_cpu_s=1.95; False off_cpu_s=3,no_core_s=1.1",
       # Workers that are busy for less than half, unless they lack a core themselves.
       "True workers=3,worker_cpu_s=14.9; False workers=3,worker_cpu_s=15.1",
       "True workers=3,worker_cpu_s=6,no_core_s=.95; False workers=3,worker_cpu_s=6,no_core_s=1.05",
       "False workers=3,off_cpu_s=4")  # fmt: skip
def test_loading_without_a_cpu_is_waiting(waits, processes):
    assert loading_of(step_s=10, **processes).is_waiting is waits


def loading(**changes):
    """10 ms of which 4 ms are loading, on four cores."""
    known = {"step_s": 0.01, "wait_s": 0.004, "load_s": 0.004, "cpu_s": 0.01, "cores": 4.0}
    return data_loading.Loading(**known | {"workers": 0, "is_waiting": 0, "is_python": 0} | changes)


@cases(
    "count gain changes",
    # Loading goes beside the work, for 0.2 ms a batch. Where it is longer, two workers halve it.
    "1 .0038 -; 1 .0032 batches=4.; 3 .0073 load_s=.0075; 2 .006 load_s=.0075,cores=2.5",
    # What is not known is taken to be all of the step.
    "2 .005 load_s=.0075,cpu_s=None,cores=2.",
    # What waits for a disk needs no core; of the rest there are no more workers than cores.
    "9 .0088 load_s=.009,cpu_s=.001,cores=2.,is_waiting=True",
    "16 .00938125 load_s=.0099,cpu_s=.001,is_waiting=True",
    # Python code lets a batch go only when the interpreter switches threads, after 5 ms.
    "1 .035 step_s=.1,load_s=.04,cpu_s=.1,is_python=True",
    # One worker is busy for all the step. Half of a wait for a core stays. A hundredth counts.
    "2 .004 workers=1; 2 .002 workers=1,no_core_s=.002; 1 .00011 load_s=.00031",
    # A tenth of the step in which others, as ranks on the same cores, have them.
    "1 .0038 crowded_s=.00099",
    (1, "1.00 ms of a step its thread lacks a core", {"crowded_s": 0.001}),
    *((1, "one core", {"cores": 1.0}), (1, "handing batches over", {"is_python": True})),
    (1, "handing batches over", {"step_s": 0.0005, "load_s": 0.0002, "cpu_s": 0.0005}),
)
def test_the_gain_is_bound_by_work_workers_and_cores_or_has_a_reason(count, gain, changes):
    found = loading(**changes)
    saved, reason = gain_of(found, found.wanted())
    assert (found.wanted(), reason is None) == (count, saved is not None)
    assert gain in reason if reason else saved == pytest.approx(gain)


# The user's functions and those of libraries, by their first letters.
KNOWN = {"next": ("__next__", 700, LOADER), "item": ("__getitem__", 31, TRAIN)}
KNOWN |= {"jitter": ("jitter", 8, TRAIN), "rotate": ("rotate", 16, TRAIN)}


def loads(calls, lines=(), **times):
    """The functions of a loader: own and whole milliseconds; who calls whom; time on own lines."""
    rows = {}
    for name, (own, whole) in {"next": (0.1, 10), **times}.items():
        called, first, file = KNOWN[name]
        rows[name] = function(called, own * MS, whole * MS, file=file, line=first)
    pairs = [edge.split() for edge in calls.split(", ")]
    edges = [call(rows[one], rows[other], float(ms) * MS) for one, other, ms in pairs]
    texts = [line(at, f"    line {at}", python_s=ms * MS) for at, ms in dict(lines).items()]
    return made.report_of(functions=[*rows.values()], calls=edges, lines=texts)


def test_functions_below_the_loader_are_named_by_what_they_take_and_call():
    times = {"item": (0.6, 9.8), "jitter": (6.7, 6.7), "rotate": (2.5, 2.5)}
    calls = "next item 9.8, item jitter 6.7, item rotate 2.5, rotate rotate 2.4"
    report = loads(calls, {9: 0.5, 13: 6.2, 22: 2.4, 35: 0.6}, **times)
    rows = loading_functions(report, 0.005)
    assert [each.row["name"] for each in rows] == ["jitter", "__getitem__", "rotate"]
    assert [each.share for each in rows] == near(0.67, 0.98, 0.25)
    found = of(rows[0].evidence, "clean_s loading_share called_from text link")
    assert found == near(0.00335, 0.67, "__getitem__", "line 13", f"python/{TRAIN}:8:jitter")
    words = "Most of the loading is jitter (train.py:8), called from __getitem__."
    assert data_loading.most_of_it(rows) == words
    # The line of a function that is mostly in others of the user's would be blamed for theirs.
    assert [each.evidence.get("heaviest_line") for each in rows] == [13, None, 22]


# The loader has four fifths of the wait: a quarter of the step is enough.
@cases("share is_found", "0.3126 True; 0.3124 False; 0.56 True; 0.19 False")
def test_a_quarter_of_the_step_in_the_loader_starves_it(share, is_found):
    assert len(starved(starving(share=share))) == is_found


def test_loading_names_its_function_and_advice_on_workers_and_cores():
    get = function("__getitem__", 7 * MS, 8 * MS, line=31)
    tables = {"functions": [NEXT, get], "calls": [call(NEXT, get, 8 * MS)]}
    busy = {"step_s": 20, "cpu_s": 20, "no_core_s": 1.9, "share": 0.9, "tables": tables}
    (told,) = starved(starving(**busy))
    # 7.2 ms of loading beside 2.8 ms of work; Python hands a batch over after 5 ms.
    assert of(told, "gain_s file line severity") == near(2.2 * MS, TRAIN, 31, "high")
    # The line to edit is that which makes the loader.
    source = {"file": "/w/data.py", "text": "def made():\n    return DataLoader(rows)\n"}
    (edited,) = starved(starving(**busy, parts={"sources": [source]}))
    assert of(edited, "file line") == ["/w/data.py", 2]
    names = "loading_s step_share wait_before_work_s cores workers mean_cpu_s waited_for_core_s"
    expected = near(7.2 * MS, 0.72, 9 * MS, 4.0, 0, 20 * MS, None)
    assert of(told["evidence"][0], names) == expected
    expected = ["modules/(wait)", f"ranges/{ASKED}", f"python/{TRAIN}:31:__getitem__"]
    assert made.links(told) == expected
    assert not missing(told["advice"], "num_workers=3", "__getitem__ (train.py:31)")
    assert told["title"].endswith(" __getitem__")
    # Workers are worth it from a fifth of the loading on: of 6.32 ms 1.32, of 6.16 ms 1.16.
    for share, is_worth in ((0.79, True), (0.77, False)):
        (few,) = starved(starving(**busy | {"share": share}))
        assert ((few["gain_s"] or 0.0) > 0, "num_workers=" in few["advice"]) == (is_worth, is_worth)
        assert ("Workers would save little of it: the other" in few["advice"]) is not is_worth
    # Who has the cores would keep them from workers, too.
    (full,) = starved(starving(**busy | {"no_core_s": 2}))
    assert (full["gain_s"], "num_workers=" in full["advice"]) == (None, False)
    assert full["gain_reason"].startswith("for 1.00 ms of a step its thread lacks a core")
    # Handing over takes as long as the loading.
    for cores in (1, 2):
        (told,) = starved(starving(step_s=20, cpu_s=20, share=0.5, cores=cores, tables=tables))
        assert (told["gain_s"], "num_workers" in told["advice"]) == (None, False)
        assert ("There is one core" in told["advice"]) is (cores == 1)


def own_batches(*, ms=4.75, away=0.2, share=0.4):
    """A function at line 5 that cProfile saw for 4.75 ms, which are 3.8 ms of a clean step.

    The torch layer saw `away` ms of work outside modules.
    """
    tables = {"functions": [function("draw", ms * MS, calls=1.0)]}
    tables["lines"] = [line(6, "return x"), line(20, "    x = draw()")]
    sources = [{"file": TRAIN, "text": "\n\n\n\ndef draw(self):\n    x\n    x\n"}]
    report = starving(share=share, ranges=(), parts={"sources": sources}, tables=tables)
    for path, seconds in {"(loss)": 0.0, "(not attributed)": away and away * MS}.items():
        report["tables"]["modules"].append(row("modules", path=path, calibrated_s=seconds))
    return report


@cases("ms share factor away clean",
       # Half of the wait of 5.5 ms, a quarter of the step; a fifth longer is about as long.
       "3.45 .55 1 .2 2.76; 3.42 .55 1 .2 None; 3.13 .26 1 .2 2.504; 3.12 .26 1 .2 None",
       "3.12 .249 1 .2 None; 5.98 .4 1 .2 4; 6.02 .4 1 .2 None",
       # Python that cProfile slowed beyond the wait has all of it; 4.8 ms are too many.
       "8.75 .4 3 .2 4; 8.75 .4 1 .2 None; 8.75 .4 3 2.4 None; 8.75 .4 3 None None",
       # Elsewhere 4 ms of the step are as much as it takes there, 8 ms slowed twice.
       "10 .4 2 3.9 4; 10 .4 2 4 None")  # fmt: skip
def test_a_function_has_most_of_the_wait_and_of_the_step(ms, share, factor, away, clean):
    found = starved(own_batches(ms=ms, share=share, away=away), factor)
    times = [each["evidence"][1]["clean_s"] for each in found]
    assert times == ([] if clean is None else near(clean * MS))


def test_a_script_that_makes_its_batches_is_told_by_its_outermost_functions():
    (told,) = starved(own_batches())
    assert of(told, "gain_s severity layers") == [None, "high", ["cprofile"]]
    wait, first = told["evidence"]
    figures = [*of(wait, "wait_before_work_s step_share"), first["clean_s"]]
    assert figures == near(4 * MS, 0.4, 3.8 * MS)
    assert made.links(told) == ["modules/(wait)", f"python/{TRAIN}:5:draw"]
    work = function("_call_impl", 1 * MS, file="/lib/torch/nn/modules/module.py")
    names = ("train", "forward", "draw", "wave", "log")
    rows = [function(name, 1 * MS, at * MS, line=at) for at, name in enumerate(names, 2)]
    train, forward, draw, wave = rows[:4]
    calls = [call(train, work), call(work, forward), call(draw, wave)]
    report = made.report_of(functions=[work, *rows], calls=calls)
    found = data_loading.before_first_work(report, 8 * MS, 1.0)
    assert [each.row["name"] for each in found] == ["log", "draw"]
    assert [each.clean_s for each in found] == near(4.8 * MS, 3.2 * MS)
