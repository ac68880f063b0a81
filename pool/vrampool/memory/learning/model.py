"""The peak of a trial, learned from its parameters.

A Gaussian process on the logarithm of what a trial held beyond its process's overhead, with a straight line in the
logarithms of the parameters as its backbone: memory is a sum of products of sizes, and the process learns the bends.
Its hyperparameters carry a prior, so that three trials do not make it certain of anything; a parameter that does not
matter gets a long length scale and is not listened to. Compared with others on recorded peaks: `docs/requests.md`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, WhiteKernel
from threadpoolctl import threadpool_limits

from vrampool.memory.learning.features import Array, Encoder
from vrampool.memory.peaks import PastPeak
from vrampool.units import MIB

#: With fewer whole peaks nothing is learned: nothing would be known of the error. From two the request came to four to
#: seven times the peak, where half as much above the largest one did (recorded peaks, `benchmarks/learning.py`).
LEAST_TRIALS = 3
#: More trials than this are not fitted: the newest are, for the time of a fit grows with the cube.
MOST_TRIALS = 240
#: Added before the logarithm is taken: that a tiny model needs 3 MiB and not 6 is of no interest, and its error as a
#: part of that would be taken for the error of large ones. With 32 MiB the recorded `cnn` reserved a tenth more.
OFFSET_BYTES = 256 * MIB
#: A trial that ran out of memory is taken to have needed so much more than what it had and what it asked for,
_SHORT_OF = math.log(1.25)
#: and one that ended well, but had to free its cache to do so, so much more than it had.
_SQUEEZED = math.log(1.05)

# Priors of the hyperparameters, as medians and spreads of their logarithms: variance of a parameter's exponent about
# the believed one, variance of the bends, length scales (in logarithms of a parameter), variance of the noise.
_SLOPES, _BENDS, _LENGTH, _NOISE = 0.25, 0.1, 3.0, 0.01
_SPREAD = {"slopes": 1.0, "bends": 1.0, "length": 1.0, "noise": 1.5}


class _Process(GaussianProcessRegressor):
    """A Gaussian process whose hyperparameters have a prior: they maximise the posterior, not the likelihood."""

    prior_means: Array
    prior_spreads: Array

    def log_marginal_likelihood(self, theta: Any = None, eval_gradient: bool = False, clone_kernel: bool = True) -> Any:
        untyped: Any = super()
        found = untyped.log_marginal_likelihood(theta, eval_gradient, clone_kernel)
        if theta is None:
            return found
        distance = (theta - self.prior_means) / self.prior_spreads
        penalty = 0.5 * float(distance @ distance)
        if not eval_gradient:
            return found - penalty
        return found[0] - penalty, found[1] - distance / self.prior_spreads


@dataclass(frozen=True)
class Fit:
    """A fitted process and its errors on trials it was not shown."""

    encoder: Encoder
    process: Any  #: a fitted `_Process`
    mean: float
    theta: Array
    rows: tuple[PastPeak, ...]  #: what it was fitted on
    inputs: Array  #: rows x columns
    targets: Array  #: logarithms; of lower bounds, what they were taken for
    whole: int  #: so many of the rows, the first ones, are whole peaks
    scores: Array  #: of whole peaks: error of the leave-one-out prediction in its own standard deviations
    errors: Array  #: the same errors as logarithms

    def middle(self, inputs: Array) -> Array:
        """Return the mean of log(peak - overhead + offset) for rows of inputs."""
        found: Array = self.process.predict(_filled(inputs)) + inputs @ self.encoder.exponents + self.mean
        return found

    def predict(self, inputs: Array) -> tuple[Array, Array]:
        """Return mean and standard deviation of log(peak - overhead + offset) for rows of inputs."""
        middle, spread = self.process.predict(_filled(inputs), return_std=True)
        return middle + inputs @ self.encoder.exponents + self.mean, spread


def fit(rows: Sequence[PastPeak], overhead_bytes: int, *, theta: Array | None = None) -> Fit | None:
    """Fit the peaks of trials.

    Args:
        rows: Trials with parameters; the oldest first. Lower bounds count for what they say.
        overhead_bytes: Taken for rows that do not say their own.
        theta: Hyperparameters of an earlier fit with the same columns, to be kept; None: they are found anew.

    Returns:
        The fit; None when there are too few whole peaks.
    """
    whole = [row for row in rows if not row.censored][-MOST_TRIALS:]
    if len(whole) < LEAST_TRIALS:
        return None
    short = [row for row in rows if row.censored and not _is_answered(row, whole)][-MOST_TRIALS // 4 :]
    with threadpool_limits(1), warnings.catch_warnings():
        # It says when a length scale reaches its bound, which is what "does not matter" looks like.
        warnings.simplefilter("ignore")
        encoder = Encoder.of([row.params or {} for row in whole])
        targets = np.array([_target(row, overhead_bytes) for row in whole])
        first = _fitted(encoder, whole, targets, len(whole), theta)
        if not short:
            return first
        bounds = np.array([_target(row, overhead_bytes) for row in short])
        middle, spread = first.predict(encoder.matrix([row.params or {} for row in short]))
        # A trial that failed at its first line held next to nothing: that it needs more than this is no news.
        news = [index for index in range(len(short)) if bounds[index] > middle[index] - spread[index]]
        if not news:
            return first
        kept = [short[index] for index in news]
        encoder = Encoder.of([row.params or {} for row in (*whole, *kept)])
        more = [
            max(bounds[i] + (_SQUEEZED if short[i].finished else _SHORT_OF), _beyond(bounds[i], middle[i], spread[i]))
            for i in news
        ]
        # The hyperparameters stay those of the whole peaks: what a lower bound was taken for is no measurement.
        return _fitted(encoder, [*whole, *kept], np.array([*targets, *more]), len(whole), first.theta)


def _fitted(encoder: Encoder, rows: Sequence[PastPeak], targets: Array, whole: int, theta: Array | None) -> Fit:
    inputs = encoder.matrix([row.params or {} for row in rows])
    left = targets - inputs @ encoder.exponents
    mean = float(left[:whole].mean())
    process = _process(inputs.shape[1], theta)
    process.fit(_filled(inputs), left - mean)
    # Leave-one-out in closed form: Rasmussen and Williams, Gaussian Processes for Machine Learning, section 5.4.2.
    inverse = np.linalg.inv(process.L_ @ process.L_.T)
    precision = np.diag(inverse)
    errors = process.alpha_.ravel() / precision
    return Fit(
        encoder,
        process,
        mean,
        process.kernel_.theta,
        tuple(rows),
        inputs,
        targets,
        whole,
        (errors * np.sqrt(precision))[:whole],
        errors[:whole],
    )


def _filled(inputs: Array) -> Array:
    """Return a column of zeros for trials without parameters: their mean and its error are learned all the same."""
    return inputs if inputs.shape[1] else np.zeros((len(inputs), 1))


def _process(columns: int, theta: Array | None) -> Any:
    columns = max(columns, 1)
    kernel = (
        ConstantKernel(_SLOPES, (1e-4, 1e2)) * DotProduct(1.0, "fixed")
        + ConstantKernel(_BENDS, (1e-4, 1e2)) * RBF(np.full(columns, _LENGTH), (0.05, 1e3))
        + WhiteKernel(_NOISE, (1e-5, 1.0))
    )
    untyped: Any = _Process
    process = untyped(kernel, alpha=1e-6)
    process.prior_means = kernel.theta.copy()
    spread = _SPREAD
    process.prior_spreads = np.array(
        [spread["slopes"], spread["bends"], *[spread["length"]] * columns, spread["noise"]]
    )
    if theta is not None and theta.shape == kernel.theta.shape:
        process.kernel = kernel.clone_with_theta(theta)
        process.optimizer = None
    return process


def _is_answered(row: PastPeak, whole: Sequence[PastPeak]) -> bool:
    """Return whether the same parameters were tried again and ended well."""
    return any(other.params == row.params for other in whole)


def _target(row: PastPeak, overhead_bytes: int) -> float:
    fixed_bytes = overhead_bytes if row.overhead_bytes is None else row.overhead_bytes
    return math.log(max(row.at_least_bytes - fixed_bytes, 0) + OFFSET_BYTES)


def _beyond(bound: float, middle: float, spread: float) -> float:
    """Return the mean of a normal variable that is known to exceed a bound."""
    distance = (bound - middle) / spread
    tail = 0.5 * math.erfc(distance / math.sqrt(2))
    if tail < 1e-9:
        return bound
    return middle + spread * math.exp(-0.5 * distance * distance) / math.sqrt(2 * math.pi) / tail
