"""Technique ``deterministic-algorithms``."""

from __future__ import annotations

from stabcli.techniques import Judgement, Subject, in_place, missing, technique, unknown

PRICE = "it costs 10-30 % of the tokens/s"


@technique(kinds=("pretraining", "sft"))
def deterministic_algorithms(subject: Subject) -> Judgement | None:
    """Only algorithms are used that repeat bit by bit.

    ## Why it matters
    Where the loss of a second run differs though seed and data are the same, the cause is usually
    attention or a sum whose order is not fixed. It costs 10-30 % of the tokens/s: worth it for a
    fine-tune of a few hours, while a large pretraining asks only for curves of the same shape.

    ## What to do
    torch.use_deterministic_algorithms(True), CUBLAS_WORKSPACE_CONFIG=:4096:8, a deterministic attention.

    ## How to log it
    Write deterministic: true into the configuration, or give --fact deterministic=yes.

    ## Sources
    - https://docs.pytorch.org/docs/stable/notes/randomness.html
    - the price of 10-30 %: a rule of thumb of the field; attention's backward pass is most of it
    """
    said = subject.word("deterministic")
    if subject.kind == "pretraining":
        if said in (None, "no"):
            return None
        return in_place(
            f"{subject.cite('deterministic')}; {PRICE}, and a pretraining can do without"
        )
    if said is None:
        return unknown(f"nothing says whether they are; {PRICE}")
    judge = missing if said == "no" else in_place
    return judge(f"{subject.cite('deterministic')}; {PRICE}")
