"""Figures of a report that are of one quantity, or a part and its whole: those that disagree."""

import re
from itertools import chain

from profstack.report.overview import overview_page
from profstack.report.screen import evidence_label
from profstack.units import format_seconds

# What rounding may leave.
ALIKE = 1e-6
PARTS = {"python-bound": "Python", "io-bound": "I/O"}
PLACE = re.compile(r"[\w./-]+\.py:\d+|cell \d+, line \d+")


def differ(one, other):
    return one is not None and other is not None and abs(one - other) > ALIKE * max(one, other)


def exceeds(part, whole):
    return part is not None and whole is not None and part > (1 + ALIKE) * whole


def contradictions(report):
    """Return a sentence for each two figures of the report that cannot both be true."""
    bar = report["step_bar"]
    parts = {part["name"]: part["seconds"] for part in bar["parts"]} if bar else {}
    found = [_of_steps(report, parts), _of_functions(report), _of_the_overview(report)]
    found += [_of_finding(report, each, parts) for each in report["findings"]]
    return list(chain.from_iterable(found))


def _of_steps(report, parts):
    mark, bar, run = report["benchmark"], report["step_bar"], report["run"]
    if bar and differ(mark["median_s"], bar["median_s"]):
        yield f"a median of {mark['median_s']} and of {bar['median_s']}"
    if parts and differ(sum(parts.values()), bar["median_s"]):
        yield "the step's bar does not add up"
    for row in report["verdict"]["evidence"] if report["verdict"] else ():
        seconds = parts.get(PARTS.get(row["test"]))
        # What Python does after the step is of that part, and Python all the same.
        most = None if seconds is None else seconds + parts.get("after the step", 0.0)
        if row["test"] == "python-bound" and most and seconds <= (row["time_s"] or 0.0):
            seconds = min(row["time_s"], most)
        if bar["time_line"] == "host" and differ(row.get("time_s"), seconds):
            yield f"{row['test']}: {row['time_s']} and {seconds} in the bar"
    if run["duration_s"] and report["run_bar"]:
        whole = sum(row["wall_s"] for row in report["run_bar"])
        if differ(whole, run["duration_s"]):
            yield f"the run's bar adds up to {whole} of {run['duration_s']}"


def _of_finding(report, each, parts):
    """A finding's times beside the step and the run, and beside what it saves."""
    step_s, gain_s, slug = report["benchmark"]["median_s"], each["gain_s"], each["slug"]
    if exceeds(gain_s, step_s):
        yield f"{slug} gains more than a step"
    # Older reports have none.
    of_run_s, saved_s = each.get("run_s"), each.get("run_gain_s")
    if exceeds(saved_s, of_run_s) or exceeds(of_run_s, report["run"]["duration_s"]):
        yield f"{slug} gains or takes more of the run than there is"
    first = (each["evidence"] or [{}])[0]
    cost_s = first.get("step_share", 0.0) * (step_s or 0.0)
    is_less = exceeds(cost_s, gain_s) and format_seconds(cost_s) != format_seconds(gain_s)
    if is_less and not each["gain_reason"]:
        yield f"{slug} saves {gain_s} of {cost_s}, and nothing says why"
    if parts and report["step_bar"]["time_line"] == "host":
        yield from _beside_the_bar(each, first, parts)


def _beside_the_bar(each, first, parts):
    slug, rows = each["slug"], each["evidence"]
    inside, most_s = first.get("inside", "Python"), parts.get("optimizer")
    if slug == "python-hot-spot" and (
        exceeds(each["gain_s"], parts.get(inside)) or inside not in each["title"]
    ):
        yield f"{each['title']}: beside {inside} {parts.get(inside)}"
    if slug == "unfused-optimizer":
        whole_s, inside_s = first["optimizer_s"], first.get("operator_s")
        is_divided = inside_s is not None and not differ(whole_s, inside_s + first["python_s"])
        if exceeds(inside_s, most_s) or (exceeds(whole_s, most_s) and not is_divided):
            yield f"the optimizer takes {inside_s} of {whole_s} beside {most_s}"
    waits = [parts[name] for name in ("data wait", "making the batch") if name in parts]
    if "data wait" in parts and differ(first.get("loading_s"), waits[0]) and not rows[0]["workers"]:
        yield f"loading of {first['loading_s']} in a wait of {waits[0]}"
    for name in ("loading_s", "clean_s", "calibrated_s") if slug == "data-starved" else ():
        if waits and any(exceeds(row.get(name), waits[0]) for row in rows):
            yield f"{name} in a wait of {waits[0]}"


def _of_functions(report):
    steps = [row for row in report["tables"]["functions"] if row["phase"] == "step"]
    rows = {(row["file"], row["line"], row["name"]): row for row in steps}
    loading = {}
    for each in report["findings"]:
        for row in each["evidence"]:
            key = (row.get("file"), row.get("line"), row.get("function"))
            if key in rows and differ(row.get("calibrated_s"), rows[key]["calibrated_s"]):
                yield f"{key[2]}: {row['calibrated_s']} and {rows[key]['calibrated_s']}"
            if each["slug"] == "data-starved" and "clean_s" in row:
                loading[key] = row["clean_s"]
    hot = [each for each in report["findings"] if each["slug"] == "python-hot-spot"]
    own = {(each["file"], each["line"], each["evidence"][0]["function"]): each for each in hot}
    for key, each in own.items():
        if exceeds(each["gain_s"], each["evidence"][0]["own_high_s"]):
            yield f"{key[2]} gains more than its time"
        if exceeds(each["gain_s"], loading.get(key)):
            yield f"{key[2]} has more by itself than with what it calls"


def _of_the_overview(report):
    """What is read first: one place to begin at, and no line longer than the step."""
    median_s, verdict = report["benchmark"]["median_s"], report["verdict"]
    said = verdict["sentence"].partition(" The model's heaviest line")[0] if verdict else ""
    begin = re.match(f"Begin at ({PLACE.pattern}): ", verdict["action"]) if verdict else None
    if begin and {*PLACE.findall(said)} - {begin[1]}:
        yield f"to begin at {begin[1]}, after: {said}"
    tops = overview_page(report).tops
    times = {row.link: row.seconds for top in tops for row in top.rows}
    # A function has one time: the evidence shows none beside that of the finding.
    for each in (each for each in report["findings"] if each["slug"] == "python-hot-spot"):
        names = chain.from_iterable(each["evidence"])
        shown = [key for key in names if key.endswith("_s") and evidence_label(key)]
        if shown or differ(times.get(each["evidence"][0].get("link")), each["gain_s"]):
            yield f"{each['title']}, and another time: {times}, {shown}"
    for top in tops:
        of_step = top.share_of == "of the clean step" and median_s
        if of_step and exceeds(sum(row.seconds for row in top.rows), median_s):
            yield f"{top.title} take more than a clean step"
        is_known = median_s and (report["attribution"] or {}).get("calibrated_owned_s")
        if top.view == "python":  # it says why its layer has none
            is_known = "functions.calibrated_s" not in report["columns_reason"]
        if is_known and top.rows and top.kind.endswith("raw"):
            yield f"{top.title} are at the speed of a layer"
