"""Working trees of two revisions: what they hold, what is imported from them, and their end."""

import os
import sys

import pytest

from profstack.errors import TargetError, UsageError
from profstack.launch import worktrees
from profstack.launch.target import Target
from profstack.launch.worktrees import Repository, Worktrees
from tests.support.processes import git


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository with two commits, an uncommitted change and an untracked folder."""
    top = tmp_path / "a project"
    (top / "src" / "pkg").mkdir(parents=True)
    monkeypatch.chdir(top)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    git("init", "-q", "-b", "main")
    git("config", "user.name", "somebody")
    git("config", "user.email", "somebody@example.org")
    for text, file, tag in (("one", "train.py", "v1"), ("two", "late.py", "v2")):
        for path in (top / "src" / "pkg" / "code.py", top / file):
            path.write_text(text)
        git("add", ".")
        git("commit", "-qm", text)
        git("tag", tag)
    (top / "src" / "pkg" / "code.py").write_text("three")
    (top / "data").mkdir()
    (top / "data" / "x").write_text("7")
    return top


def made(checkout, *revisions, shared=()):
    repository = Repository(checkout)
    return Worktrees(repository, [repository.revision(each) for each in revisions], shared)


def left_of(tmp_path):
    return [entry for entry in os.listdir(tmp_path) if entry.startswith("profstack-rev")]


def test_both_trees_have_one_path_and_nothing_is_left(checkout, tmp_path):
    state = git("status", "--porcelain"), git("branch", "--all"), git("stash", "list")
    with made(checkout, "v1", ".", shared=["data"]) as trees:
        texts = []
        for number in (0, 1, 1, 0):
            trees.use(number)
            assert trees.tree.name == checkout.name
            texts.append((trees.folder() / "src" / "pkg" / "code.py").read_text())
            assert (trees.tree / "data" / "x").read_text() == "7"
        assert texts == ["one", "three", "three", "one"]
        path = str(trees.tree / "src" / "pkg" / "code.py")
        assert trees.checkout_path(path) == str(checkout / "src" / "pkg" / "code.py")
        assert trees.checkout_path("/usr/lib/x.py") == "/usr/lib/x.py"
        assert [revision.label[:3] for revision in trees.revisions] == ["v1 ", "the"]
    assert left_of(tmp_path) == []
    assert git("worktree", "list").count("\n") == 1
    assert (git("status", "--porcelain"), git("branch", "--all"), git("stash", "list")) == state


def test_imports_lead_into_the_tree_and_packages_of_the_environment_stay(checkout, monkeypatch):
    monkeypatch.setattr(sys, "path", ["", str(checkout / "src"), "/elsewhere"])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/lib", str(checkout), "src"]))
    with made(checkout, "v1", "HEAD") as trees:
        found = trees.environment()["PYTHONPATH"].split(os.pathsep)
        tree = trees.tree
        # The profstack that measures is the same on both sides.
        monkeypatch.setattr(worktrees, "_PACKAGE", checkout / "src" / "profstack")
        assert str(tree / "src") not in trees.environment()["PYTHONPATH"]
    assert found == [str(tree / "src"), "/lib", str(tree), "src"]


def test_a_script_is_looked_for_in_both_revisions(checkout, tmp_path, monkeypatch):
    (checkout / "new.py").touch()
    (tmp_path / "outside.py").touch()
    with made(checkout, "v1", "HEAD") as trees:
        assert trees.target(Target(("train.py", "-x"))).arguments == ("train.py", "-x")
        assert trees.target(Target(("../outside.py",))).arguments == (str(tmp_path / "outside.py"),)
        with pytest.raises(TargetError, match=r"late\.py: it is not in revision v1;.*--share late"):
            trees.target(Target(("late.py",)))


def test_what_is_no_revision_or_no_repository_is_said(checkout, tmp_path, monkeypatch):
    repository = Repository(checkout)
    assert repository.changes() == (1, 1)
    for text, said in (("mian", "did you mean 'main'"), ("--all", "'git tag'"), ("v1:", "'v1'")):
        with pytest.raises(UsageError, match="no revision") as refused:
            repository.revision(text)
        assert said in str(refused.value)
    with (
        pytest.raises(UsageError, match="git tracks train"),
        made(checkout, "v1", "v1", shared=["train.py"]),
    ):
        pass
    assert left_of(tmp_path) == []
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    with pytest.raises(UsageError, match="no git repository"):
        Repository(tmp_path)
