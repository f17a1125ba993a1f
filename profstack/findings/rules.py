"""The rules of findings and verdicts, and the kinds of warnings, as data.

Each kind of finding is one `FindingRule` here, and `RULES` has them all: its slug, its title, the
rule in words that a reader can check by hand, what its `gain_s` is or why it has none, and its
threshold. A family makes a finding by `reading.finding(rules.DATA_STARVED, ...)`. The page and the
reference are made from these objects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from profstack.storage.schema.report import Sureness, VerdictSlug


@dataclass(frozen=True)
class FindingRule:
    """One kind of finding: `rule` says when it is made, `gain` what its `gain_s` is.

    `threshold` is the share of the clean step from which it is made, or of the whole run where the
    rule is about one of its parts; 0 where the rule has none.
    """

    slug: str
    title: str
    rule: str
    gain: str
    threshold: float = 0.0


DATA_STARVED = FindingRule(
    "data-starved",
    "Data loading starves the step",
    "Of the clean step at least a quarter is waiting for the DataLoader (torch's own ranges "
    "round it say how much of the wait is its); without a DataLoader, at least half of such a "
    "wait must be in the user's own functions outside modules.",
    "Estimated: the step less the longest of its own work, the loading over the workers, and "
    "all CPU time over the cores; nothing for the time in which the step's own thread had no "
    "core. None where there is no DataLoader, or no core is left.",
    # With less, what a worker takes to hand batches over is a good part of what it could save.
    threshold=0.25,
)
FORCED_SYNCHRONISATION = FindingRule(
    "forced-synchronisation",
    "Values are asked for during the step",
    "On an accelerator: the device was idle after the host waited for a value (.item(), "
    ".cpu(), .tolist(), bool(tensor), nonzero, a printed tensor) for at least 2 % of the "
    "clean step. On the CPU, where nothing has to be waited for: eight or more values taken "
    "out one by one, or tensors turned into text, cost at least 2 % of it.",
    "Estimated: the device's idle time after such waits; on the CPU the time of the calls "
    "and of the loop round them. None where the loop ran too many lines to be timed.",
    # With less, what else a mended line does is as much.
    threshold=0.02,
)
HOST_TO_DEVICE_COPY = FindingRule(
    "host-to-device-copy",
    "Copies from the host to the device inside the step",
    "The device was idle for copies from pageable or pinned host memory for at least 1 % of "
    "the clean step; where it was not seen idle, the copies themselves take that much.",
    "Estimated: the device's idle time in which only such copies ran. None where it had other "
    "work beside them.",
    # Two runs differ by that.
    threshold=0.01,
)
SMALL_OPERATORS = FindingRule(
    "small-operators",
    "Many small operators",
    "On an accelerator the device is idle for at least a fifth of the clean step because the "
    "host launches late. On the CPU operators of less than 20 us, or a child module, run at "
    "least eight times in one call of a module, and take at least a fifth of the clean step.",
    "Estimated: the device's idle time; on the CPU the time of all runs of the group but one, "
    "less what computing it at once takes; none where the loop's lines carry a name on from "
    "one run to the next.",
    threshold=0.2,
)
UNFUSED_OPTIMIZER = FindingRule(
    "unfused-optimizer",
    "The optimizer goes through its tensors operator by operator",
    "The optimizer takes at least 3 % of the clean step (on a GPU: of the device's time), no "
    "fused operator ran in it, and torch has a fused implementation of its class for the "
    "devices and types of its parameters (Adam, AdamW, SGD; Adagrad on the CPU).",
    "Estimated: where its time goes to memory, by the bytes that its operators moved over "
    "those of each tensor once; where it goes to calls of operators, by a ratio measured on "
    "tiny tensors; the rest of its Python stays. None where the memory bandwidth is not "
    "known, or a GPU waits for the host.",
    # An optimizer with less has little to give, and is commonly left as it is.
    threshold=0.03,
)
DENSE_EMBEDDINGS = FindingRule(
    "dense-embeddings",
    "All rows of an embedding are updated for the few that a step uses",
    "On the CPU: a step looks up at most 10 % as many rows as an nn.Embedding or nn.EmbeddingBag "
    "has, no product has the same table, and its dense gradients, with its part of the optimizer's "
    "time by its elements, take at least a tenth of the clean step.",
    "Estimated: that time, less what a sparse update takes for the rows that are used, five times "
    "as much a row as a dense one.",
    threshold=0.1,
)
ANOMALY_DETECTION = FindingRule(
    "anomaly-detection",
    "Autograd's anomaly detection is on",
    "Backward passes of the noted steps ran under torch.autograd.set_detect_anomaly, for which "
    "every operator records a traceback, and every gradient is looked at for NaN.",
    "None: what looking for NaN takes is not told apart from the work. The evidence has the share "
    "of the watch's samples in the steps that record tracebacks; in one program that was measured "
    "both were 80 % of a step.",
)
GRAPH_AGAIN = FindingRule(
    "graph-again",
    "Backward passes go again through the same graph",
    "Most backward passes of the noted steps kept their graph (retain_graph=True) and made none of "
    "their own, and functions of the backward pass ran at least half as often again as their "
    "operators in the forward pass; these runs take at least a tenth of the clean step.",
    "Estimated: the part of the backward pass that goes through what an earlier one has done, by "
    "the functions whose operators are known. It is told where the step is cut by the host's time.",
    threshold=0.1,
)
ZERO_GRAD_TO_ZEROS = FindingRule(
    "zero-grad-to-zeros",
    "Gradients are set to zero and added to",
    "For at least half of the parameters a step fills a tensor with zeros outside modules, "
    "and AccumulateGrad adds to as many of the same shapes; both cost at least 1 % of the "
    "clean step. On the CPU gradients above 64 KiB do not count: letting go of those was "
    "measured to cost more, by page faults.",
    "Estimated: the time of zeroing and of as many additions. None where a GPU waits for the host.",
    # Two runs differ by that.
    threshold=0.01,
)
GRAD_IN_INFERENCE = FindingRule(
    "grad-in-inference",
    "Gradients are on at inference",
    "The steps are calls of a model, no backward pass ran in any step that was noted or "
    "traced, and autograd recorded nodes of a graph in the calls.",
    "None: the graph is recorded inside the operators' own time, from which no layer tells it "
    "apart. On the CPU it took 8 to 49 % of a call of six small models, mostly for memory that is "
    "kept and for fused paths that are not taken. The evidence says what it kept in memory.",
)
PARAMETRIZED_AT_INFERENCE = FindingRule(
    "parametrized-at-inference",
    "Weights are computed anew in each step of inference",
    "The steps are calls of a model without a backward pass, and the parametrizations of its "
    "weights (torch.nn.utils.parametrize: orthogonal, spectral_norm, weight_norm) take at least "
    "5 % of the clean step.",
    "Estimated: all of their forward passes. None where their time is not calibrated.",
    threshold=0.05,
)
PADDING = FindingRule(
    "padding",
    "Much of what the model computes is padding",
    "Of the tokens that the model was given in the noted steps (what an embedding takes, or is "
    "named so) at least a fifth are behind the longest row of their batch, or at least two fifths "
    "are padding: by the mask, else by the embedding's padding_idx, else rows that end in the "
    "same value again and again.",
    "Estimated: the model's forward and backward passes times the share behind the longest row. "
    "None where that is less than a tenth, or the torch layer's times are not calibrated.",
    # A batch of texts of different lengths always has some.
    threshold=0.2,
)
IGNORED_TARGETS = FindingRule(
    "ignored-targets",
    "Logits are computed that the loss ignores",
    "At least a quarter of the targets in the slices of the layer flops are the index that the "
    "loss ignores (of the loss over most classes, a thousand or more), and products, softmax and "
    "loss over as many classes take so much that leaving those positions out saves a tenth of the "
    "clean step. Not where another layer has as many rows or columns, where a device waits for "
    "the host, or where the model was compiled.",
    "Estimated: the time of these operators, forward and backward, times the share of the targets "
    "that are ignored.",
    threshold=0.25,
)
CALLED_AGAIN = FindingRule(
    "called-again",
    "A model is called again on the same input",
    "At least a quarter of a model's calls in the noted steps have the first large input of the "
    "call before (the same memory with the same values), two or three in a row, in the same modes, "
    "with no backward pass or optimizer's step between, and its forward passes take at least a "
    "quarter of the clean step. Not where its dropout is on: then the results differ, on purpose.",
    "None: what of both results is needed is not known.",
    threshold=0.25,
)
CONSTANT_INPUT = FindingRule(
    "constant-input",
    "A part of the model gets the same input in each step",
    "In at least three noted steps a module got the inputs of an earlier step (tensors of the same "
    "shapes and sums), while what the model itself was given changed; its weights do not change "
    "(no gradients), it takes at least a tenth of the clean step, and no dropout is on. Of modules "
    "down to the third level.",
    "Estimated: all of its forward passes. None where their time is not calibrated.",
    # With less, keeping the result is hardly worth a change of the model.
    threshold=0.1,
)
TENSORS_FROM_LISTS = FindingRule(
    "tensors-from-lists",
    "Tensors are made of lists, element by element",
    "By cProfile, torch.tensor (or torch.as_tensor, torch.Tensor and the like) takes 50 us or "
    "more a call and at least 5 % of the clean step, and by the torch layer at least half of it is "
    "in no operator: so it is with lists of numbers or arrays, and not with arrays.",
    "Estimated: nine tenths of these calls; arrays are joined in the rest.",
    threshold=0.05,
)
GATHERED_ROWS = FindingRule(
    "gathered-rows",
    "A layer works on rows that were gathered from fewer ones",
    "In every noted step a linear layer, or a sequence of layers that work row by row, gets the "
    "result of an indexing (index_select, tensor[index]) with at least twice as many rows as there "
    "were before it, and the rows too many take at least 5 % of the clean step.",
    "Estimated: its forward and backward passes, times the share of rows too many. None where "
    "their time is not calibrated.",
    threshold=0.05,
)
UNUSED_GRADIENTS = FindingRule(
    "unused-gradients",
    "Gradients are computed that no optimizer uses",
    "Parameters of a module have gradients in the noted steps, no optimizer that stepped has them, "
    "and they did not change over eight steps or more, while others of the script's models have an "
    "optimizer; the backward passes of such modules take at least 5 % of the clean step.",
    "Estimated: the whole backward pass of modules that nothing trained comes before. None where "
    "something trained does: the gradients of weights are not told apart from those of inputs.",
    # Two runs differ by less.
    threshold=0.05,
)
EXCHANGED_TOO_OFTEN = FindingRule(
    "exchanged-too-often",
    "Ranks exchange gradients more often than they use them",
    "With DistributedDataParallel gradients are exchanged in at least half as many backward passes "
    "again as optimizers step (accumulation without no_sync), and the collectives take at least "
    "5 % of the clean step, or the run computes on a device.",
    "Estimated: the time of the collectives, times the share of exchanges that is not used. None "
    "on a device, where they overlap with other work.",
    threshold=0.05,
)
DOUBLE_PRECISION = FindingRule(
    "double-precision",
    "Operators compute in float64",
    "Operators on float64, by the points of the roofline, take at least a tenth of the clean step.",
    "Estimated on the CPU, but for operators that are bound by calls: half of their time (float64 "
    "has twice the bytes, and half as many numbers in a vector), three quarters of roots, "
    "divisions, GELU and softmax, four fifths of convolutions, as measured. None on a device, "
    "where the ratio of the peaks is from 2 to 64.",
    # With less, the half of it is what two runs differ by.
    threshold=0.1,
)
NO_KV_CACHE = FindingRule(
    "no-kv-cache",
    "Generation computes every token again",
    "Calls of `generate` add at least 8 tokens each with use_cache=False; or the script calls the "
    "model itself, 8 times or more, and most calls have one token more than the one before.",
    "Estimated for calls of the script's own: the line through their times by length, down to one "
    "token. None where fewer than 4 lengths were unobserved or the times scatter too much, and for "
    "`generate`: what one token alone takes was not seen.",
)
NO_END_TOKEN = FindingRule(
    "no-end-token",
    "Nothing ends a generated text before its limit",
    "Eight calls of `generate` or more, of 8 new tokens or more, and none has an end token, a stop "
    "string, a time or a criterion that may end it before its limit of new tokens.",
    "None: where each text could have ended is not known. The evidence has what each token takes.",
)
BATCH_OF_ONE = FindingRule(
    "batch-of-one",
    "The model is called for one item at a time",
    "The steps are calls of a model without any backward pass, 20 or more, and the first dimension "
    "of their input is 1.",
    "None: what larger batches gain was not measured.",
)
BATCHNORM_TRAINING_AT_INFERENCE = FindingRule(
    "batchnorm-training-at-inference",
    "Batch normalisation in training mode at inference",
    "The steps are calls of a model without any backward pass, and a layer of batch "
    "normalisation with averages and a momentum of its own is in training mode in them. "
    "Dropout in training mode is named beside it, and is no finding alone.",
    "Estimated on the CPU: the time of its operators less what they take in evaluation mode, by a "
    "ratio measured for its kinds of input, and all of dropout's. None on other devices, and where "
    "traced steps took 1.69 times as long as clean ones, or more. Results depend on the rest of "
    "the batch whatever it costs.",
)
FLOAT32_MATMUL_WITHOUT_TF32 = FindingRule(
    "float32-matmul-without-tf32",
    "Products of float32 at full precision",
    "On a CUDA device of capability 8.0 or higher, TF32 is off for products or for "
    "convolutions, and such operators on float32 take at least 5 % of the clean step.",
    "Estimated: for those that the roofline says are bound by arithmetic, their time less the "
    "same by the ratio of both peaks (at least what their bytes need). None where a peak is "
    "not known, or the device waits for the host.",
    # Runs differ by less than all of it, whatever TF32 makes of it.
    threshold=0.05,
)
MEMORY_GROWTH = FindingRule(
    "memory-growth",
    "Memory grows with every step",
    "In the slices that nothing observed, the resident set (or the device's live tensors) "
    "grows in part after part of the steps, by more than 2 MiB in all (256 KiB on a device) "
    "beyond what profstack itself wrote down.",
    "None: it costs memory, not time.",
)
RECOMPILATIONS = FindingRule(
    "recompilations",
    "Code is compiled again during the steps",
    "After the step in which torch.compile first compiled a function, one and the same guard "
    "fails at least twice (for ever new values), or at least four compilations follow, or "
    "dynamo gives the function up; and compiling took at least 1 % of the step.",
    "Measured: the compiler's own time in those steps over all steps since, a mean over the "
    "run; estimated where every such step was under an observer. None where most steps compile "
    "nothing: the median step does not hold it, and the mean is in the evidence. `run_s` is all "
    "recompilations; `run_gain_s` is that less twice the longest one where the size of one "
    "dimension changes: one compilation for all sizes, three times as long, is left of these and "
    "the first.",
    # Two runs differ by that.
    threshold=0.01,
)
GRAPH_BREAKS = FindingRule(
    "graph-breaks",
    "Graphs end early under torch.compile",
    "Dynamo ended a graph at a line of the user's own, in a function whose compiled code the "
    "torch layer saw running in the steps.",
    "None: what a break costs shows only when the code is compiled without it.",
)
PYTHON_HOT_SPOT = FindingRule(
    "python-hot-spot",
    "A Python function takes a good part of the step",
    "The own Python time of one of the user's functions is at least 10 % of the clean step: "
    "cProfile's, less its own cost and operators called by signs, with built-in calls of less "
    "than a microsecond each; and no more than a microsecond for each line that it ran, where "
    "these were counted.",
    "Estimated: the geometric mean of two limits where these are within 30 % of it, else the "
    "lower one: all of that time, at most what the torch layer saw outside operators; and the "
    "same over the factor by which profiling slowed plain Python in this process.",
    # A tenth of the step in one function is worth rewriting it; time spread over many functions
    # is another problem than a hot spot.
    threshold=0.1,
)
OWN_CODE_COST = FindingRule(
    "own-code-cost",
    "The script's own code beside the model takes a good part of the step",
    "By the watch's samples in the steps, one of the user's functions, or one line of the loop, "
    "takes at least 10 % of the step (in a DataLoader 25 %) outside the forward and backward "
    "passes and the optimizer, and no other rule explains most of that.",
    "None: how much of it can be saved is not known.",
    # As for a hot spot: a tenth of the step in one place is worth a look.
    threshold=0.1,
)
WAITS_FOR_WORK = FindingRule(
    "waits-for-work",
    "The thread that calls the model waits for work",
    "In at least 30 % of the watch's samples in the steps that thread runs none of the user's code "
    "and waits inside Python's own queues, pools or event loops.",
    "None: when the work could come is not known.",
    # As for an input-bound step.
    threshold=0.3,
)
MODULE_DOMINATES = FindingRule(
    "module-dominates",
    "One module takes most of the step",
    "A module's own time, children not included, is at least half of the step and at least "
    "three times what two or more modules of its class take for as much work (operations, "
    "else bytes); or, where it is alone in its class, five times its share of both.",
    "Estimated: its time less that fair share. None where it is alone in its class.",
    # Below half of the step there is something else that is as much worth a look.
    threshold=0.5,
)
# Threads that only spin use as much of a core as one that works, and compute next to nothing.
THREADS_SHARE, FAR_FROM_PEAK = 0.25, 0.02
TOO_SHORT_OR_NOISY = FindingRule(
    "too-short-or-noisy",
    "The clean step time is rough",
    "There are fewer than 10 clean steps, or the 95 % interval of their median reaches further "
    "than 20 % of it to a side.",
    "None: it says how far the other figures can be trusted.",
    # Of the median, to a side: with a wider interval neither limits nor gains hold.
    threshold=0.2,
)
WARMUP_NEVER_SETTLES = FindingRule(
    "warmup-never-settles",
    "The step never settles",
    "The unobserved steps (30 or more) change to the end of the run beyond their scatter, and "
    "the median of the last third is more than 20 % from that of the one before.",
    "None: it says how far the other figures can be trusted.",
    # Of the step time: smaller changes are left to the warnings.
    threshold=0.2,
)
THREADS_WITHOUT_CORES = FindingRule(
    "threads-without-cores",
    "Operators' threads wait for each other on busy cores",
    "On the CPU torch uses several threads, its own use at least "
    f"{THREADS_SHARE:.0%} of the CPU time, a clean step's thread could have run and had no core "
    "for at least a fifth of it, operators have most of the step, and it reaches less than "
    f"{FAR_FROM_PEAK:.0%} of the machine's peak.",
    "None: what a step takes where each thread has a core was not seen.",
    # Of the clean step: with less, scatter among runs is as large.
    threshold=0.2,
)
OPERATORS_WITHOUT_FLOP_FORMULA = FindingRule(
    "operators-without-flop-formula",
    "Operators without a FLOP formula take a good part of the step",
    "At least 10 % of the step is in operators for which the counter of record has no formula; "
    "what is left out by convention (elementwise, normalisation, pooling) is none of them.",
    "None: it makes FLOP/s and MFU too low, and nothing slower.",
    # Below it an FLOP figure without them is as good as the time it is divided by.
    threshold=0.1,
)

_OF_THE_RUN = (
    "None for the step. `run_gain_s` is {}. Shares are of the run less what profstack added."
)
_RARER = (
    "what a tenth as often saves: nine tenths of it, or all but the longest tenth of the times "
    "that it was seen (one at least) where that is less; null where it was seen once"
)
_AT_MOST = "all of it, at most (`run_gain_is`)"
# From so many seconds on a part of the run is worth a finding.
EVALUATION_S = SAVING_S = WORKERS_S = 1.0
OTHER_S = 0.5
IMPORT_S, IMPORT_SAMPLES, IMPORT_USED = 1.0, 10, 0.05
# Of imports with less beside torch itself nothing is told.
BESIDE_TORCH_S = 3.0
LOGGING_S, SETUP_S, COMPILATION_S, SHUTDOWN_S, IMPORTS_S = 0.5, 1.0, 5.0, 10.0, 30.0
EVALUATION_COST = FindingRule(
    "evaluation-cost",
    "Evaluation takes a good part of the run",
    "Evaluation (the model that trains is in evaluation mode, or the functions say so by their "
    f"names) takes at least a fifth of the run, and {EVALUATION_S:g} s.",
    _OF_THE_RUN.format(_RARER),
    threshold=0.2,
)
SAVING_COST = FindingRule(
    "saving-cost",
    "Saving takes a good part of the run",
    "Functions that save (torch.save, save_pretrained, others named so) take at least 5 % of the "
    f"run, and {SAVING_S:g} s.",
    _OF_THE_RUN.format(_RARER),
    threshold=0.05,
)
WORKER_STARTS = FindingRule(
    "worker-starts",
    "DataLoader workers are started again and again",
    "Starting and ending the workers of DataLoaders, three times or more, takes at least 5 % of "
    f"the run, and {WORKERS_S:g} s.",
    _OF_THE_RUN.format("all of it but the first start on each line"),
    threshold=0.05,
)
LOGGING_COST = FindingRule(
    "logging-cost",
    "Logging takes a good part of the run",
    "Loggers, progress bars, printing and callbacks (`log_...`, `on_...`) take at least 5 % of the "
    f"run, and {LOGGING_S:g} s.",
    _OF_THE_RUN.format(_RARER),
    threshold=0.05,
)
RUN_CODE_COST = FindingRule(
    "run-code-cost",
    "The script's own code beside the steps takes a good part of the run",
    "By the watch's samples, one of the user's functions, or one line of the loop, takes at least "
    f"10 % of the run and {OTHER_S:g} s outside the steps, their preparation, evaluation, saving "
    "and logging; or in single steps, at least five times as long as the usual ones; or in the "
    "steps themselves where none of them is clean.",
    _OF_THE_RUN.format(_AT_MOST),
    threshold=0.1,
)
IMPORT_COST = FindingRule(
    "import-cost",
    "A package that is hardly used takes long to import",
    "Importing one package, torch left out, takes at least a tenth of the run and "
    f"{IMPORT_S:g} s by the watch's samples, and the rest of the run, of which there are at least "
    f"{IMPORT_SAMPLES} samples, spends less than {IMPORT_USED:.0%} as long in it.",
    _OF_THE_RUN.format(_AT_MOST),
    threshold=0.1,
)
SLOW_START = FindingRule(
    "slow-start",
    "The start takes a good part of the run",
    f"Imports take at least a fifth of the run and {IMPORTS_S:g} s, or what the script sets up "
    f"before its first step takes at least a fifth and {SETUP_S:g} s.",
    _OF_THE_RUN.format(f"{_AT_MOST}, less what the watch saw of importing torch"),
    threshold=0.2,
)
COMPILATION_COST = FindingRule(
    "compilation-cost",
    "Compiling takes a good part of the run",
    f"torch.compile takes at least a fifth of the run, and {COMPILATION_S:g} s.",
    _OF_THE_RUN.format("what torch.compile takes of it, at most (`run_gain_is`)"),
    threshold=0.2,
)
SLOW_SHUTDOWN = FindingRule(
    "slow-shutdown",
    "The process takes long to end",
    "From the script's last line to the end of the process goes at least a tenth of the run, and "
    f"{SHUTDOWN_S:g} s.",
    _OF_THE_RUN.format(f"{_AT_MOST}: nothing watches the end of a process"),
    threshold=0.1,
)

# All of the above, in that order.
RULES = tuple(each for each in tuple(globals().values()) if isinstance(each, FindingRule))


# -----------------------------------------------------------------------------
# The published rule of the verdict, as data: the reference and the page list it from here.
#
# Each test has a measure, a share of the clean step between 0 and 1, and a threshold. The tests
# that reach their thresholds are candidates, and the one with the largest share is the verdict.
# `margin` is by how much it could shrink and still be it: the smaller one of its distances to its
# threshold and to the next candidate. Without a candidate the step is `balanced`. A verdict is
# `certain` where its margin is `LEAST_APART` or more, nothing that is not known could be as large,
# and the median is known within `SHOWN_INTERVAL`; else it is `likely`. A balanced or an unclear one
# is a `hint`, unless a finding is named first: then that is what is `certain` or `likely`. Python
# and the calling of small operators are `overhead-bound` where both together reach their limit and
# neither does alone: they have one remedy.
# -----------------------------------------------------------------------------

# Two shares closer than this count as equal: runs of one program differ by as much.
LEAST_APART = 0.05
# Fewer clean steps than this have no median worth the name.
FEWEST_CLEAN = 5
# A step whose thread is idle for as much of it, for a reason that no test knows, is unclear.
IDLE_SHARE = 0.30
# A median is given with its interval where that reaches further than this to a side.
SHOWN_INTERVAL = 0.10

INPUT: VerdictSlug = "input-bound"
IO: VerdictSlug = "io-bound"
COMMUNICATION: VerdictSlug = "communication-bound"
PYTHON: VerdictSlug = "python-bound"
LAUNCH: VerdictSlug = "launch-bound"
COMPUTE: VerdictSlug = "compute-bound"
MEMORY: VerdictSlug = "memory-bound"
OVERHEAD: VerdictSlug = "overhead-bound"
BALANCED: VerdictSlug = "balanced"
UNCLEAR: VerdictSlug = "unclear"


@dataclass(frozen=True)
class VerdictRule:
    """One test: its cause inside a sentence, what it measures in words, what is usually done about
    it, and the share of the clean step from which it can be the verdict.
    """

    slug: VerdictSlug
    cause: str
    measure: str
    remedy: str
    threshold: float = 0.40


VERDICT_RULES = (
    VerdictRule(
        INPUT,
        "the wait for data",
        "The wait for the next batch: the time in a DataLoader, or without one the time before "
        "the step's first module call, less what reads and writes files, and what the loop does "
        "after the optimizer's step that no step takes as its input. On an accelerator, the time "
        "in which the device is idle for it.",
        "Have batches made beside the training: a DataLoader with num_workers and "
        "persistent_workers=True, or less work for each sample.",
        0.30,
    ),
    VerdictRule(
        IO,
        "reading and writing files",
        "Functions that read or write files, sockets or databases outside a DataLoader, by "
        "cProfile: checkpoints, logs, samples read by hand.",
        "Write and read less often, or on a thread beside the training.",
        0.30,
    ),
    VerdictRule(
        COMMUNICATION,
        "communication",
        "Collectives between ranks (gloo, NCCL, MPI), as far as the steps' thread, or the "
        "device, does nothing else meanwhile.",
        "Send less, or while the step computes: no_sync() while gradients are accumulated, larger "
        "buckets (bucket_cap_mb), gradients in bfloat16.",
        0.30,
    ),
    VerdictRule(
        PYTHON,
        "Python",
        "Time of the steps' thread outside operators, outside the wait, reading and writing, "
        "and not idle. On an accelerator, Python's part of the time in which the device is idle "
        "because the host is late.",
        "Move Python out of the step: do it once before the loop, or for whole tensors instead of "
        "their elements; torch.compile takes out the Python of the model.",
    ),
    VerdictRule(
        LAUNCH,
        "calling small operators",
        "Own time of operators that take less than 10 µs a call: the cost of calling them. On "
        "an accelerator, the operators' part of the time in which the device is idle because "
        "the host is late.",
        "Give each operator more to do: a larger batch, fused=True for the optimizer, "
        "torch.compile, and CUDA graphs on a GPU.",
    ),
    VerdictRule(
        COMPUTE,
        "arithmetic",
        "Operators right of the roofline's ridge, half of whose time or more is explained by "
        "the machine's measured peak of operations per second.",
        "Compute less, or in less precision: torch.autocast with bfloat16 where the machine has "
        "units for it, a smaller model.",
    ),
    VerdictRule(
        MEMORY,
        "memory traffic",
        "Operators left of the roofline's ridge, or without a count of operations, half of "
        "whose time or more is explained by the machine's measured memory bandwidth.",
        "Move fewer bytes: torch.compile fuses element-wise operators, bfloat16 halves them.",
    ),
)
RULE_OF = {rule.slug: rule for rule in VERDICT_RULES}
# Python and the calling of small operators together are the verdict from this share on.
OVERHEAD_SHARE = 0.50
OVERHEAD_REMEDY = (
    "Do more with each call: a larger batch, whole tensors in place of loops, fused=True for the "
    "optimizer, torch.compile, and CUDA graphs on a GPU."
)
# Verdicts that name no cause.
WITHOUT_CAUSE = (BALANCED, UNCLEAR)
# The meaning of the verdicts that are no single test's.
OTHERS: dict[VerdictSlug, str] = {
    OVERHEAD: "No test reaches its threshold, and Python and the calling of small operators "
    f"together take {100 * OVERHEAD_SHARE:.0f} % of the step or more: most of a step is the "
    "overhead of many small operators.",
    BALANCED: "No test reaches its threshold: no single cause takes most of the step. The sentence "
    "names the largest part. Where operators take half of the step or more, it says how far they "
    "are from the machine's limits; and which test it nearly is, if one lacks less than "
    f"{100 * LEAST_APART:.0f} points of a hundred.",
    UNCLEAR: f"No clean time, fewer than {FEWEST_CLEAN} clean steps, figures that are not "
    "calibrated, a share that is not known and could be the first where no other is large, or a "
    f"thread that is idle for {100 * IDLE_SHARE:.0f} % of the step or more, and longer than any "
    "test measures.",
}
TITLES: dict[VerdictSlug, str] = {
    **{slug: slug.capitalize() for slug in get_args(VerdictSlug)},
    IO: "I/O-bound",
}
# How a verdict's sureness begins, which its reason follows.
SURENESS: dict[Sureness, str] = {
    "certain": "How sure: certain. The cause is well beyond the noise of this run.",
    "likely": "How sure: likely.",
    "hint": "How sure: a hint.",
}


# -----------------------------------------------------------------------------
# The warnings of a report: the slug of each kind, and what it says.
#
# The first weigh most for the answer: reports list them in this order.
#
# A warning says what was not measured, or what a figure must not be taken for; its text has the
# particulars of the run. A new kind is named here: the page and the reference list them from this
# table, and a test finds slugs that are not in it.
# -----------------------------------------------------------------------------

WARNINGS: dict[str, str] = {
    # -- findings --
    "findings-failed": "a family of findings ended with an error: what it would have found is "
    "missing",
    "verdict-failed": "the verdict or the step's bar could not be worked out because of an error",
    # -- several ranks --
    "rank-ended": "a rank did not come to its end by itself",
    "rank-missing": "a rank that was to record left no report",
    "collectives-differ": "ranks called different collectives: in one group that is a mistake, in "
    "several it may be meant",
    "ranks-differ": "the ranks' work is not the same: where ranks hold parts of one model, that is "
    "meant",
    "children": "processes that the script started made steps of their own: each has a page in a "
    "folder inside the recording",
    # -- how far the clean time is to be trusted --
    "profiled-steps": "the steps are those of an imported trace: their times are its profiler's, "
    "and there is no clean one",
    "warmup-unsettled": "the end of the warm-up was not found: the steps still became faster or "
    "slower when the run ended",
    "work-changed": "steps after those that the layers watched take another time: the figures are "
    "of the steps before",
    "unsettled-clean-steps": "every clean step came right after an observer, so that the clean "
    "time is an upper bound",
    "loops": "steps were made in several loops: they are told apart by call site, and the figures "
    "are of the one that took most time",
    "begin-at": "the place of `--begin-at` never came: no layer had a slice",
    "budget": "what measuring adds to a run is held below a share of it, and the run ended before "
    "all slices had fitted in",
    "pauses": "a few clean steps took many times as long as the others: they are listed among the "
    "outliers, and the step's figures are of the others",
    "clean-changed": "clean steps after a layer differ from those before it; where there are "
    "enough, only the earlier ones count",
    "evaluation-in-slice": "a layer had no slice without evaluation in it: its figures are of "
    "training and evaluation together",
    "step-ignored": "`profstack.step()` was called where a session names the steps already",
    # -- layers that saw nothing, less than they could, or stepped aside --
    "gave-way": "a layer stepped aside, since the script, a debugger or a compiler uses what it "
    "needs",
    "empty-capture": "a layer had its slice and saw nothing in it",
    "layer-failed": "a layer ended with an error of its own; the others went on",
    "disarmed": "profstack stopped measuring during the run because of an error of its own; the "
    "script went on",
    "rerun": "a layer was filled by a second run of the script, which `--rerun` asked for",
    "undefined-profile": "the script ended for want of `profile`, which other tools define",
    "launcher": "what was run starts the script in processes of its own, which were not measured",
    "session-run": "how often `Session.run` called what it was given, and how",
    "bench-layers": "the layers' calls after a benchmark ended at their time limit, before all "
    "rounds were over",
    "watch-ended": "the sampler between the slices ended early",
    # -- Python, lines and paths --
    "no-lines": "no line of the script's own files ran in the slice of a layer that follows lines",
    "lines-truncated": "a function ran more lines than are followed in a step: its lines are not "
    "whole",
    "lines-unowned": "the times of lines are known, but not the modules that they were spent in",
    "no-call-paths": "there are no paths from function to operator: the trace was cut short, or "
    "the step held evaluation",
    "no-listing": "memory_profiler's own listing could not be written; its figures are there",
    # -- memory --
    "modules-by-resident-set": "memory of modules is growth of the resident set, since the heap "
    "cannot be asked here",
    "no-memray-file": "memray's own file was not kept",
    "no-memory-owners": "the owners of a step's bytes could not be worked out",
    "tensors-left-out": "the script held too many tensors before the step to go through all",
    "tensors-unread": "some tensors could not be asked which memory they use",
    "no-snapshot": "there is no history of the device's memory",
    "out-of-memory": "a device could not give the memory that was asked for, by the history of "
    "its allocator",
    "snapshot-history": "the history in a snapshot of a device's memory is missing, or ended "
    "before the snapshot was written",
    "import-clock": "times of an imported file cannot be put on the clock of the others",
    "snapshot-devices": "a snapshot is of several devices: memory over time is of one",
    # -- operations, regions, launches --
    "flops-uncounted": "a counter of operations could not count something, or at all",
    "flop-counters-disagree": "two counters of operations differ by more than a little; the text "
    "names the operators",
    "flops-differ-by-step": "later steps do other work than the first, in which operations are "
    "counted: the figures are the mean of the steps that the torch layer timed",
    "clean-steps-differ": "the clean steps had other inputs than those whose operations were "
    "counted, so that the step has no FLOP/s",
    "regions-unread": "the work inside regions could not be worked out",
    "ranges-untimed": "ranges of `nvtx.start_range` overlapped and nothing told them apart",
    "launches-unread": "launches and gaps could not be worked out",
    "collectives-unread": "the collectives of the steps could not be worked out",
    # -- imported traces --
    "trace-left-out": "events of an imported trace could not be read: the text counts them and "
    "their time",
    "trace-truncated": "an imported trace was cut off as it was written",
    "trace-no-modules": "an imported trace has no calls of modules, so that all work is outside "
    "modules",
    "trace-ranks": "of traces of several ranks one was imported",
    # -- Nsight Systems --
    "no-listener": "Nsight Systems is there, and takes none of the ranges: of its `--trace`, or of "
    "the installed version of nvtx",
    "under-nsys": "Nsight Systems observed the run: the layers nvtx and watch alone were armed",
    "nsys-run": "what the second run, under Nsight Systems, that `--nsys` asked for, lacks, or why "
    "there is none",
    "nsys-disagrees": "Nsight Systems and the torch layer saw modules differently: called another "
    "number of times, or for another time on the host or on the device",
    "nsys-open-ranges": "ranges of the import were open when the capture ended, and are left out",
    "nsys-untimed-work": "work of a device has no time in the file that was imported",
    "nsys-lost-events": "Nsight Systems says that it lost events of the capture",
    "nsys-not-compared": "modules of Nsight Systems are not compared with the torch layer's: the "
    "two did not see the same steps, or saw evaluation",
    "nsys-rows-left-out": "the import has more rows than a recording takes: those with the least "
    "time are added up in one",
    "nsys-other-program": "the imported capture may be of another program than the recording",
    "cuda-profiler": "the CUDA profiler could not be started or stopped for a capture range",
}

# Warnings on which steps and processes the figures are of: all up to the layers' own.
OF_STEPS = frozenset(tuple(WARNINGS)[: tuple(WARNINGS).index("gave-way")])
