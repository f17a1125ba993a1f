"""Marks of a slice and the scopes of backward functions, against a plain search event by event."""

from collections import Counter

from profstack.readers.torchtrace import scopes as module
from profstack.readers.torchtrace.attribution import in_steps
from profstack.readers.torchtrace.events import clip_to_steps, read_host
from profstack.storage.vocabulary import ACCUMULATION, COMPILED, OUTSIDE, UNATTRIBUTED
from tests.support import naive_attribution as naive
from tests.support.random_events import MAIN, structure

WORDS = ["NO_MARK", "FORWARD", "RECOMPUTED", "EVALUATED", "BACKWARD", "OPTIMIZED", "REGION"]
KINDS = dict(zip((None, *naive.KINDS), (getattr(module, word) for word in WORDS), strict=True))


def test_marks_and_scopes_of_any_nesting_are_those_of_a_plain_search():
    met = Counter()
    for seed in range(80):
        made = structure(seed)
        host = read_host(made.events)
        clip_to_steps(host, made.boundaries, made.left_out)
        found = module.find_scopes(host, in_steps(host, made.boundaries, made.left_out))
        wanted = naive.Naive(host, made.boundaries, made.left_out, MAIN)
        assert found.kind.tolist() == [KINDS[wanted.kind[at]] for at in wanted.all], seed
        for column, by_event in ((found.nearest, wanted.nearest), (found.above, wanted.above)):
            places = [0 if by_event[at] is None else by_event[at] + 1 for at in wanted.all]
            assert column.tolist() == places, seed
        assert found.in_backward.tolist() == wanted.backward, seed
        for mark in wanted.marks:
            scope, maker = wanted.scope[mark], wanted.made_by.get(mark)
            in_part = isinstance(scope, int)
            met[wanted.kind[mark], scope if in_part else "call"] += 1
            places = (scope if in_part else int(scope) + 1, -1 if maker is None else maker)
            assert (found.scope[mark], found.made_by[mark]) == places, (seed, mark)
        marks = wanted.nearest.values()
        owners = [0 if mark is None else wanted.owner(wanted.scope[mark]) for mark in marks]
        assert found.owner().tolist() == owners, seed
    # All kinds of functions were among them.
    parts = ("call", ACCUMULATION, COMPILED, OUTSIDE, UNATTRIBUTED)
    assert all(met[naive.FUNCTION, each] > 3 for each in parts)
