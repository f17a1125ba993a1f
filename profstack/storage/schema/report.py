"""The report: every field of report.json and what it means, as typed dictionaries.

The names are a contract with programs that read report.json. A field that was not measured is
null, with a reason beside it.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict, get_args, get_origin, get_type_hints

from profstack.storage.schema.column import Doc, Given, Table, row_table
from profstack.storage.schema.nsys_rows import (
    NsysApiRow,
    NsysBacktraceRow,
    NsysCopyRow,
    NsysGapRow,
    NsysKernelRow,
    NsysMemoryRow,
    NsysModuleRow,
    NsysRangeRow,
    NsysSampleRow,
    NsysStepRow,
)
from profstack.storage.schema.rows import (
    ArtifactRow,
    CallPathRow,
    CallRow,
    CounterRow,
    FunctionRow,
    GapRow,
    KernelRow,
    LaunchRow,
    LineRow,
    MemoryOwnerRow,
    MemoryRow,
    ModuleLineRow,
    ModuleRow,
    OperatorRow,
    OutlierRow,
    PeakHolderRow,
    RangeRow,
    RegionRow,
    StepRow,
    ThreadRow,
    WatchRow,
)


class Run(TypedDict):
    """The run: when, how long, and how it ended."""

    id: str
    started_at: str | None
    finished_at: str | None
    duration_s: float | None
    exit_code: int | None
    signal: str | int | None
    stopped_by: str | None
    rank: int | None
    world_size: int | None


class StepFacts(TypedDict):
    """Steps of the run: the rule that finds them, and how many there were."""

    rule: str | None
    count: int
    phase: str | None
    counts_by_phase: dict[str, int]
    batch_size: int | None
    shapes: list[str]
    reason: Annotated[str | None, Doc("why no step of a script was recorded; null where one was")]


class SliceFacts(TypedDict):
    """A slice of the run, with the median of its steps."""

    index: int
    kind: str
    layer: str | None
    mode: str | None
    plan: int | None
    phase: str | None
    round: int | None
    first_step: int | None
    steps: int
    step_median_s: float | None
    started_s: float | None
    wall_s: float | None
    cpu_s: float | None
    counted_steps: int | None
    counted_wall_s: float | None
    settle_steps: int | None
    stop_s: float | None


class BetweenProcesses(TypedDict):
    """Medians of fresh processes that took turns: their spread is the error bar."""

    processes: Annotated[int | None, Doc("fresh processes that measured")]
    medians_s: Annotated[list[float | None] | None, Doc("the median of each")]
    median_s: Annotated[float | None, Doc("median of the medians")]
    low_s: Annotated[float | None, Doc("lowest of them")]
    high_s: Annotated[float | None, Doc("highest of them")]
    spread: Annotated[float | None, Doc("highest over lowest, less 1")]
    std_s: Annotated[float | None, Doc("their standard deviation")]
    note: Annotated[str | None, Doc("what the spread is, or why there is none")]


class Mistake(TypedDict):
    """A common mistake of timing, beside the right value."""

    slug: Annotated[str, Doc("short name of the mistake")]
    title: Annotated[str, Doc("the mistake in words")]
    wrong_s: Annotated[float | None, Doc("mean time of a call as the mistake has it")]
    wrong_std_s: Annotated[float | None, Doc("standard deviation of its samples")]
    n_wrong: Annotated[int | None, Doc("its samples")]
    right_s: Annotated[float | None, Doc("mean time of a call, timed right")]
    right_std_s: Annotated[float | None, Doc("standard deviation of its samples")]
    n_right: Annotated[int | None, Doc("its samples")]
    factor: Annotated[float | None, Doc("wrong over right")]
    ci95_low: Annotated[float | None, Doc("low end of the factor's 95 % interval")]
    ci95_high: Annotated[float | None, Doc("high end of the factor's 95 % interval")]
    applies: Annotated[bool, Doc("whether it can differ on this device")]
    note: Annotated[str | None, Doc("what is wrong with it, or why it cannot differ here")]
    error: Annotated[str | None, Doc("the error it raised")]


class AblationCell(TypedDict):
    """A way of timing, with or without warm-up and synchronisation."""

    variant: Annotated[str, Doc("the work: compute or copy-heavy")]
    warmup: Annotated[bool, Doc("whether calls went before the samples")]
    synchronise: Annotated[bool, Doc("whether the device was waited for")]
    timing: Annotated[Literal["host", "events"], Doc("whose clock was read")]
    mean_s: Annotated[float | None, Doc("mean time of a call")]
    median_s: Annotated[float | None, Doc("median time of a call")]
    std_s: Annotated[float | None, Doc("standard deviation of the samples")]
    n: Annotated[int | None, Doc("samples")]
    valid: Annotated[bool, Doc("whether the cell's way of timing gives a figure at all")]
    error: Annotated[str | None, Doc("the error it raised")]
    note: Annotated[str | None, Doc("a note on the cell")]


class ThroughputRow(TypedDict):
    """Rate and latency of one batch size."""

    dtype: Annotated[str | None, Doc("data type of model and inputs")]
    batch_size: Annotated[int | None, Doc("items of one batch")]
    batches: Annotated[int | None, Doc("batches timed")]
    total_s: Annotated[float | None, Doc("host time over them all")]
    items_per_s: Annotated[float | None, Doc("batches times batch size over the total time")]
    latency_s: Annotated[float | None, Doc("median time of a batch")]
    latency_p90_s: Annotated[float | None, Doc("nine of ten batches took no longer")]
    peak_memory_bytes: Annotated[float | None, Doc("most memory in use meanwhile")]
    status: Annotated[
        Literal["measured", "refused", "failed"], Doc("refused: memory did not suffice")
    ]
    reason: Annotated[str | None, Doc("why there are no figures")]


class ShapeTimes(TypedDict):
    """Step times of inputs of one shape."""

    shape: Annotated[str | None, Doc("shapes of the inputs")]
    n: Annotated[int, Doc("samples of this shape")]
    median_s: Annotated[float | None, Doc("their median")]
    ci95_low_s: Annotated[float | None, Doc("low end of its 95 % interval")]
    ci95_high_s: Annotated[float | None, Doc("high end of its 95 % interval")]


class DeviceStates(TypedDict):
    """Power state, clocks, throttle reasons and the like of the device round the samples."""

    before: dict[str, object] | None
    after: dict[str, object] | None
    reason: Annotated[str | None, Doc("why nothing is known of it")]


class ThroughputLimit(TypedDict):
    """Where one data type's search for the largest batch ended."""

    dtype: Annotated[str | None, Doc("data type of model and inputs")]
    search: Annotated[
        Literal["binary", "linear"] | None, Doc("how the largest batch was looked for")
    ]
    largest_batch: Annotated[int | None, Doc("largest batch that ran")]
    limited_by: Annotated[str | None, Doc("what refused a larger one")]
    memory_limit_bytes: Annotated[float | None, Doc("memory that the search was allowed")]
    knee_batch: Annotated[int | None, Doc("batch size from which on a larger one gains little")]
    knee_items_per_s: Annotated[float | None, Doc("rate at the knee")]
    max_items_per_s: Annotated[float | None, Doc("highest rate")]
    max_batch: Annotated[int | None, Doc("batch size of the highest rate")]
    note: Annotated[str | None, Doc("a note on the search")]


class VariantRow(TypedDict):
    """A way to run the model."""

    variant: Annotated[str, Doc("eager, compile, trace or script")]
    status: Literal["measured", "failed", "unavailable"]
    reason: Annotated[str | None, Doc("why there are no figures")]
    compile_s: Annotated[float | None, Doc("time to make it ready, first call included")]
    median_s: Annotated[float | None, Doc("median time of a call")]
    ci95_low_s: Annotated[float | None, Doc("low end of its 95 % interval")]
    ci95_high_s: Annotated[float | None, Doc("high end of its 95 % interval")]
    n: Annotated[int | None, Doc("samples")]
    speedup: Annotated[float | None, Doc("eager's time over its time")]
    speedup_low: Annotated[float | None, Doc("low end of the speedup's 95 % interval")]
    speedup_high: Annotated[float | None, Doc("high end of the speedup's 95 % interval")]
    equal: Annotated[bool | None, Doc("whether its results are eager's within the tolerance")]
    max_difference: Annotated[float | None, Doc("largest absolute difference of a result")]
    tolerance: Annotated[str | float | None, Doc("what counts as equal")]
    operators: Annotated[int | None, Doc("operators called by one call")]
    kernels: Annotated[int | None, Doc("kernels run by one call")]
    graphs: Annotated[int | None, Doc("graphs compiled")]
    breaks: Annotated[int | None, Doc("graph breaks")]
    fused_names: Annotated[list[str] | None, Doc("kernels that hold several operators")]
    between_process: Annotated[list[float | None] | None, Doc("its median in each fresh process")]
    note: Annotated[str | None, Doc("a note on it")]


class TargetTimes(TypedDict, total=False):
    """Times of the target of `profstack bench` before anything was measured."""

    import_s: Annotated[float | None, Doc("time to import the target's file or module")]
    build_s: Annotated[float | None, Doc("time that the target's factory took")]


class Benchmark(TargetTimes):
    """The clean measurement: statistics of step times."""

    mode: Literal["pipelined", "synchronised"] | None
    clock: Literal["host", "device"] | None
    n: int
    samples_s: Annotated[list[float], Doc("the counted samples in order, in seconds per step")]
    counted_steps: list[int]
    warmup_steps: int | None
    first_step_s: float | None
    median_s: float | None
    iqr_s: float | None
    mean_s: float | None
    std_s: float | None
    min_s: float | None
    p90_s: float | None
    p99_s: float | None
    ci95_low_s: float | None
    ci95_high_s: float | None
    cpu_median_s: Annotated[
        None,
        Doc(
            "always null: the CPU clock adds what ran on other cores at scheduler ticks, "
            "so that a median of single steps is a coin toss; see cpu_mean_s"
        ),
    ]
    cpu_mean_s: Annotated[
        float | None,
        Doc(
            "CPU time of all threads of the process over the counted steps, or the clean "
            "slices, divided by their number"
        ),
    ]
    cpu_wall_s: Annotated[float | None, Doc("wall time of the same steps, divided by their number")]
    cores_busy: Annotated[
        float | None, Doc("CPU time over wall time of these steps, at most the usable cores")
    ]
    cpu_reason: Annotated[str | None, Doc("why there is no CPU time")]
    host_median_s: float | None
    device_median_s: float | None
    autocorrelation: float | None
    drift: float | None
    steps_per_s: Annotated[
        float | None,
        Doc(
            "counted steps (of a benchmark: samples) over the time that they took in all:"
            " one over mean_s, not over median_s"
        ),
    ]
    items_per_s: Annotated[
        float | None, Doc("items of the counted steps over the time that they took in all")
    ]
    between_process: Annotated[
        BetweenProcesses | None,
        Doc(
            "medians of fresh processes, which took turns: their spread is the error bar "
            "of a comparison"
        ),
    ]
    mistakes: Annotated[list[Mistake], Doc("the same model timed wrong, beside the right value")]
    ablation: Annotated[
        list[AblationCell], Doc("warm-up, synchronisation and clock, each left out in turn")
    ]
    throughput: Annotated[list[ThroughputRow], Doc("rate and latency by batch size")]
    warnings: list[str]
    first_step_layer: Annotated[
        str | None, Doc("the layer that watched the first step, whose time is then no clean one")
    ]
    target: Annotated[str | None, Doc("what `profstack bench` was given; null of a run")]
    initialisation_s: Annotated[
        float | None, Doc("the device's initialisation, before anything was called; null on a CPU")
    ]
    warmup_s: Annotated[
        list[float] | None, Doc("every call before the samples in order, the first included")
    ]
    warmup_reason: Annotated[str | None, Doc("how the end of warm-up was found, or why not")]
    outliers: Annotated[
        int | None,
        Doc(
            "samples further than 3 sigma from the median, sigma from the median absolute deviation"
        ),
    ]
    stopped_by: Annotated[
        str | None, Doc("what ended the sampling: interval, time, samples, repeat or interrupt")
    ]
    calls_per_sample: Annotated[int | None, Doc("calls that one sample is the mean of")]
    garbage: Annotated[str | None, Doc("what happened to garbage collection meanwhile")]
    batch_size: Annotated[int | None, Doc("items of one call")]
    batch_size_is: Annotated[
        str | None, Doc("where the batch size comes from: stated, or read from the inputs")
    ]
    gradients: Annotated[bool | None, Doc("whether gradients were recorded")]
    training: Annotated[
        bool | None, Doc("whether the model was in training mode; null without a model")
    ]
    synchronised_median_s: Annotated[
        float | None, Doc("median step time with the device waited for after every sample")
    ]
    synchronised_ci95_low_s: Annotated[float | None, Doc("low end of its 95 % interval")]
    synchronised_ci95_high_s: Annotated[float | None, Doc("high end of its 95 % interval")]
    pipelined_median_s: Annotated[
        float | None, Doc("median step time with the device waited for only round each block")
    ]
    pipelined_ci95_low_s: Annotated[float | None, Doc("low end of its 95 % interval")]
    pipelined_ci95_high_s: Annotated[float | None, Doc("high end of its 95 % interval")]
    by_shape: Annotated[list[ShapeTimes], Doc("step times by the shapes of the inputs")]
    device_state: Annotated[
        DeviceStates | None,
        Doc("power state, clocks, throttle reasons and the like of the device round the samples"),
    ]
    throughput_limits: Annotated[list[ThroughputLimit], Doc("where each data type's search ended")]
    compare: Annotated[list[VariantRow], Doc("ways of running the same model")]
    modes_note: Annotated[str | None, Doc("why there is only one way of timing")]


class BenchFigures(Benchmark, total=False):
    """Figures of `profstack bench` before its layers, as its recording holds them."""

    part_problems: list[str]
    warmup_settled: bool
    target_interval: float | None
    training_layers: list[str]


class _BenchProblems(TypedDict):
    figures: BenchFigures | None
    problems: list[str]


class BenchResult(_BenchProblems, total=False):
    """The fact of a recording that holds the result of `profstack bench`."""

    layers_apart: bool


class ProbeEffect(TypedDict):
    """Slowdown of the steps that a layer observed."""

    layer: str
    n_layer: int
    n_clean: int
    step_median_s: float | None
    clean_median_s: float | None
    factor: float | None
    ci95_low: float | None
    ci95_high: float | None
    note: Annotated[str | None, Doc("why there is no factor, or what it is not")]


Technique = Literal["counting", "sampling", "tracing"]


class LayerFacts(TypedDict):
    """A layer of the run: its status, tool, cost and artifacts."""

    name: str
    technique: Technique | None
    tool: str | None
    version: str | None
    status: Literal["recorded", "emitted", "empty", "unavailable", "skipped", "failed"]
    reason: str | None
    command: str | None
    steps: int | None
    stop_s: float | None
    memory_bytes: float | None
    artifacts: list[ArtifactRow]
    audit: list[str]
    truncated: str | None
    measures: str | None
    does_not_measure: str | None
    usual_slowdown: str | None
    conflicts: str | None


class VerdictFacts(TypedDict, total=False):
    """Further facts about a test of the verdict; a key is left out where it is not known."""

    reason: Annotated[str, Doc("why the share is not known")]
    link: Annotated[str, Doc("where the rows stand")]
    file: str
    line: int
    name: Annotated[str, Doc("function, collective or kernel at which most of the time is spent")]
    calls: Annotated[float, Doc("small operators per step")]
    call_s: Annotated[float, Doc("mean time of one of them")]
    after_step_share: Annotated[float, Doc("share of the step that follows the optimizer's step")]
    peak_share: Annotated[float, Doc("share of the peak that the step reaches")]
    flop_per_s: Annotated[float, Doc("operations of the step per second")]
    bytes_per_s: Annotated[float, Doc("bytes that the step moves per second")]
    below_limits_share: Annotated[float, Doc("share of operators below both limits")]
    limit_unknown_share: Annotated[float, Doc("share of operators whose limit is not known")]


class VerdictEvidence(VerdictFacts):
    """One test of the verdict: what it measured."""

    test: Annotated[str, Doc("slug of the test")]
    share: Annotated[float | None, Doc("what it measures, as a share of the clean step")]
    threshold_share: Annotated[float, Doc("the share from which it can be the verdict")]
    time_s: Annotated[float | None, Doc("that share of the clean median")]


VerdictSlug = Literal[
    "input-bound",
    "io-bound",
    "communication-bound",
    "python-bound",
    "launch-bound",
    "compute-bound",
    "memory-bound",
    "balanced",
    "unclear",
]


class Verdict(TypedDict):
    """The cause that holds a step back, by the published rule."""

    slug: Annotated[VerdictSlug, Doc("the test whose share is the largest, or that none is")]
    sentence: Annotated[str, Doc("the verdict in words")]
    margin: Annotated[
        float | None,
        Doc(
            "by how much its share of the step could shrink and it still be the verdict; "
            "of balanced, what the nearest test lacks to its threshold"
        ),
    ]
    evidence: Annotated[list[VerdictEvidence], Doc("a row for every test, the largest share first")]


# `is` is a keyword of Python: no class body can hold it.
_PartSense = TypedDict(
    "_PartSense",
    {
        "is": Annotated[
            Literal["clean", "calibrated"],
            Doc("measured in the clean steps, or in a layer's slice and calibrated"),
        ]
    },
)


StepPart = Literal[
    "data wait",
    "before first work",
    "forward",
    "loss",
    "backward",
    "optimizer",
    "Python",
    "I/O",
    "idle",
    "other",
    "not attributed",
]


class StepBarPart(_PartSense):
    """One part of the step bar."""

    name: StepPart
    seconds: Annotated[float, Doc("time per clean step")]
    share: Annotated[float, Doc("share of the clean median")]
    link: Annotated[str | None, Doc("where its rows stand")]


class StepBar(TypedDict):
    """The clean step as one bar."""

    median_s: Annotated[float | None, Doc("clean median: what the parts add up to")]
    time_line: Annotated[
        Literal["host", "device"] | None,
        Doc("whose time is divided: that of the steps' thread, or of the accelerator"),
    ]
    parts: Annotated[list[StepBarPart], Doc("the parts in the order in which a step does them")]
    reason: Annotated[str | None, Doc("why there are no parts, or only some")]
    note: Annotated[
        str | None,
        Doc(
            "why the row of the wait among the modules has another time than the bar, and "
            'what is in "other" where that is much'
        ),
    ]


# A row of a finding's evidence.
EvidenceValue = str | int | float | bool | None
Evidence = dict[str, EvidenceValue]
Severity = Literal["high", "medium", "low"]


class Finding(TypedDict):
    """Something wrong, with its evidence, its cost and what to do."""

    slug: str
    title: str
    severity: Severity
    gain_s: float | None
    gain_is: Literal["estimated", "measured"] | None
    gain_reason: str | None
    file: str | None
    line: int | None
    module: str | None
    layers: list[str]
    evidence: list[Evidence]
    advice: str


class FlopPeak(TypedDict):
    """The highest rate of operations in one data type."""

    dtype: Annotated[str | None, Doc("data type")]
    value: Annotated[float, Doc("operations per second")]
    source: Literal["measured", "datasheet"]
    how: Annotated[str | None, Doc("by what it was measured, or whose figure it is")]


class MemoryPeak(TypedDict):
    """The highest rate of memory."""

    value: Annotated[float, Doc("bytes per second")]
    source: Literal["measured", "datasheet"]
    how: Annotated[str | None, Doc("by what it was measured, or whose figure it is")]


class Peaks(TypedDict):
    """Highest rates of the device."""

    device: Annotated[str | None, Doc("device")]
    threads: Annotated[int | None, Doc("threads that the peak was measured with")]
    torch: Annotated[str | None, Doc("version of torch")]
    measured_at: Annotated[str | None, Doc("when")]
    flop_per_s: Annotated[list[FlopPeak], Doc("highest rates of operations")]
    bytes_per_s: Annotated[list[MemoryPeak], Doc("highest rates of memory")]
    reason: Annotated[str | None, Doc("why a peak is not known")]


class Bounds(TypedDict):
    """Seconds per step of all operators by bound, those without a point included."""

    compute_s: float
    memory_s: float
    overhead_s: float
    unknown_s: float


class Utilization(TypedDict):
    """Share of a peak that the step reaches."""

    source: Literal["measured", "datasheet"]
    dtype: Annotated[str | None, Doc("data type")]
    value: Annotated[
        float | None,
        Doc(
            "operations of the step over its clean time, over the peak; null, with the "
            "reason in `warning`, where that would be above 1 or the operations are of "
            "other steps"
        ),
    ]
    flop: Annotated[float | None, Doc("operations of the step")]
    seconds: Annotated[float | None, Doc("clean time of the step")]
    warning: Annotated[str | None, Doc("why the value cannot be right, or what it leaves out")]


class RooflinePoint(TypedDict):
    """Work by its operations, the memory it moved and its time."""

    kind: Literal["step", "module", "operator"]
    name: Annotated[str | None, Doc("name")]
    dtype: Annotated[str | None, Doc("data type")]
    flop: Annotated[float | None, Doc("operations per step")]
    moved_bytes: Annotated[
        float | None, Doc("bytes read and written per step, from shapes and data types")
    ]
    seconds: Annotated[float | None, Doc("its time per step")]
    seconds_is: Annotated[
        Literal["clean", "calibrated", "device"] | None,
        Doc(
            "clean: measured without a layer; calibrated: the layer's share of it; "
            "device: the device's own time, as the layer saw it"
        ),
    ]
    intensity: Annotated[float | None, Doc("operations per byte moved")]
    flop_per_s: Annotated[float | None, Doc("operations per second")]
    share_of_peak: Annotated[float | None, Doc("its rate over the roof above it")]
    bound: Annotated[Literal["compute", "memory", "overhead"] | None, Doc("what holds it back")]
    reason: Annotated[str | None, Doc("why it has no place in the plot, or is bound as it is")]


class Roofline(TypedDict):
    """Rates against what the machine can do."""

    peaks: Annotated[Peaks | None, Doc("highest rates of the device")]
    bounds: Annotated[
        Bounds | None,
        Doc(
            "seconds per step of all operators by what holds them back, those that are no"
            " points included; null where no roof is known"
        ),
    ]
    mfu: Annotated[list[Utilization], Doc("share of the peak that the step reaches")]
    points: Annotated[
        list[RooflinePoint], Doc("what ran, by its operations, the memory it moved and its time")
    ]
    reason: Annotated[str | None, Doc("why there is no roofline")]


class WatchFacts(TypedDict):
    """The watch's samples, and whether they agree with cProfile."""

    samples: Annotated[int, Doc("samples taken")]
    watched_s: Annotated[float, Doc("time that they cover")]
    samples_by_phase: dict[str, int]
    interval_s: Annotated[float, Doc("time between two samples")]
    thinning: Annotated[str | None, Doc("since when samples are further apart")]
    rank_correlation: Annotated[
        float | None,
        Doc("Spearman's, between the watch's shares and cProfile's own times of functions"),
    ]
    rank_functions: Annotated[int, Doc("functions compared")]
    reason: Annotated[str | None, Doc("why there is no rank correlation")]
    outlier_rule: Annotated[str, Doc("which steps are in the table of outliers")]


class ReportWarning(TypedDict):
    """A doubt about a figure."""

    slug: str
    text: str


class UnownedRow(TypedDict):
    """Time without an owner."""

    path: str
    self_s: Annotated[float | None, Doc("its self time")]
    share: Annotated[float | None, Doc("share of the step")]


class Attribution(TypedDict):
    """Sums of the modules' rows against a step, and the time without an owner."""

    step_s: Annotated[
        float | None, Doc("mean step of the slice that the times of modules are from")
    ]
    rows_s: Annotated[float | None, Doc("self times of all rows of the modules together")]
    owned_s: Annotated[
        float | None,
        Doc(
            "those of modules, compiled functions, loss, gradient accumulation, what "
            "comes before the optimizer, optimizer, zero_grad and wait"
        ),
    ]
    owned_share: Annotated[float | None, Doc("owned_s over step_s")]
    calibrated_owned_s: Annotated[float | None, Doc("owned time at the speed of the clean steps")]
    clean_median_s: Annotated[float | None, Doc("median of the clean steps")]
    backward_s: Annotated[float | None, Doc("time of the backward pass")]
    backward_attributed_share: Annotated[
        float | None,
        Doc("share of it that belongs to a module, the loss or the accumulation of gradients"),
    ]
    memory_peak_bytes: Annotated[float | None, Doc("bytes alive at the peak of the observed step")]
    memory_attributed_share: Annotated[float | None, Doc("share of them with an owner")]
    negative_rows: Annotated[int | None, Doc("rows with a self time below 0")]
    unowned: Annotated[list[UnownedRow], Doc("rows that are no owner, the longest first")]
    reason: Annotated[str | None, Doc("why there are no figures")]


class Processes(TypedDict):
    """Sums of the table of threads; times per clean step."""

    steps: Annotated[int | None, Doc("clean steps that it rests on")]
    step_s: Annotated[float | None, Doc("mean time of these steps")]
    cpu_s: Annotated[float | None, Doc("CPU time of the whole process tree")]
    cores: Annotated[float | None, Doc("CPU time over the time of a step")]
    off_cpu_s: Annotated[float | None, Doc("time of a step in which the steps' thread did not run")]
    no_core_s: Annotated[
        float | None, Doc("part of that in which it could have run but had no core")
    ]
    unseen_share: Annotated[
        float | None, Doc("share of the CPU time in threads and processes that no layer looks into")
    ]
    workers: Annotated[int | None, Doc("DataLoader workers alive at the end of a clean slice")]
    worker_cpu_s: Annotated[float | None, Doc("CPU time of the DataLoader workers")]
    wait_s: Annotated[float | None, Doc("mean time before the first work of a clean step")]
    sentences: Annotated[list[str], Doc("what follows, as plain facts")]
    reading_s: Annotated[
        float | None, Doc("mean host time of one reading of all clocks, outside the steps")
    ]
    reason: Annotated[str | None, Doc("why there is nothing")]


class LaunchMeans(TypedDict):
    """Means per step of the torch layer's slices."""

    steps: Annotated[int, Doc("steps that they rest on")]
    operators: Annotated[float | None, Doc("operators called")]
    outermost_operators: Annotated[float | None, Doc("those of them that no other operator called")]
    operator_s: Annotated[
        float | None, Doc("host time per operator; without a device the computing is in it")
    ]
    kernels: Annotated[float | None, Doc("kernels launched")]
    launches: Annotated[float | None, Doc("launches that began them")]
    launches_total_s: Annotated[float | None, Doc("host time of all launches")]
    launch_s: Annotated[float | None, Doc("host time per launch")]
    reason: Annotated[str | None, Doc("why there are no kernels, or nothing at all")]


class SourceText(TypedDict):
    """The text of one of the user's own files."""

    file: Annotated[str, Doc("as in the table of lines")]
    text: Annotated[str | None, Doc("its whole text")]
    bytes: Annotated[int | None, Doc("size of the text")]
    reason: Annotated[str | None, Doc("why there is no text")]


class Place(TypedDict):
    """The script's own line."""

    file: str
    line: int


class SetupCalls(TypedDict):
    """Outermost calls of modules that have parameters."""

    count: Annotated[int, Doc("outermost calls of modules that have parameters")]
    training: Annotated[int, Doc("those in training mode")]
    with_grad: Annotated[int, Doc("those with gradients on")]
    inference_mode: Annotated[int, Doc("those in inference mode")]
    nodes: Annotated[int | None, Doc("nodes of the graph that autograd recorded in them")]
    module: Annotated[str | None, Doc("the module of the first one")]
    place: Annotated[Place | None, Doc("the script's own line")]
    autocast: Annotated[str | None, Doc("the type that autocast computed in")]


class OptimizerFacts(TypedDict):
    """An optimizer and its options."""

    name: Annotated[str, Doc("its class")]
    base: Annotated[str | None, Doc("the class of torch's that it is or is made from")]
    fused: bool | None
    foreach: bool | None
    capturable: bool | None
    differentiable: bool | None
    maximize: bool | None
    amsgrad: bool | None
    nesterov: bool | None
    momentum: Annotated[bool, Doc("whether it is other than zero")]
    weight_decay: Annotated[bool, Doc("whether it is other than zero")]
    centered: Annotated[bool, Doc("whether it is other than zero")]
    has_fused: Annotated[bool, Doc("whether there is a fused implementation of it")]
    has_foreach: Annotated[bool, Doc("whether there is one over lists of tensors")]
    tensors: Annotated[int, Doc("parameters that had gradients")]
    elements: int
    parameter_bytes: Annotated[int, Doc("bytes of these parameters")]
    sparse_tensors: Annotated[int, Doc("those with sparse gradients")]
    devices: list[str]
    dtypes: list[str]
    calls: Annotated[int, Doc("its steps that were seen")]
    place: Annotated[Place | None, Doc("the script's own line")]


class ModuleOfKind(TypedDict):
    """A module, by path and class."""

    path: str
    type: str


class ModulesOfKind(TypedDict):
    """Layers of batch normalisation in training mode that have averages of their own."""

    count: int
    modules: Annotated[list[ModuleOfKind], Doc("the first of them")]


class SetupDevice(TypedDict):
    """The device of the run."""

    capability: list[int]


class SetupNotes(TypedDict, total=False):
    """The notes of the steps in which they were taken; absent where none were."""

    backward_passes: int
    calls: SetupCalls
    optimizers: list[OptimizerFacts]
    training_norms: Annotated[
        ModulesOfKind,
        Doc("layers of batch normalisation in training mode that have averages of their own"),
    ]
    training_dropouts: Annotated[ModulesOfKind, Doc("layers of dropout in training mode")]
    device: SetupDevice | None


class Setup(SetupNotes):
    """The script's setup in a few of its first steps, or the reason for its absence."""

    steps: Annotated[int, Doc("steps in which it was noted")]
    reason: Annotated[str | None, Doc("why nothing was noted, or why no more")]
    tf32_products: Annotated[
        bool | None, Doc("whether products of float32 are made as TF32, null without a CUDA device")
    ]
    tf32_convolutions: bool | None


class NsysLeftOut(TypedDict, total=False):
    """Rows that the import left out; older recordings count those of ranges only."""

    left_out: Annotated[dict[str, int], Doc("rows with the least time left out, by table")]
    ranges_left_out: Annotated[int, Doc("rows of ranges with the least time left out")]


class NsysFacts(NsysLeftOut):
    """Facts of an import from Nsight Systems."""

    file: Annotated[str, Doc("name of the file that was imported")]
    version: Annotated[str | None, Doc("version of nsys")]
    schema: Annotated[str | None, Doc("version of the export's schema")]
    steps: Annotated[int, Doc("steps of the capture; 0 where it has no step range")]
    first_step: Annotated[int | None, Doc("number of the first of them")]
    last_step: Annotated[int | None, Doc("number of the last of them")]
    per: Annotated[Literal["step", "capture"], Doc("what the figures of the tables nsys_* are per")]
    captured_s: Annotated[float | None, Doc("from the first event of the process to the last")]
    steps_wall_s: Annotated[float | None, Doc("host time inside the step ranges")]
    process: Annotated[int, Doc("number of the process whose events were taken in")]
    other_processes: Annotated[int, Doc("processes that were left out")]
    missing: Annotated[dict[str, str], Doc("what the file does not hold, and why")]
    unlaunched: Annotated[int, Doc("pieces of device work whose launching call is not in the file")]
    graphs_whole: Annotated[int, Doc("CUDA graphs that were traced as a whole")]
    open_ranges: Annotated[int, Doc("ranges that the capture has no end of")]
    notes: Annotated[list[list[str]], Doc("slug and text of each note")]


class LayerColumn(TypedDict):
    """A column of a layer's own table."""

    name: str
    type: Annotated[str, Doc("type of its values: TEXT, INTEGER, REAL or BOOLEAN")]
    label: Annotated[str, Doc("its heading")]
    unit: Annotated[str, Doc("unit of its figures, or what else they are")]
    meaning: str
    sense: Annotated[str | None, Doc("how its numbers are to be read; null of keys")]


class LayerTableFacts(TypedDict):
    """A table that a layer declared itself."""

    name: str
    layer: str
    title: str
    text: Annotated[str, Doc("what the table shows")]
    join: Annotated[
        Literal["lines", "modules"] | None,
        Doc("the table whose rows also show its figures"),
    ]
    columns: list[LayerColumn]
    rows: Annotated[
        list[dict[str, str | int | float | bool | None]], Doc("figures per step, heaviest first")
    ]


class JoinedTables(TypedDict):
    """The tables made from the layers, each a list of rows."""

    steps: list[StepRow]
    modules: Annotated[list[ModuleRow], Given("torch")]
    operators: Annotated[list[OperatorRow], Given("torch")]
    kernels: Annotated[list[KernelRow], Given("torch")]
    functions: Annotated[list[FunctionRow], Given("cprofile")]
    calls: Annotated[list[CallRow], Given("cprofile")]
    lines: list[LineRow]
    module_lines: Annotated[list[ModuleLineRow], Given("torch")]
    memory: list[MemoryRow]
    memory_owners: list[MemoryOwnerRow]
    peak_holders: list[PeakHolderRow]
    call_paths: Annotated[list[CallPathRow], Given("torch")]
    threads: list[ThreadRow]
    launches: Annotated[list[LaunchRow], Given("torch")]
    gaps: Annotated[list[GapRow], Given("torch")]
    regions: list[RegionRow]
    ranges: Annotated[list[RangeRow], Given("nvtx")]
    watch: Annotated[list[WatchRow], Given("watch")]
    outliers: list[OutlierRow]
    flops: Annotated[list[CounterRow], Given("flops")]
    artifacts: list[ArtifactRow]


class NsysTables(TypedDict):
    """The tables made from Nsight Systems."""

    nsys_modules: list[NsysModuleRow]
    nsys_steps: list[NsysStepRow]
    nsys_ranges: list[NsysRangeRow]
    nsys_kernels: list[NsysKernelRow]
    nsys_copies: list[NsysCopyRow]
    nsys_api: list[NsysApiRow]
    nsys_backtraces: list[NsysBacktraceRow]
    nsys_memory: list[NsysMemoryRow]
    nsys_samples: list[NsysSampleRow]
    nsys_gaps: list[NsysGapRow]


class Tables(JoinedTables, NsysTables):
    """The tables of a report, each a list of rows."""


class LaterParts(TypedDict, total=False):
    """Parts that reports of earlier versions do not have."""

    layer_tables: Annotated[list[LayerTableFacts], Doc("tables that layers declared themselves")]


class Report(LaterParts):
    """Everything report.json holds."""

    schema_version: Literal[1]
    profstack_version: str
    script: str | None
    argv: list[str]
    status: Literal["complete", "partial", "failed"]
    status_reason: Annotated[str | None, Doc("how a run ended that is not complete")]
    run: Run
    environment: Annotated[
        dict[str, object],
        Doc(
            "facts of the machine; never values of environment variables", keys=("python", "torch")
        ),
    ]
    step: StepFacts
    slices: list[SliceFacts]
    benchmark: Benchmark
    probe_effect: list[ProbeEffect]
    layers: list[LayerFacts]
    verdict: Annotated[Verdict | None, Doc("what holds a step back, by the published rule")]
    step_bar: Annotated[StepBar | None, Doc("the clean step as one bar")]
    findings: list[Finding]
    roofline: Annotated[Roofline | None, Doc("rates against what the machine can do")]
    tables: Tables
    columns_reason: Annotated[
        dict[str, str], Doc("why a column, named table.column, is null throughout")
    ]
    cells_reason: Annotated[
        dict[str, str], Doc("why single cells of a column, named table.column, are null")
    ]
    columns_source: Annotated[
        dict[str, str],
        Doc("what a column, named table.column, rests on where there are several sources"),
    ]
    watch: WatchFacts | None
    warnings: list[ReportWarning]
    attribution: Annotated[
        Attribution | None,
        Doc("whether the rows of the modules add up to a step, and what has no owner"),
    ]
    processes: Annotated[Processes, Doc("what the table of threads comes to; times per clean step")]
    launching: Annotated[LaunchMeans, Doc("means per step of the torch layer's slices")]
    sources: Annotated[
        list[SourceText],
        Doc("the text of the user's own files in which lines were seen, the heaviest first"),
    ]
    setup: Annotated[
        Setup,
        Doc(
            "how the script had set its work up, noted in a few of its first steps; of "
            "one that was not noted, why"
        ),
    ]
    nsys: Annotated[
        NsysFacts | None, Doc("what was imported of Nsight Systems; null where nothing was")
    ]


def _report_tables() -> dict[str, Table]:
    """Every table of the report, read off the fields of `Tables`."""
    tables = {}
    for name, hint in get_type_hints(Tables, include_extras=True).items():
        given = None
        if get_origin(hint) is Annotated:
            hint, note = get_args(hint)
            given = note.layer
        tables[name] = row_table(name, get_args(hint)[0], given)
    return tables


REPORT = _report_tables()
REPORT_OF_NSYS = {name: table for name, table in REPORT.items() if name.startswith("nsys_")}
