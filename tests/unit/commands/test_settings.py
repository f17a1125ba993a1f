"""A project's settings: which file counts, what it may hold, and what is said of a wrong one."""

import re
import sys

import pytest

from profstack.commands.settings import Settings, read_settings
from profstack.errors import UsageError
from tests.support.tables import cases

RULES = ("step > 5%", "FLOP > +0")


def test_the_nearest_file_with_a_section_counts_up_to_the_top(tmp_path):
    below = tmp_path / "top" / "src" / "deep"
    below.mkdir(parents=True)
    (tmp_path / "setup.cfg").write_text("[profstack]\nfail_if = run > 1%\n")
    (tmp_path / "top" / "setup.cfg").write_text("[metadata]\nname = x\n")
    assert read_settings(below).fail_if == ("run > 1%",)
    (tmp_path / "top" / ".git").mkdir()
    assert read_settings(below) == Settings()
    cfg = "[tool:profstack]\nfail-if =\n    step > 5%\n    FLOP > +0\nstrict = yes\n"
    (tmp_path / "top" / "setup.cfg").write_text(cfg)
    file = str(tmp_path / "top" / "setup.cfg")
    assert read_settings(below) == Settings(RULES, strict=True, file=file)
    (below / "pyproject.toml").write_text("not [ toml")
    assert read_settings(below).file == file
    (below / "setup.cfg").write_text("[profstack]\nfail_if = FLOP > +0\n")
    assert read_settings(below) == Settings(RULES[1:], file=str(below / "setup.cfg"))


@cases(
    "name text said",
    ("setup.cfg", "[profstack]\nfail-when = step > 5%\n", "no setting 'fail-when'; it knows"),
    ("setup.cfg", "[profstack]\nstrict = perhaps\n", "strict is true or false"),
    ("setup.cfg", "[profstack]\nx\n", "it cannot be read"),
    ("pyproject.toml", "[tool.profstack]\nfail-if = 5\n", "fail-if is a list of rules"),
    ("pyproject.toml", "[tool.profstack]\nfail-if = [\n", "it is no TOML"),
)
def test_a_wrong_setting_names_its_file(tmp_path, name, text, said):
    if name.endswith("toml") and sys.version_info < (3, 11):
        pytest.skip("Python 3.10 reads no TOML")
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=f"{re.escape(str(tmp_path / name))}.*{said}"):
        read_settings(tmp_path)
