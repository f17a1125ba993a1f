"""The wrappers of a run: their order, what is kept of each, and whose errors end what."""

import signal
from functools import partial
from unittest.mock import Mock

import pytest

from profstack.capture import observers as under_test
from profstack.capture.slices import SlicePlan
from profstack.layer import Artifact, SliceData
from profstack.storage.folder import Writer
from tests.support.engine import Alpha, Beta, made_up_layers, table
from tests.support.tables import of

BOTH = SlicePlan("shared", (("alpha", "timed"), ("beta", "timed")), 1, 4)
ALONE = SlicePlan("alpha", (("alpha", "timed"),), 1, 4)


class Kit(under_test.Observers):
    def __init__(self, folder, *layers, writing=(), **options):
        self.folder, self.table = folder, partial(table, folder)
        super().__init__(list(layers), Writer(folder, **dict(writing)), **options)

    def wrappers(self, *names):
        return [self.layers[name].wrapper for name in names]

    def status(self, *, write=False):
        if write:
            self.log.write()
        return {row["name"]: (row["status"], row["reason"]) for row in self.table("layers")}


@pytest.fixture
def kit(tmp_path, monkeypatch):
    made_up_layers(monkeypatch)
    return lambda *layers, **options: Kit(tmp_path, *layers, **options)


def test_layers_start_in_order_and_stop_in_reverse(kit, monkeypatch):
    order, note = [], Alpha.note
    monkeypatch.setattr(
        Alpha, "note", lambda *each: (order.append(f"{each[0].name} {each[1]}"), note(*each))
    )
    made = kit("alpha", "beta", "behind", writing={"keep_source": False})
    assert made.status() == dict.fromkeys(("alpha", "beta", "behind"), ("empty", None))
    assert made.start(BOTH, 7, 4, 31)
    alpha, beta = made.wrappers("alpha", "beta")
    assert (made.all_cut(), made.step_limits()) == (False, [None, None])
    beta.limit = 6
    assert made.step_limits() == [None, 6]
    made.stop()
    calls = ["alpha start", "beta start", "beta stop", "alpha stop"]
    assert [each for each in order if each in calls] == calls
    for number, each in enumerate((alpha, beta)):
        (context,) = each.contexts
        expected = (7 + number, "timed", 4, made.folder / each.name, 31, False)
        names = ("index", "mode", "steps", "folder", "first_step", "keep_source")
        assert tuple(getattr(context, name) for name in names) == expected
        assert context.folder.is_dir()
    # Of one that was cut off, only what tells when it saw something.
    assert set(made.take([1.0, 2.0], {}, {0}, complete=False)) == {"beta"}
    assert (made.active, made.status()["alpha"][0]) == ([], "empty")
    made.start(BOTH, 2, 4)
    assert set(made.take([1.0, 2.0], {}, {0})) == {"alpha", "beta"}
    assert (alpha.of("take"), alpha.contexts[1].first_step) == ([([1.0, 2.0], {0})], 0)
    assert [each[0] for each in made.status().values()] == ["recorded", "recorded", "empty"]
    made.start(SlicePlan("beta", (("beta", "timed"),), 1, 4), 2, 4)
    assert made.all_cut() is True
    made.discard()
    assert (made.active, made.step_limits()) == ([], [])
    assert [len(each.of("stop")) for each in (alpha, beta)] == [1, 2]
    assert [made.restarts(name) for name in ("alpha", "beta", "none")] == [True, False, True]


def test_what_is_kept_of_a_layer(kit, monkeypatch):
    # Where the system does not tell the resident set, nothing changes.
    resident = iter([1000, 1700, 1000, 1300, None, 5000, 3000])
    monkeypatch.setattr(under_test, "rss_bytes", lambda: next(resident))
    made = kit("alpha")
    (wrapper,) = made.wrappers("alpha")
    path, rows = made.folder / "alpha" / "trace.json", {"functions": [{"slice": 0}]}
    # The tool holds what the resident set has grown by: the most of all slices.
    quiet, most = "it saw nothing", "4 rows at most"
    seen = SliceData(rows, [Artifact(path, "a viewer")], truncated=most)
    for data, *expected in (
        (SliceData({"functions": []}, notes=[("quiet", quiet)]), "empty", quiet, None, 700),
        (seen, "recorded", None, most, 700),
        (SliceData(rows, status="emitted"), "emitted", None, most, 700),
    ):
        made.start(ALONE, 0, 1)
        path.write_text("five!")
        made.stop()
        wrapper.take = lambda *arguments, data=data: data
        made.take([0.0, 1.0], {})
        (row,) = made.table("layers")
        assert of(row, "status reason truncated memory_bytes") == expected
    assert of(row, "technique tool version") == ["sampling", "a made-up tool", None]
    (kept,) = made.table("artifacts")
    assert of(kept, "layer path opens_in bytes") == ["alpha", "alpha/trace.json", "a viewer", 5]
    assert [(each["slug"], each["layer"]) for each in made.table("notes")] == [("quiet", "alpha")]


def test_layers_that_cannot_take_part(kit, monkeypatch):
    monkeypatch.setattr(Alpha, "unavailable_reason", staticmethod(lambda: "not here"))
    monkeypatch.setattr(Beta, "unavailable_reason", staticmethod(lambda: 1 / 0))
    made = kit("alpha", "beta", left_out={"behind": "not asked for"})
    status, reason = made.status().pop("beta")
    assert (status, "ZeroDivisionError" in reason) == ("failed", True)
    assert made.status()["alpha"] == ("unavailable", "not here")
    assert made.status()["behind"] == ("skipped", "not asked for")
    assert (made.start(BOTH, 0, 1), made.calls_wanted(BOTH.observers)) == (False, set())


def test_a_layer_gives_way_and_its_reason_is_noted_once(kit):
    made = kit("alpha", "beta")
    alpha, beta = made.wrappers("alpha", "beta")
    alpha.busy = "the script's own tool"
    assert made.start(BOTH, 0, 4)
    assert [state.name for state in made.active] == ["beta"]
    made.discard()
    beta.busy = "the script's own tool"
    assert not made.start(BOTH, 0, 4)
    assert [row["text"] for row in made.table("notes")] == ["alpha: the script's own tool"]
    assert set(made.status(write=True).values()) == {("skipped", "the script's own tool")}
    alpha.busy = None
    made.start(BOTH, 0, 4)
    made.take([0.0, 1.0], {})
    assert made.status()["alpha"] == ("recorded", None)


def test_the_background_observes_and_is_written_when_it_pauses(kit):
    made = kit("alpha", "behind")
    alpha, behind = made.wrappers("alpha", "behind")

    def asked(work, *arguments, **options):
        behind.asked.clear()
        work(*arguments, **options)
        return [each[0] for each in behind.asked]

    tools = {"behind": "sampler", "alpha": "profiler"}
    made.hand_over_background(tools)
    assert (behind.of("hand_over"), tools) == ([("sampler",)], {"alpha": "profiler"})
    made.hand_over(tools)
    assert (alpha.of("hand_over"), asked(made.watch, on=True)) == ([("profiler",)], ["resume"])
    assert asked(made.watch, on=False) == ["pause", "flush"]
    # It takes the rest of a slice whose tools have all ended by themselves.
    both = SlicePlan("shared", (("alpha", "timed"), ("behind", "timed")), 1, 4)
    made.start(both, 0, 4)
    assert [asked(each.on_end) for each in (alpha, behind)] == [[], ["resume"]]
    made.start(both, 0, 4)
    assert asked(behind.on_end) == []


def test_the_start_up_is_written_and_the_end_closes_all(kit):
    made = kit("alpha", "beta", "behind")
    alpha, beta, behind = made.wrappers("alpha", "beta", "behind")
    made.take_startup({"alpha": "profiler"})
    assert [row["text"] for row in made.table("notes")] == ["profiler"]
    made.on_give_way = Mock()
    alpha.on_give_way()
    made.on_give_way.assert_called_once_with()
    made.start(BOTH, 0, 4)
    made.stop()
    made.take([0.0, 1.0], {})
    behind.asked.clear()
    made.finish()
    assert [each[0] for each in behind.asked] == ["pause", "flush", "flush", "close"]
    assert (beta.of("take_startup"), beta.of("close")) == ([], [()])
    assert alpha.of("finish") == [(made.folder / "alpha",)]


def test_everything_is_off_in_a_forked_child_and_after_a_defect(kit):
    made = kit("alpha", "beta")
    alpha, beta = made.wrappers("alpha", "beta")
    made.start(ALONE, 0, 4)
    alpha.raises["abandon"] = ValueError("a defect")
    made.abandon()
    assert (made.active, alpha.of("close"), made.table("notes")) == ([], [()], [])
    made.start(BOTH, 0, 4)
    made.layers["alpha"].status = "recorded"
    made.disarm(ValueError("a defect of ours"))
    assert (alpha.of("stop"), len(beta.of("close"))) == ([()], 2)
    (note,) = made.table("notes")
    assert (note["slug"], "defect of profstack" in note["text"]) == ("disarmed", True)
    status, reason = made.status().pop("beta")
    assert (status, "ValueError: a defect of ours" in reason) == ("failed", True)
    assert made.status()["alpha"] == ("recorded", None)


EVENTS = {"enter": ("module", "Net", None), "leave": ("module", "Net"), "step_ended": (3,)}
EVENTS |= {"step_begun": (4,), "enter_apart": (7, "load"), "leave_apart": (7,)}
ALL = list(EVENTS.items())


def hearing(fails="", *, apart=False):
    """A listener that keeps what it hears, and raises in one method, behind a signal."""
    made = Mock(takes_apart=apart, heard=[])

    def note(name, *arguments):
        made.heard.append((name, arguments))
        if name == fails:
            signal.raise_signal(signal.SIGUSR1)
            raise ValueError("a defect")

    for name in EVENTS:
        setattr(made, name, partial(note, name))
    return made


def tell(listener, *names):
    for name in names or EVENTS:
        getattr(listener, name)(*EVENTS[name])


@pytest.mark.parametrize("interrupted", [False, True])
@pytest.mark.parametrize("method", list(EVENTS))
def test_an_error_ends_one_listener_and_a_signals_is_the_scripts(handle, method, interrupted):
    handle(Mock(side_effect=TimeoutError("time is up")) if interrupted else signal.SIG_IGN)
    first, then, ended = hearing(method), hearing(apart=True), []
    listener = under_test.GuardedListener(first, ended.append, then=then)
    if interrupted:
        with pytest.raises(TimeoutError):
            tell(listener, method)
    else:
        tell(listener, method)
    assert [type(each) for each in ended] == [TimeoutError if interrupted else ValueError]
    tell(listener)
    assert first.heard == [(method, EVENTS[method])]
    assert then.heard == [*[(method, EVENTS[method])] * (not interrupted), *ALL]
    assert listener.takes_apart is True
