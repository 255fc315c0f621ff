"""Golden texts: what the tool printed when somebody last looked at it and was content.

``STABCLI_UPDATE=1 pytest`` writes them anew; the diff is the review.
"""

import os
from pathlib import Path

HERE = Path(__file__).parent / "golden"
UPDATE = bool(os.environ.get("STABCLI_UPDATE"))
HINT = "STABCLI_UPDATE=1 accepts what it says now"


def golden(name: str, actual: str) -> None:
    """Compare ``actual`` with ``tests/golden/<name>``."""
    path = HERE / name
    if UPDATE:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(actual, encoding="utf-8")
    assert path.is_file(), f"{path} does not exist; {HINT}"
    expected = path.read_text(encoding="utf-8")

    assert expected == actual, f"{path} differs; {HINT}"


def block(path: Path, name: str, actual: str) -> None:
    """Compare ``actual`` with what stands between ``<!-- name -->`` and ``<!-- /name -->``."""
    start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    page = path.read_text(encoding="utf-8")
    assert start in page, f"{path} has no block {name}"
    assert end in page, f"{path}: block {name} has no end"
    before, _, rest = page.partition(start)
    written, _, after = rest.partition(end)
    if UPDATE and written != actual:
        path.write_text(before + start + actual + end + after, encoding="utf-8")
        written = actual

    assert written == actual, f"{path}: block {name} is out of date; {HINT}"
