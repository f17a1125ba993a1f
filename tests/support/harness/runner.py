"""Runs a case plain and then under `profstack run`, in one place, and says how the two differ."""

import ast
import difflib
import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from tests.support.processes import clean_environment

SCRIPTS = Path(__file__).parent / "scripts"
MOMENTS = ("first", "last", "atexit", "final")


def case(*target, flags=(), stdin="", exit_code=0):
    """A script: `target` is what follows `python` or `profstack run`, `flags` stand before it."""
    return SimpleNamespace(target=target, flags=flags, stdin=stdin, exit_code=exit_code)


# The last line has one number too many.
_NUMBERS = (
    "".join(f"{n % 7 / 7:.3f} {n % 5 / 5:.3f} {n % 3 / 3:.3f}\n" for n in range(51)) + "1 " * 4
)
# With -O all of torch would be compiled anew in both runs: -B keeps nothing.
_FLAGS = ("-B", "-X", "utf8", "-W", "ignore::ResourceWarning")
_OWN_WORDS = ("--own-option", "-o", "own value", "--", "--layers")
CASES = {
    "training": case("training.py", *_OWN_WORDS, flags=_FLAGS, stdin=_NUMBERS, exit_code=1),
    "module": case("-m", "pkg.train", "--layers", "own", "-m", "x", exit_code=3),
    "standard_input": case("-", "an argument", stdin=(SCRIPTS / "on_stdin.py").read_text("utf-8")),
    "compiled": case("compiled.py"),
}

# What may differ, and nothing else: profstack's own modules, and the finder that waits for torch,
# then for models that generate. Patched functions and observers need no entry: they are looked at
# in the last moment only.
OWN_ITEMS = {f"{moment}.meta_path": re.compile("_Finder profstack") for moment in MOMENTS}
OWN_ITEMS["first.modules"] = re.compile("profstack")
OWN_LINES = re.compile(
    # The others come from torch.profiler, whoever uses it: Kineto's stamps of start and stop,
    # and the allocator's remark that memory was there before.
    rb"^(profstack:|Wrote |USDT:|\[W[0-9 :.]+ CPUAllocator\.cpp:\d+\] Memory block |"
    rb"ERROR: External init callback must run in same thread).*\n",
    re.MULTILINE,
)
# The screen at the end, when the script is no longer there to be disturbed: the verdict's few
# lines with what to do, then the one that begins with the script's name.
SUMMARY = re.compile(
    rb"^(?:verdict: [^\n]*\n(?:[^\n]+\n){0,15}?)?"
    rb"[^\n]+: [^\n]*(complete|partial|failed)(: [^\n]*)?\n.*(?=^Wrote )",
    re.MULTILINE | re.DOTALL,
)
# An address in the process, which Inductor leaves in the environment.
ADDRESS = ".environ._TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"


def run(case, base, *profstack):
    """What `python TARGET`, or `python PROFSTACK TARGET`, leaves of a fresh copy of the scripts."""
    work, facts = base / "work", base / "facts"
    for folder in (work, facts, base / "inductor"):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(SCRIPTS, work, ignore=shutil.ignore_patterns("__pycache__", "ruff.toml"))
    facts.mkdir()
    given = hash_files(work)
    # What is fixed here keeps two plain runs equal.
    fixed = {"PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1"}
    fixed = clean_environment(**fixed, TORCHINDUCTOR_CACHE_DIR=str(base / "inductor"))
    words = [sys.executable, *case.flags, *profstack, *case.target]
    how = {"input": case.stdin.encode(), "capture_output": True, "timeout": 240}
    done = subprocess.run(words, cwd=work, env=fixed, check=False, **how)
    # What the probe saw, by moment.
    seen = {path.name: ast.literal_eval(path.read_text()) for path in facts.iterdir()}
    files = {name: sha for name, sha in hash_files(work).items() if given.get(name) != sha}
    # The script's own count, which it prints.
    steps = int(re.findall(rb"^steps (\d+)$", done.stdout, re.MULTILINE)[-1])
    runs = (work / "runs.log").read_text()
    return SimpleNamespace(done=done, files=files, facts=seen, steps=steps, runs=runs)


def hash_files(folder):
    """Content hashes of the files a script left; of byte code, only that it exists."""
    hashes = {}
    for path in filter(Path.is_file, folder.rglob("*")):
        content = b"" if path.suffix == ".pyc" else path.read_bytes()
        hashes[str(path.relative_to(folder))] = hashlib.sha256(content).hexdigest()
    return hashes


def differences(plain, profiled):
    """Every way in which two outcomes differ, one line each; empty when no harm was done."""
    texts, facts = [], []
    for one in (plain, profiled):
        parts = (b"%d" % one.done.returncode, one.done.stdout, without_own_lines(one.done.stderr))
        texts.append(b"\n-- \n".join(parts).decode(errors="replace").splitlines(keepends=True))
        facts.append(dict(flat("", {"files": one.files, **one.facts})))
    found = [repr(line) for line in difflib.unified_diff(*texts, n=0)][2:14]
    classes = [one.facts.get("final", {}).get("namespaces", {}).keys() for one in (plain, profiled)]
    for place in sorted(facts[0].keys() | facts[1].keys()):
        before, after = (each.get(place, "<absent>") for each in facts)
        if place in OWN_ITEMS:
            after = [item for item in after if not OWN_ITEMS[place].match(item)]
        # A class or module that only one run has loaded is patched in neither.
        alone = any(place.startswith(f"final.namespaces.{one}.") for one in classes[0] ^ classes[1])
        if before != after and not alone and not place.endswith(ADDRESS):
            if isinstance(before, list) and isinstance(after, list):
                lost = [item for item in before if item not in after]
                before, after = lost, [item for item in after if item not in before]
            found.append(f"{place}: {before!r} -> {after!r}")
    return found


def flat(place, value):
    """What nested facts hold, each with its path."""
    if not isinstance(value, dict):
        return [(place.lstrip("."), value)]
    return [pair for key, inner in value.items() for pair in flat(f"{place}.{key}", inner)]


def without_own_lines(text):
    """Standard error less what profstack and the tools it uses write there."""
    return OWN_LINES.sub(b"", SUMMARY.sub(b"", text))
