"""A layer from another package: made, installed, chosen, recorded, reported and shown."""

from tests.support.processes import CHECKOUT, package
from tests.support.recorded_runs import TRAIN, report_of

# Counts calls of functions of the script by line.
LAYER = """
import sys
from profstack.layer import SliceData, Description, Mode, Wrapper
from profstack.storage.schema.layer_table import LayerTable, column
class Entries(Wrapper):
    name = "entries"
    occupies = frozenset({"sys.setprofile"})
    modes = (Mode("timed", turn=60, steps=3),)
    description = Description("counting", "entries", "entries", "all else", "1.1", "profilers")
    columns = (
        column("file", "TEXT", "source file"),
        column("line", "INTEGER", "first line of the function"),
        column("entered", "REAL", "times entered", "counted"),
    )
    words = ("functions entered", "How often each <function> was entered.")
    tables = (LayerTable("entries", columns, *words, order="entered", join="lines"),)
    def start(self, context):
        self.index, self.seen = context.index, {}
        sys.setprofile(self._enter)
    def _enter(self, frame, event, argument):
        if event == "call" and frame.f_code.co_filename.endswith("train.py"):
            key = frame.f_code.co_filename, frame.f_code.co_firstlineno
            self.seen[key] = self.seen.get(key, 0) + 1
    def stop(self):
        if sys.getprofile() == self._enter:
            sys.setprofile(None)
    def take(self, stamps, modules, left_out=()):
        rows = [
            {"slice": self.index, "file": file, "line": line, "entered": times}
            for (file, line), times in self.seen.items()
        ]
        return SliceData(frames={"entries": rows})
"""
ENTRIES = "[profstack.wrappers]\nentries = entries_layers:Entries\n"


def test_a_layer_of_another_package_is_equal(tmp_path, run_profstack):
    beside = {"PYTHONPATH": f"{package(tmp_path, 'entries', LAYER, ENTRIES)}:{CHECKOUT}"}
    (tmp_path / "train.py").write_text(TRAIN)
    folder = tmp_path / "rec"
    words = ["run", "-q", "--layers", "torch,entries", "-o", folder, "train.py", "120"]
    run_profstack(words, env=beside)
    report = report_of(folder)
    row = next(each for each in report["layers"] if each["name"] == "entries")
    assert (row["status"], row["technique"]) == ("recorded", "counting")
    (table,) = report["layer_tables"]
    assert (table["layer"], table["name"], table["join"]) == ("entries", "entries", "lines")
    # Per step, however many steps the slices had.
    times = {row["line"]: row["entered"] for row in table["rows"]}
    assert times[TRAIN.splitlines().index("def work(count):") + 1] == 1.0
    # The page and the report are made again where the package is not installed.
    (folder / "report.json").unlink()
    run_profstack(["report", folder])
    assert report_of(folder)["layer_tables"] == report["layer_tables"]
    assert "&lt;function&gt;" not in (folder / "report.html").read_text()
