"""What reports of a replay share: how its account is put for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stabcli.report._words import plural, short
from stabcli.units import count, number, percent, printable

Account = Mapping[str, Any]
"""Plain values, as ``--format json`` has them."""

GRAVE = ("invalid-input", "label-fault", "checkpoint-nonfinite", "state-fault", "number-format",
         "data-ids", "data-segments", "data-sequences", "batch-x-state")  # fmt: skip
"""Verdicts that name a fault; the others say that none was found, or not which."""
CULPRITS = 12
"""Culprits that are told one by one."""
LEADS = 4


def real(value: float | str | None) -> float | None:
    """Return a number of the account; NaN and infinities are written as words there."""
    return None if value is None else float(value)


def figure(value: float | str | None) -> str:
    """Print a number of the account."""
    known = real(value)
    return "unknown" if known is None else number(known)


def share(value: float | str | None) -> str:
    """Print a part of a whole."""
    known = real(value)
    return "unknown" if known is None else percent(known, 0)


def header(account: Account) -> list[tuple[str, str]]:
    """Tell what was loaded, what was compared, and whether it is proven."""
    c, k = account["checkpoint"], account["controls"]
    where = "" if c["step"] is None else f"step {c['step']:,}, "
    rows = [
        ("checkpoint", (f"{where}{c['format']}, {count(float(c['parameters']))} parameters, "
         f"{c['stored_as']} run as {c['loaded_as']} on {c['device']}")),
    ]  # fmt: skip
    if c["older"]:
        rows.append(("older", short(c["older"])))
    rows += [
        ("note" if not i else "", printable(n))
        for i, n in enumerate([*c["notes"], *account["notes"]])
    ]
    if k["loss"]:
        rows.append(
            ("controls", (f"{k['batches']} clean batches:"
             f" loss {figure(k['loss']['middle'])} (limit {figure(k['loss']['limit'])}), gradient"
             f" norm {figure(k['grad_norm']['middle'])} (limit {figure(k['grad_norm']['limit'])})"))
        )  # fmt: skip
    rows += _proofs(account)
    return rows


def _proofs(account: Account) -> list[tuple[str, str]]:
    load, mapping = account["load"], account["mapping"]
    said = []
    if load["proven"] is not None:
        word = "proven" if load["proven"] else "NOT proven"
        said.append(
            ("load", (f"{word}: clean batches lose {figure(load['loss'])} nats here,"
             f" {figure(load['logged'])} in the log"))
        )  # fmt: skip
    if mapping["correlation"] is not None:
        said.append(
            ("samples", (f"proven on {mapping['steps']} neighbouring steps: replayed and logged"
             f" losses correlate with r = {real(mapping['correlation']) or 0.0:.3f}"))
        )  # fmt: skip
    elif mapping["recorded"]:
        said.append(("samples", "recorded in training, with their step"))
    return said


def title(verdict: Account) -> str:
    """Say which batch a verdict is on."""
    step = "the batch" if verdict["step"] is None else f"step {verdict['step']:,}"
    return f"{step}: {verdict['meaning']}"


def batch(verdict: Account) -> str:
    """Say what was replayed."""
    logged = verdict["logged"]
    parts = [
        f"{verdict['sequences']} sequences of {verdict['length']:,} from {short(verdict['source'])}"
    ]
    for name, said in (("loss", "loss"), ("grad_norm", "gradient norm")):
        replayed = verdict["numbers"].get(name)
        if replayed is not None:
            was = f", {figure(logged[name])} in the log" if logged[name] is not None else ""
            parts.append(f"{said} {figure(replayed)}{was}")
    return "; ".join(parts)


def name(culprit: Account, verdict: Account) -> str:
    """Name a culprit: an ID with its text, a stretch, or a sequence."""
    if culprit["token_id"] is not None:
        text = verdict["texts"].get(str(culprit["token_id"]))
        return f"ID {culprit['token_id']}" + ("" if text is None else f" {quoted(text)}")
    row = culprit["sequence"]
    if row is None:
        return plural(len(culprit["positions"]), "position")
    sample = verdict["samples"].get(str(row))
    which = f"sequence {row}" + ("" if sample is None else f" (sample {short(sample)})")
    if culprit["first"] == 0 and (culprit["last"] or 0) >= verdict["length"] - 1:
        return which
    return f"{which}, positions {culprit['first']:,}..{culprit['last']:,}"


def told(culprit: Account) -> str:
    """Say what is known of a culprit."""
    rows = sorted({b for b, _ in culprit["positions"]})
    parts = []
    if culprit["token_id"] is not None:
        where = f"{plural(len(culprit['positions']), 'place')} in "
        if len(rows) == 1:
            where += f"sequence {rows[0]}"
        else:
            where += f"sequences {', '.join(map(str, rows[:6]))}" + (" …" if len(rows) > 6 else "")
        parts.append(where)
    if culprit["share"] is not None:
        parts.append(f"{share(culprit['share'])} of the excess")
    if culprit["gradient_share"] is not None:
        parts.append(f"{share(culprit['gradient_share'])} of the squared gradient norm")
    if culprit["loss"] is not None:
        parts.append(f"loss {figure(culprit['loss'])}")
    if culprit["role"]:
        parts.append({"target": "harms where it is predicted", "context": "harms what follows it",
                      "both": "harms where it is predicted and what follows"}[culprit["role"]])  # fmt: skip
    if culprit["note"]:
        parts.append(printable(culprit["note"]))
    return ", ".join(parts)


def quoted(text: str) -> str:
    """Print the text of a token so that blanks show and nothing acts on the terminal."""
    return '"' + printable(text.replace("\n", "\\n").replace("\t", "\\t")) + '"'


def why(verdict: Account) -> list[tuple[str, str]]:
    """Tell the evidence, what was not checked, and what to do."""
    rows = _listed("evidence", verdict["evidence"]) + _listed("unchecked", verdict["not_checked"])
    leads = verdict["listed"]
    if leads:
        shown = "; ".join(f"{name(c, verdict)}: {told(c)}" for c in leads[:LEADS])
        more = f"; {len(leads) - LEADS} more in --format json" if len(leads) > LEADS else ""
        rows.append(("also odd", shown + more))
    if verdict["jumps"]:
        said = ", ".join(
            f"{printable(j['parameter'])} {figure(j['times_usual'])} x"
            for j in verdict["jumps"][:3]
        )
        rows.append(("would jump", f"{said} the gradient that Adam is used to"))
    return rows + _listed("to do", verdict["actions"])


def _listed(label: str, lines: Iterable[str]) -> list[tuple[str, str]]:
    return [(label if not i else "", printable(line)) for i, line in enumerate(lines)]


def skip(account: Account) -> list[tuple[str, str]]:
    """Tell what to leave out, in the words of the framework where it is known."""
    s = account["skip"]
    rows = []
    if s["sample_ids"]:
        rows.append(("samples", ", ".join(short(i) for i in s["sample_ids"][:12])
                     + (f" and {len(s['sample_ids']) - 12} more" if len(s["sample_ids"]) > 12 else "")))  # fmt: skip
    if s["token_ids"]:
        rows.append(("token IDs", ", ".join(map(str, s["token_ids"][:24]))))
    if s["steps"] and not s["recipe"]:
        rows.append(("steps", ", ".join(f"{n:,}" for n in s["steps"])))
    rows += [("skip" if not i else "", printable(line)) for i, line in enumerate(s["recipe"])]
    return rows


def cost(verdict: Account) -> str:
    """Say what was spent."""
    p = verdict["passes"]
    return f"{p['forward']:g} forward and {p['backward']:g} backward passes over the batch"
