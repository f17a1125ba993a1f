"""What the warnings of a report are called, and what each kind of them says.

A warning tells what was not measured, or what a figure must not be taken for; its text has the
particulars of the run. Whoever makes one of a new kind names it here: README and the page list
them from this table, and a test finds those that are not in it.
"""

from __future__ import annotations

WARNINGS: dict[str, str] = {
    # -- how far the clean time is to be trusted --
    "warmup-unsettled": "the end of the warm-up was not found: the steps still became faster or "
    "slower when the run ended",
    "work-changed": "steps after those that the layers watched take another time: the figures are "
    "of the steps before",
    "unsettled-clean-steps": "every clean step came right after an observer, so that the clean "
    "time is an upper bound",
    "clean-changed": "clean steps after a layer differ from those before it; where there are "
    "enough, only the earlier ones count",
    "evaluation-in-slice": "a layer never had a slice without evaluation in it: its figures are of "
    "training and evaluation together",
    "step-ignored": "`profstack.step()` was called where a session names the steps already",
    # -- layers that saw nothing, less than they could, or stepped aside --
    "gave-way": "a layer stepped aside, since the script, a debugger or a compiler uses what it "
    "needs",
    "empty-capture": "a layer had its slice and saw nothing in it",
    "layer-failed": "a layer ended with an error of its own; the others went on",
    "disarmed": "profstack ended all its work in the midst of the run because of an error of its "
    "own; the script went on",
    "rerun": "a layer was filled by a second run of the script, which `--rerun` asked for",
    "launcher": "what was run starts the script in processes of its own, which were not measured",
    "session-run": "how often `Session.run` called what it was given, and how",
    "bench-layers": "the layers' calls after a benchmark ended at their time limit, before all "
    "rounds were over",
    "watch-ended": "the sampler between the slices ended early",
    # -- Python, lines and paths --
    "no-lines": "no line of the script's own files ran in the slice of a layer that follows lines",
    "lines-truncated": "a function ran more lines than are followed in a step: its lines are not "
    "whole",
    "lines-unowned": "the lines' times stand without the modules that they were spent in",
    "no-call-paths": "there are no paths from function to operator: the trace was cut short, or "
    "the step held evaluation",
    "no-listing": "memory_profiler's own listing could not be written; its figures are there",
    # -- memory --
    "modules-by-resident-set": "memory of modules is growth of the resident set, since the heap "
    "cannot be asked here",
    "no-memory-owners": "whose the bytes of a step are could not be told",
    "tensors-left-out": "the script held too many tensors before the step to go through all",
    "tensors-unread": "of some tensors it could not be told where they lie",
    "no-snapshot": "there is no history of the device's memory",
    # -- operations, regions, launches --
    "flops-uncounted": "a counter of operations could not count something, or at all",
    "flop-counters-disagree": "two counters of operations differ by more than a little; the text "
    "names the operators",
    "flops-differ-by-step": "later steps do other work than the first, in which operations are "
    "counted: the figures are the mean of the steps that the torch layer timed",
    "clean-steps-differ": "the clean steps had other inputs than those whose operations were "
    "counted, so that the step has no FLOP/s",
    "regions-unread": "the work inside regions could not be worked out",
    "launches-unread": "launches and gaps could not be worked out",
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
    "nsys-rows-left-out": "the import has more rows than a recording takes: those with the least "
    "time are left out",
    "cuda-profiler": "the CUDA profiler could not be started or stopped for a capture range",
    # -- findings --
    "findings-failed": "a family of findings ended with an error: what it would have found is "
    "missing",
    "verdict-failed": "the verdict or the step's bar could not be worked out because of an error",
}
