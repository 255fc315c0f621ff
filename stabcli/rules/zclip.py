"""Rule ``zclip``."""

from __future__ import annotations

from collections.abc import Iterator

from stabcli.published import clipped_by_z
from stabcli.rules import Finding, published, rule
from stabcli.run import Run


@rule(needs=("grad_norm",), presets=("zclip",), since="0.1.0", judges=False)
def zclip(run: Run, *, z: float = 2.5, keep: float = 0.97, warm: int = 25) -> Iterator[Finding]:
    """ZClip would have clipped: gradient norm 2.5 deviations above its moving average.

    ## What it finds
    The share of rows whose gradient norm is more than ``z`` deviations above an exponential mean
    that is fed the clipped norms, after ``warm`` rows: one notice for the run.

    ## Why it matters
    It is a clip and no alarm: 2.3 % of healthy rows are clipped.

    ## What to do
    Nothing because of it alone; compare the share with that of other runs.

    ## When it errs
    One NaN makes mean and deviation NaN for good, and it never clips again.

    ## Settings
    z: Deviations above the mean.
    keep: Share of the mean that stays from row to row.
    warm: Rows that give the first mean.

    ## Example
    $ stabcli scan sample_logs/jsonl/bad_batch.jsonl --rule zclip --format brief
    notice    zclip                attempt 0  step 84..1000  grad_norm 24.29

    ## Sources
    - bluorion-com/ZClip, zclip/zclip.py at 584ce4f.
    """
    yield from published(
        run,
        ("grad_norm",),
        lambda x: clipped_by_z(x, keep=keep, warm=warm, z=z),
        least=warm + 1,
        statistic=True,
    )
