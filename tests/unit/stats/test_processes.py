"""The interval of a difference between a few processes: by tables, by hand and by simulation."""

import numpy as np
import pytest

from profstack.stats import processes as module
from profstack.stats.processes import Prior, means, student_quantile, weights

_NOTHING = Prior(0.0, 0.0)


# Student's quantiles as tables of statistics have them.
@pytest.mark.parametrize(("confidence", "freedom", "expected"), [
    (0.95, 1, 12.7062), (0.95, 2, 4.30265), (0.99, 2, 9.92484), (0.95, 3, 3.18245),
    (0.999, 5, 6.86883), (0.95, 10, 2.22814), (0.95, 100, 1.98397), (0.95, 1e6, 1.95996),
])  # fmt: skip
def test_quantiles_of_student(confidence, freedom, expected):
    assert student_quantile(confidence, freedom) == pytest.approx(expected, rel=1e-5)


def test_weights_leave_out_a_fifth_at_each_end_from_six_on():
    assert weights([3.0, 1.0, 9.0, 2.0, 5.0]).tolist() == [0.2] * 5
    assert weights([3.0, 1.0, 9.0, 2.0, 5.0, 4.0]).tolist() == [0.25, 0, 0, 0.25, 0.25, 0.25]


def _reach(before, after, prior=_NOTHING):
    both = [means(np.array([each]), prior) for each in (before, after)]
    return (both[1].values - both[0].values)[0], module.difference_reach(*both, 0.95)[0]


def test_welch_by_hand():
    # Variances 1 and 4 of three processes each: freedom (5/3)^2 / ((1/3)^2/2 + (4/3)^2/2) = 2.94,
    # of which 2.75 is used.
    difference, reach = _reach([1.0, 2.0, 3.0], [10.0, 12.0, 14.0])
    assert difference == 10.0
    assert reach == pytest.approx(student_quantile(0.95, 2.75) * (5 / 3) ** 0.5)


def test_a_trimmed_mean_has_the_variance_of_the_winsorized_values():
    values = [5.0, 1.0, 2.0, 4.0, 3.0, 90.0]
    # 2 2 3 4 5 5: of mean 3.5 and sum of squares 9.5; five thirds of it for one process of four.
    found = means(np.array([values]), _NOTHING)
    assert (found.values[0], found.freedom) == (3.5, 3)
    assert found.variances[0] == pytest.approx(9.5 / 3 / 4)


def test_a_single_process_a_side_has_the_spread_that_is_known_beforehand():
    difference, reach = _reach([1.0], [1.5], Prior(0.2, 3.0))
    # Both sides have three degrees of freedom of their own: six together.
    assert difference == 0.5
    assert reach == pytest.approx(student_quantile(0.95, 6.0) * 0.2 * 2**0.5)


@pytest.mark.parametrize("kind", ["normal", "heavy tails", "disturbed"])
@pytest.mark.parametrize("count", [2, 5, 8])
def test_equal_sides_differ_in_at_most_a_twentieth(kind, count):
    rng = np.random.default_rng(count)

    def side():
        if kind == "heavy tails":
            return rng.standard_t(3, count) * 0.01
        slow = (rng.random(count) < 0.1) * rng.uniform(0.05, 0.4, count)
        return rng.normal(0, 0.015, count) + (slow if kind == "disturbed" else 0.0)

    told = sum(abs(difference) > reach for difference, reach in (
        _reach(side().tolist(), side().tolist()) for _ in range(400)))  # fmt: skip
    # Of 400 that are told in 5 % of cases, 33 or more are one in 500.
    assert told <= 32


def test_processes_without_a_figure_count_in_no_mean_of_it():
    nan = float("nan")
    found = means(np.array([[nan, 1.0, 3.0], [nan, nan, nan], [1.0, 2.0, 6.0]]), _NOTHING)
    assert found.values.tolist() == [2.0, 0.0, 3.0]
    assert found.variances.tolist() == pytest.approx([1.0, 0.0, 7 / 3])
    assert found.freedom.tolist() == [1, 1, 2]


def test_parts_of_equal_wholes_differ_in_at_most_a_twentieth():
    rng, told = np.random.default_rng(4), np.zeros(3)
    for _ in range(1000):
        sides = []
        for _ in range(2):
            # One is most of the whole; the others have nothing to do with it, one has outliers.
            values = rng.normal(((1.0,), (0.1,), (0.05,)), ((0.015,), (0.003,), (0.001,)), (3, 10))
            values[2] += (rng.random(10) < 0.15) * 0.02
            kept = weights(values.sum(axis=0).tolist())
            sides.append(module.means_together(values, kept, _NOTHING))
        told += abs(sides[1].values - sides[0].values) > module.difference_reach(*sides, 0.95)
    # Of 1000 that are told in 5 % of cases, 75 or more are one in 3000.
    assert told.max() < 75


def test_the_common_spread_is_of_most_sides_and_few_have_their_own():
    random = np.random.default_rng(4)
    sides = [random.normal(0.0, 0.03, 3) for _ in range(400)]
    sides += [random.normal(0.0, 0.6, 3) for _ in range(80)]
    spreads = [(float(side.var(ddof=1)), 2) for side in sides]
    prior = module.common(spreads)
    assert prior.deviation == pytest.approx(0.03 * 1.15, rel=0.1)
    assert prior.freedom == 960.0
    own = [module.has_own_spread(*each, module.Prior(0.03, 6.0)) for each in spreads]
    # Once in twenty by chance; of three numbers some lie close together all the same.
    assert 0.03 < np.mean(own[:400]) < 0.07
    assert np.mean(own[400:]) > 0.95
    assert module.common([]) == module.common([(0.5, 0)]) == module.Prior(0.0, 0.0)
    assert not module.has_own_spread(9.0, 0, prior)
    many = [(float(random.normal(0.0, 0.03, 9).var(ddof=1)), 8) for _ in range(200)]
    assert module.common(many).deviation == pytest.approx(0.03, rel=0.1)
