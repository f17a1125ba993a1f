"""How the script had set its work up: the notes of the engine, and the machine's own modes."""

from __future__ import annotations

from typing import Any

from profstack.merge.recorded import Recorded
from profstack.privacy import home_relative

_NONE = (
    "no layer was told of calls in the first steps: it takes the memory, the flops or the nvtx "
    "layer"
)


def setup(recorded: Recorded) -> dict[str, Any]:
    """The report's `setup`: of the plan that the report is of, with a reason where there is none.

    `tf32_products` and `tf32_convolutions` say whether numbers stored as float32 are multiplied
    as TF32, None without a CUDA device.
    """
    noted = recorded.facts.get(f"setup_{recorded.plan}")
    environment = recorded.facts.get("environment", {})
    modes = {name: environment.get(name) for name in ("tf32_products", "tf32_convolutions")}
    if noted is None:
        return {"steps": 0, "reason": _NONE, **modes}
    if noted["failed"] is not None:
        return {"steps": noted["steps"], "reason": noted["failed"], **modes}
    # Files stand as in all tables.
    calls = {**noted["calls"], "place": _place(noted["calls"]["place"])}
    optimizers = [{**each, "place": _place(each["place"])} for each in noted["optimizers"]]
    known = {key: value for key, value in noted.items() if key != "failed"}
    return {**known, "calls": calls, "optimizers": optimizers, "reason": None, **modes}


def _place(place: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if place is None else {**place, "file": home_relative(place["file"])}
