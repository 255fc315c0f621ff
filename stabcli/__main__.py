"""``python -m stabcli``, and the ``stabcli`` command: the one place where the program ends."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line and end with its exit status."""
    arguments = sys.argv[1:]
    if arguments == ["--version"]:  # before anything slow is imported
        from stabcli import __version__

        print(f"stabcli {__version__}")
        sys.exit(0)
    from stabcli.process import lighten

    lighten(matrices=arguments[:1] == ["replay-batch"])
    from stabcli.cli import run

    sys.exit(run(arguments))


if __name__ == "__main__":
    main()
