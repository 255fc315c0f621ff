"""Looking: what all default rules add to reading the log they look at."""

from functools import partial

from reading.clock import COMMAND, Case, Peer
from reading.objects import dirty

READ = """
import sys
from stabcli.readers import read_runs
[run], _ = read_runs([sys.argv[1]])
print(run.frame.height)
"""
LOOK = (
    READ
    + """
from stabcli.rules import run_rules, select
found, skipped = run_rules(run, select(("default",), ()))
print(len(found))
"""
)


def cases(scale):
    """Return the case: reading and all rules may take twice as long as reading alone."""
    number = int(1e6 * scale)
    alone = Peer(name="reading alone", code=COMMAND + READ, most=2.0, own=True, same=False)
    name = f"all default rules over JSON lines, {number:,} x 12"
    return [Case(name=name, make=partial(dirty, number), code=LOOK, peers=[alone])]
