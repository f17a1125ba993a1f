"""Figures of a report that are of one quantity, or a part and its whole: those that disagree."""

from itertools import chain

# What rounding may leave.
ALIKE = 1e-6
PARTS = {"python-bound": "Python", "io-bound": "I/O"}


def differ(one, other):
    return one is not None and other is not None and abs(one - other) > ALIKE * max(one, other)


def exceeds(part, whole):
    return part is not None and whole is not None and part > (1 + ALIKE) * whole


def contradictions(report):
    """Return a sentence for each two figures of the report that cannot both be true."""
    return list(chain(_of_steps(report), _of_findings(report), _of_functions(report)))


def _of_steps(report):
    mark, bar, run = report["benchmark"], report["step_bar"], report["run"]
    if bar and differ(mark["median_s"], bar["median_s"]):
        yield f"a median of {mark['median_s']} and of {bar['median_s']}"
    parts = {part["name"]: part["seconds"] for part in bar["parts"]} if bar else {}
    if parts and differ(sum(parts.values()), bar["median_s"]):
        yield "the step's bar does not add up"
    for row in report["verdict"]["evidence"] if report["verdict"] else ():
        seconds = parts.get(PARTS.get(row["test"]))
        # What Python does after the step is of that part, and Python all the same.
        most = None if seconds is None else seconds + parts.get("after the step", 0.0)
        if row["test"] == "python-bound" and most and seconds <= (row["time_s"] or 0.0) <= most:
            continue
        if bar["time_line"] == "host" and differ(row.get("time_s"), seconds):
            yield f"{row['test']}: {row['time_s']} and {seconds} in the bar"
    if run["duration_s"] and report["run_bar"]:
        whole = sum(row["wall_s"] for row in report["run_bar"])
        if differ(whole, run["duration_s"]):
            yield f"the run's bar adds up to {whole} of {run['duration_s']}"


def _of_findings(report):
    step_s, run = report["benchmark"]["median_s"], report["run"]
    for each in report["findings"]:
        if exceeds(each["gain_s"], step_s):
            yield f"{each['slug']} gains more than a step"
        # Older reports have none.
        of_run_s, saved_s = each.get("run_s"), each.get("run_gain_s")
        if exceeds(saved_s, of_run_s) or exceeds(of_run_s, run["duration_s"]):
            yield f"{each['slug']} gains or takes more of the run than there is"


def _of_functions(report):
    rows = {
        (row["file"], row["line"], row["name"]): row
        for row in report["tables"]["functions"]
        if row["phase"] == "step"
    }
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
