"""The layer of the watch: what it hands over, and what it says of its sampler."""

from types import SimpleNamespace

from profstack import code_owner
from profstack.readers.watch import Samples, Stacks
from profstack.wrappers import watch as module


def slugs(taken):
    return [slug for slug, _ in taken.notes]


def test_what_is_handed_over_and_noted(monkeypatch):
    # Without a thread; its samples are put in by hand.
    sampler = SimpleNamespace(gave_way=False, failure=None, thinned=[])
    sampler.resume = sampler.pause = sampler.close = lambda: None
    sampler.stacks, sampler.samples, sampler.memory_bytes = Stacks(), Samples(), lambda: 4321

    def flush():
        samples, sampler.samples = sampler.samples, Samples()
        return [{"frame": 1, "file": each} for each in (__file__, "/lib/a.py")], samples.records()

    sampler.flush = flush
    monkeypatch.setattr(module, "Sampler", lambda origin: sampler)
    monkeypatch.setattr(code_owner, "script_folder", lambda: __file__.rpartition("/")[0])
    wrapper = module.WatchWrapper()
    wrapper.resume()
    sampler.samples.add(1.0, 77)
    sampler.failure, sampler.gave_way = "OSError: gone", True
    taken = wrapper.flush()
    assert (taken.frames, slugs(taken)) == ({}, ["watch-ended", "gave-way", "empty-capture"])
    # That it gave way is told once.
    assert slugs(wrapper.flush()) == ["watch-ended", "empty-capture"]
    # Frames are handed over once there is a sample; what was seen has been seen.
    sampler.failure = None
    sampler.samples.add(2.0, 77, 3, None, 1.5)
    for weights, texts in (([1.5], [__file__]), ([], [])):
        taken = wrapper.flush()
        assert set(taken.frames) == {"watch_frames", "watch_samples", "source_files"}
        # The text of a file of the script's own, once.
        assert [row["file"] for row in taken.frames["source_files"]] == texts
        assert [row["weight"] for row in taken.frames["watch_samples"]] == weights
        assert (slugs(taken), taken.truncated, taken.memory_bytes) == ([], None, 4321)
    sampler.thinned = [(200.4, 0.020), (600.0, 0.040), (700.0, 0.120), (710.0, 0.030)]
    sampler.thinned.append((720.0, 0.060))
    text = wrapper.flush().truncated
    assert "every 20 to 120 ms from 200 s on, every 10 ms before" in text
    sampler.stacks.cut = True
    assert wrapper.flush().truncated.startswith(text + "; ")
