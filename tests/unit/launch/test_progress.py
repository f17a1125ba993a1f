"""Following a run: what of its log is read, and what of it is told on standard error."""

import io

from profstack.launch.progress import Display, ProgressLog
from profstack.storage.folder import PROGRESS, append_event, create_folder

SLICE = {"event": "slice", "kind": "torch", "round": 2, "layers": ["torch/timed"], "steps": 3}
SLICE |= {"total": 17, "median_s": 0.0125}
RULE = {"event": "rule", "rule": "optimizer", "phase": "train"}
LINE = "profstack: round 2 of the layers' slices"


def test_the_log_is_read_on_from_where_it_was_left(tmp_path):
    folder = create_folder("train", str(tmp_path / "rec"), force=False)
    log = ProgressLog(folder)

    def append(text):
        with open(folder / PROGRESS, "a", encoding="utf-8") as file:
            file.write(text)
        return [event["event"] for event in log.events()]

    assert log.events() == []
    assert append('{"event": "a"}\n{"event": "b"}\n') == ["a", "b"]
    assert append("") == []
    # A line still being written waits, and a torn one is left out.
    assert append('{"event": "c"}\n{"event": ') == ["c"]
    assert append('"d"}\n{"ev') == ["d"]
    assert append('ent": "e"}\n') == ["e"]
    assert append('{"event": "torn{"event": "f"}\n\n{"event": "g"}\n') == ["g"]
    append_event(folder, SLICE)
    assert log.events() == [SLICE]
    assert ProgressLog(tmp_path / "gone").events() == []


def test_elsewhere_than_on_a_terminal_a_round_is_one_plain_line():
    stream, quiet = io.StringIO(), io.StringIO()
    for display in (Display(quiet=False, stream=stream), Display(quiet=True, stream=quiet)):
        with display.beside_script():
            for number in (2, 2, 3, 4, 5, 6, 7, 8):
                display.show(SLICE | {"round": number})
            display.show(RULE)
        display.line("Wrote page [bold]x[/bold]")
    rounds = [LINE.replace("2", str(number)) for number in range(2, 6)]
    assert stream.getvalue().splitlines() == [*rounds, "Wrote page [bold]x[/bold]"]
    assert quiet.getvalue() == "Wrote page [bold]x[/bold]\n"
