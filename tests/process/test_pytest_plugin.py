"""The pytest plugin in processes of its own: beside workers of xdist, and where nothing uses it."""

from tests.support.processes import run_python

_STEP = """
import pytest
@pytest.mark.profstack(max_s=1e-9)
@pytest.mark.parametrize("case", range(4))
def test_step(measure_step, case): measure_step(sum, range(1000))
"""


def _pytest(folder, text, *options):
    (folder / "test_it.py").write_text(text)
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "profstack.pytest_plugin")
    env = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return run_python(*words, *options, folder, cwd=folder, env=env, code=None)


def test_workers_of_xdist_hand_over_their_rows_and_judge_no_time(tmp_path):
    done = _pytest(tmp_path, _STEP, "-p", "xdist", "-n2", "--profstack-save")
    rows = [line for line in done.stdout.splitlines() if line.startswith("test_it.py::test_step")]
    assert [line.split()[0][-3:] for line in rows] == ["[0]", "[1]", "[2]", "[3]"]
    assert all(line.endswith("cannot tell not saved") for line in rows)
    assert (done.returncode, (tmp_path / ".profstack").exists()) == (0, False)


def test_without_its_fixtures_it_imports_nothing_and_prints_nothing(tmp_path):
    heavy = ("torch", "numpy", "pandas", "rich", "profstack.bench", "profstack.errors")
    text = f"import sys\ndef test(): assert not {set(heavy)!r} & set(sys.modules)\n"
    done = _pytest(tmp_path, text)
    assert (done.returncode, "profstack" in done.stdout) == (0, False)
