"""Pairs: names with numbers as loops that nobody knows print them, and the loss among them."""

from __future__ import annotations

NUMBER = r"[-+]?(?:\d+(?:,\d+)*\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|(?i:nan|inf(?:inity)?))"
"""A number, or what stands for none."""
PAIR = (
    r"(?<![\w./])(?P<name>(?![\w./]{0,99}\.(?:py|cc?|cpp|cu)\b)"
    r"[A-Za-z][\w./]{0,99}(?:-[\w./]{1,99}){0,9}(?: (?i:loss|norm|rate|scale))?)"
    r"(?:[\"']\s*:\s*|(?:[ \t]?\([A-Za-z/]+\))?\s*[:=]\s*|(?i:(?<=loss)|(?<=norm)|(?<=lr)|(?<=rate))[ \t]+)"
    rf"(?:\[(?={NUMBER}\]))?(?P<value>{NUMBER}\s?(?:%(?!\|)|ms\b|s\b)?)(?![\w/.%])"
)
"""A name and its number: ``loss: 2.3``, ``lr=1e-4``, ``grad norm 0.5``, ``'train/loss': 2.3``,
``tgs (tokens/gpu/second)=4252``, ``global_norm: [1.2]``; no name is that of a source file."""
HAS_LOSS = rf".*(?i:\bloss|_loss|/loss)\W{{1,4}}(?:{NUMBER})"
"""A line that names a loss."""
