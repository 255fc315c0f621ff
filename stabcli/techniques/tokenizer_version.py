"""Technique ``tokenizer-version``."""

from __future__ import annotations

from stabcli.techniques import Judgement, Subject, in_place, technique, unknown


@technique(kinds=("sft",))
def tokenizer_version(subject: Subject) -> Judgement | None:
    """The version of the tokenizer is saved.

    ## Why it matters
    A tokenizer that was updated turns the same text into other tokens, and a special token or
    chat template that changed shows as a loss nobody can explain.

    ## What to do
    Save the tokenizer beside each checkpoint, and pin its revision when loading it.

    ## How to log it
    Write tokenizer_revision or a checksum of the tokenizer into the configuration, or give --fact tokenizer_version=SHA.

    ## Sources
    - revision pins a version: https://huggingface.co/docs/transformers/main_classes/tokenizer
    """
    if "tokenizer_version" in subject.facts:
        return in_place(subject.cite("tokenizer_version"))
    if "tokenizer" in subject.facts:
        return unknown(f"{subject.cite('tokenizer')}: its name, not its version")
    return unknown("nothing says which tokenizer was used")
