"""Technique ``deduplication``."""

from __future__ import annotations

from stabcli.techniques import Judgement, Subject, in_place, missing, technique, unknown


@technique(kinds=("pretraining", "sft"), guards=("overfitting",), effect="might have softened")
def deduplication(subject: Subject) -> Judgement | None:
    """Training data holds nothing twice.

    ## Why it matters
    What is repeated is learnt by heart: held-out loss suffers, and a bad document that stands
    in the data ten times spikes ten times.

    ## What to do
    Deduplicate exactly, then by near-duplicates; and remove what the held-out set holds.

    ## How to log it
    Write deduplicated: minhash, or how else it was done, into the configuration, or give --fact deduplicated=minhash.

    ## Sources
    - Lee et al. 2021, Deduplicating training data: arXiv:2107.06499
    - Hernandez et al. 2022, on repeated data: arXiv:2205.10487
    """
    said = subject.word("deduplicated")
    if said is None:
        return unknown("no log shows what its data holds twice, and nothing else says it")
    judge = missing if said in ("no", "none") else in_place
    return judge(subject.cite("deduplicated"))
