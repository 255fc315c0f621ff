"""About: what a file says besides history: run, configuration, machine, exit code.

Source: wandb/proto/wandb_internal.proto: ``RunRecord``, ``ConfigRecord``, ``RunExitRecord``,
``EnvironmentRecord``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stabcli.run import Fact
from stabcli.wandbfile.fields import BYTES, VARINT, MalformedError, walk

CONFIG, RUN, EXIT, ENVIRONMENT = 5, 17, 18, 26
"""Kinds of records that are read."""

_SIGN = 1 << 31


@dataclass(slots=True)
class About:
    """What is known of a run."""

    run_id: str = ""
    """As W&B names the run, for ever."""
    project: str = ""
    name: str = ""
    """As people name it."""
    started: float | None = None
    """Seconds since 1970."""
    config: dict[str, Any] = field(default_factory=dict)
    """What the training script gave as its configuration."""
    exit_code: int | None = None
    """None where the file tells of no end."""
    gpu: str = ""
    """Model of the GPUs of one host."""
    gpu_count: int = 0
    """GPUs of one host; 0 where unknown."""
    nodes: int = 0
    """Hosts that Slurm gave; 0 where unknown."""

    def add(self, kind: int, message: bytes) -> None:
        """Take in a record.

        Raises:
            MalformedError: It is none.
        """
        if kind == CONFIG:
            self._configure(message)
        elif kind == RUN:
            self._run(message)
        elif kind == ENVIRONMENT:
            self._environment(message)
        elif kind == EXIT:
            code = _numbers(message).get(1, 0) & (2 * _SIGN - 1)
            self.exit_code = code - 2 * _SIGN if code >= _SIGN else code

    def _run(self, message: bytes) -> None:
        for number, wire, at, end, _ in walk(message, 0, len(message)):
            if wire != BYTES:
                continue
            inner = message[at:end]
            if number == 1:
                self.run_id = _text(inner)
            elif number == 3:
                self.project = _text(inner)
            elif number == 4:
                self._configure(inner)
            elif number == 8:
                self.name = _text(inner)
            elif number == 17 and self.started is None:
                self.started = _time(inner)

    def _configure(self, message: bytes) -> None:
        for number, wire, at, end, _ in walk(message, 0, len(message)):
            if wire != BYTES or number not in (1, 2):
                continue
            path, value = _config_item(message[at:end])
            if path and path[0] != "_wandb":
                _put(self.config, path, value, remove=number == 2)

    def _environment(self, message: bytes) -> None:
        for number, wire, at, end, value in walk(message, 0, len(message)):
            inner = message[at:end]
            if wire == VARINT and number == 19:
                self.gpu_count = value
            elif wire != BYTES:
                continue
            elif number == 18:
                self.gpu = _text(inner)
            elif number == 24 and not self.gpu:
                self.gpu = _first_text(inner)
            elif number == 27:
                self._slurm(inner)

    def _slurm(self, entry: bytes) -> None:
        texts = {n: _text(entry[a:e]) for n, w, a, e, _ in walk(entry, 0, len(entry)) if w == BYTES}
        if texts.get(1) in ("nnodes", "job_num_nodes") and texts.get(2, "").isdecimal():
            self.nodes = int(texts[2][:9])


def _config_item(item: bytes) -> tuple[list[str], Any]:
    key = ""
    path: list[str] = []
    value: Any = None
    for number, wire, at, end, _ in walk(item, 0, len(item)):
        if wire != BYTES:
            continue
        if number == 1:
            key = _text(item[at:end])
        elif number == 2:
            path.append(_text(item[at:end]))
        elif number == 16:
            try:
                value = json.loads(item[at:end])
            except (ValueError, RecursionError):
                value = None
    return path or [key], value


def _put(config: dict[str, Any], path: list[str], value: Any, *, remove: bool) -> None:
    for name in path[:-1]:
        inner = config.setdefault(name, {})
        if not isinstance(inner, dict):
            inner = config[name] = {}
        config = inner
    if remove:
        config.pop(path[-1], None)
    else:
        config[path[-1]] = value


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")


def _first_text(message: bytes) -> str:
    """Return the text in field 1."""
    for number, wire, at, end, _ in walk(message, 0, len(message)):
        if (number, wire) == (1, BYTES):
            return _text(message[at:end])
    return ""


def _numbers(message: bytes) -> dict[int, int]:
    return {n: value for n, wire, _, _, value in walk(message, 0, len(message)) if wire == VARINT}


def _time(message: bytes) -> float | None:
    """Return seconds since 1970 from a ``google.protobuf.Timestamp``."""
    found = _numbers(message)
    return found[1] + found.get(2, 0) / 1e9 if found.get(1, 0) < 1 << 40 and 1 in found else None


__all__ = ["CONFIG", "ENVIRONMENT", "EXIT", "RUN", "About", "MalformedError"]


def host_facts(
    metadata: Mapping[str, Any], source: str, *, gpu: str = "", gpu_count: int = 0, nodes: int = 0
) -> dict[str, Fact]:
    """Return what is known of the GPUs: those of one host, for the others are not told of.

    Args:
        metadata: What ``wandb-metadata.json`` says.
        source: Where it is said, for the report.
        gpu: Model of the GPUs, where known better.
        gpu_count: GPUs of the host, likewise.
        nodes: Hosts, likewise.
    """
    found: dict[str, Fact] = {}
    model: Any = gpu or metadata.get("gpu")
    listed = metadata.get("gpu_nvidia")
    if not model and isinstance(listed, list) and listed and isinstance(listed[0], dict):
        model = listed[0].get("name")
    if isinstance(model, str) and model:
        found["gpu"] = Fact(value=model, source=f"{source}, gpu")
    count: Any = gpu_count or metadata.get("gpu_count")
    slurm = metadata.get("slurm")
    hosts: Any = nodes
    if not hosts and isinstance(slurm, dict):
        hosts = slurm.get("nnodes") or slurm.get("job_num_nodes")
    hosts = int(hosts) if str(hosts).isdecimal() and len(str(hosts)) < 8 else 0
    if isinstance(count, int) and not isinstance(count, bool) and 0 < count < 1 << 20:
        which = f"{hosts} hosts of Slurm" if hosts else "one host"
        found["gpus"] = Fact(
            value=count * max(1, hosts),
            source=f"{source}, gpu_count: a lower bound, the GPUs that {which} can see",
        )
    return found
