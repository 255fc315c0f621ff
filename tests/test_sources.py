"""Files, packed files, standard input: what a reader is given, and what is said when it cannot be."""

import bz2
import gzip
import io
import lzma
import os
import sys
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest

from stabcli.errors import LogError, UnknownFormat
from stabcli.readers import read_runs
from stabcli.sources import open_source

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

TEXT = b"".join(b'{"step": %d, "loss": 2.0}\n' % i for i in range(5000))
PACKERS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd.compress}


@pytest.mark.parametrize("ending", PACKERS)
def test_packed_files_read_through(tmp_path, ending):
    """Whatever packed it, the content is what a reader sees, under the name the user gave."""
    path = tmp_path / f"log.jsonl.{ending}"
    path.write_bytes(PACKERS[ending](TEXT))
    source = open_source(path)

    assert source.path.read_bytes() == TEXT
    assert source.head == TEXT[: len(source.head)]
    assert (source.shown, source.name, source.notes) == (str(path), "log.jsonl", ())


@pytest.mark.parametrize("ending", PACKERS)
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_torn_packed_files_keep_what_came_before(tmp_path, ending, share):
    """A truncated stream gives its whole beginning and a note, or says that nothing came out."""
    packed = PACKERS[ending](TEXT)
    path = tmp_path / f"log.{ending}"
    path.write_bytes(packed[: int(share * len(packed))])
    came = unpacked(path)
    if came is None:
        return
    content, notes = came
    assert TEXT.startswith(content)
    assert any("breaks off" in n for n in notes)


def unpacked(path):
    """What came out of a packed file and what is noted of it; None where it says that nothing did."""
    try:
        source = open_source(path)
    except LogError as error:
        if "could be unpacked" not in str(error):
            raise
        return None
    return source.path.read_bytes(), source.notes


@pytest.mark.parametrize("ending", ["gz", "bz2", "xz", "zst"])
def test_broken_packed_files_say_so(tmp_path, ending):
    """A magic number and nothing sensible behind it is no log."""
    path = tmp_path / "log"
    path.write_bytes(PACKERS[ending](b"")[:6] + b"\xff" * 40)
    with pytest.raises(LogError, match="unpacked"):
        open_source(path)


def test_what_cannot_be_read_says_why(tmp_path):
    """Missing, empty, and neither file nor folder: where, what, what to do."""
    with pytest.raises(LogError, match="no such file: check the path"):
        open_source(tmp_path / "none")
    (tmp_path / "empty").touch()
    with pytest.raises(LogError, match="the file is empty"):
        open_source(tmp_path / "empty")
    with pytest.raises(LogError, match="neither a file nor a folder"):
        open_source("/dev/null")
    with pytest.raises(LogError):
        open_source("\0")


def test_standard_input(monkeypatch):
    """``-`` is read to its end, packed or not."""

    class Stdin:
        buffer = io.BytesIO(gzip.compress(TEXT))

    monkeypatch.setattr("sys.stdin", Stdin)
    source = open_source("-")
    assert source.path.read_bytes() == TEXT
    assert source.shown == "-"
    with pytest.raises(LogError, match="standard input is empty"):
        open_source("-")


def test_folders_are_sources(tmp_path):
    """A folder has no head; a reader looks at the names in it."""
    source = open_source(tmp_path)
    assert source.is_folder
    assert source.head == b""
    assert source.path == Path(tmp_path)


def test_a_named_pipe_is_read_to_its_end(tmp_path):
    """What a shell puts for ``<(zcat log.gz)``, and ``/dev/stdin`` behind a pipe; packed or not."""
    for content in (TEXT, gzip.compress(TEXT)):
        pipe = tmp_path / f"pipe{len(content)}"
        os.mkfifo(pipe)
        writer = threading.Thread(target=pipe.write_bytes, args=(content,))
        writer.start()
        source = open_source(pipe)
        writer.join()

        assert (source.shown, source.path.read_bytes()) == (str(pipe), TEXT)


def test_a_pipe_that_nobody_named_is_not_waited_for(tmp_path):
    """What a walk comes upon may never end: there it is refused instead of read."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LogError, match="neither a file nor a folder"):
        open_source(tmp_path / "pipe", pipes=False)


def test_an_empty_pipe_says_so(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"",))
    writer.start()
    with pytest.raises(LogError, match="nothing came through this pipe: write a log into it"):
        open_source(pipe)
    writer.join()


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz"])
def test_archives_are_refused_with_the_remedy(tmp_path, kind):
    """Which of several files in one is the log is not guessed."""
    log = tmp_path / "log.jsonl"
    log.write_bytes(TEXT)
    path = tmp_path / f"logs.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as out:
            out.write(log, "log.jsonl")
    else:
        with tarfile.open(path, "w:gz" if kind == "tar.gz" else "w") as out:
            out.add(log, "log.jsonl")
    with pytest.raises(UnknownFormat, match=r"archive.*unpack it and give the log in it"):
        read_runs([str(path)])
