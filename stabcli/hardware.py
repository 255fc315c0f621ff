"""Hardware: what a GPU can do at most, and how many FLOPs a model needs for one token.

A peak without a source is not in the table: a wrong peak makes every MFU wrong, an absent one
only asks for ``--peak-tflops``. All peaks are dense bf16 (no sparsity) for one device as a
training framework counts devices, unless the entry says otherwise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, get_args

Convention = Literal["titan", "megatron", "hf", "all-params"]
CONVENTIONS: tuple[Convention, ...] = get_args(Convention)
"""How to count the FLOPs of one token; see ``flops_per_token``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The peak of one device."""

    name: str
    """Words that its name contains, in lower case: ``h100 pcie``."""
    tflops: float
    """Dense bf16 TFLOP/s, fp16 where the device has no bf16."""
    source: str
    """Where the figure stands."""
    note: str = ""
    """A catch that a reader of the figure should know."""


_COMPOSER = "composer callbacks/speed_monitor.py@003ec03"
_TITAN = "torchtitan tools/utils.py@b5bcd76"
_VERL = "verl utils/flops_counter.py@02cf355"
_LEVANTER = "levanter utils/flop_utils.py@03c45fe"
_NEURON = "AWS Neuron documentation, trainium architecture pages"


def _peak(name: str, tflops: float, source: str, note: str = "") -> Peak:
    return Peak(name=name, tflops=tflops, source=source, note=note)


PEAKS: Final[tuple[Peak, ...]] = (
    _peak("v100", 125, _COMPOSER, "fp16: the V100 has no bf16"),
    _peak("v100 pcie", 112, _COMPOSER, "fp16: the V100 has no bf16"),
    _peak("v100s", 130, _COMPOSER, "fp16: the V100 has no bf16"),
    _peak("t4", 65, _COMPOSER, "fp16: the T4 has no bf16"),
    _peak("a10", 125, _COMPOSER),
    _peak("a100", 312, _TITAN),
    _peak("a800", 312, _VERL),
    _peak("a40", 149.7, _VERL),
    _peak("a6000", 154.85, _TITAN),
    _peak("l4", 121, _VERL),
    _peak("l20", 119.5, _VERL),
    _peak("l40", 181.05, _VERL),
    _peak("l40s", 362.05, _TITAN),
    _peak("h100", 989.5, _TITAN, "the SXM board"),
    _peak("h100 pcie", 756.5, _TITAN),
    _peak("h100 nvl", 835, _TITAN),
    _peak("h800", 989.5, _VERL),
    _peak("h20", 148, _TITAN),
    _peak("h200", 989.5, _TITAN),
    _peak("gh200", 989.5, _TITAN, "the same GPU as the H200"),
    _peak("b200", 2250, _TITAN),
    _peak("b300", 2250, _TITAN),
    _peak("gb200", 2500, _TITAN),
    _peak("gb300", 2500, _TITAN),
    _peak("4090", 165.2, "Ada GPU architecture white paper", "accumulating in fp32"),
    _peak("mi250x", 191.5, _TITAN, "one of the two GCDs, each a device of its own"),
    _peak("mi300x", 1307.4, "AMD Instinct MI300X data sheet"),
    _peak("mi325x", 1307.4, "AMD Instinct MI325X data sheet"),
    _peak("mi355x", 2500, _TITAN),
    _peak("tpu v3", 61.5, _LEVANTER, "a core: v3 shows two devices a chip"),
    _peak("tpu v4", 275, _LEVANTER, "a chip"),
    _peak("tpu v5e", 197, _LEVANTER, "a chip"),
    _peak("tpu v5 lite", 197, _LEVANTER, "a chip"),
    _peak("tpu v5p", 459, _LEVANTER, "a chip"),
    _peak("tpu v6e", 918, _LEVANTER, "a chip"),
    _peak("tpu v6 lite", 918, _LEVANTER, "a chip"),
    _peak("trainium", 190, _NEURON, "a chip of two cores"),
    _peak("trainium2", 667, _NEURON, "a chip of eight cores"),
    _peak("910b", 354, _VERL),
)
"""Peaks by name. Figures that sources disagree on (A10G, RTX 5090) are left out on purpose."""

_LESS = {"mig", "laptop", "mobile", "max"}
"""Words of names whose device is less than the one named."""


def peak(gpu: str) -> Peak | None:
    """Return the peak of a GPU by the name a driver or a person gives it; None where unknown.

    The longest name that fits wins, so that ``GB200`` is not a ``B200`` nor ``H200`` an ``H20``.
    """
    spelt = re.sub(r"(sxm|pcie|nvl|hbm)", r" \1", gpu.lower())
    words = set(re.findall(r"[a-z0-9]+", spelt))
    if words & _LESS:
        return None
    fitting = [p for p in PEAKS if words >= set(p.name.split())]
    return max(fitting, key=lambda p: len(p.name), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flops:
    """FLOPs of one token, forward and backward, without recomputation."""

    value: float
    """FLOPs per token in the convention asked for, as far as the model's shape is known."""
    formula: str
    """What was computed, for the report: ``6N + 12LdT``."""
    complete: bool
    """Whether every term of the convention was known; where not, ``value`` leaves them out."""


def flops_per_token(
    convention: Convention,
    *,
    parameters: float,
    embeddings: float | None = None,
    layers: float | None = None,
    width: float | None = None,
    sequence_length: float | None = None,
) -> Flops:
    """Count the FLOPs of one token.

    Args:
        convention: ``titan`` 6(N-E) + 12LdT, ``megatron`` 6(N-E) + 6LdT (the causal half of the
            attention), ``hf`` 6(N-E) (transformers' ``total_flos``), ``all-params`` 6N + 12LdT.
        parameters: N; of a mixture of experts those used for one token.
        embeddings: E, parameters that are only looked up; None where unknown, taken as 0.
        layers: L.
        width: d, the size of a hidden state.
        sequence_length: T in tokens.

    Source: the conventions as torchtitan, Megatron-LM, transformers and nanoGPT compute them.
    """
    lookup = 0.0 if convention == "all-params" else embeddings
    value = 6 * (parameters - (lookup or 0.0))
    formula = "6(N-E)" if lookup else "6N"
    complete = lookup is not None
    factor = {"titan": 12, "megatron": 6, "hf": 0, "all-params": 12}[convention]
    if factor:
        if layers and width and sequence_length:
            value += factor * layers * width * sequence_length
            formula += f" + {factor}LdT"
        else:
            complete = False
    return Flops(value=value, formula=formula, complete=complete)
