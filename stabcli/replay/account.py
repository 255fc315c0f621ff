"""The account of a replay: plain values, so that reports need neither torch nor this package."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from stabcli import __version__
from stabcli.replay.checkpoint import Loaded
from stabcli.replay.choosing import Chosen, Request
from stabcli.replay.controls import Band, Calibration
from stabcli.replay.memory import Plan
from stabcli.replay.pieces import Recorded
from stabcli.replay.texts import Texts
from stabcli.replay.verdict import Culprit, Verdict
from stabcli.replay.window import Window

if TYPE_CHECKING:
    from stabcli.replay.session import Level

FORMAT = 1
"""Raised when a field changes its meaning; new fields may come at any time."""
PICTURES = 8
"""Sequences that are told token by token: those with most culprits."""
DIGITS = 5


def case(
    recorded: Recorded, verdict: Verdict, texts: Texts | None, moved: list[tuple[str, float]]
) -> dict[str, Any]:
    """Tell of one batch.

    Args:
        recorded: The batch and what was logged of it.
        verdict: What was found.
        texts: Turns IDs into text; None = no text.
        moved: Parameters that would jump, and how far.
    """
    batch = recorded.batch
    named = _places(verdict.culprits)
    ids = {c.token_id for c in (*verdict.culprits, *verdict.listed) if c.token_id is not None}
    held = Counter(int(batch.tokens_BT[b, t]) for b, t in named if t < batch.length)
    known: dict[str, str] = {}
    if texts is not None:
        for i in sorted({*ids, *(i for i, _ in held.most_common(32))}):
            if (text := texts(i)) is not None:
                known[str(i)] = text
    samples = batch.sample_ids
    rows = sorted({b for b, _ in named})
    return {
        **verdict.as_json(),
        "source": batch.source,
        "sequences": batch.sequences,
        "length": batch.length,
        "logged": {"loss": _number(recorded.loss), "grad_norm": _number(recorded.grad_norm)},
        "notes": list(recorded.notes),
        "texts": known,
        "samples": {str(b): samples[b] for b in rows} if samples else {},
        "pictures": _pictures(recorded, verdict, texts),
        "jumps": [{"parameter": n, "times_usual": _number(x)} for n, x in moved],
        "skip": {
            "step": batch.step,
            "sequences": rows,
            "sample_ids": [samples[b] for b in rows] if samples else [],
            "token_ids": sorted(verdict.token_ids),
        },
    }


def _places(culprits: tuple[Culprit, ...]) -> list[tuple[int, int]]:
    return sorted({place for culprit in culprits for place in culprit.positions})


def _pictures(recorded: Recorded, verdict: Verdict, texts: Texts | None) -> list[dict[str, Any]]:
    """The sequences with most culprits, token by token."""
    tokens, batch = verdict.tokens, recorded.batch
    if tokens is None:
        return []
    named = _places(verdict.culprits) or _places(verdict.listed)
    pictures = []
    for row, _ in Counter(b for b, _ in named).most_common(PICTURES):
        marked = [t for b, t in named if b == row and t < batch.length]
        share_T = None if tokens.share_BT is None else tokens.share_BT[row].tolist()
        pictures.append(
            {
                "sequence": row,
                "sample_id": batch.sample_ids[row] if batch.sample_ids else None,
                "marked": marked,
                "tokens": batch.tokens_BT[row].tolist(),
                "loss": [_number(v) for v in tokens.loss_BT[row].tolist()],
                "share": None if share_T is None else [_number(v) for v in share_T],
                "texts": None
                if texts is None
                else [texts(i) for i in batch.tokens_BT[row].tolist()],
            }
        )
    return pictures


def document(
    *, request: Request, loaded: Loaded, plan: Plan, chosen: Chosen,
    calibration: Calibration | None, level: Level | None, correlation: float | None,
    cases: list[dict[str, Any]], window: Window, no_adam: str,
    vocabulary: int,
) -> dict[str, Any]:  # fmt: skip
    """Tell of the whole replay."""
    stored = loaded.stored
    flagged = [c["step"] for c in cases if c["step"] is not None and c["skip"]["sequences"]]
    return {
        "format": FORMAT,
        "tool": {"name": "stabcli", "version": __version__},
        "checkpoint": {
            "path": str(request.checkpoint),
            "format": stored.format,
            "step": stored.step,
            "parameters": plan.parameters,
            "vocabulary": vocabulary,
            "stored_as": str(stored.dtype).removeprefix("torch."),
            "loaded_as": request.dtype,
            "device": plan.device,
            "older": None if request.older is None else str(request.older),
            "nonfinite": list(loaded.nonfinite),
            "notes": list(loaded.notes),
        },
        "controls": {
            "batches": len(chosen.controls),
            "steps": [r.batch.step for r in chosen.controls if r.batch.step is not None],
            "loss": _band(calibration.loss if calibration else None),
            "grad_norm": _band(calibration.grad_norm if calibration else None),
        },
        "load": {
            "proven": None if level is None else level.proven,
            "loss": None if level is None else _number(level.replayed),
            "logged": None if level is None else _number(level.logged),
        },
        "mapping": {
            "recorded": chosen.recorded,
            "correlation": _number(correlation),
            "steps": len(chosen.neighbours) or None,
        },
        "optimizer": {"used": not no_adam, "why_not": no_adam or None},
        "notes": list(chosen.notes),
        "verdicts": cases,
        "steps": [
            {
                "step": s.step,
                "loss": _number(s.loss),
                "grad_norm": _number(s.grad_norm),
                "damage": _number(s.damage),
                "lasting_damage": _number(s.lasting),
                "out_of_band": i in window.odd,
                "guilty": i == window.guilty,
            }
            for i, s in enumerate(window.steps)
        ],
        "skip": {
            "steps": flagged,
            "sample_ids": sorted({s for c in cases for s in c["skip"]["sample_ids"]}),
            "token_ids": sorted({i for c in cases for i in c["skip"]["token_ids"]}),
            "recipe": chosen.log.skip(stored.step, flagged),
        },
        "seed": 0,
    }


def _band(band: Band | None) -> dict[str, Any] | None:
    if band is None:
        return None
    return {"middle": _number(band.middle), "limit": _number(band.limit)}


def _number(value: float | None) -> float | str | None:
    """A number to a few digits, with NaN and infinities in words as everywhere in the JSON."""
    if value is None:
        return None
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return float(f"{value:.{DIGITS}g}")
