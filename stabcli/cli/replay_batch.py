"""Command ``replay-batch``."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stabcli.cli._arguments import choose
from stabcli.cli._output import colour, new_file, plain_ascii, put, width
from stabcli.errors import ReplayError, SettingError, StabError

if TYPE_CHECKING:
    from stabcli.replay.choosing import Request

FORMATS = ("console", "json", "html", "markdown")
"""How a verdict can be written."""
DTYPES = ("float32", "bfloat16", "float16")
LABELS = ("auto", "next", "own")
SHARDS = ("auto", "fsdp", "tp")
NEEDED = ("torch", "safetensors", "transformers")
"""What a replay needs beside what a scan needs: the extra ``replay``."""


def replay_batch(
    checkpoint: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT", help="Folder or file with the weights.")
    ],
    batch: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Recorded batch: JSON, .pt, .npz, parquet; repeatable."),
    ] = None,
    incident: Annotated[
        Path | None,
        typer.Option(metavar="SCAN.JSON", help="Take the incident of a scan --format json."),
    ] = None,
    batches: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the batches were recorded.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="SPEC", help="PATH,length=N,batch=N,order=NAME,seed=N: the data set."),
    ] = None,
    steps: Annotated[
        str | None, typer.Option(metavar="A-B", help="Steps whose batches to replay.")
    ] = None,
    references: Annotated[
        str | None,
        typer.Option(metavar="FILE|N", help="Clean batches, or how many of those at hand."),
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(metavar="LOG", help="Log of the run: what was usual, and the proof."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="package.module:factory, or a folder with config.json."),
    ] = None,
    older: Annotated[
        Path | None, typer.Option(metavar="CHECKPOINT", help="An earlier checkpoint, to compare.")
    ] = None,
    device: Annotated[str, typer.Option(metavar="NAME", help="auto, cuda or cpu.")] = "auto",
    dtype: Annotated[
        str, typer.Option(metavar="NAME", help="float32, bfloat16 or float16.")
    ] = "float32",
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="PATH", help="tokenizer.json; usually found by itself.")
    ] = None,
    text: Annotated[bool, typer.Option("--text/--no-text", help="Show tokens as text.")] = True,
    labels: Annotated[
        str,
        typer.Option(metavar="HOW", help="next tokens, the tokens' own (HF), or auto."),
    ] = "auto",
    documents: Annotated[
        int | None,
        typer.Option(
            metavar="ID", help="Token ending a document; attention stays within documents."
        ),
    ] = None,
    shard: Annotated[
        str, typer.Option(metavar="HOW", help="Under torchrun: fsdp, tp (its tp_plan) or auto.")
    ] = "auto",
    plan: Annotated[
        bool, typer.Option("--plan", help="Say memory and passes; load nothing.")
    ] = False,
    format_: Annotated[
        str, typer.Option("--format", metavar="NAME", help="console, json, html or markdown.")
    ] = "console",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the report there.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over an existing file.")] = False,
) -> int:
    """Run a flagged batch again and name the tokens that did it.

    Weights and batches are read as data: nothing in them is run.
    """
    choose("--format", format_, FORMATS)
    choose("--dtype", dtype, DTYPES)
    choose("--labels", labels, LABELS)
    choose("--shard", shard, SHARDS)
    if output is not None:
        new_file(output, force=force)
    _has_torch()
    from stabcli.replay.choosing import Request

    request = Request(
        checkpoint=checkpoint,
        batch=tuple(batch or ()),
        incident=incident,
        batches=batches,
        data=data,
        steps=_steps(steps),
        references=references,
        log=tuple(log or ()),
        model=model,
        older=older,
        device=device,
        dtype=dtype,
        tokenizer=tokenizer,
        text=text,
        labels=labels,  # type: ignore[arg-type]
        documents=documents,
        shard=shard,  # type: ignore[arg-type]
    )
    if plan:
        return _plan(request)
    first = os.environ.get("RANK", "0") == "0"  # under torchrun the first process speaks for all
    try:
        account = _run(request)
    except StabError:
        if first:
            raise
        return 2
    if not first:
        return 0
    written = _written(account, format_)
    if output is None:
        put(written)
    else:
        output.write_text(written, encoding="utf-8")
    return 0


def _has_torch() -> None:
    """Refuse to start without torch, in one line with the remedy.

    Raises:
        ReplayError: It is not installed.
    """
    for name in NEEDED:
        try:
            found = importlib.util.find_spec(name) is not None
        except (ImportError, ValueError):
            found = False
        if not found:
            raise ReplayError(
                f"replay-batch: {name} is not installed: pip install 'stabcli[replay]'"
            )


def _steps(text: str | None) -> tuple[int, int] | None:
    """Return the first and last step of ``A-B``, or of one step."""
    if text is None:
        return None
    first, _, last = text.replace(",", "").replace("_", "").partition("-")
    if not first.isdigit() or not (last or first).isdigit() or int(last or first) < int(first):
        raise SettingError(f"--steps {text}: write FIRST-LAST, such as 41228-41232")
    return int(first), int(last or first)


def _plan(request: Request) -> int:
    from stabcli.replay.session import plan

    for label, said in plan(request):
        put(f"{label:<12}{said}")
    return 0


def _run(request: Request) -> dict[str, Any]:
    """Replay, and say on stderr what is being done where somebody is watching."""
    import sys

    from stabcli.replay.session import run

    def tell(line: str) -> None:
        if sys.stderr.isatty() and os.environ.get("RANK", "0") == "0":
            print(f"stabcli: {line}", file=sys.stderr, flush=True)

    return run(request, tell)


def _written(document: dict[str, Any], format_: str) -> str:
    from stabcli.report import Screen
    from stabcli.report.replay_console import replay_console
    from stabcli.report.replay_html import replay_html
    from stabcli.report.replay_json import replay_json
    from stabcli.report.replay_markdown import replay_markdown

    if format_ == "console":
        screen = Screen(width=width(), colour=colour(), ascii_only=plain_ascii())
        return replay_console(document, screen)
    writers = {"json": replay_json, "html": replay_html, "markdown": replay_markdown}
    return writers[format_](document)
