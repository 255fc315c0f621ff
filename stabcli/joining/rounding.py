"""Rounding: how a log rounded its numbers, and whether two values may be one before that."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]

_DECIMALS = 7
_DIGITS = 8
_FLOAT32 = 1e-6
"""Relative distance within which two values are one that was kept as float32."""
_PLACE = 1.01
"""Places by which a printed value may be off: half of one where rounded, one where cut off."""


@dataclass(frozen=True, slots=True)
class Rounding:
    """How the values of a column were rounded."""

    decimals: int | None
    """Places behind the point; None where there are more than a log prints."""
    digits: int | None
    """Digits in all; None likewise."""

    @property
    def fineness(self) -> int:
        """How many digits survived, to compare columns by."""
        finest = _DECIMALS + _DIGITS
        return min(
            finest if self.decimals is None else self.decimals,
            finest if self.digits is None else self.digits,
        )

    def tolerance(self, values: Values) -> Values:
        """Return how far each value may be from what was rounded."""
        size = np.abs(values)
        allowed = _FLOAT32 * size
        if self.decimals is not None:
            allowed = np.maximum(allowed, _PLACE * 10.0**-self.decimals)
        if self.digits is not None:
            allowed = np.maximum(allowed, _PLACE * _place(size, self.digits))
        return allowed


def rounding(values: Values) -> Rounding:
    """Find out how values were rounded; of too few, it is only a guess."""
    finite = values[np.isfinite(values) & (values != 0)]
    if not len(finite):
        return Rounding(decimals=None, digits=None)
    decimals = next((d for d in range(_DECIMALS) if _is_rounded(finite, 10.0**-d)), None)
    size = np.abs(finite)
    digits = next((d for d in range(1, _DIGITS) if _is_rounded(finite, _place(size, d))), None)
    return Rounding(decimals=decimals, digits=digits)


def same(a: Values, b: Values, one: Rounding, other: Rounding) -> npt.NDArray[np.bool_]:
    """Say which pairs may be one value, rounded as each column is; NaN equals NaN."""
    with np.errstate(invalid="ignore"):
        close = np.abs(a - b) <= np.maximum(one.tolerance(a), other.tolerance(b))
    alike: npt.NDArray[np.bool_] = close | (a == b) | (np.isnan(a) & np.isnan(b))
    return alike


def _place(size: Values, digits: int) -> Values:
    """Return what the last of so many digits is worth."""
    with np.errstate(divide="ignore"):
        exponent = np.floor(np.log10(size))
    return np.where(
        size > 0, 10.0 ** (np.where(np.isfinite(exponent), exponent, 0) - digits + 1), 0
    )


def _is_rounded(values: Values, place: float | Values) -> bool:
    scaled = values / place
    return bool((np.abs(scaled - np.round(scaled)) <= 1e-6 + 1e-9 * np.abs(scaled)).all())
