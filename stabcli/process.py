"""Process: what the start and the end of one cost, made less for a command that is soon done.

It is for processes that are stabcli's own. A program that imports stabcli keeps its settings.
"""

from __future__ import annotations

import atexit
import gc
import os

_OBJECTS = 100_000
"""Objects made until Python looks for cycles among them; importing the libraries makes about half
as many, and all of those stay."""


def lighten(*, matrices: bool = False) -> None:
    """Spare this process what it does not need; to be called before NumPy is imported.

    Python neither looks through all objects while they are imported nor takes them apart one by
    one at the end, and the library NumPy multiplies matrices with starts no thread for each core,
    which spins for a while even if it is never used: together 0.16 of 0.39 CPU seconds on two cores.

    Args:
        matrices: Whether matrices are multiplied, by libraries that look at the same setting.
    """
    gc.set_threshold(_OBJECTS, *gc.get_threshold()[1:])
    atexit.register(gc.freeze)
    if not matrices:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
