"""Text logs: what readers of them share, so that a reader is a grammar and little else.

* grammar  how the lines of one framework look
* sniffing whose log a file is: the grammar that fits it best
* reading  a file becomes rows, chunk by chunk
* lines    one line at a time: the arbiter
* layout   lines that look alike, many at once, only where the result can be proved the same
* pairs    names with numbers in lines of loops that nobody knows
* hygiene  prefixes, colours and what else stands around a line
* numbers  numbers in all their spellings
* rows     rows put together into columns
* sisters  lines that look like others, but of which less could be read
* records  steps that take several lines, put together into one row
* passes   loops that count anew in each pass over the data, iterations or samples
* grids    tables among other text
* runs     from the rows of a log to its runs: ranks, restarts, several trainings in one file
"""

from stabcli.textlog.grammar import Grammar, Line, Says, known
from stabcli.textlog.reading import Log, read
from stabcli.textlog.rows import BAR, KIND, OF
from stabcli.textlog.runs import readings
from stabcli.textlog.sniffing import claims

__all__ = [
    "BAR",
    "KIND",
    "OF",
    "Grammar",
    "Line",
    "Log",
    "Says",
    "claims",
    "known",
    "read",
    "readings",
]
