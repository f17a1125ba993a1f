"""How files of other tools become a recording: which formats there are, and where they are put."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from profstack.readers.formats import Format, Taken, opened
from profstack.storage.folder import write_run
from profstack.storage.reader import Recorded
from profstack.storage.schema.column import Record
from profstack.storage.vocabulary import IMPORTS


def formats() -> Sequence[Format]:
    """Return all formats; the first that recognises a file takes it."""
    from profstack.readers import prof_file, speedscope
    from profstack.readers.memory import mprof_file, snapshot
    from profstack.readers.nsys import importing as nsys
    from profstack.readers.torchtrace import importing as torchtrace

    return (
        nsys.FORMAT, prof_file.FORMAT, mprof_file.FORMAT, snapshot.FORMAT, speedscope.FORMAT,
        torchtrace.FORMAT,
    )  # fmt: skip


def begin(folder: Path, **facts: object) -> None:
    """Write the file of a run that profstack did not make; of its facts some may be known."""
    run = {"run": {"exit_code": None, **facts}, "environment": {}}
    write_run(folder, {"script": None, "argv": [], **run})


def put(folder: Path, taken: Sequence[tuple[Format, Taken]]) -> None:
    """Write all rows and facts into the recording, and which files they are from."""
    with opened(folder) as writer:
        recorded = Recorded(folder)
        for _, each in taken:
            for layer, tables in each.tables.items():
                writer.declare(layer, tables)
        layers = {row["name"]: row for row in recorded.table("layers")}
        # Of a file that is imported again the later import counts.
        files = {each["file"]: each for each in recorded.facts.get(IMPORTS, ())}
        added: dict[str, list[Record]] = defaultdict(list)
        for kind, each in taken:
            layers |= {row["name"]: dict(row) for row in each.added.pop("layers", ())}
            files |= {path.name: {"file": path.name, "format": kind.name} for path in each.files}
            for name, rows in each.added.items():
                added[name] += rows
        replaced = {name: rows for _, each in taken for name, rows in each.replaced.items()}
        writer.replace_all({**replaced, "layers": list(layers.values())})
        writer.write(added)
        for _, each in taken:
            writer.facts(each.facts)
        writer.facts({IMPORTS: list(files.values())})
