"""Reports of real commands are tested with the fixture of the command line."""

from tests.cli.conftest import stabcli

__all__ = ["stabcli"]
