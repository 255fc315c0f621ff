"""Reader ``levanter``: the JSON that levanter's ``json_logger`` puts among the lines of its console."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stabcli.assembly import Reading
from stabcli.readers import reader
from stabcli.run import Fact
from stabcli.sources import Source
from stabcli.textlog import Grammar, Line, Says, claims, known, readings
from stabcli.textlog.grammar import Config

_NUMBER = r"-?\d[\d.]*(?:[eE][-+]?\d+)?|NaN|nan|-?Infinity|-?inf"
_FACTS: Mapping[str, str] = {
    "parameter_count": r"\d+",
    "num_devices": r"\d+",
    "train_batch_size": r"\d+",
    "train_seq_len": r"\d+",
    "seed": r"\d+",
    "learning_rate": r"[\d.e-]+",
    "weight_decay": r"[\d.e-]+",
    "max_grad_norm": r"[\d.e-]+",
    "num_train_steps": r"\d+",
}
"""Names in levanter's configuration and summary -> how their values look."""
_MEANT = {
    "train_batch_size": "batch_sequences",
    "train_seq_len": "sequence_length",
    "num_train_steps": "total_steps",
}


def _says(name: str, value: str) -> Says:
    pattern = rf'"(?:[\w/]*/)?{name}": ?"?(?P<{_MEANT.get(name, name)}>{value})"?(?=[,}}])'
    return Says(mark=f'{name}"', pattern=rf'json_logger".*?{pattern}')


def _facts(config: Config) -> dict[str, Fact]:
    if "device" not in config:
        return {}
    value, line = config["device"][0]
    return {"gpu": Fact(value=value, source=f"line {line}, device_kind")}


GRAMMAR = known(
    Grammar(
        name="levanter",
        lines=(
            Line(
                mark='json_logger"',
                pattern=r'\{"tracker": ?"json_logger", ?"event": ?"log",(?:[^{}]*,)? ?'
                r'"step": ?(?P<step>\d+), ?"metrics": ?(?=\{)',
                pair=rf'"(?P<name>[^"]+)": ?"?(?P<value>{_NUMBER})"?(?=[,}}])',
                without=frozenset({"global_step"}),
            ),
        ),
        says=(
            *(_says(name, value) for name, value in _FACTS.items()),
            Says(mark='device_kind"', pattern=r'device_kind": ?"(?P<device>[^"]+)"'),
        ),
        names={"mfu": "throughput/mfu", "tokens_per_second": "throughput/tokens_per_second"},
        scales={"mfu": 0.01},
        facts=_facts,
    )
)


def matches(source: Source) -> bool:
    """Claim a text log with events of the ``json_logger``; files of nothing else are ``jsonl``'s."""
    return claims(source, GRAMMAR)


@reader(matches, writes="levanter: console with json_logger")
def levanter(source: Source) -> Iterator[Reading]:
    """Read logged events. Throughput is that of all devices, MFU a percentage."""
    yield from readings(source, GRAMMAR)
