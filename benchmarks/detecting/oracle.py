"""What could be found at all: the power of the best test that knows everything but the fault's place.

It knows the level without noise, the law of the noise, and the shape and size of the fault, and it
may be wrong ``RATE`` times a row. No detector that knows less finds more, so a recall below the
aim is the noise's doing where the bound is below it too, and the detector's where it is not.
"""

import math

import numpy as np

from stabcli.levels import centred

RATE = 0.5e-6
"""False findings a clean row that the test is allowed."""


def power(log, fault, row, last):
    """Return the probability that the best test finds a fault planted in a run.

    Args:
        log: The run; the law of its noise is in ``facts`` where it was made, else fitted.
        fault: What was planted.
        row: First row of the fault.
        last: Last row of it that may be looked at.

    Returns:
        A probability, or None where the law or the fault's shape is not known.

    Normal noise: Neyman and Pearson (1933) for a known signal s in noise of covariance C: the
    deflection is s' C^-1 s. Student's t: one row by its exact tail, more rows by the information
    that each holds on a shift, (df + 1) / (df + 3) over the squared scale.
    """
    if fault.metric != "loss" or fault.kind not in SHAPED:
        return None
    if "law" not in log.facts:
        log.facts["law"] = fitted(log)
    law = log.facts["law"]
    rows = log.at("loss")
    row, stop = np.searchsorted(rows, (row, last + 1)).tolist()
    shape = np.ones(len(rows))
    fault.plant(shape, row, None)
    signal = np.log(shape[row:stop])
    sigma, df, rho = law
    where = float(np.max(np.abs(signal)))
    if not where:
        return 0.0
    if df is not None:
        scale = sigma / math.sqrt(df / (df - 2))
        if np.count_nonzero(signal) == 1:
            return t_above(t_limit(RATE, df) - where / scale, df)
        deflection = math.sqrt((df + 1) / (df + 3) * float(signal @ signal)) / scale
    else:
        # An AR(1) process whitened: its first row alone, then each less rho times the one before.
        before = np.concatenate([[0.0], signal, [0.0]])
        white = (before[1:] - rho * before[:-1])[: len(signal) + (stop < len(rows))]
        deflection = float(np.linalg.norm(white)) / (sigma * math.sqrt(1 - rho * rho))
    return above(limit(RATE) - deflection)


def fitted(log):
    """Return the law of a real log's noise: deviation, degrees of freedom, first autocorrelation.

    Student's t by maximum likelihood over the log losses about the median of the 33 around each,
    the first twentieth left out; normal where the degrees come out at 50 or more.
    """
    log_loss = np.log(np.maximum(log.run.array("loss")[log.at("loss")], 1e-12))
    rest = (log_loss - centred(log_loss, 33))[len(log_loss) // 20 :]
    fits = []
    for df in (2.5, 3, 4, 5, 6, 8, 12, 20, 50):
        scale = max(1e-12, np.median(rest * rest))
        for _ in range(30):
            scale = np.mean((df + 1) / (df + rest * rest / scale) * rest * rest)
        constant = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - math.log(df * scale) / 2
        likelihood = constant - np.mean((df + 1) / 2 * np.log1p(rest * rest / scale / df))
        fits.append((likelihood, df, math.sqrt(scale)))
    _, df, scale = max(fits)
    near = np.clip(rest, -3 * scale, 3 * scale)
    rho = max(0.0, float(np.corrcoef(near[1:], near[:-1])[0, 1]))
    sigma = scale * math.sqrt(df / (df - 2))
    return (sigma, df, 0.0) if df < 50 else (sigma, None, rho)


SHAPED = (
    "single row",
    "spike of 10 rows",
    "pulse of 50 rows",
    "decaying spike",
    "level shift",
    "slow drift",
)


def above(z):
    """Probability that a standard normal value lies above z."""
    return 0.5 * math.erfc(z / math.sqrt(2))


def limit(p):
    """The value above which a standard normal value lies with probability p."""
    return _solve(above, p)


def t_above(z, df):
    """Probability that a value of Student's t lies above z."""
    # x = sqrt(df) tan(a) turns the density into a power of the cosine, on a finite range.
    grid = np.linspace(math.atan(z / math.sqrt(df)), math.pi / 2, 4001)
    whole = math.sqrt(math.pi) * math.exp(math.lgamma(df / 2) - math.lgamma((df + 1) / 2))
    return float(np.trapezoid(np.cos(grid) ** (df - 1), grid)) / whole


def t_limit(p, df):
    """The value above which a value of Student's t lies with probability p."""
    return _solve(lambda z: t_above(z, df), p)


def _solve(tail, p):
    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle) > p else (low, middle)
    return high
