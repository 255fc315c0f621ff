"""Pairs: names with numbers as loops that nobody knows print them, and the loss among them."""

from __future__ import annotations

NUMBER = (
    r"[-+]?(?:1\.#(?i:qnan|ind|inf)|\d+(?:,\d+)*\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?"
    r"|(?i:nan|inf(?:inity)?)(?:\.0?(?!\d))?)"
)
"""A number, or what stands for none: ``1.#QNAN`` of Visual C, ``nan.0`` of Lightning's bars."""
PAIR = (
    r"(?<![\w./])(?P<name>(?![\w./]{0,99}\.(?:py|cc?|cpp|cu)\b)"
    r"[A-Za-z][\w./]{0,99}(?:-[\w./]{1,99}){0,9}(?: (?i:loss|norm|rate|scale|time))?)"
    r"(?:[\"']\s*:\s*|(?:[ \t]?\([A-Za-z/]+\))?\s*[:=]\s*"
    r"|(?i:(?<=loss)|(?<=norm)|(?<=lr)|(?<=rate)|(?<=time)|(?<=data))[ \t]+)"
    rf"(?:\[(?={NUMBER}\]))?(?P<value>{NUMBER}\s?(?:%(?!\|)|ms\b|s\b)?)(?![\w/.%#])"
)
"""A name and its number: ``loss: 2.3``, ``lr=1e-4``, ``grad norm 0.5``, ``'train/loss': 2.3``,
``tgs (tokens/gpu/second)=4252``, ``global_norm: [1.2]``; no name is that of a source file."""
HAS_LOSS = rf".*(?i:\bloss|_loss|/loss)(?:_step)?\W{{1,4}}(?:{NUMBER})"
"""A line that names a loss."""
MARKS = ("loss", "Loss", "LOSS")
"""One of which stands in each line that names a loss."""
