"""The report: every field of report.json and what it means, as typed dictionaries.

The names are a contract with programs that read report.json. A field that was not measured is
null, with a reason beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypedDict, get_type_hints

from profstack.storage.schema import nsys_rows, rank_rows, rows
from profstack.storage.schema.column import Figure, Text, Whole, given_by, key, layer, row_table
from profstack.storage.schema.layer_table import Join
from profstack.storage.schema.trials import TrialReport

# Reasons by what they are of.
Reasons = dict[str, str]


class Place(TypedDict):
    """The script's own line."""

    file: Annotated[str, "source file"]
    line: Annotated[int, "line in that file"]


class Run(TypedDict):
    """The run: when, how long, and how it ended."""

    id: Annotated[str, "identifier made at the end of the run; without one the folder's name"]
    started_at: Annotated[Text, "when it began, ISO 8601 in UTC; null of an import"]
    finished_at: Annotated[Text, "when it ended, ISO 8601 in UTC; null where that is not known"]
    duration_s: Annotated[Figure, "host time from begin to end; null where the end is not known"]
    items_per_s: Annotated[
        Figure,
        "items of all steps over the whole run, less the time that profstack added; null where the "
        "items of a step or the parts of the run are not known",
    ]
    exit_code: Annotated[
        Whole, "exit code of the process; null where a signal ended it, and of a session"
    ]
    signal: Annotated[str | int | None, "number of the signal that ended it; null where none did"]
    stopped_by: Annotated[Text, "early end: max_steps, max_seconds or interrupt; null without one"]
    ended_at: Annotated[Place | None, "own line whose error ended it; null without one"]
    rank: Annotated[Whole, "rank of the process; null without a launch of several"]
    world_size: Annotated[Whole, "processes of the launch; null where not known"]
    recorded_ranks: Annotated[Whole, "ranks of the launch that record; null where not known"]
    node: Annotated[Whole, "number of its machine in the launch; null where not known"]


class LoopFacts(TypedDict):
    """A loop of the script: all steps that were made at one place."""

    plan: Annotated[int, "number of its plan"]
    place: Annotated[
        Text, "innermost own line at which its steps end, and what tells it from others there"
    ]
    steps: Annotated[int, "steps that it made"]
    time_s: Annotated[Figure, "host time of its steps, at the speed of the undisturbed ones"]
    phase: Annotated[Text, "train, eval or other"]
    gradients: Annotated[
        bool | None, "gradients were recorded; null where its steps are no calls of a model"
    ]
    training: Annotated[bool | None, "the model was in training mode; null as gradients"]
    reported: Annotated[bool, "the report's figures are of this loop"]


class StepFacts(TypedDict):
    """Steps of the run: the rule that finds them, and how many there were."""

    rule: Annotated[Text, "event that ends a step (whole: the script is one); null without steps"]
    count: Annotated[int, "steps of the phase in the run; of several loops the reported one's"]
    phase: Annotated[Text, "train, eval or other: what the reported steps do; null without steps"]
    counts_by_phase: Annotated[dict[str, int], "steps in the run by phase"]
    batch_size: Annotated[Whole, "most frequent batch size of the steps; null where not read"]
    shapes: Annotated[list[str], "shapes of the steps' inputs, most frequent first; at most 20"]
    loops: Annotated[list[LoopFacts], "loops of the script, told apart by call site"]
    reason: Annotated[Text, "why no step of a script was recorded; null where one was"]


class SliceFacts(TypedDict):
    """A slice of the run, with the median of its steps."""

    index: Annotated[int, "number of the slice, from 0, in order of time"]
    kind: Annotated[str, "startup, settle, clean, watch, or the name of the layer that observed"]
    layer: Annotated[Text, "layer that observed; null where none did"]
    mode: Annotated[Text, "the layer's way of observing, such as timed; null without a layer"]
    plan: Annotated[Whole, "number of the plan, from 1; a new optimizer or model starts a new one"]
    phase: Annotated[Text, "train, eval or other"]
    round: Annotated[Whole, "number of the round, from 1; 0 before the first"]
    first_step: Annotated[Whole, "number of its first step in the run, from 0"]
    steps: Annotated[int, "steps in the slice"]
    step_median_s: Annotated[Figure, "median host time of its steps; null where none is known"]
    started_s: Annotated[Figure, "host time from the begin of the recording to that of the slice"]
    wall_s: Annotated[Figure, "host time over its steps"]
    cpu_s: Annotated[Figure, "CPU time of the process over its steps; null where not read"]
    counted_steps: Annotated[Whole, "steps whose sum the layer's rows hold; null of the start-up"]
    counted_wall_s: Annotated[Figure, "host time over these steps; null of the start-up"]
    settle_steps: Annotated[Whole, "unobserved steps between the switch of layers and the slice"]
    stop_s: Annotated[Figure, "host time to stop the layer and read its data; null where not timed"]
    switch_s: Annotated[
        Figure, "host time before it in which the script stood still for the switch"
    ]
    delay_s: Annotated[
        Figure,
        "time in which the steps' thread had no core to run on; null where nothing observed",
    ]


class BetweenProcesses(TypedDict):
    """Medians of fresh processes that took turns: their spread is the error bar."""

    processes: Annotated[Whole, "fresh processes that measured"]
    medians_s: Annotated[list[float | None] | None, "the median of each"]
    median_s: Annotated[Figure, "median of the medians"]
    low_s: Annotated[Figure, "lowest of them"]
    high_s: Annotated[Figure, "highest of them"]
    spread: Annotated[Figure, "highest over lowest, less 1"]
    std_s: Annotated[Figure, "their standard deviation"]
    note: Annotated[Text, "what the spread is, or why there is none"]


class Mistake(TypedDict):
    """A common mistake of timing, beside the right value."""

    slug: Annotated[str, "short name of the mistake"]
    title: Annotated[str, "the mistake in words"]
    wrong_s: Annotated[Figure, "mean time of a call as the mistake has it"]
    wrong_std_s: Annotated[Figure, "standard deviation of its samples"]
    n_wrong: Annotated[Whole, "its samples"]
    right_s: Annotated[Figure, "mean time of a call, timed right"]
    right_std_s: Annotated[Figure, "standard deviation of its samples"]
    n_right: Annotated[Whole, "its samples"]
    factor: Annotated[Figure, "wrong over right"]
    ci95_low: Annotated[Figure, "low end of the factor's 95 % interval"]
    ci95_high: Annotated[Figure, "high end of the factor's 95 % interval"]
    applies: Annotated[bool, "whether it can differ on this device"]
    note: Annotated[Text, "what is wrong with it, or why it cannot differ here"]
    error: Annotated[Text, "the error it raised"]


class AblationCell(TypedDict):
    """A way of timing, with or without warm-up and synchronisation."""

    variant: Annotated[str, "the work: compute or copy-heavy"]
    warmup: Annotated[bool, "whether calls went before the samples"]
    synchronise: Annotated[bool, "whether the device was waited for"]
    timing: Annotated[Literal["host", "events"], "whose clock was read"]
    mean_s: Annotated[Figure, "mean time of a call"]
    median_s: Annotated[Figure, "median time of a call"]
    std_s: Annotated[Figure, "standard deviation of the samples"]
    n: Annotated[Whole, "samples"]
    valid: Annotated[bool, "whether the cell's way of timing gives a figure at all"]
    error: Annotated[Text, "the error it raised"]
    note: Annotated[Text, "a note on the cell"]


class ThroughputRow(TypedDict):
    """Rate and latency of one batch size."""

    dtype: Annotated[Text, "data type of model and inputs"]
    batch_size: Annotated[Whole, "items of one batch"]
    batches: Annotated[Whole, "batches timed"]
    total_s: Annotated[Figure, "host time over them all"]
    items_per_s: Annotated[Figure, "batches times batch size over the total time"]
    latency_s: Annotated[Figure, "median time of a batch"]
    latency_p90_s: Annotated[Figure, "nine of ten batches took no longer"]
    peak_memory_bytes: Annotated[Figure, "most memory in use meanwhile"]
    status: Annotated[Literal["measured", "refused", "failed"], "refused: memory did not suffice"]
    reason: Annotated[Text, "why there are no figures"]


class ShapeTimes(TypedDict):
    """Step times of inputs of one shape."""

    shape: Annotated[Text, "shapes of the inputs"]
    n: Annotated[int, "samples of this shape"]
    median_s: Annotated[Figure, "their median"]
    ci95_low_s: Annotated[Figure, "low end of its 95 % interval"]
    ci95_high_s: Annotated[Figure, "high end of its 95 % interval"]


class DeviceStates(TypedDict):
    """Power state, clocks, throttle reasons and the like of the device round the samples."""

    before: Annotated[dict[str, object] | None, "state of each NVIDIA GPU before; null if unknown"]
    after: Annotated[dict[str, object] | None, "state of each NVIDIA GPU after; null if unknown"]
    reason: Annotated[Text, "why nothing is known of it"]


class ThroughputLimit(TypedDict):
    """Where one data type's search for the largest batch ended."""

    dtype: Annotated[Text, "data type of model and inputs"]
    search: Annotated[Literal["binary", "linear"] | None, "how the largest batch was looked for"]
    largest_batch: Annotated[Whole, "largest batch that ran"]
    limited_by: Annotated[Text, "what refused a larger one"]
    memory_limit_bytes: Annotated[Figure, "memory that the search was allowed"]
    knee_batch: Annotated[Whole, "batch size from which on a larger one gains little"]
    knee_items_per_s: Annotated[Figure, "rate at the knee"]
    max_items_per_s: Annotated[Figure, "highest rate"]
    max_batch: Annotated[Whole, "batch size of the highest rate"]
    note: Annotated[Text, "a note on the search"]


class VariantRow(TypedDict):
    """A way to run the model."""

    variant: Annotated[str, "eager, compile, trace or script"]
    status: Annotated[Literal["measured", "failed", "unavailable"], "whether it could be measured"]
    reason: Annotated[Text, "why there are no figures"]
    compile_s: Annotated[Figure, "time to build it and call it once, less a warm call"]
    median_s: Annotated[Figure, "median time of a call"]
    ci95_low_s: Annotated[Figure, "low end of its 95 % interval"]
    ci95_high_s: Annotated[Figure, "high end of its 95 % interval"]
    n: Annotated[Whole, "samples"]
    speedup: Annotated[Figure, "eager's time over its time"]
    speedup_low: Annotated[Figure, "low end of the speedup's 95 % interval"]
    speedup_high: Annotated[Figure, "high end of the speedup's 95 % interval"]
    equal: Annotated[bool | None, "whether its results are eager's within the tolerance"]
    max_difference: Annotated[Figure, "largest absolute difference of a result"]
    tolerance: Annotated[str | float | None, "what counts as equal"]
    operators: Annotated[Whole, "operators called by one call"]
    kernels: Annotated[Whole, "kernels run by one call"]
    graphs: Annotated[Whole, "graphs compiled"]
    breaks: Annotated[Whole, "graph breaks"]
    fused_names: Annotated[list[str] | None, "kernels that hold several operators"]
    between_process: Annotated[list[float | None] | None, "its median in each fresh process"]
    note: Annotated[Text, "a note on it"]


class TargetTimes(TypedDict, total=False):
    """Times of the target of `profstack bench` before anything was measured."""

    import_s: Annotated[Figure, "time to import the target's file or module"]
    build_s: Annotated[Figure, "time that the target's factory took"]


class Benchmark(TargetTimes):
    """The clean measurement: statistics of step times."""

    mode: Annotated[
        Literal["pipelined", "synchronised", "profiled"] | None,
        "synchronised: each step or sample ends with a wait for the device; profiled: the steps of "
        "an imported trace, under the profiler that wrote it; null without figures",
    ]
    clock: Annotated[Literal["host", "device"] | None, "clock of the samples; null without figures"]
    n: Annotated[int, "number of samples: clean steps of a run, or samples of a benchmark"]
    samples_s: Annotated[list[float], "the counted samples in order, in seconds per step"]
    counted_steps: Annotated[list[int], "numbers of the run's clean steps; empty of a benchmark"]
    warmup_steps: Annotated[Whole, "first steps or calls taken as warm-up; null without figures"]
    first_step_s: Annotated[Figure, "host time of the first step or call; null where there is none"]
    median_s: Annotated[Figure, "median of the samples; null without samples"]
    iqr_s: Annotated[Figure, "interquartile range of the samples; null below 4 samples"]
    mean_s: Annotated[Figure, "mean of the samples; null without samples"]
    std_s: Annotated[Figure, "standard deviation of the samples; null below 2 samples"]
    min_s: Annotated[Figure, "shortest sample; null without samples"]
    p90_s: Annotated[Figure, "90th percentile of the samples; null below 10 samples"]
    p99_s: Annotated[Figure, "99th percentile of the samples; null below 100 samples"]
    ci95_low_s: Annotated[Figure, "low end of the median's 95 % interval; null below 6 samples"]
    ci95_high_s: Annotated[Figure, "high end of the median's 95 % interval; null below 6 samples"]
    cpu_median_s: Annotated[
        None,
        "always null: the CPU clock adds what ran on other cores at scheduler ticks, "
        "so that a median of single steps is a coin toss; see cpu_mean_s",
    ]
    cpu_mean_s: Annotated[
        Figure,
        "CPU time of all threads of the process over the counted steps, or the clean "
        "slices, divided by their number",
    ]
    cpu_wall_s: Annotated[Figure, "wall time of the same steps, divided by their number"]
    cores_busy: Annotated[
        Figure, "CPU time over wall time of these steps, at most the usable cores"
    ]
    cpu_reason: Annotated[Text, "why there is no CPU time"]
    host_median_s: Annotated[Figure, "median host time of the same steps; null without figures"]
    device_median_s: Annotated[Figure, "their median device time by events; null without a device"]
    autocorrelation: Annotated[Figure, "rank correlation of neighbouring samples; null below 10"]
    drift: Annotated[Figure, "median of the last third over the first's, less 1; null below 9"]
    steps_per_s: Annotated[
        Figure,
        "counted steps (of a benchmark: samples) over the time that they took in all:"
        " one over mean_s, not over median_s",
    ]
    items_per_s: Annotated[Figure, "items of the counted steps over the time that they took in all"]
    between_process: Annotated[
        BetweenProcesses | None,
        "medians of fresh processes, which took turns: their spread is the error bar "
        "of a comparison",
    ]
    mistakes: Annotated[list[Mistake], "the same model timed wrong, beside the right value"]
    ablation: Annotated[
        list[AblationCell], "warm-up, synchronisation and clock, each left out in turn"
    ]
    throughput: Annotated[list[ThroughputRow], "rate and latency by batch size"]
    warnings: Annotated[list[str], "doubts about these figures, with what to do next"]
    first_step_layer: Annotated[
        Text, "the layer that watched the first step, whose time is then no clean one"
    ]
    target: Annotated[Text, "what `profstack bench` was given; null of a run"]
    initialisation_s: Annotated[
        Figure, "the device's initialisation, before anything was called; null on a CPU"
    ]
    warmup_s: Annotated[
        list[float] | None, "every call before the samples in order, the first included"
    ]
    warmup_reason: Annotated[Text, "how the end of warm-up was found, or why not"]
    outliers: Annotated[
        Whole,
        "samples further than 3 sigma from the median, sigma from the median absolute deviation",
    ]
    stopped_by: Annotated[
        Text, "what ended the sampling: interval, time, samples, repeat or interrupt"
    ]
    calls_per_sample: Annotated[Whole, "calls that one sample is the mean of"]
    garbage: Annotated[Text, "what happened to garbage collection meanwhile"]
    batch_size: Annotated[Whole, "items of one call"]
    batch_size_is: Annotated[
        Text, "where the batch size comes from: stated, or read from the inputs"
    ]
    gradients: Annotated[bool | None, "whether gradients were recorded"]
    training: Annotated[bool | None, "whether the model was in training mode; null without a model"]
    synchronised_median_s: Annotated[
        Figure, "median step time with the device waited for after every sample"
    ]
    synchronised_ci95_low_s: Annotated[Figure, "low end of its 95 % interval"]
    synchronised_ci95_high_s: Annotated[Figure, "high end of its 95 % interval"]
    pipelined_median_s: Annotated[
        Figure, "median step time with the device waited for only round each block"
    ]
    pipelined_ci95_low_s: Annotated[Figure, "low end of its 95 % interval"]
    pipelined_ci95_high_s: Annotated[Figure, "high end of its 95 % interval"]
    by_shape: Annotated[list[ShapeTimes], "step times by the shapes of the inputs"]
    device_state: Annotated[
        DeviceStates | None,
        "power state, clocks, throttle reasons and the like of the device round the samples",
    ]
    throughput_limits: Annotated[list[ThroughputLimit], "where each data type's search ended"]
    compare: Annotated[list[VariantRow], "ways of running the same model"]
    modes_note: Annotated[Text, "why there is only one way of timing"]


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

    layer: Annotated[str, "name of the layer"]
    n_layer: Annotated[int, "timed steps that it observed"]
    n_clean: Annotated[int, "clean steps that they are compared with"]
    step_median_s: Annotated[Figure, "median time of the observed steps; null where there are none"]
    clean_median_s: Annotated[Figure, "median time of the clean steps; null where there are none"]
    factor: Annotated[Figure, "typical observed step over a clean one; null for a reason in note"]
    ci95_low: Annotated[Figure, "low end of the factor's 95 % interval; null without one"]
    ci95_high: Annotated[Figure, "high end of the factor's 95 % interval; null without one"]
    note: Annotated[Text, "why there is no factor, or what it is not"]


Technique = Literal["counting", "sampling", "tracing"]


class LayerFacts(TypedDict):
    """A layer of the run: its status, tool, cost and artifacts."""

    name: Annotated[str, "name of the layer"]
    technique: Annotated[Technique | None, "how it observes; null where its package is gone"]
    tool: Annotated[Text, "what does the observing; null where its package is gone"]
    version: Annotated[Text, "version of the tool; null where not known"]
    status: Annotated[
        Literal["recorded", "emitted", "empty", "unavailable", "skipped", "failed"],
        "recorded: it has data; emitted: it gave data to another tool; empty: it saw nothing",
    ]
    reason: Annotated[Text, "why it has no data or ended early; null where it ran to the end"]
    command: Annotated[Text, "command that would fill it; null where it is not empty or none would"]
    steps: Annotated[Whole, "steps in its slices; null of a layer in the background"]
    stop_s: Annotated[Figure, "host time to stop it and read its data, in all; null if not timed"]
    memory_bytes: Annotated[Figure, "most memory that it held in a slice; null where not known"]
    artifacts: Annotated[list[rows.ArtifactRow], "its files, which other tools open"]
    audit: Annotated[list[str], "what its figures are made from, and what else it observed"]
    truncated: Annotated[Text, "what was left out and why; null where nothing was"]
    measures: Annotated[Text, "what it measures; null where its package is gone"]
    does_not_measure: Annotated[Text, "what it cannot measure; null where its package is gone"]
    usual_slowdown: Annotated[Text, "slowdown as a rule; null where its package is gone"]
    conflicts: Annotated[Text, "what it cannot work beside; null where its package is gone"]


class VerdictFacts(TypedDict, total=False):
    """Further facts about a test of the verdict; a key is left out where it is not known."""

    reason: Annotated[str, "why the share is not known"]
    link: Annotated[str, "row of the page with details, as view/key"]
    file: Annotated[str, "file of the function or line at which the cause is"]
    line: Annotated[int, "line in that file"]
    name: Annotated[str, "function, collective or kernel at which most of the time is spent"]
    calls: Annotated[float, "small operators per step"]
    call_s: Annotated[float, "mean time of one of them"]
    after_step_share: Annotated[
        float, "share of the step that the loop's work after the optimizer's step takes"
    ]
    peak_share: Annotated[float, "share of the peak that the step reaches"]
    flop_per_s: Annotated[float, "operations of the step per second"]
    bytes_per_s: Annotated[float, "bytes that the step moves per second"]
    below_limits_share: Annotated[
        float, "share of the step in operators slower than the machine's limits allow"
    ]
    limit_unknown_share: Annotated[float, "share of the step in those of unknown limit"]


class VerdictEvidence(VerdictFacts):
    """One test of the verdict: what it measured."""

    test: Annotated[str, "slug of the test"]
    share: Annotated[Figure, "what it measures, as a share of the clean step"]
    threshold_share: Annotated[float, "the share from which it can be the verdict"]
    time_s: Annotated[Figure, "that share of the clean median"]


_HostBound = Literal["input-bound", "io-bound", "communication-bound", "python-bound"]
_DeviceBound = Literal["launch-bound", "compute-bound", "memory-bound"]
VerdictSlug = Literal[_HostBound, _DeviceBound, "overhead-bound", "balanced", "unclear"]


Sureness = Literal["certain", "likely", "hint"]


class Verdict(TypedDict):
    """The cause that holds a step back, by the published rule."""

    slug: Annotated[
        VerdictSlug, "the test whose share is the largest, two of them together, or that none is"
    ]
    sentence: Annotated[str, "the verdict in words"]
    sureness: Annotated[
        Sureness,
        "certain: beyond the noise of the run; likely: the run was short or noisy, another cause "
        "weighs nearly as much, or the first is just above its threshold; hint: none stands out; "
        "it is of the cause, not of a gain",
    ]
    sureness_reason: Annotated[Text, "why it is no surer; null where it is certain"]
    action: Annotated[str, "what to do first; empty where nothing is known to help"]
    margin: Annotated[
        Figure,
        "by how much its share of the step could shrink and it still be the verdict; "
        "of balanced, what the nearest test lacks to its threshold",
    ]
    evidence: Annotated[list[VerdictEvidence], "a row for every test, the largest share first"]


_MeasuredIn = Annotated[
    Literal["clean", "calibrated", "sampled"],
    "measured in the clean steps, in a layer's slice and calibrated, or by the watch's samples",
]
# `is` is a keyword of Python: no class body can hold it.
_PartSense = TypedDict("_PartSense", {"is": _MeasuredIn})


# What goes by before a step's first work: by what it is known to be.
_Wait = Literal["data wait", "making the batch", "before the model's first call"]
_Work = Literal["forward", "loss", "backward", "optimizer", "after the step"]
StepPart = Literal[_Wait, _Work, "Python", "I/O", "idle", "other", "not attributed"]


class StepBarPart(_PartSense):
    """One part of the step bar."""

    name: Annotated[StepPart, "part of the step"]
    seconds: Annotated[float, "time per clean step"]
    share: Annotated[float, "share of the clean median"]
    link: Annotated[Text, "row of the page with details, as view/key; null without one"]


class StepBar(TypedDict):
    """The clean step as one bar."""

    median_s: Annotated[Figure, "clean median: what the parts add up to"]
    time_line: Annotated[
        Literal["host", "device"] | None,
        "whose time is divided: that of the steps' thread, or of the accelerator",
    ]
    parts: Annotated[list[StepBarPart], "the parts in the order in which a step does them"]
    reason: Annotated[Text, "why there are no parts, or only some"]
    note: Annotated[Text, 'what is in "other" where that is much']


RunPartName = Literal[
    "start-up and imports",
    "model and data set-up",
    "first step and compilation",
    "steps",
    "waiting for data",
    "evaluation",
    "checkpoints and saving",
    "logging and callbacks",
    "other",
    "shutdown",
    "profstack",
]


class RunFunction(TypedDict):
    """A place of the user's in a part of the run: a function, or a line of the loop itself."""

    file: Annotated[str, "its file"]
    line: Annotated[int, "the line in it with most of the time"]
    name: Annotated[Text, "the outermost function that is not around the steps; null for a line"]
    inner: Annotated[Place, "the user's innermost line with most of it"]
    wall_s: Annotated[float, "host time in it"]


class RunPart(TypedDict):
    """One part of the whole run: what its time was spent on."""

    part: Annotated[RunPartName, "owner of the time; profstack: what profiling added"]
    wall_s: Annotated[float, "host time of the run; all parts together are run.duration_s"]
    share: Annotated[
        Figure, "share of the run less what profstack added; null of what it added itself"
    ]
    by: Annotated[
        Literal["clock", "samples"],
        "how it was told apart: by times read, or by the watch's samples",
    ]
    times: Annotated[Whole, "how often it was seen to begin; null where that is not known"]
    longest_s: Annotated[Figure, "the longest tenth of these times together, one at least"]
    file: Annotated[Text, "file of the user's function that holds most of it; null where none does"]
    line: Annotated[Whole, "line of that function with most of it"]
    name: Annotated[Text, "name of that function"]
    functions: Annotated[
        list[RunFunction],
        "places of it with 3 % of the run or more, by the watch's samples, the longest first",
    ]


class RequestsByLength(TypedDict):
    """Requests of one length."""

    length: Annotated[str, "tokens of the prompt, or shape of the first input"]
    count: Annotated[int, "requests of it"]
    p50_s: Annotated[float, "median time of one"]


class Requests(TypedDict):
    """Latencies of an inference, of steps that no layer watched."""

    count: Annotated[int, "requests that were timed: calls of the model, or of generate"]
    mean_s: Annotated[float, "mean time of a request, the wait before it included"]
    p50_s: Annotated[float, "half of them took no longer"]
    p90_s: Annotated[float, "nine of ten took no longer"]
    p99_s: Annotated[float, "99 of 100 took no longer"]
    max_s: Annotated[float, "the longest one"]
    by_length: Annotated[list[RequestsByLength], "the commonest lengths; at most 8"]


class Tokens(TypedDict):
    """Text that `generate` made, in steps that no layer watched; padding counts as tokens."""

    generations: Annotated[int, "calls of generate"]
    sequences: Annotated[float, "sequences of a call, the median"]
    prompt_tokens: Annotated[Figure, "tokens of a prompt, the median; null where it takes none"]
    new_tokens: Annotated[float, "tokens added to a sequence, the median"]
    new_tokens_per_s: Annotated[float, "added tokens of all sequences over the time of the calls"]
    first_token_p50_s: Annotated[Figure, "median time to the first token; null where not seen"]
    first_token_p90_s: Annotated[Figure, "nine of ten first tokens took no longer"]
    later_token_s: Annotated[Figure, "median time of each token after the first"]
    cached: Annotated[bool | None, "whether keys and values are kept; null where not all agree"]
    can_end: Annotated[
        bool | None,
        "whether anything (an end token, a stop string) may end a text before its limit of new "
        "tokens; null where not all agree",
    ]


# A row of a finding's evidence.
EvidenceValue = str | int | float | bool | None
Evidence = dict[str, EvidenceValue]
Severity = Literal["high", "medium", "low"]


class Finding(TypedDict):
    """Something wrong, with its evidence, its cost and what to do."""

    slug: Annotated[str, "short name of the rule that fired"]
    title: Annotated[str, "what is wrong"]
    severity: Annotated[
        Severity, "high: from 20 % of the step; medium: from 5 %; or as its rule says"
    ]
    gain_s: Annotated[Figure, "time per clean step that the change saves; null where not known"]
    gain_is: Annotated[Literal["estimated", "measured"] | None, "origin of gain_s; null without it"]
    gain_reason: Annotated[
        Text, "why gain_s is null, or what keeps the rest of the time that the finding is about"
    ]
    run_s: Annotated[Figure, "time of the whole run that it takes; null of findings on the step"]
    run_gain_s: Annotated[Figure, "time of the run that the change saves; null where not known"]
    run_gain_is: Annotated[
        Literal["estimated", "at most"] | None, "what run_gain_s is: it may be a bound"
    ]
    file: Annotated[Text, "source file to look at; null where there is none"]
    line: Annotated[Whole, "line in that file; null where there is none"]
    module: Annotated[Text, "path of the module at fault; null where it is not one module's"]
    layers: Annotated[list[str], "layers that the evidence is from"]
    evidence: Annotated[list[Evidence], "rows that it rests on"]
    advice: Annotated[str, "what to change"]


class FlopPeak(TypedDict):
    """The highest rate of operations in one data type."""

    dtype: Annotated[Text, "data type"]
    value: Annotated[float, "operations per second"]
    source: Annotated[Literal["measured", "datasheet"], "measured here, or stated by its maker"]
    how: Annotated[Text, "by what it was measured, or whose figure it is"]


class MemoryPeak(TypedDict):
    """The highest rate of memory."""

    value: Annotated[float, "bytes per second"]
    source: Annotated[Literal["measured", "datasheet"], "measured here, or stated by its maker"]
    how: Annotated[Text, "by what it was measured, or whose figure it is"]


class Peaks(TypedDict):
    """Highest rates of the device."""

    device: Annotated[Text, "device"]
    threads: Annotated[Whole, "threads that the peak was measured with"]
    torch: Annotated[Text, "version of torch"]
    measured_at: Annotated[Text, "when"]
    flop_per_s: Annotated[list[FlopPeak], "highest rates of operations"]
    bytes_per_s: Annotated[list[MemoryPeak], "highest rates of memory"]
    reason: Annotated[Text, "why a peak is not known"]


class Bounds(TypedDict):
    """Seconds per step of all operators by bound, those without a point included."""

    compute_s: Annotated[float, "operators that are compute-bound"]
    memory_s: Annotated[float, "operators that are memory-bound"]
    overhead_s: Annotated[float, "operators that reach less than half of what their roof allows"]
    unknown_s: Annotated[float, "operators of which the bound is not known"]


class Utilization(TypedDict):
    """Share of a peak that the step reaches."""

    source: Annotated[Literal["measured", "datasheet"], "whether the peak was measured here"]
    dtype: Annotated[Text, "data type"]
    value: Annotated[
        Figure,
        "operations of the step over its clean time, over the peak; null, with the "
        "reason in `warning`, where that would be above 1 or the operations are of "
        "other steps",
    ]
    flop: Annotated[Figure, "operations of the step"]
    seconds: Annotated[Figure, "clean time of the step"]
    warning: Annotated[Text, "why the value cannot be right, or what it leaves out"]


class RooflinePoint(TypedDict):
    """Work by its operations, the memory it moved and its time."""

    kind: Annotated[Literal["step", "module", "operator"], "what does the work"]
    name: Annotated[Text, "name"]
    dtype: Annotated[Text, "data type"]
    flop: Annotated[Figure, "operations per step"]
    moved_bytes: Annotated[Figure, "bytes read and written per step, from shapes and data types"]
    seconds: Annotated[Figure, "its time per step"]
    seconds_is: Annotated[
        Literal["clean", "calibrated", "device"] | None,
        "clean: measured without a layer; calibrated: the layer's share of it; "
        "device: the device's own time, as the layer saw it",
    ]
    intensity: Annotated[Figure, "operations per byte moved"]
    flop_per_s: Annotated[Figure, "operations per second"]
    share_of_peak: Annotated[Figure, "its rate over the roof above it"]
    bound: Annotated[Literal["compute", "memory", "overhead"] | None, "what holds it back"]
    reason: Annotated[Text, "why it has no place in the plot, or is bound as it is"]


class Roofline(TypedDict):
    """Rates against what the machine can do."""

    peaks: Annotated[Peaks | None, "highest rates of the device"]
    bounds: Annotated[
        Bounds | None,
        "seconds per step of all operators by what holds them back, those that are no"
        " points included; null where no roof is known",
    ]
    mfu: Annotated[list[Utilization], "share of the peak that the step reaches"]
    points: Annotated[
        list[RooflinePoint], "what ran, by its operations, the memory it moved and its time"
    ]
    reason: Annotated[Text, "why there is no roofline"]


class WatchFacts(TypedDict):
    """The watch's samples, and whether they agree with cProfile."""

    samples: Annotated[int, "samples taken"]
    watched_s: Annotated[float, "time that they cover"]
    samples_by_phase: Annotated[dict[str, int], "samples by phase: startup, step, other or program"]
    interval_s: Annotated[float, "time between two samples"]
    thinning: Annotated[Text, "since when samples are further apart"]
    rank_correlation: Annotated[
        Figure, "Spearman's, between the watch's shares and cProfile's own times of functions"
    ]
    rank_functions: Annotated[int, "functions compared"]
    reason: Annotated[Text, "why there is no rank correlation"]
    outlier_rule: Annotated[str, "which steps are in the table of outliers"]
    step_parts: Annotated[
        dict[StepPart, float] | None, "shares of the steps by part; null of too few samples"
    ]


class ReportWarning(TypedDict):
    """A doubt about a figure."""

    slug: Annotated[str, "short name of the warning"]
    text: Annotated[str, "what is in doubt, and why"]


class UnownedRow(TypedDict):
    """Time without an owner."""

    path: Annotated[str, "(outside modules) or (not attributed)"]
    self_s: Annotated[Figure, "its self time"]
    share: Annotated[Figure, "share of the step"]


class Attribution(TypedDict):
    """Sums of the modules' rows against a step, and the time without an owner."""

    step_s: Annotated[Figure, "mean step of the slice that the times of modules are from"]
    rows_s: Annotated[Figure, "self times of all rows of the modules together"]
    owned_s: Annotated[
        Figure,
        "those of modules, compiled functions, loss, gradient accumulation, what "
        "comes before the optimizer, optimizer, zero_grad and wait",
    ]
    owned_share: Annotated[Figure, "owned_s over step_s"]
    calibrated_owned_s: Annotated[Figure, "owned time at the speed of the clean steps"]
    clean_median_s: Annotated[Figure, "median of the clean steps"]
    backward_s: Annotated[Figure, "time of the backward pass"]
    backward_attributed_share: Annotated[
        Figure, "share of it that belongs to a module, the loss or the accumulation of gradients"
    ]
    memory_peak_bytes: Annotated[Figure, "bytes alive at the peak of the observed step"]
    memory_attributed_share: Annotated[Figure, "share of them with an owner"]
    negative_rows: Annotated[Whole, "rows with a self time below 0"]
    unowned: Annotated[list[UnownedRow], "rows that are no owner, the longest first"]
    reason: Annotated[Text, "why there are no figures, or why much has no owner"]


class Processes(TypedDict):
    """Sums of the table of threads; times per clean step."""

    steps: Annotated[Whole, "clean steps that it rests on"]
    step_s: Annotated[Figure, "mean time of these steps"]
    cpu_s: Annotated[Figure, "CPU time of the whole process tree"]
    cores: Annotated[Figure, "CPU time over the time of a step"]
    off_cpu_s: Annotated[Figure, "time of a step in which the steps' thread did not run"]
    no_core_s: Annotated[Figure, "part of that in which it could have run but had no core"]
    unseen_share: Annotated[
        Figure, "share of the CPU time in threads and processes that no layer looks into"
    ]
    workers: Annotated[Whole, "DataLoader workers alive at the end of a clean slice"]
    worker_cpu_s: Annotated[Figure, "CPU time of the DataLoader workers"]
    wait_s: Annotated[Figure, "mean time before the first work of a clean step"]
    sentences: Annotated[list[str], "what follows, as plain facts"]
    reading_s: Annotated[Figure, "mean host time of one reading of all clocks, outside the steps"]
    reason: Annotated[Text, "why there is nothing"]


class LaunchMeans(TypedDict):
    """Means per step of the torch layer's slices."""

    steps: Annotated[int, "steps that they rest on"]
    operators: Annotated[Figure, "operators called"]
    outermost_operators: Annotated[Figure, "those of them that no other operator called"]
    operator_s: Annotated[Figure, "host time per operator; without a device the computing is in it"]
    kernels: Annotated[Figure, "kernels launched"]
    launches: Annotated[Figure, "launches that began them"]
    launches_total_s: Annotated[Figure, "host time of all launches"]
    launch_s: Annotated[Figure, "host time per launch"]
    reason: Annotated[Text, "why there are no kernels, or nothing at all"]


class SourceText(TypedDict):
    """The text of one of the user's own files."""

    file: Annotated[str, "as in the table of lines"]
    text: Annotated[Text, "its whole text"]
    bytes: Annotated[Whole, "size of the text"]
    reason: Annotated[Text, "why there is no text"]


class SetupCalls(TypedDict):
    """Outermost calls of modules that have parameters."""

    count: Annotated[int, "outermost calls of modules that have parameters"]
    training: Annotated[int, "those in training mode"]
    with_grad: Annotated[int, "those with gradients on"]
    inference_mode: Annotated[int, "those in inference mode"]
    nodes: Annotated[Whole, "nodes of the graph that autograd recorded in them"]
    module: Annotated[Text, "the module of the first one"]
    place: Annotated[Place | None, "the script's own line"]
    autocast: Annotated[Text, "the type that autocast computed in"]


class OptimizerFacts(TypedDict):
    """An optimizer and its options."""

    name: Annotated[str, "its class"]
    base: Annotated[Text, "the class of torch's that it is or is made from"]
    fused: Annotated[bool | None, "its groups' option; null where unset or not the same"]
    foreach: Annotated[bool | None, "its groups' option; null where unset or not the same"]
    capturable: Annotated[bool | None, "its groups' option; null where unset or not the same"]
    differentiable: Annotated[bool | None, "its groups' option; null where unset or not the same"]
    maximize: Annotated[bool | None, "its groups' option; null where unset or not the same"]
    amsgrad: Annotated[bool | None, "its groups' option; null where unset or not the same"]
    nesterov: Annotated[bool | None, "its groups' option; null where unset or not the same"]
    momentum: Annotated[bool, "whether it is other than zero"]
    weight_decay: Annotated[bool, "whether it is other than zero"]
    centered: Annotated[bool, "whether it is other than zero"]
    has_fused: Annotated[bool, "whether there is a fused implementation of it"]
    has_foreach: Annotated[bool, "whether there is one over lists of tensors"]
    tensors: Annotated[int, "parameters that had gradients"]
    elements: Annotated[int, "elements of these parameters"]
    parameter_bytes: Annotated[int, "bytes of these parameters"]
    sparse_tensors: Annotated[int, "those with sparse gradients"]
    devices: Annotated[list[str], "kinds of devices that they are on, such as cuda"]
    dtypes: Annotated[list[str], "their data types, such as float32"]
    calls: Annotated[int, "its steps that were seen"]
    place: Annotated[Place | None, "the script's own line"]


class ModuleOfKind(TypedDict):
    """A module, by path and class."""

    path: Annotated[str, "path of the module"]
    type: Annotated[str, "its class"]


class ModulesOfKind(TypedDict):
    """Modules of one kind in training mode: batch normalisation or dropout."""

    count: Annotated[int, "number of these modules"]
    modules: Annotated[list[ModuleOfKind], "the first of them"]


class PaddingFacts(TypedDict):
    """How much of the tokens that the model was given is padding."""

    inputs: Annotated[int, "batches of tokens that were looked at"]
    tokens: Annotated[int, "tokens in them"]
    padded: Annotated[int, "those at the ends of rows that are all the same"]
    unused: Annotated[int, "those of them behind the longest row of their batch"]


class RepeatedFacts(TypedDict):
    """Calls of one model in the noted steps, and those on the input of the call before."""

    module: Annotated[str, "path of the model"]
    calls: Annotated[int, "its calls"]
    on_same_input: Annotated[int, "those with the first input of the call before"]
    on_all_the_same: Annotated[int, "those with all inputs of a call before"]
    first: Annotated[Place | None, "where the first one of them is called"]
    again: Annotated[Place | None, "where the second one is called"]


class ConstantFacts(TypedDict):
    """A module that got in each noted step what it had got in one before."""

    module: Annotated[str, "its path"]
    calls: Annotated[int, "calls that were looked at, but for those of the first step"]
    same: Annotated[int, "those on the inputs of an earlier step"]


class GatheredFacts(TypedDict):
    """A module that works row by row, called on rows that were gathered from fewer ones."""

    module: Annotated[str, "its path"]
    calls: Annotated[int, "its calls in the noted steps"]
    rows: Annotated[int, "rows that it was given in all of them"]
    sources: Annotated[int, "rows that these were gathered from"]
    place: Annotated[Place | None, "the script's own line"]


class UnusedModule(TypedDict):
    """A part of a model whose gradients no optimizer uses."""

    module: Annotated[str, "its path"]
    parameters: Annotated[int, "its parameters that have gradients"]
    after_trained: Annotated[bool, "whether something before it needs the gradients it passes"]


class UnusedGradientFacts(TypedDict):
    """Parts of models that have gradients, which no optimizer uses and nobody else."""

    parameters: Annotated[int, "parameters with such gradients"]
    steps: Annotated[int, "steps of the run in which they did not change"]
    modules: Annotated[list[UnusedModule], "the largest parts of which nothing is trained"]


class ExchangeFacts(TypedDict):
    """How often ranks exchanged their gradients (DistributedDataParallel)."""

    passes: Annotated[int, "backward passes"]
    exchanged: Annotated[int, "those after which gradients were exchanged"]
    updates: Annotated[int, "steps of optimizers after them"]


class TargetFacts(TypedDict):
    """The targets of the losses over most classes, in the slices of the layer flops."""

    classes: Annotated[int, "classes that the loss has a probability of, for each target"]
    per_call: Annotated[list[int], "numbers of targets that calls of the loss had"]
    targets: Annotated[int, "targets of all calls"]
    ignored: Annotated[int, "those that are the index which the loss ignores"]
    ignored_index: Annotated[int, "that index"]


class SetupDevice(TypedDict):
    """The CUDA device that was in use."""

    capability: Annotated[list[int], "compute capability of the CUDA device: major, minor"]


class SetupNotes(TypedDict, total=False):
    """The notes of the steps in which they were taken; absent where none were."""

    backward_passes: Annotated[int, "backward passes in the noted steps"]
    kept_graphs: Annotated[int, "those that kept their graph for another one (retain_graph)"]
    anomaly_passes: Annotated[int, "those under autograd's anomaly detection"]
    calls: SetupCalls
    optimizers: list[OptimizerFacts]
    training_norms: Annotated[
        ModulesOfKind,
        "layers of batch normalisation in training mode that have averages of their own",
    ]
    training_dropouts: Annotated[ModulesOfKind, "layers of dropout in training mode"]
    padding: Annotated[PaddingFacts | None, "padding of token sequences; null without any"]
    repeated: Annotated[
        RepeatedFacts | None, "calls of a model on the input of the one before; null without any"
    ]
    constant: Annotated[
        list[ConstantFacts], "modules that got the same in each step; others got something new"
    ]
    gathered: Annotated[
        list[GatheredFacts], "modules whose calls all work row by row on gathered rows"
    ]
    unused_gradients: Annotated[
        UnusedGradientFacts | None, "gradients that nobody uses; null without any"
    ]
    exchanges: Annotated[
        ExchangeFacts | None, "exchanges of gradients; null without DistributedDataParallel"
    ]
    device: Annotated[SetupDevice | None, "CUDA device; null where none was in use"]


class Setup(SetupNotes):
    """The script's setup in a few of its first steps, or the reason for its absence."""

    steps: Annotated[int, "steps in which it was noted"]
    reason: Annotated[Text, "why nothing was noted, or why no more"]
    tf32_products: Annotated[
        bool | None, "whether products of float32 are made as TF32, null without a CUDA device"
    ]
    tf32_convolutions: Annotated[bool | None, "the same of convolutions"]
    targets: TargetFacts | None


class NsysRest(TypedDict):
    """What the row named `(rest)` of a table adds up."""

    rows: Annotated[int, "rows that were too many"]
    things: Annotated[int, "ranges, kernels, copies, calls or waits in them"]
    seconds: Annotated[float, "their time"]


class NsysLater(TypedDict, total=False):
    """Facts that older imports lack; they left rows out."""

    left_out: Annotated[dict[str, int], "rows with the least time left out, by table"]
    ranges_left_out: Annotated[int, "rows of ranges with the least time left out"]
    rest: Annotated[dict[str, NsysRest], "rows that were added up in one, by table"]
    processes: Annotated[list[int], "numbers of the processes that were read, its own first"]
    step_range: Annotated[Text, "the program's range that is a step; null for profstack's own"]
    step_range_asked: Annotated[bool, "whether it was named, not found because it repeats"]
    step_ratio: Annotated[
        Figure, "median step under nsys over that of the torch layer, null where either is unknown"
    ]
    not_compared: Annotated[Text, "why modules are not compared with the torch layer's"]


class NsysFacts(NsysLater):
    """Facts of an import from Nsight Systems."""

    file: Annotated[str, "name of the file that was imported"]
    version: Annotated[Text, "version of nsys"]
    schema: Annotated[Text, "version of the export's schema"]
    steps: Annotated[int, "steps of the capture; 0 where it has no step range"]
    first_step: Annotated[Whole, "number of the first of them"]
    last_step: Annotated[Whole, "number of the last of them"]
    per: Annotated[Literal["step", "capture"], "what the figures of the tables nsys_* are per"]
    captured_s: Annotated[Figure, "from the first event of the process to the last"]
    steps_wall_s: Annotated[Figure, "host time inside the step ranges"]
    process: Annotated[int, "number of the process that makes the steps"]
    other_processes: Annotated[int, "processes that were left out"]
    missing: Annotated[Reasons, "what the file does not hold, and why"]
    unlaunched: Annotated[int, "pieces of device work whose launching call is not in the file"]
    graphs_whole: Annotated[int, "CUDA graphs that were traced as a whole"]
    open_ranges: Annotated[int, "ranges that the capture has no end of"]
    notes: Annotated[list[list[str]], "slug and text of each note"]


class ImportedFile(TypedDict):
    """A file of another tool that was imported."""

    file: Annotated[str, "its name"]
    format: Annotated[str, "what it is"]


class LayerColumn(TypedDict):
    """A column of a layer's own table."""

    name: Annotated[str, "its name in the rows"]
    type: Annotated[str, "type of its values: TEXT, INTEGER, REAL or BOOLEAN"]
    label: Annotated[str, "its heading"]
    unit: Annotated[str, "unit of its figures, or what else they are"]
    meaning: Annotated[str, "what it says"]
    sense: Annotated[Text, "how its numbers are to be read; null of keys"]


LayerValue = str | int | float | bool | None


class LayerTableFacts(TypedDict):
    """A table that a layer declared itself."""

    name: Annotated[str, "its name, which begins with the layer's"]
    layer: Annotated[str, "layer that declared it"]
    title: Annotated[str, "its heading on the page"]
    text: Annotated[str, "what the table shows"]
    join: Annotated[Join | None, "the table whose rows also show its figures"]
    columns: Annotated[list[LayerColumn], "its columns"]
    rows: Annotated[
        list[dict[str, LayerValue]],
        "figures per step, in the order that the layer declared",
    ]


class JoinedTables(TypedDict):
    """The tables made from the layers, each a list of rows."""

    steps: Annotated[list[rows.StepRow], layer("step clock")]
    modules: Annotated[list[rows.ModuleRow], given_by("torch")]
    operators: Annotated[list[rows.OperatorRow], given_by("torch")]
    kernels: Annotated[list[rows.KernelRow], given_by("torch")]
    functions: Annotated[list[rows.FunctionRow], given_by("cprofile")]
    calls: Annotated[list[rows.CallRow], given_by("cprofile")]
    lines: Annotated[list[rows.LineRow], layer("profstack")]
    module_lines: Annotated[list[rows.ModuleLineRow], given_by("torch")]
    memory: Annotated[list[rows.MemoryRow], layer("profstack")]
    memory_owners: Annotated[list[rows.MemoryOwnerRow], layer("torch")]
    peak_holders: Annotated[list[rows.PeakHolderRow], layer("torch")]
    call_paths: Annotated[list[rows.CallPathRow], given_by("torch")]
    threads: Annotated[list[rows.ThreadRow], layer("step clock")]
    launches: Annotated[list[rows.LaunchRow], given_by("torch")]
    gaps: Annotated[list[rows.GapRow], given_by("torch")]
    collectives: Annotated[list[rows.CollectiveRow], given_by("torch")]
    regions: Annotated[list[rows.RegionRow], layer("torch")]
    ranges: Annotated[list[rows.RangeRow], given_by("nvtx")]
    watch: Annotated[list[rows.WatchRow], given_by("watch")]
    outliers: Annotated[list[rows.OutlierRow], layer("step clock")]
    flops: Annotated[list[rows.CounterRow], given_by("flops")]
    artifacts: Annotated[list[rows.ArtifactRow], layer("profstack")]


class NsysTables(TypedDict):
    """The tables made from Nsight Systems."""

    nsys_modules: Annotated[list[nsys_rows.NsysModuleRow], layer("nsys")]
    nsys_processes: Annotated[list[nsys_rows.NsysProcessRow], layer("nsys")]
    nsys_steps: Annotated[list[nsys_rows.NsysStepRow], layer("nsys")]
    nsys_ranges: Annotated[list[nsys_rows.NsysRangeRow], layer("nsys")]
    nsys_stats: Annotated[list[nsys_rows.NsysStatRow], layer("nsys")]
    nsys_kernels: Annotated[list[nsys_rows.NsysKernelRow], layer("nsys")]
    nsys_copies: Annotated[list[nsys_rows.NsysCopyRow], layer("nsys")]
    nsys_api: Annotated[list[nsys_rows.NsysApiRow], layer("nsys")]
    nsys_waits: Annotated[list[nsys_rows.NsysWaitRow], layer("nsys")]
    nsys_communication: Annotated[list[nsys_rows.NsysCommunicationRow], layer("nsys")]
    nsys_backtraces: Annotated[list[nsys_rows.NsysBacktraceRow], layer("nsys")]
    nsys_memory: Annotated[list[nsys_rows.NsysMemoryRow], layer("nsys")]
    nsys_samples: Annotated[list[nsys_rows.NsysSampleRow], layer("nsys")]
    nsys_gaps: Annotated[list[nsys_rows.NsysGapRow], layer("nsys")]
    nsys_longest_gaps: Annotated[list[nsys_rows.NsysLongestGapRow], layer("nsys")]


class RankTables(TypedDict):
    """The tables that join the ranks of a launch; empty in the report of one process."""

    ranks: Annotated[list[rank_rows.RankRow], layer("profstack")]
    rank_parts: Annotated[list[rank_rows.RankPartRow], layer("profstack")]
    rank_steps: Annotated[list[rank_rows.RankStepRow], layer("step clock")]
    rank_work: Annotated[list[rank_rows.RankWorkRow], layer("torch")]


class Tables(JoinedTables, NsysTables, RankTables):
    """The tables of a report, each a list of rows."""


class LaterParts(TypedDict, total=False):
    """Parts that reports of earlier versions do not have."""

    layer_tables: Annotated[list[LayerTableFacts], "tables that layers declared themselves"]
    imports: Annotated[
        list[ImportedFile], "files of other tools that the recording was made from or has taken in"
    ]
    ranks: Annotated[
        rank_rows.RanksFacts | None, "the ranks that the report joins; null of one process"
    ]
    tried: Annotated[
        TrialReport | None, "what 'profstack try' has measured of the script; null: not tried"
    ]


class Report(LaterParts):
    """Everything report.json holds."""

    schema_version: Annotated[Literal[1], "raised where a field changes its meaning"]
    profstack_version: Annotated[str, "version of profstack that wrote the report"]
    script: Annotated[Text, "script, module, target or session; null of an import"]
    argv: Annotated[list[str], "words of the command line, secrets masked"]
    status: Annotated[
        Literal["complete", "partial", "failed"], "partial: not all was measured; failed: nothing"
    ]
    status_reason: Annotated[Text, "how a run ended that is not complete"]
    run: Run
    environment: Annotated[
        dict[str, object],
        "facts of the machine; never values of environment variables",
        key("python"),
        key("torch"),
    ]
    step: StepFacts
    slices: Annotated[list[SliceFacts], "slices of the run, in order of time"]
    benchmark: Benchmark
    probe_effect: Annotated[list[ProbeEffect], "how much each layer slowed its steps"]
    layers: Annotated[list[LayerFacts], "layers of the run, in the order of the page"]
    verdict: Annotated[Verdict | None, "what holds a step back, by the published rule"]
    run_bar: Annotated[list[RunPart], "the whole run, by what its time was spent on"]
    run_bar_reason: Annotated[Text, "why run_bar has no rows; null where it has some"]
    step_bar: Annotated[StepBar | None, "the clean step as one bar"]
    requests: Annotated[Requests | None, "latencies of an inference; null of a training"]
    tokens: Annotated[Tokens | None, "text that was generated; null where none was"]
    findings: Annotated[list[Finding], "problems with what to do, the one to begin with first"]
    roofline: Annotated[Roofline | None, "rates against what the machine can do"]
    tables: Annotated[Tables, "every table by its name, as a list of rows"]
    columns_reason: Annotated[Reasons, "why a column, named table.column, is null throughout"]
    cells_reason: Annotated[Reasons, "why single cells of a column, named table.column, are null"]
    columns_source: Annotated[
        dict[str, str],
        "what a column, named table.column, rests on where there are several sources",
    ]
    watch: Annotated[WatchFacts | None, "samples of the watch; null where it took none"]
    warnings: Annotated[list[ReportWarning], "doubts about figures"]
    attribution: Annotated[
        Attribution | None,
        "whether the rows of the modules add up to a step, and what has no owner",
    ]
    processes: Annotated[Processes, "what the table of threads comes to; times per clean step"]
    launching: Annotated[LaunchMeans, "means per step of the torch layer's slices"]
    sources: Annotated[
        list[SourceText],
        "the text of the user's own files in which lines were seen, the heaviest first",
    ]
    setup: Annotated[
        Setup,
        "how the script had set its work up, noted in a few of its first steps; of "
        "one that was not noted, why",
    ]
    nsys: Annotated[NsysFacts | None, "what was imported of Nsight Systems; null where nothing was"]


_HINTS = get_type_hints(Tables, include_extras=True)
REPORT = {name: row_table(name, hint) for name, hint in _HINTS.items()}
REPORT_OF_NSYS = {name: table for name, table in REPORT.items() if name.startswith("nsys_")}


def table_rows(table: str, rows: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Return rows with the columns of a table of the report: None for a missing one.

    Values that are no columns of the table are left out.
    """
    names = REPORT[table].names
    return [dict(zip(names, map(row.get, names), strict=True)) for row in rows]
