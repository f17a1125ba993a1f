"""Series of step times whose median, spread and dependence of neighbours are known."""

import numpy as np


def autocorrelated(seed, n, phi, count=1):
    """Normal series of a first-order process, one per row, each value of variance 1."""
    noise = np.random.default_rng(seed).standard_normal((count, n))
    noise[:, 1:] *= np.sqrt(1 - phi**2)
    for i in range(1, n):
        noise[:, i] += phi * noise[:, i - 1]
    return noise


def step_times(seed, n, phi=0.3, *, median=0.01, scatter=0.05):
    """Step times that lean to the right, as real ones do, about a known median."""
    return (median * np.exp(scatter * autocorrelated(seed, n, phi)[0])).tolist()
