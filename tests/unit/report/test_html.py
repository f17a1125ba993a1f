"""The page as one file: its parts, its scripts, what it may load, and how it is written."""

import base64
import gzip
import hashlib
import json
import random
import re
import stat
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from profstack.errors import RecordingError
from profstack.report import html
from profstack.report.page import prepare
from tests.support.bench_reports import bare, bench, samples
from tests.support.full_report import full, whole
from tests.support.reports import HOSTILE, build, hostile, records


def data_of(page):
    return json.loads(re.search(r'id="page-data">(.*?)</script>', page, re.DOTALL)[1])


def inflated(text):
    return gzip.decompress(base64.b64decode(text))


def test_tables_are_compressed_and_the_overview_is_plain():
    report = full()
    report["script"] = "caf\udce9.py"
    page = prepare(report).as_dict()
    plain, parts = html.divide(page)
    assert {*plain} == {"facts", "overview", "bench", "base", "parts"}
    sizes = plain["parts"]
    assert (plain["facts"] is page["facts"], sizes.keys()) == (True, parts.keys())
    assert sizes["modules"] == len(report["tables"]["modules"])
    assert sizes["step_series"] == len(report["tables"]["steps"]) == sizes["steps"]
    assert (sizes["slices"], sizes["counters"], "roofline" in parts) == (12, 3, False)
    for part in parts.values():
        assert json.loads(inflated(html.packed(part))) == json.loads(json.dumps(part))
        [key] = part
        assert key in page
    assert inflated(html.packed_text("é\udce9")) == "é?".encode()


@pytest.mark.parametrize("make", [whole, bench])
def test_hostile_names_are_data_and_never_markup(make):
    page = html.render(hostile(make()))
    assert (HOSTILE in page, "<img" in page) == (False, False)
    assert page.count("</script>") == len(re.findall(r"<script[ >]", page))
    assert HOSTILE in json.dumps(data_of(page), ensure_ascii=False).replace('\\"', '"')


@pytest.mark.parametrize("make", [whole, bench])
def test_no_lone_surrogate_reaches_the_scripts(make):
    """They would end a view: no address can hold one."""
    text = json.dumps(hostile(make())).replace(json.dumps(HOSTILE)[1:-1], "\\ud800ü")
    report = json.loads(text)
    page = html.render(report)
    parts = html.divide(prepare(report).as_dict())[1]
    texts = [page, *(inflated(html.packed(part)).decode() for part in parts.values())]
    assert all("?ü" in one and "\\ud8" not in one for one in texts if "ü" in one)
    assert sum("?ü" in one for one in texts) > len(texts) // 2
    assert page.encode()


def test_the_page_loads_nothing_and_runs_its_own_scripts_alone():
    page = html.render(build())
    # The namespace of SVG is a name, no address.
    found = set(re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}[^\s\"'<]*", page))
    assert found <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(?:link|img|script)[^>]+(?:src|href)=\"(?!data:)", page)
    said = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1]
    policy = said.replace("&#39;", "'").split("; ")
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    library = html.library()
    digests = [html.script_digest(script) for script in scripts] + [library.digest]
    assert "default-src 'none'" in policy
    [allowed] = (one for one in policy if one.startswith("script-src"))
    assert sorted(re.findall(r"'([^']+)'", allowed)) == sorted(digests)
    assert (len(digests), f">{library.text}</script>" in page) == (3, True)
    assert page.count(library.notice) == 2
    assert "<title>train.py - profstack</title>" in page


def large():
    """The report with thousands of other rows in what grows with a program; few take much."""
    report, chance = whole(), random.Random(3)
    tables = report["tables"]
    counts = {"modules": 3_000, "operators": 3_000, "kernels": 3_000, "functions": 8_000}
    for table, count in {**counts, "lines": 800}.items():
        like, rows = tables[table][0], []
        for at in range(1, count):
            names = {key: f"{like[key]}.{at}" for key in ("path", "name", "source") if key in like}
            times = {key: chance.random() / at for key in like if key.endswith("_s") and like[key]}
            rows.append({**like, **names, **times})
        tables[table] += rows
    labels = ["{file}:{line}({name})".format(**each) for each in tables["functions"]]
    edges = ((chance.choice(labels[: at + 1]), label) for at, label in enumerate(labels))
    tables["calls"] += records("calls", "caller callee", edges, calls=1.0, self_s=0.1, total_s=0.2)
    return report


def test_pages_are_small_however_large_the_run():
    ordinary = len(html.render(full()).encode())
    # The charts' library is most of it.
    assert ordinary < 3_000_000
    assert len(html.render(large()).encode()) < ordinary + 550_000
    report = build(watched_steps=20_000)
    function = report["tables"]["functions"][0]
    report["tables"]["functions"] = [{**function, "name": f"f{at}"} for at in range(30_000)]
    assert len(html.render(report)) < 3_000_000
    report = bare()
    small = len(html.render(report))
    report["benchmark"] |= {"samples_s": samples(100_000), "warmup_s": samples(50_000)}
    assert len(html.render(report)) < small + 30_000


def test_links_lead_from_the_page_to_the_recording(tmp_path):
    recording = tmp_path / "runs" / "train-0001"
    recording.mkdir(parents=True)
    report = build() | {"script": "caf\udce9.py", "argv": ["caf\udce9.py"]}
    for page, given, base in (
        (tmp_path / "page.html", recording, "runs/train-0001"),
        (recording / "report.html", None, ""), (tmp_path / "runs" / "page.html", tmp_path, ".."),
    ):  # fmt: skip
        html.write(report, page, recording=given)
        text = page.read_bytes().decode("utf-8")
        assert data_of(text)["base"] == base
        assert "<title>caf?.py - profstack</title>" in text


def test_files_are_replaced_whole_or_leave_nothing_behind(tmp_path, monkeypatch):
    path, plain = tmp_path / "report.json", tmp_path / "plain"
    path.write_text("old and longer")
    plain.touch()
    html.replace_text(path, "new\udce9")
    link = tmp_path / "link.html"
    link.symlink_to(path.name)
    html.replace_text(link, "by the link")
    assert (link.is_symlink(), path.read_text()) == (True, "by the link")
    link.unlink()
    html.replace_text(path, "new\udce9")
    assert path.read_bytes() == b"new?"
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    with pytest.raises(RecordingError, match="cannot be written") as caught:
        html.replace_text(tmp_path / "no" / "page.html", "x")
    assert "-o FILE" in str(caught.value)

    def full_disk(*_):
        raise OSError(28, "no space left")

    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(RecordingError, match="no space left"):
        html.replace_text(tmp_path / "page.html", "x")
    assert sorted(tmp_path.iterdir()) == [plain, path]


# The page's scripts: modules with imports and exports, joined into one. Two run by themselves.
TEMPLATES = Path(html.__file__).parent / "templates"
IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w-]+\.js)";$', re.MULTILINE)
EXPORT = re.compile(r"^export (?:async )?(?:function|const|class) (\w+)", re.MULTILINE)


def test_the_page_holds_every_module_once_and_every_export_is_imported():
    texts = {path.name: path.read_text() for path in TEMPLATES.glob("*.js")}
    del texts["theme.js"], texts["handover.js"]
    exports = {(name, one) for name, text in texts.items() for one in EXPORT.findall(text)}
    found = [pair for text in texts.values() for pair in IMPORT.findall(text)]
    assert {(module, n) for names, module in found for n in re.findall(r"\w+", names)} == exports
    # Each kind of page has a module that starts it.
    scripts = [html.page_script(name) for name in texts if name.endswith("main.js")]
    assert re.findall(r"<script>(.*?)</script>", html.render(build()), re.DOTALL)[-1] in scripts
    held = [re.findall(r'^MODULES\["(.*)"\] = ', one, re.MULTILINE) for one in scripts]
    assert [len(names) for names in held] == [len(set(names)) for names in held]
    assert set().union(*held) == texts.keys()
    assert not re.search(r"^\s*(?:import|export)\b|<!--", "".join(scripts), re.MULTILINE)


@pytest.fixture
def unread(monkeypatch, tmp_path):
    """Lets a test read plotly's own file anew, and the next one as well."""
    html.library.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delitem(sys.modules, "plotly", raising=False)
    yield monkeypatch
    monkeypatch.undo()
    html.library.cache_clear()


def test_the_library_is_the_packages_file_under_its_hash(unread):
    library = html.library()
    # The package itself is not imported.
    assert "plotly" not in sys.modules
    text = inflated(library.text)
    listed = distribution("plotly").locate_file("plotly/package_data/plotly.min.js")
    assert text == Path(str(listed)).read_bytes()
    digest = base64.b64encode(hashlib.sha256(text).digest()).decode()
    assert library.digest == f"sha256-{digest}"
    for said in ("plotly.js v", "Plotly, Inc", "MIT license"):
        assert said in library.notice
    assert "\n" not in library.notice


def test_the_packed_library_is_kept_and_made_again_where_the_file_is_another(unread, tmp_path):
    def found(version=None, **damage):
        html.library.cache_clear()
        kept = tmp_path / "cache" / "profstack" / "plotly.json"
        content = json.loads(kept.read_text())
        kept.write_text(json.dumps({**content, "version": version or content["version"], **damage}))
        packed.clear()
        return html.library(), len(packed)

    made, packed, pack = html.library(), [], html.packed_text
    unread.setattr(html, "packed_text", lambda text: packed.append(text) or pack(text))
    for changes, times in (({}, 0), ({"version": ["other", 1, 2]}, 1), ({"text": None}, 1)):
        assert found(**changes) == (made, times)
    (tmp_path / "cache" / "profstack" / "plotly.json").write_text("[]")
    html.library.cache_clear()
    assert html.library() == made


@pytest.mark.parametrize(("content", "notice"), [
    (None, None), (b"\xff\xfe not UTF-8", None),
    (b"var Plotly = {};", "plotly.js, as shipped by the package plotly"),
    (b"/*!\n * plotly 3.\n *\n * MIT\n */x", "!. plotly 3. MIT")])  # fmt: skip
def test_without_a_library_and_its_notice_there_are_no_charts(unread, tmp_path, content, notice):
    package = tmp_path / "plotly"
    (package / "package_data").mkdir(parents=True)
    (package / "__init__.py").touch()
    if content is not None:
        (package / "package_data" / "plotly.min.js").write_bytes(content)
    unread.syspath_prepend(tmp_path)
    library = html.library()
    assert (library and library.notice) == notice
    assert ('id="pack-plotly"' in html.render(build())) == (notice is not None)
