"""Where the steps' time goes in the user's code, by the stacks of the watch's samples."""

import pytest

from profstack.analysis.call_sites import call_sites
from tests.support.recordings import Sampled

SCRIPT, TORCH = "/home/somebody/work/train.py", "/opt/lib/python3.11/site-packages/torch"
MODULE, FIT = (SCRIPT, 90, "<module>"), (SCRIPT, 70, "fit")
CALL = (f"{TORCH}/nn/modules/module.py", 1, "_call_impl")
BACK = (f"{TORCH}/autograd/graph.py", 1, "_engine_run_backward")
UPDATE = (f"{TORCH}/optim/adam.py", 1, "step")
LOADER = (f"{TORCH}/utils/data/dataloader.py", 1, "__next__")
FORWARD, LINEAR = (SCRIPT, 12, "forward"), (f"{TORCH}/nn/modules/linear.py", 3, "forward")
LOSS, AVERAGE = (SCRIPT, 30, "loss_of"), (SCRIPT, 41, "average")
ITEM, COLLATE = (SCRIPT, 50, "__getitem__"), (SCRIPT, 55, "collate")
# Stacks within a step, each with its samples and their weight.
STACKS = (
    (16, 1, CALL, FORWARD), (4, 2, CALL, FORWARD, CALL, LINEAR), (10, 1, BACK), (6, 1, UPDATE),
    (3, 1, LOSS, CALL, FORWARD), (7, 3, LOSS), (9, 2, AVERAGE, (SCRIPT, 45, "mix")),
    (2, 2, AVERAGE), (5, 1, LOADER, ITEM), (4, 1, LOADER, COLLATE), (1, 5, LOADER),
    (3, 1, (SCRIPT, 71, "<listcomp>")))  # fmt: skip


def test_each_sample_is_of_the_outermost_function_beside_the_work(tmp_path):
    whole = sum(count * weight for count, weight, *_ in STACKS)
    made = Sampled(tmp_path / "rec")
    at = iter(made.even(sum(count for count, *_ in STACKS)))
    for count, weight, *stack in STACKS:
        for _ in range(count):
            made.sample(next(at) + 0.01, MODULE, FIT, *stack, weight=weight)
    found = call_sites(made.recorded())
    shares = {(site.name, site.part): site.share for site in found}
    # `loss_of` calls the model, which is the model's; `fit` holds all the work.
    assert shares == pytest.approx({
        ("forward", "forward"): (16 + 8 + 3) / whole, ("loss_of", "other"): 21 / whole,
        ("average", "other"): 22 / whole, ("__getitem__", "data wait"): 5 / whole,
        ("collate", "data wait"): 4 / whole, (None, "other"): 3 / whole})  # fmt: skip
    assert [site.share for site in found] == sorted(shares.values(), reverse=True)
    first = next(site for site in found if site.name == "average")
    assert (first.file, first.line, first.hottest) == (SCRIPT, 1, (SCRIPT, 45, "mix"))
    assert first.in_hottest == pytest.approx(18 / whole)
    assert next(site for site in found if site.name is None).line == 71


def test_what_a_closure_calls_first_is_the_loop(tmp_path):
    step = (SCRIPT, 80, "training_step")
    inside = (UPDATE, (TORCH.replace("torch", "lightning") + "/x.py", 1, "_wrap_closure"))
    stacks = (
        (20, *inside, step, CALL, FORWARD), (20, *inside, BACK), (10, UPDATE),
        (30, *inside, step, (SCRIPT, 95, "update_confusion")), (5, *inside, step),
    )  # fmt: skip
    made = Sampled(tmp_path / "rec")
    at = iter(made.even(85))
    for count, *stack in stacks:
        for _ in range(count):
            made.sample(next(at) + 0.01, MODULE, FIT, *stack, weight=1)
    found = {(site.name, site.part): site.share for site in call_sites(made.recorded())}
    expected = {("forward", "forward"): 20, ("update_confusion", "other"): 30, (None, "other"): 5}
    assert found == pytest.approx({site: count / 85 for site, count in expected.items()})
