"""A Gaussian process on the errors of a prior: fitted to some hundred values in milliseconds.

y = prior + a + b * prior + f(x) + noise, f of a Matern 5/2 kernel with one length scale, all hyperparameters
from a small grid by marginal likelihood (Rasmussen and Williams 2006, sections 2.7 and 5.4).

Legend: n measured candidates, N others, P features.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular

from transfer.arrays import Floats

#: Tried: length scales in units of the usual distance of two candidates, standard deviations of f and noise.
_SCALES = (0.4, 0.8, 1.6)
_SPREADS = (0.15, 0.35, 0.7)
_NOISES = (0.03, 0.1)
#: With fewer measured ones these are taken: likelihoods of a handful say nothing.
_LEAST = 8
_PRIOR = (0.8, 0.5, 0.05)
#: Standard deviations of a, and of b.
_LEVEL, _SLOPE = 2.0, 0.8
#: A feature that varies less is the same for all.
_CONSTANT = 1e-6
#: Standardised features are cut here: rare values must not be worlds apart from all others.
_CUT = 4.0


@dataclass(frozen=True, slots=True, eq=False)
class Process:
    """A fitted process."""

    #: (P,) scaling of the features; 0 leaves one out.
    center: Floats
    factor: Floats
    #: (n, P') scaled features, and (n,) prior of the measured ones.
    x: Floats
    prior: Floats
    #: Length scale, standard deviations of f and of the noise.
    scale: float
    spread: float
    noise: float
    #: Mean of y - prior.
    level: float
    #: (n, n) lower Cholesky factor, and (n,) weights.
    lower: Floats
    weights: Floats

    def mean(self, features: NDArray[np.floating], prior: Floats) -> Floats:
        """(N,) expected y of candidates with (N, P) features and (N,) priors."""
        return prior + self.level + self._cross(self._scaled(features), prior) @ self.weights

    def covariance(self, features: NDArray[np.floating], prior: Floats) -> Floats:
        """(N, N) of y without noise, given what was measured."""
        x = self._scaled(features)
        half = solve_triangular(self.lower, self._cross(x, prior).T, lower=True, check_finite=False)
        covariance: Floats = _kernel(x, x, prior, prior, self.scale, self.spread) - half.T @ half
        return covariance

    def left_out_means(self, values: Floats) -> Floats:
        """(n,) expected y of measured candidates, each without its own of the (n,) values of the fit.

        In closed form, with the hyperparameters of all (Rasmussen and Williams 2006, section 5.4.2).
        """
        half = solve_triangular(self.lower, np.eye(len(values)), lower=True, check_finite=False)
        means: Floats = values - self.weights / np.square(half).sum(axis=0)
        return means

    def _cross(self, x: Floats, prior: Floats) -> Floats:
        return _kernel(x, self.x, prior, self.prior, self.scale, self.spread)

    def _scaled(self, features: NDArray[np.floating]) -> Floats:
        return _scale(features, self.center, self.factor)


def fit_process(
    features: NDArray[np.floating], prior: Floats, values: Floats, others: NDArray[np.floating]
) -> Process:
    """Fit a process.

    Args:
        features: (n, P) of measured candidates; n may be 0.
        prior: (n,) what was expected of them, in the unit of the values.
        values: (n,) what was measured.
        others: (N, P) of candidates that may be asked about: with the measured ones they give the scaling.
    """
    sample = np.concatenate([features.reshape(-1, others.shape[1]), others]).astype(np.float64)
    center, deviation = sample.mean(axis=0), sample.std(axis=0)
    varies = deviation > _CONSTANT * np.maximum(1.0, np.abs(center))
    # Distances are then of the order of 1, however many features there are.
    factor = np.where(varies, 1 / np.where(varies, deviation, 1), 0) / math.sqrt(2 * max(1, varies.sum()))
    x = _scale(features.reshape(-1, others.shape[1]), center, factor)
    rest = values - prior
    level = float(rest.mean()) if len(rest) else 0.0
    grid = [_PRIOR] if len(values) < _LEAST else itertools.product(_SCALES, _SPREADS, _NOISES)
    squares = _squares(x, x)
    linear = _LEVEL**2 + _SLOPE**2 * np.outer(prior, prior)
    best: tuple[float, float, float, float, Floats, Floats] | None = None
    shapes: dict[float, Floats] = {}
    for scale, spread, noise in grid:
        if scale not in shapes:
            shapes[scale] = _matern(squares, scale)
        kernel = linear + spread**2 * shapes[scale] + noise**2 * np.eye(len(x))
        lower = cholesky(kernel, lower=True, check_finite=False) if len(x) else np.zeros((0, 0))
        weights = cho_solve((lower, True), rest - level, check_finite=False) if len(x) else np.zeros(0)
        likelihood = -0.5 * float((rest - level) @ weights) - float(np.log(np.diag(lower)).sum())
        if best is None or likelihood > best[0]:
            best = likelihood, scale, spread, noise, lower, weights
    assert best is not None
    _, scale, spread, noise, lower, weights = best
    return Process(center, factor, x, prior, scale, spread, noise, level, lower, weights)


def _scale(features: NDArray[np.floating], center: Floats, factor: Floats) -> Floats:
    used = factor > 0
    width = math.sqrt(2 * max(1, int(used.sum())))
    x = (np.asarray(features)[:, used].astype(np.float64) - center[used]) * factor[used]
    return np.clip(x, -_CUT / width, _CUT / width)


def _kernel(x: Floats, y: Floats, prior_x: Floats, prior_y: Floats, scale: float, spread: float) -> Floats:
    linear = _LEVEL**2 + _SLOPE**2 * np.outer(prior_x, prior_y)
    return linear + spread**2 * _matern(_squares(x, y), scale)


def _squares(x: Floats, y: Floats) -> Floats:
    """(N, n) squared distances."""
    products = x @ y.T
    squares: Floats = np.maximum(
        np.square(x).sum(axis=1)[:, None] + np.square(y).sum(axis=1) - 2 * products, 0.0
    )
    return squares


def _matern(squares: Floats, scale: float) -> Floats:
    r = np.sqrt(5 * squares) / scale
    kernel: Floats = (1 + r + r * r / 3) * np.exp(-r)
    return kernel
