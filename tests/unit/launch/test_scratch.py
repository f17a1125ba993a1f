"""A copy of the working folder: what is in it, what stays out, and that the folder is untouched."""

import os

import pytest

from profstack.errors import UsageError
from profstack.launch import scratch
from profstack.launch.scratch import Scratch


@pytest.fixture
def folder(tmp_path):
    work = tmp_path / "work"
    for name in ("work/data", "work/.git", "big"):
        (tmp_path / name).mkdir(parents=True)
    texts = {"train.py": "print(1)", "data/rows.txt": "y" * 3000, ".git/HEAD": "x" * 5000}
    for name, text in (texts | {"../outside.txt": "far", "../big/b.txt": "z"}).items():
        (work / name).write_text(text)
    links = {"link.txt": "data/rows.txt", "far.txt": tmp_path / "outside.txt"}
    links |= {"dangling": "nowhere", "out": tmp_path / "big", "again": "data"}
    for name, to in links.items():
        os.symlink(to, work / name)
    os.mkfifo(work / "pipe")
    return work


def test_a_copy_has_all_that_a_script_reads_and_is_its_own(folder):
    with Scratch(folder, in_place=False, limit_bytes=20_000).copy() as (copied, arguments_in):
        found = sorted(path.name for path in copied.iterdir())
        assert found == ["again", "data", "far.txt", "link.txt", "out", "train.py"]
        assert [path.name for path in (copied / "data").iterdir()] == ["rows.txt"]
        assert (copied / "out" / "b.txt").read_text() == "z"
        assert (copied / "again").resolve() == copied.resolve() / "data"
        for name in ("train.py", "far.txt", "again/rows.txt", "new", "out/b.txt"):
            (copied / name).write_text("changed")
        own, others = str(folder / "x" / "y"), ["train.py", "--out", "/etc/hosts", "../none"]
        assert arguments_in([own, *others]) == [str(copied / "x" / "y"), *others]
        options = [f"--out={own}", "/a=/b", "x=/etc/hosts", "../outside.txt"]
        outside = str(folder.parent / "outside.txt")
        moved = [f"--out={copied / 'x' / 'y'}", "/a=/b", "x=/etc/hosts", outside]
        assert arguments_in(options) == moved
    assert not copied.parent.exists()
    texts = [(folder / name).read_text() for name in ("train.py", "data/rows.txt")]
    assert texts == ["print(1)", "y" * 3000]
    assert (folder.parent / "outside.txt").read_text() == "far"
    assert (folder.parent / "big" / "b.txt").read_text() == "z"
    assert not (folder / "new").exists()


def test_a_large_folder_behind_a_link_is_linked_again_and_named(folder, monkeypatch):
    monkeypatch.setattr(scratch, "_MOST_LINKED", 0)
    os.symlink("..", folder / "up")
    made = Scratch(folder, in_place=False, limit_bytes=20_000)
    assert sorted(made.linked) == [str(folder / "out"), str(folder / "up")]
    with made.copy() as (copied, _):
        assert (copied / "out").resolve() == folder.parent / "big"
        assert (copied / "again").resolve() == copied.resolve() / "data"


def test_the_folder_itself_where_that_is_asked_for(folder):
    with Scratch(folder, in_place=True, limit_bytes=1).copy() as (copied, arguments_in):
        assert (copied, arguments_in(["/a"])) == (folder, ["/a"])
    assert (folder / "train.py").exists()


def test_a_folder_larger_than_the_limit_is_refused_with_ways_on(folder):
    # Of 3,000 bytes twice, by a link, and 12 more; what lies in .git does not count.
    Scratch(folder, in_place=False, limit_bytes=6_020)
    with pytest.raises(UsageError, match="more than 0 MiB") as caught:
        Scratch(folder, in_place=False, limit_bytes=6_000)
    assert "--in-place" in caught.value.next_step
