"""Single facts of a recording: what each is, by its name.

They are written as JSON, into the table `facts` or by the process that starts the run into a file
of its own. What is not declared here may be of any type.
"""

from __future__ import annotations

from typing import Any, TypedDict, get_type_hints

from profstack.storage.schema.column import Figure, Text, Whole
from profstack.storage.schema.report import BenchResult, NsysFacts, SetupNotes


class OwnFiles(TypedDict):
    """Folders by which the user's own files are told from those of libraries."""

    roots: list[str]
    libraries: list[str]
    profstack: list[str]
    working: str
    text: bool
    sep: str


class PlanFacts(TypedDict, total=False):
    """The loop of one plan; recordings from before call sites were known have the first two."""

    rule: Text
    phase: Text
    site: list[tuple[str, int, str]]
    gradients: bool | None
    training: bool | None
    waits: bool


class SetupFact(SetupNotes):
    """Notes on the first steps of one plan, or what went wrong with them."""

    steps: int
    failed: Text


class CallCost(TypedDict):
    """Seconds that cProfile adds to a call: to the callee's own time, and to the caller's."""

    inner_s: float
    inner_spread_s: float
    outer_s: float
    outer_spread_s: float


class ProfilerCost(TypedDict):
    """The cost of cProfile on the machine that was measured."""

    python: CallCost
    builtin: CallCost
    rounds: int
    calls: int
    bytecode_factor: float


class Readings(TypedDict):
    """Readings of all threads' clocks: how many, and their time in all."""

    readings: int
    took_s: float
    reason: Text


class EnvironmentFacts(TypedDict, total=False):
    """Facts of the machine and of torch that are read by their names; there may be others."""

    python: Text
    torch: Text
    torch_threads: Whole
    device: Text
    gpu: Text
    cpu: Text
    cpu_governor: Text
    physical_cores: Whole
    logical_cores: Whole
    usable_cores: Whole
    cpu_limit_cores: Figure
    load_average: list[float] | None
    memory_bytes: Figure
    memory_limit_bytes: Figure
    tf32_products: bool | None
    tf32_convolutions: bool | None
    packages: dict[str, str]
    variables_set: list[str]
    commit: Text
    changed: bool | None


class RunTimes(TypedDict, total=False):
    """When the run was, and how it ended."""

    id: str
    started_at: Text
    finished_at: Text
    duration_s: Figure
    exit_code: Whole
    signal: Whole
    stopped_by: Text
    rank: Whole
    world_size: Whole
    node: Whole
    recorded_ranks: Whole


class RunFile(TypedDict, total=False):
    """The content of the run's file; its facts grow while the run goes on."""

    script: Text
    argv: list[str]
    in_process: bool
    run: RunTimes
    environment: EnvironmentFacts
    # When it began, by the system's own clock, which the measured process reads too.
    begun_clock_s: float


class DeclaredColumn(TypedDict):
    """A column of a layer's own table."""

    name: str
    type: str
    meaning: str
    sense: Text
    heading: Text


class DeclaredTable(TypedDict):
    """A table that a layer declared; see `LayerTable`."""

    layer: str
    name: str
    columns: list[DeclaredColumn]
    title: str
    text: str
    order: Text
    largest: list[str]
    join: Text


class StartsOfLine(TypedDict):
    """How often a line of the script's asked for an iterator with workers."""

    file: str
    line: int
    starts: int


class WorkerStarts(TypedDict):
    """How often DataLoaders started workers, and how long starting and ending them took."""

    starts: int
    started_s: float
    ended_s: float
    places: list[StartsOfLine]


class RecordedFacts(TypedDict, total=False):
    """Facts by their names."""

    schema_version: Whole
    own_files: OwnFiles
    synchronised: bool
    cprofile_cost: ProfilerCost | None
    environment: EnvironmentFacts
    processes_made: Whole
    worker_starts: WorkerStarts | None
    compilations_reason: Text
    counts_by_phase: dict[str, int]
    thread_readings: Readings
    recording_ended: float
    origin_clock_s: float
    arming: tuple[float, float]
    finishing: tuple[float, float]
    begin_at: Text
    uncaught: Text
    uncaught_at: tuple[str, int]
    remedy: Text
    cells: dict[str, int | str]
    cpu_capability: Text
    bench: BenchResult
    nsys: NsysFacts | None


_TYPES = get_type_hints(RecordedFacts, include_extras=True)
# Facts of each plan, and tables of each layer.
_BEGINNINGS = {"plan_": PlanFacts, "setup_": SetupFact}
_ENDINGS = {"_layer_tables": list[DeclaredTable]}


def type_of(name: str) -> Any:
    """Return the type of a fact; `object` for one that is not declared."""
    for beginning, hint in _BEGINNINGS.items():
        if name.startswith(beginning):
            return hint
    for ending, tables in _ENDINGS.items():
        if name.endswith(ending):
            return tables
    return _TYPES.get(name, object)
