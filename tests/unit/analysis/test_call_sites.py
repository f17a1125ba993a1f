"""Where the steps' time goes in the user's code, by the stacks of the watch's samples."""

import pytest

from profstack.analysis.call_sites import call_sites
from profstack.analysis.watch import step_parts
from tests.support.recordings import STEP_S, Sampled

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


def sampled(folder, stacks, inside=(FIT,), **more):
    made = Sampled(folder)
    begins = made.even(sum(count for count, *_ in stacks))
    at = iter(begins)
    for count, weight, *stack in stacks:
        for _ in range(count):
            made.sample(next(at) + 0.01, MODULE, *inside, *stack, weight=weight, **more)
    return made.recorded()


def test_each_sample_is_of_the_outermost_function_beside_the_work(tmp_path):
    whole = sum(count * weight for count, weight, *_ in STACKS)
    found = call_sites(sampled(tmp_path / "rec", STACKS))
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


def test_without_a_training_the_calls_of_the_model_are_the_work(tmp_path):
    stacks = ((20, 1, CALL, FORWARD), (29, 1, AVERAGE), (2, 1, CALL, LINEAR))
    answer = (SCRIPT, 80, "answer")
    found = call_sites(sampled(tmp_path / "rec", stacks, inside=(answer,)))
    assert [site.name for site in found] == ["average", "forward"]
    assert [site.share for site in found] == pytest.approx([29 / 51, 20 / 51])
    # A line that has a library make the steps is no place of its own.
    fit = sampled(tmp_path / "fit", ((40, 1, BACK), (20, 1)))
    assert call_sites(fit) == []
    # Too few samples, and what evaluates, say nothing.
    assert call_sites(sampled(tmp_path / "few", stacks[:2], inside=(answer,))) == []
    assert call_sites(sampled(tmp_path / "eval", stacks, evaluating=1)) == []


def test_a_rare_pause_is_no_part_of_the_usual_step(tmp_path):
    def sites(walls, name):
        made = Sampled(tmp_path / name)
        for begin, wall in zip(made.begins("watch", walls), walls, strict=True):
            pause = [FIT, (SCRIPT, 60, "save")] if wall > STEP_S else [FIT, AVERAGE]
            made.sample(begin + 0.004, MODULE, FIT, BACK)
            made.sample(begin + 0.006, MODULE, *pause, weight=1.0 if wall == STEP_S else 200.0)
        recorded = made.recorded()
        return {site.name: site.share for site in call_sites(recorded)}, step_parts(recorded)

    usual, parts = sites([STEP_S] * 60, "usual")
    assert usual == pytest.approx({"average": 0.5})
    rare = [STEP_S] * 30 + [40 * STEP_S] + [STEP_S] * 29
    assert sites(rare, "rare") == (usual, parts)
    # What comes at every tenth step is of the steps.
    often = ([STEP_S] * 9 + [40 * STEP_S]) * 6
    assert sites(often, "often")[0]["save"] == pytest.approx(1200 / (1200 + 54 + 60))
