"""Tests of replay: all of them need what the extra ``replay`` installs, and skip without it."""

import pytest

for _name in ("torch", "safetensors", "transformers"):
    pytest.importorskip(_name, reason=f"replay needs {_name}: pip install 'stabcli[replay]'")
