"""The rules by which findings are made, as data: README and the page list them from here.

A family of rules that makes findings of a new slug adds an entry to `RULES`, in the group it
belongs to, with the rule in one sentence that a reader can check by hand: what is looked at, and
the limits (the constants themselves stand in the family's module, with their reasons), and what
its `gain_s` is, or why it has none. Every slug that a family makes must stand here: a finding
whose slug does not is a defect, and a test says so.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FindingRule:
    """One kind of finding: `rule` says when it is made, `gain` what its `gain_s` is."""

    slug: str
    title: str
    rule: str
    gain: str


RULES: tuple[FindingRule, ...] = (
    FindingRule(
        "data-starved",
        "Data loading starves the step",
        "Of the clean step at least a quarter is waiting for the DataLoader (torch's own ranges "
        "round it say how much of the wait is its); without a DataLoader, at least half of such a "
        "wait must be in the user's own functions outside modules.",
        "Estimated: the step less the longest of its own work, the loading over the workers, and "
        "all CPU time over the cores; nothing for the time in which the step's own thread had no "
        "core. None where there is no DataLoader, or no core is left.",
    ),
    FindingRule(
        "forced-synchronisation",
        "Values are asked for during the step",
        "On an accelerator: the device was idle after the host waited for a value (.item(), "
        ".cpu(), .tolist(), bool(tensor), nonzero, a printed tensor) for at least 2 % of the "
        "clean step. On the CPU, where nothing has to be waited for: eight or more values taken "
        "out one by one, or tensors turned into text, cost at least 2 % of it.",
        "Estimated: the device's idle time after such waits; on the CPU the time of the calls "
        "and of the loop round them. None where the loop ran too many lines to be timed.",
    ),
    FindingRule(
        "host-to-device-copy",
        "Copies from the host to the device inside the step",
        "The device was idle for copies from pageable or pinned host memory for at least 1 % of "
        "the clean step; where it was not seen idle, the copies themselves take that much.",
        "Estimated: the device's idle time in which only such copies ran. None where it had other "
        "work beside them.",
    ),
    FindingRule(
        "small-operators",
        "Many small operators",
        "On an accelerator the device is idle for at least a fifth of the clean step because the "
        "host launches late. On the CPU operators of less than 20 us, or a child module, run at "
        "least eight times in one call of a module, and take at least a fifth of the clean step.",
        "Estimated: the device's idle time; on the CPU the time of all runs of the group but one, "
        "less what computing it at once takes; none where the loop's lines carry a name on from "
        "one run to the next.",
    ),
    FindingRule(
        "unfused-optimizer",
        "The optimizer goes through its tensors operator by operator",
        "The optimizer takes at least 3 % of the clean step (on a GPU: of the device's time), no "
        "fused operator ran in it, and torch has a fused implementation of its class for the "
        "devices and types of its parameters (Adam, AdamW, SGD; Adagrad on the CPU).",
        "Estimated: where its time goes to memory, by the bytes that its operators moved over "
        "those of each tensor once; where it goes to calls of operators, by a ratio measured on "
        "tiny tensors; the rest of its Python stays. None where the memory bandwidth is not "
        "known, or a GPU waits for the host.",
    ),
    FindingRule(
        "zero-grad-to-zeros",
        "Gradients are set to zero and added to",
        "For at least half of the parameters a step fills a tensor with zeros outside modules, "
        "and AccumulateGrad adds to as many of the same shapes; both cost at least 1 % of the "
        "clean step. On the CPU gradients above 64 KiB do not count: letting go of those was "
        "measured to cost more, by page faults.",
        "Estimated: the time of zeroing and of as many additions. None where a GPU waits for the "
        "host.",
    ),
    FindingRule(
        "grad-in-inference",
        "Gradients are on at inference",
        "The steps are calls of a model, no backward pass ran in any step that was noted or "
        "traced, and autograd recorded nodes of a graph in the calls.",
        "None: the graph is recorded inside the operators' own time, from which no layer tells it "
        "apart. What it kept in memory stands in the evidence.",
    ),
    FindingRule(
        "batchnorm-training-at-inference",
        "Batch normalisation in training mode at inference",
        "The steps are calls of a model without any backward pass, and a layer of batch "
        "normalisation with averages and a momentum of its own is in training mode in them. "
        "Dropout in training mode is named beside it, and is no finding alone.",
        "None: it is about results, which depend on the rest of the batch.",
    ),
    FindingRule(
        "float32-matmul-without-tf32",
        "Products of float32 at full precision",
        "On a CUDA device of capability 8.0 or higher, TF32 is off for products or for "
        "convolutions, and such operators on float32 take at least 5 % of the clean step.",
        "Estimated: for those that the roofline says are bound by arithmetic, their time less the "
        "same by the ratio of both peaks (at least what their bytes need). None where a peak is "
        "not known, or the device waits for the host.",
    ),
    FindingRule(
        "memory-growth",
        "Memory grows with every step",
        "In the slices that nothing observed, the resident set (or the device's live tensors) "
        "grows in part after part of the steps, by more than 2 MiB in all (256 KiB on a device) "
        "beyond what profstack itself wrote down.",
        "None: it costs memory, not time.",
    ),
    FindingRule(
        "recompilations",
        "Code is compiled again during the steps",
        "After the step in which torch.compile first compiled a function, one and the same guard "
        "fails at least twice (for ever new values), or at least four compilations follow, or "
        "dynamo gives the function up; and compiling took at least 1 % of the step.",
        "Measured: the compiler's own time in those steps over all steps since, a mean over the "
        "run; estimated where every such step was under an observer. None where most steps compile "
        "nothing: the median step does not hold it, and the mean stands in the evidence.",
    ),
    FindingRule(
        "graph-breaks",
        "Graphs end early under torch.compile",
        "Dynamo ended a graph at a line of the user's own, in a function whose compiled code the "
        "torch layer saw running in the steps.",
        "None: what a break costs shows only when the code is compiled without it.",
    ),
    FindingRule(
        "python-hot-spot",
        "A Python function takes a good part of the step",
        "The own Python time of one of the user's functions is at least 10 % of the clean step: "
        "cProfile's, less its own cost and operators called by signs, with built-in calls of less "
        "than a microsecond each; and no more than a microsecond for each line that it ran, where "
        "these were counted.",
        "Estimated: the geometric mean of two limits where these are within 30 % of it, else the "
        "lower one: all of that time, at most what the torch layer saw outside operators; and the "
        "same over the factor by which profiling slowed plain Python in this process.",
    ),
    FindingRule(
        "module-dominates",
        "One module takes most of the step",
        "A module's own time, children not included, is at least half of the step and at least "
        "three times what two or more modules of its class take for as much work (operations, "
        "else bytes); or, where it is alone in its class, five times its share of both.",
        "Estimated: its time less that fair share. None where it is alone in its class.",
    ),
    FindingRule(
        "too-short-or-noisy",
        "The clean step time is rough",
        "There are fewer than 10 clean steps, or the 95 % interval of their median reaches further "
        "than 20 % of it to a side.",
        "None: it says how far the other figures can be trusted.",
    ),
    FindingRule(
        "warmup-never-settles",
        "The step never settles",
        "The unobserved steps (30 or more) change to the end of the run beyond their scatter, and "
        "the median of the last third is more than 20 % from that of the one before.",
        "None: it says how far the other figures can be trusted.",
    ),
    FindingRule(
        "operators-without-flop-formula",
        "Operators without a FLOP formula take a good part of the step",
        "At least 10 % of the step is in operators for which the counter of record has no formula; "
        "what is left out by convention (elementwise, normalisation, pooling) is none of them.",
        "None: it makes FLOP/s and MFU too low, and nothing slower.",
    ),
)


def rule_of(slug: str) -> FindingRule:
    """The rule of a slug; raises KeyError for one that no rule makes."""
    for rule in RULES:
        if rule.slug == slug:
            return rule
    raise KeyError(slug)
