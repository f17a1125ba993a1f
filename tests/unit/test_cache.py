"""The user's cache: a planted file is not read, whoever made it and whatever it is."""

import os
import stat

import pytest

from profstack.cache import cache_file, keep_cached, read_cached


@pytest.fixture
def kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    keep_cached("x.json", "own")
    return cache_file("x.json")


def another(kept):
    kept.rename(kept.parent / "elsewhere")
    return kept.parent / "elsewhere"


PLANTED = {
    "writable for the group": lambda kept: kept.chmod(0o620),
    "writable for others": lambda kept: kept.chmod(0o602),
    "a link": lambda kept: kept.symlink_to(another(kept)),
    "a pipe": lambda kept: (another(kept), os.mkfifo(kept)),
    "a folder": lambda kept: (another(kept), kept.mkdir()),
    "of another user": lambda kept: os.chown(kept, 12345, -1),
}


@pytest.mark.parametrize("how", PLANTED)
def test_a_planted_file_is_not_read(kept, how):
    if how == "of another user" and os.getuid() != 0:
        pytest.skip("only root gives a file away")
    assert read_cached("x.json") == "own"
    PLANTED[how](kept)
    assert read_cached("x.json") is None


def test_files_are_kept_for_this_user_alone_and_may_be_roots(kept, monkeypatch):
    mask = os.umask(0)
    try:
        keep_cached("x.json", "new")
    finally:
        os.umask(mask)
    assert (stat.S_IMODE(kept.stat().st_mode), read_cached("x.json")) == (0o600, "new")
    kept.chmod(0o644)
    assert read_cached("x.json") == "new"
    if os.getuid() == 0:
        monkeypatch.setattr(os, "getuid", lambda: 12345)
        assert read_cached("x.json") == "new"
    # Not written through a link that waits under the name of the unfinished file.
    victim = kept.parent / "victim"
    victim.write_text("of the user")
    kept.with_suffix(f".{os.getpid()}").symlink_to(victim)
    keep_cached("x.json", "newer")
    assert (victim.read_text(), read_cached("x.json")) == ("of the user", "newer")
