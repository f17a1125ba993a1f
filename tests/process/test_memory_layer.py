"""Memory by line in runs."""

import pytest

from tests.support.processes import run_python
from tests.support.recorded_runs import rows_of

MIB = 1 << 20
TRAINING = """\
import torch
from torch import nn

def spin():
    for number in range(60_000): number += number

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters())
for step in range(60):
    x = torch.randn(32, 64)
    if step % 10 == 3: spare = torch.ones(16 * 2**20)
    loss = model(x).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 7: torch.ones(24 * 2**20).sum()
    spin()
"""


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    folder = tmp_path_factory.mktemp("training")
    (folder / "script.py").write_text(TRAINING)
    words = ("run", "-q", "--layers", "memory", "--memory-by", "memory_profiler")
    assert run_python("-m", "profstack", *words, "-o", "out", "script.py", cwd=folder).stdout == ""
    return lambda query: rows_of(folder / "out", query)


def test_a_module_level_loop_is_seen_from_the_first_step(ask):
    def lines(mode, column):
        query = f"select line, {column} from memory_lines join slices using (slice) "
        query += f"where mode = '{mode}' and file like '%script.py'"
        return dict(ask(f"{query} and {column} is not null"))

    # From the first call of a module on, in the frame that was running already.
    first = lines("discovery", "occurrences")
    assert first[12] >= 1
    assert {first[line] for line in (13, 14, 15)} == {first[12]}
    # Adam makes two tensors like each parameter in its first step.
    parameters = 64 * 64 + 64 + 64 * 10 + 10
    assert 8 * parameters < lines("discovery", "allocated_bytes")[15] < 8 * parameters + 100_000
    ((steps,),) = ask("select steps from slices where mode = 'lines'")
    assert steps >= 10
    later = lines("lines", "occurrences")
    assert {line: later[line] for line in range(9, 18)} == dict.fromkeys(range(9, 18), steps)
    # What is planted in every tenth step comes first, though its lines give it back themselves.
    largest = lines("lines", "largest_bytes")
    assert sorted(largest, key=largest.__getitem__, reverse=True)[:2] == [16, 11]
    assert largest[16] == pytest.approx(96 * MIB, abs=4 * MIB)
    assert largest[11] == pytest.approx(64 * MIB, abs=4 * MIB)
    query = "select path, calls, host_net_bytes from module_memory join modules using (module_id)"
    by_path = {path: (count, held / count) for path, count, held in ask(query)}
    assert by_path["Sequential.0"] == (steps, pytest.approx(32 * 64 * 4, abs=3_000))
    # memory_profiler saw the same runs, and the frame that was running already.
    tool = lines("lines", "memory_profiler_occurrences")
    assert {line: tool[line] for line in (9, 14, 17)} == dict.fromkeys((9, 14, 17), steps)
    # The line that it saw first gets the whole resident set, others what profstack gives them.
    tool, own = (lines("discovery", f"{by}increment_bytes") for by in ("memory_profiler_", ""))
    assert tool[12] > own[12] + 50 * MIB
    assert tool[15] == pytest.approx(own[15], abs=MIB / 4)
    # A hot loop is bounded, and named.
    ((status, truncated),) = ask("select status, truncated from layers where name = 'memory'")
    assert (status, "spin" in truncated) == ("recorded", True)


OWN_MODULES = """
import sys
from profstack.readers.memory import lines
lines.load_memory_profiler()
assert "_Finder" not in repr(sys.meta_path) and "pdb" not in sys.modules
assert "IPython" not in sys.modules
print("loaded", "memory_profiler" in sys.modules)
import code, cmd
print(cmd.Cmd.__module__)
"""


def test_memory_profiler_finds_no_file_of_the_scripts(tmp_path):
    """It imports `pdb`, and that `code` and `cmd`: names that a script may have for its own."""
    (tmp_path / "code.py").write_text("print('the script has imported its own')\n")
    (tmp_path / "script.py").write_text(OWN_MODULES)
    printed = run_python("script.py", cwd=tmp_path).stdout
    assert printed == "loaded True\nthe script has imported its own\ncmd\n"
