"""What the weights tell without a pass: NaN, absurd magnitudes, odd embedding rows."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from stabcli.replay.forward import embedding_of, whole

ODD_ROW = 8.0
"""Robust deviations of an embedding row's norm that make it a lead. Only a lead: a row 200 times
too long is harmless behind a pre-norm, and fatal in a tied GPT-2 (measured on both)."""
ABSURD_RATIO = 1e3
"""Largest over usual weight of a matrix from which one weight is odd. The usual one is the median
magnitude, over 0.67 to be a standard deviation: the root of the mean square would be made by the odd
weight itself. A normal matrix of a million weights reaches 5, trained ones some tens; a flipped bit
of the exponent gives 1e30."""
SAMPLED = 1 << 20
"""Weights of a matrix that the median is taken of."""
ZERO_NORM = 1e-6
"""Norm below which an embedding row counts as zero (OpenRLHF's check of unused rows)."""
NEVER_UPDATED = 1e-3
"""Second moment of a row relative to the median row's below which it never was a target or an
input: found with AUC 0.95-0.98 on models with known never-trained IDs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightReport:
    """What the weights show."""

    nonfinite: tuple[str, ...] = ()
    """Parameters with NaN or infinities."""
    nonfinite_rows: tuple[int, ...] = ()
    """Embedding rows with NaN or infinities."""
    absurd: tuple[str, ...] = ()
    """Parameters with one weight far beyond all others."""
    odd_rows: dict[int, str] = field(default_factory=dict)
    """What is odd about embedding rows, by ID: the IDs that were asked for only."""


def weigh(model: nn.Module, ids: list[int], second_moment_VD: Tensor | None = None) -> WeightReport:
    """Look at every parameter, and at the embedding rows of these IDs.

    Args:
        model: The model.
        ids: IDs of the batch, inside the table.
        second_moment_VD: Adam's ``exp_avg_sq`` of the embedding, where there is one.
    """
    table = whole(embedding_of(model).weight.detach())
    nonfinite, absurd = [], []
    for name, parameter in model.named_parameters():
        weight = whole(parameter.detach())
        largest = float(weight.abs().max()) if weight.numel() else 0.0
        if largest - largest != 0:  # NaN or infinite: abs().max() gives either when there is one
            nonfinite.append(name)
        elif weight.ndim > 1:
            sample = weight.flatten()[:: max(1, weight.numel() // SAMPLED)]
            usual = float(sample.abs().float().median()) / 0.67
            if usual > 0 and largest > ABSURD_RATIO * usual:
                absurd.append(name)
    norms_V = torch.linalg.vector_norm(table, dim=1, dtype=torch.float32).cpu()
    bad_rows = (~torch.isfinite(norms_V)).nonzero()[:, 0].tolist()
    return WeightReport(
        nonfinite=tuple(nonfinite),
        nonfinite_rows=tuple(bad_rows),
        absurd=tuple(absurd),
        odd_rows=_odd_rows(norms_V, ids, second_moment_VD),
    )


def _odd_rows(norms_V: Tensor, ids: list[int], second_moment_VD: Tensor | None) -> dict[int, str]:
    finite = norms_V[torch.isfinite(norms_V)]
    if not len(finite):
        return dict.fromkeys(ids, "non-finite row")
    middle = float(finite.median())
    spread = 1.4826 * float((finite - middle).abs().median()) + 1e-9
    moments_V = None
    if second_moment_VD is not None and second_moment_VD.shape[0] == len(norms_V):
        moments_V = second_moment_VD.float().mean(1).cpu()
    odd = {}
    for i in ids:
        norm = float(norms_V[i])
        if norm - norm != 0:
            odd[i] = "non-finite row"
        elif norm < ZERO_NORM:
            odd[i] = "zero row"
        elif norm > middle + ODD_ROW * spread:
            odd[i] = f"row norm {norm:.3g}, usually {middle:.3g}"
        elif moments_V is not None and moments_V[i] < NEVER_UPDATED * moments_V.median():
            odd[i] = "never trained (Adam's second moment)"
    return odd
