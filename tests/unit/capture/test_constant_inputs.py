"""Modules that get the same in each step: which do, and which only seem to."""

import torch
from torch import nn

from profstack.capture.constant_inputs import ConstantInputs
from profstack.capture.repeated_calls import RepeatedCalls

TEXT = torch.arange(8)
TAGGER, TEXTS, PICTURES, LAYER = (nn.Linear(1, 1) for _ in range(4))


def noted():
    return ConstantInputs(torch, RepeatedCalls(torch).told)


def picture(number):
    return torch.full((8,), float(number))


def call(notes, name, module, *args, inside=(), may_change=False):
    """A call of a module, with those inside it."""
    notes.call_begins(name, module, (args, {}), may_change=may_change)
    for words in inside:
        call(notes, *words)
    notes.call_ends()


def tagging(notes, numbers, *, text=lambda number: TEXT, **more):
    """Steps of a model that gets pictures of these numbers, and a text with each."""
    for number in numbers:
        given = text(number)
        inside = [("Tagger.texts", TEXTS, given, 1, None), ("Tagger.pictures", PICTURES)]
        inside[1] = (*inside[1], picture(number))
        call(notes, "Tagger", TAGGER, picture(number), given, inside=inside, **more)
        notes.step_ended()


def of_facts(notes):
    return [(row["module"], row["calls"], row["same"]) for row in notes.facts()]


def test_a_part_on_the_same_text_where_pictures_change():
    notes = noted()
    tagging(notes, range(6))
    assert of_facts(notes) == [("Tagger.texts", 5, 5)]
    # A copy of the text is the same; one that changed once is no constant.
    notes = noted()
    tagging(notes, range(6), text=lambda number: TEXT + (number == 4))
    assert of_facts(notes) == []


def test_a_loop_over_one_input_measures_and_keeps_nothing():
    notes = noted()
    tagging(notes, [7] * 6)
    assert of_facts(notes) == []
    # Pictures that come again after others change from step to step.
    notes = noted()
    tagging(notes, [1, 2, 1, 2, 3])
    assert [name for name, _, _ in of_facts(notes)] == ["Tagger.texts"]


def test_outermost_parts_and_those_inside_what_is_constant():
    notes = noted()
    for number in range(4):
        texts = ("Texts.layer", LAYER, TEXT)
        call(notes, "Texts", TEXTS, TEXT, inside=[texts])
        call(notes, "Pictures", PICTURES, picture(number))
        notes.step_ended()
    assert of_facts(notes) == [("Texts", 3, 3)]


def test_weights_that_may_change_give_another_result():
    notes = noted()
    for number in range(5):
        inside = [("Net.frozen", TEXTS, TEXT)]
        call(notes, "Net", TAGGER, picture(number), inside=inside, may_change=number > 0)
        call(notes, "Trained", LAYER, TEXT, may_change=number > 0)
        notes.step_ended()
    assert of_facts(notes) == [("Net.frozen", 4, 4)]


def test_what_is_inside_of_what_cannot_be_told_is_not_told():
    # A batch that is too large to look at, or in a dictionary, may be the same in each step.
    for given in (torch.ones(1).expand(5_000_000), {"x": TEXT}):
        notes = noted()
        for number in range(6):
            call(notes, "Net", TAGGER, given, inside=[("Net.part", TEXTS, TEXT)])
            # Nor where another model gets something new.
            call(notes, "Pictures", PICTURES, picture(number))
            notes.step_ended()
        assert of_facts(notes) == []
    # A loss has targets of its own, and no weights.
    notes = noted()
    for number in range(6):
        call(notes, "Net", TAGGER, TEXT, inside=[("Net.part", TEXTS, TEXT)])
        call(notes, "Loss", LAYER, picture(number), may_change=None)
        notes.step_ended()
    assert of_facts(notes) == []


def test_what_is_inside_of_a_constant_part_is_never_told():
    notes = noted()
    for number in range(20):
        inside = ("Net.texts", TEXTS, TEXT), [("Net.texts.layer", LAYER, TEXT)]
        notes.call_begins("Net", TAGGER, ((picture(number),), {}), may_change=False)
        call(notes, *inside[0], inside=inside[1])
        notes.call_ends()
        notes.step_ended()
    assert of_facts(notes) == [("Net.texts", 12, 12)]


def test_calls_of_one_step_and_numbers_alone_are_no_constant():
    notes = noted()
    for number in range(5):
        # A loop inside a step, on what the step alone has; and a size.
        inside = [("Net.cell", TEXTS, picture(number))] * 3 + [("Net.size", PICTURES, 3)]
        call(notes, "Net", TAGGER, picture(number), inside=inside)
        notes.step_ended()
    assert of_facts(notes) == []


def test_deep_modules_and_calls_that_a_profiler_watches_are_left_alone():
    notes, modules = noted(), [nn.Linear(1, 1) for _ in range(5)]
    for number in range(4):
        # Each in the one before: the last one is too deep.
        notes.call_begins("m0", modules[0], ((picture(number),), {}), may_change=False)
        for at in (1, 2, 3):
            given = ((picture(number + 10 * at),), {})
            notes.call_begins(f"m{at}", modules[at], given, may_change=False)
        notes.call_begins("m4", modules[4], ((TEXT,), {}), may_change=False)
        for _ in range(5):
            notes.call_ends()
        notes.step_ended()
    assert of_facts(notes) == []
    notes = noted()
    with torch.profiler.profile():
        tagging(notes, range(2))
    assert not notes._modules
    tagging(notes, range(3))
    assert of_facts(notes) == [("Tagger.texts", 2, 2)]
