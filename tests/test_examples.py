"""Each example runs as it is under `profstack run`, and its steps are counted as it counts them.

What the findings say of it is judged by test_no_false_findings.py.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from ahead import done_ahead
from conftest import CHECKOUT, clean_environment
from test_no_false_findings import check

pytestmark = pytest.mark.timed

EXAMPLES = sorted((CHECKOUT / "examples").glob("*.py"))

# How each is run, by what its steps are found, and a module that the report must name.
RUNS = {
    "digits": (("train_digits.py", "--epochs", "4"), "optimizer", "ConvNet.features.0.0"),
    "lecture": (("two_layer_net.py",), "module", "Sequential.2"),
    "lecture_plain": (("two_layer_net.py", "--plain"), "backward", None),
    "transformer": (
        ("small_transformer.py", "--steps", "30"),
        "optimizer",
        "GPT2LMHeadModel.transformer.h.0.attn.c_attn",
    ),
    "resnet18": (
        ("resnet18_inference.py", "--size", "64"),
        "module",
        "ResNet18.layer4.1.conv2",
    ),
    "nvtx": (("nvtx_markers.py", "--steps", "120"), "optimizer", "Adder.recurrent"),
    "loader": (("slow_loader.py", "--epochs", "2"), "optimizer", "Sequential.2"),
}

# Those whose output holds times, or which are no scripts to run under profstack: the test of each.
OWN_TESTS = {
    "bench_efficientnet.py": "test_published_macs.py",
    "bench_resnet18.py": "test_published_macs.py",
    "convolution_counters.py": "test_convolution_example.py",
    "session_by_hand.py": "test_session.py",
}

# Those that show profstack's own API.
USES_IT = {"session_by_hand.py"}

# Threads that spin for one another make a shared machine ten times slower, and prove no more.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


def steps_told(output: str) -> int:
    """The example's own count, from the last line of its output."""
    match = re.fullmatch(r"steps: (\d+)", output.splitlines()[-1])
    assert match is not None, output
    return int(match[1])


@dataclass(frozen=True)
class Pair:
    """An example's plain run and its run under `profstack run`, with the recording of that."""

    plain: subprocess.CompletedProcess[str]
    profiled: subprocess.CompletedProcess[str]
    recording: Path


@pytest.fixture(scope="module")
def pairs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[tuple[str, ...]], Pair]]:
    """Both runs of an example, one after the other; two examples are run at a time."""
    folder = tmp_path_factory.mktemp("examples")

    def run(words: tuple[str, ...]) -> Pair:
        script = str(CHECKOUT / "examples" / words[0])
        work = folder / "-".join(words)
        work.mkdir()
        commands = (
            [sys.executable, script, *words[1:]],
            [sys.executable, "-m", "profstack", "run", "-o", "rec", script, *words[1:]],
        )
        plain, profiled = (
            subprocess.run(
                command,
                cwd=work,
                env=clean_environment(**ONE_THREAD),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            for command in commands
        )
        return Pair(plain, profiled, work / "rec")

    with done_ahead(request, "words", run) as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "words", "rule", "module"), [(name, *run) for name, run in RUNS.items()], ids=RUNS
)
def test_example_is_counted_and_unchanged(
    pairs: Callable[[tuple[str, ...]], Pair],
    example: str,
    words: tuple[str, ...],
    rule: str,
    module: str | None,
) -> None:
    pair = pairs(words)
    plain, done = pair.plain, pair.profiled
    assert plain.returncode == 0, plain.stderr
    assert done.returncode == 0, done.stderr
    assert done.stdout == plain.stdout

    report = json.loads((pair.recording / "report.json").read_text(encoding="utf-8"))
    assert report["step"]["rule"] == rule
    assert sum(report["step"]["counts_by_phase"].values()) == steps_told(plain.stdout)
    # Nobody listens to NVTX here.
    assert {row["name"]: row["status"] for row in report["layers"]} == {
        row["name"]: "emitted" if row["name"] == "nvtx" else "recorded" for row in report["layers"]
    }
    if module is not None:
        assert module in {row["path"] for row in report["tables"]["modules"]}
    assert report["benchmark"]["median_s"] > 0
    check(example, report)


def test_every_example_has_a_run() -> None:
    run = {words[0] for words, _, _ in RUNS.values()}
    assert run | OWN_TESTS.keys() == {path.name for path in EXAMPLES}
    for name, test in OWN_TESTS.items():
        assert name in (CHECKOUT / "tests" / test).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "path", [path for path in EXAMPLES if path.name not in USES_IT], ids=lambda path: path.stem
)
def test_example_knows_nothing_of_profstack(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    told = ast.get_docstring(tree) or ""
    command = "profstack bench" if path.name.startswith("bench_") else "python -m profstack run"
    assert f"{command} examples/" in told
    tree.body = tree.body[1:]
    assert "profstack" not in ast.unparse(tree)


def test_resnet18_has_the_published_architecture() -> None:
    torch = pytest.importorskip("torch")
    path = CHECKOUT / "examples" / "resnet18_inference.py"
    spec = importlib.util.spec_from_file_location("resnet18_inference", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.ResNet18().eval()
    assert sum(parameter.numel() for parameter in model.parameters()) == 11_689_512
    shapes = []
    for name in ("stem", "layer1", "layer2", "layer3", "layer4"):
        getattr(model, name).register_forward_hook(
            lambda _module, _inputs, output: shapes.append(tuple(output.shape[1:]))
        )
    with torch.no_grad():
        assert model(torch.zeros(1, 3, 224, 224)).shape == (1, 1000)
    assert shapes == [(64, 56, 56), (64, 56, 56), (128, 28, 28), (256, 14, 14), (512, 7, 7)]
