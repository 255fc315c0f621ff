"""Technique ``data-order``."""

from __future__ import annotations

from stabcli.techniques import Judgement, Subject, in_place, technique, unknown


@technique(kinds=("sft",))
def data_order(subject: Subject) -> Judgement | None:
    """The order of the data is recorded.

    ## Why it matters
    Only then can the batch of a flagged step be found and run again; and two runs of the same
    data in another order end at different losses.

    ## What to do
    Record the seed of the shuffle and the checksum of the data, or the indices of every batch.

    ## How to log it
    Write data_seed, or shuffle: false, into the configuration, or give --fact data_order=FILE.

    ## Sources
    - Dodge et al. 2020, on seeds and data orders in fine-tuning: arXiv:2002.06305
    """
    told = [f for f in ("data_order", "data_seed") if f in subject.facts]
    if told:
        return in_place(subject.cite(*told))
    if subject.word("shuffle") == "no":
        return in_place(f"{subject.cite('shuffle')}: in the order of the files")
    if "seed" in subject.facts:
        return unknown(f"{subject.cite('seed')}; whether it shuffles the data too is not told")
    return unknown("nothing says in which order data was read")
