"""The page as one file: what it may load, its size, and how it is written."""

import json
import re
import stat
from pathlib import Path

import pytest

from profstack.errors import RecordingError
from profstack.report import html
from tests.support.bench_reports import bench
from tests.support.commands import fails
from tests.support.full_report import whole
from tests.support.reports import HOSTILE, build, hostile


@pytest.mark.parametrize("make", [whole, bench])
def test_hostile_names_are_data_and_never_markup(make):
    page = html.render(hostile(make()))
    assert (HOSTILE in page, "<img" in page) == (False, False)
    assert page.count("</script>") == len(re.findall(r"<script[ >]", page))
    data = json.loads(re.search(r'id="page-data">(.*?)</script>', page, re.DOTALL)[1])
    assert HOSTILE in json.dumps(data, ensure_ascii=False).replace('\\"', '"')


def test_the_page_loads_nothing_and_runs_its_own_scripts_alone():
    page = html.render(build())
    # The namespace of SVG is a name, no address.
    found = set(re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}[^\s\"'<]*", page))
    assert found <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(?:link|img|script)[^>]+(?:src|href)=\"(?!data:)", page)
    said = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1]
    policy = said.replace("&#x27;", "'").split("; ")
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    library = html.library()
    digests = [html.script_digest(script) for script in scripts] + [library.digest]
    assert "default-src 'none'" in policy
    [allowed] = (one for one in policy if one.startswith("script-src"))
    assert sorted(re.findall(r"'([^']+)'", allowed)) == sorted(digests)
    assert (len(digests), f">{library.text}</script>" in page) == (3, True)
    assert page.count(library.notice) == 2
    assert "<title>train.py - profstack</title>" in page


def test_files_are_replaced_whole_or_leave_nothing_behind(tmp_path, monkeypatch):
    path, plain, link = (tmp_path / name for name in ("report.json", "plain", "link.html"))
    path.write_text("old and longer")
    plain.touch()
    link.symlink_to(path.name)
    html.replace_text(link, "new\udce9")
    assert (link.is_symlink(), path.read_bytes()) == (True, b"new?")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    with pytest.raises(RecordingError, match=r"cannot be written .*-o FILE"):
        html.replace_text(tmp_path / "no" / "page.html", "x")
    monkeypatch.setattr(Path, "replace", fails(OSError(28, "no space left")))
    with pytest.raises(RecordingError, match="no space left"):
        html.replace_text(tmp_path / "page.html", "x")
    assert sorted(tmp_path.iterdir()) == [link, plain, path]
