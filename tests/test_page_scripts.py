"""The page's scripts: modules with imports and exports, joined into one script for the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from profstack.report import html

TEMPLATES = Path(html.__file__).parent / "templates"
# They run by themselves: before the page is drawn, and in the page that hands a trace over.
ALONE = {"theme.js", "handover.js"}
MODULES = {
    path.name: path.read_text(encoding="utf-8")
    for path in sorted(TEMPLATES.glob("*.js"))
    if path.name not in ALONE
}
IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w-]+\.js)";$', re.MULTILINE)
EXPORT = re.compile(r"^export (?:async )?(?:function|const|class) (\w+)", re.MULTILINE)


def imported(text: str) -> set[tuple[str, str]]:
    """The (module, name) pairs that a module imports."""
    return {
        (module, name)
        for names, module in IMPORT.findall(text)
        for name in re.findall(r"\w+", names)
    }


def test_every_import_is_an_export_and_every_export_is_imported() -> None:
    exports = {(name, one) for name, text in MODULES.items() for one in EXPORT.findall(text)}
    imports = set().union(*map(imported, MODULES.values()))
    assert imports == exports


def test_the_page_holds_every_module_once() -> None:
    script = html._page_script()
    assert sorted(re.findall(r'^MODULES\["(.*)"\] = ', script, re.MULTILINE)) == sorted(MODULES)
    assert not re.search(r"^\s*(?:import|export)\b", script, re.MULTILINE)


def test_no_script_ends_the_element_that_holds_it() -> None:
    for script in (html._page_script(), html.template("theme.js")):
        assert not re.search(r"</script|<!--", script, re.IGNORECASE)


def test_lines_have_at_most_100_characters() -> None:
    long = [
        f"{path.name}:{number}"
        for path in sorted(TEMPLATES.glob("*.js"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > 100
    ]
    assert not long


def join(monkeypatch: pytest.MonkeyPatch, **modules: str) -> str:
    """The script that made-up modules are joined into."""
    monkeypatch.setattr(
        html, "template", {f"{name}.js": text for name, text in modules.items()}.get
    )
    return html._page_script.__wrapped__()


def test_an_imported_module_stands_first_with_what_it_exports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = join(
        monkeypatch,
        main='import {\n  one,\n} from "./leaf.js";\none();\n',
        leaf="const kept = 1;\nexport const two = kept;\nexport async function one() {}\n",
    )
    assert script.index("async function one") < script.index("one();")
    assert "return { two, one };" in script
    assert 'const {\n  one,\n} = MODULES["leaf.js"];' in script


def test_modules_that_import_each_other_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"main\.js -> leaf\.js -> main\.js"):
        join(
            monkeypatch,
            main='import { a } from "./leaf.js";\n',
            leaf='import { b } from "./main.js";\n',
        )


@pytest.mark.parametrize("form", ['import all from "./leaf.js";', "export default 1;"])
def test_other_forms_of_imports_and_exports_are_refused(
    monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    with pytest.raises(ValueError, match=r"main\.js"):
        join(monkeypatch, main=f"{form}\n", leaf="export const a = 1;\n")
