"""JSON objects, one a line or all in one array, as a table: what readers of JSON logs share.

* reading  the table of a file
* sniffing what a file holds, from its first bytes
* chunks   pieces of a file that end at line ends
* quick    many lines at once through Polars, only where the result can be proved whole
* lines    one line at a time, with Python's own parser: the arbiter
* columns  the pieces of each column put together
* spilling columns too long for memory, in a mapped file
"""

from stabcli.ndjson.columns import settled
from stabcli.ndjson.reading import Table, read_array, read_lines
from stabcli.ndjson.sniffing import Sniffed, sniff

__all__ = ["Sniffed", "Table", "read_array", "read_lines", "settled", "sniff"]
