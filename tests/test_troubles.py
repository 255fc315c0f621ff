"""Troubles: which lines of a text tell of hardware, how surely, and which only look like it."""

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stabcli import troubles as module
from stabcli.readers import read_runs
from stabcli.troubles import gravity, troubles

XID = "[ 12.3] NVRM: Xid (PCI:0000:3b:00): {}, pid='<unknown>', name=<unknown>"
SPEEDS = "| MnRtt/Rnk: 1.0ms/0 | MnEtpt/Rnk: {}TF/30 | MxEtpt/Rnk: 608.83TF/13"
SLOW = "STRAGGLER DETECTION WARNING: Some GPUs have worse relative performance. Affected ranks: {5}"


def said(tmp_path: Path, *lines: str) -> list[tuple[str, int, str | None]]:
    """Kind, line and gravity of what a text of these lines tells."""
    path = tmp_path / "train.log"
    path.write_text("".join(line + "\n" for line in lines))
    found, whole = troubles(path)
    assert whole
    return [(s.kind, s.line, gravity(s.kind, s.text)) for s in found]


@pytest.mark.parametrize(
    ("line", "kind", "how"),
    [
        (XID.format(48), "gpu-fault", "fatal"),
        (XID.format(79) + ", GPU has fallen off the bus.", "gpu-fault", "fatal"),
        (XID.format(63) + ", Row Remapper: New row marked for remapping", "gpu-fault", "fault"),
        (XID.format(74), "gpu-fault", "fault"),
        (XID.format(31), "gpu-fault", "unclear"),
        ("Xid 64 on GPU 3: uncorrectable ECC", "gpu-fault", "fatal"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "gpu-fault", "fatal"),
        ("CUDA error: uncorrectable ECC error encountered, rank 0", "gpu-fault", "fatal"),
        ("CUDA error: an illegal memory access was encountered", "gpu-fault", "unclear"),
        ("CUDA error: device-side assert triggered", "gpu-fault", None),
        ("E cuda_platform.cc:51] failed call to cuInit: CUDA error: UNKNOWN ERROR (303)",
         "gpu-fault", None),
        ("RuntimeError: CUDA error: out of memory", "gpu-fault", None),
        ("[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8)",
         "communication", "fault"),
        ("torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970",
         "communication", "fault"),
        ("gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:3812",
         "communication", "fault"),
        ("urllib3: Connection reset by peer while posting to api.example.org",
         "communication", None),
        ("First rerun: unexpected result is not reproducible within the tolerance (1 != 2)",
         "wrong-result", "fault"),
        ("Possible persistent error!", "wrong-result", "fatal"),
        (SPEEDS.format("221.4"), "straggler", "fault"),
        (SLOW, "straggler", "fault"),
        ("      Rank=5 Node=a1 Score=0.41", "straggler", "fault"),
    ],
)  # fmt: skip
def test_lines_and_how_surely_they_tell_of_hardware(tmp_path, line, kind, how):
    """Devices that are of no more use, that failed, or that may have."""
    assert said(tmp_path, "step 1, loss=2.0", line) == [(kind, 2, how)]


@pytest.mark.parametrize(
    "line",
    [
        "node1:412:412 [0] NCCL INFO NCCL version 2.21.5+cuda12.4",
        "node1:412:412 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]",
        "node1:412:501 [0] NCCL INFO [Service thread] Connection closed by localRank 3",
        "| GPU  Name        Persistence-M| Bus-Id        Disp.A | Volatile Uncorr. ECC |",
        "GPU 0: aggregate uncorrectable ECC errors: 0",
        "GPU 0: uncorrectable ECC error count = 0, corrected 12",
        "ECC mode: enabled, corrected ECC errors: 3",
        SPEEDS.format("560.82"),
        "      Rank=5 Node=a1 Score=0.97",
        "Possible issue with the tokenizer: x",
        "second rerun of the evaluation",
    ],
)
def test_lines_that_only_look_like_it(tmp_path, line):
    """What a healthy start prints, counts of errors that are 0, GPUs that keep up."""
    assert said(tmp_path, line) == []


def test_a_warning_whose_scores_are_good_is_none(tmp_path):
    """The threshold of such warnings is the user's; three quarters is ours."""
    scores = [f"  Rank={r} Node=a Score=0.9{r}" for r in range(4)]
    assert said(tmp_path, *scores, SLOW) == []
    assert said(tmp_path, *scores, "  Rank=5 Node=a Score=0.51", SLOW) == [
        ("straggler", 5, "fault")
    ]


def test_another_xid_is_another_line(tmp_path):
    """Lines alike but for numbers are told once, but not where the number is what they tell."""
    lines = [XID.format(63), XID.format(63), XID.format(79)]
    assert said(tmp_path, *lines) == [("gpu-fault", 1, "fault"), ("gpu-fault", 3, "fatal")]


RAISED = "Traceback (most recent call last):\n  File 'a.py', line 3\nValueError: no such shard"


@pytest.mark.parametrize("at", [0, 20, 1000, 1999])
@pytest.mark.parametrize("block", [64, 1000, 1 << 20])
@pytest.mark.parametrize("told", [XID.format(79), RAISED])
def test_a_long_text_is_searched_from_its_beginning_to_its_end(
    tmp_path, monkeypatch, at, block, told
):
    """Wherever a line stands, it is found, and its number is right; its end is searched anew."""
    lines = [f"step {i}, loss=2.{i:04}" for i in range(2000)]
    lines.insert(at, told)
    whole = said(tmp_path, *lines)
    monkeypatch.setattr(module, "END", 4096)
    monkeypatch.setattr(module, "_BLOCK", block)

    assert len(whole) == 1
    assert said(tmp_path, *lines) == whole
    ends = [XID.format(48), "RuntimeError: CUDA error: out of memory"]
    last = len(lines) + told.count("\n")
    assert [line for _, line, _ in said(tmp_path, *lines, *ends)][-2:] == [last + 1, last + 2]


def test_a_long_text_that_speaks_of_nothing(tmp_path, monkeypatch):
    """A healthy log of many blocks, in any encoding, holds nothing and is searched whole."""
    monkeypatch.setattr(module, "END", 64)
    monkeypatch.setattr(module, "_BLOCK", 256)
    path = tmp_path / "odd.log"
    path.write_bytes(b"step 1, loss=2.0 \xff\xfe room\n" * 500)
    assert troubles(path) == ([], True)


def test_what_was_not_searched_is_told(tmp_path, monkeypatch):
    """Where every line looks like a trouble and is none, the search ends early, and that is said."""
    monkeypatch.setattr(module, "END", 4096)
    monkeypatch.setattr(module, "_BLOCK", 256)
    path = tmp_path / "train.log"
    rows = (f"step: {i}, loss: 2.0, will retry on NCCL error up to 3 times" for i in range(1, 1001))
    path.write_text("".join(row + "\n" for row in rows))
    notes = read_runs([str(path)])[0][0].notes
    assert not any("was searched for errors" in note for note in notes)

    monkeypatch.setattr(module, "SEARCHED", 512)
    assert troubles(path) == ([], False)
    (run,), _ = read_runs([str(path)])
    assert any("not all of train.log was searched for errors" in note for note in run.notes)
    assert not run.searched


def test_standard_input_is_searched_as_a_file_is(tmp_path, monkeypatch):
    """What a log tells does not hang on how it came."""
    text = "".join(f"step: {i}, loss: 2.0\n" for i in range(1, 101)) + XID.format(79) + "\n"
    path = tmp_path / "train.log"
    path.write_text(text)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    (piped,), _ = read_runs(["-"])
    (read,), _ = read_runs([str(path)])

    assert [(t.kind, t.line, t.step) for t in piped.troubles] == [("gpu-fault", 101, 100)]
    assert [(t.kind, t.line, t.step) for t in read.troubles] == [("gpu-fault", 101, 100)]
    assert piped.searched == ("-",)

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text[:500].encode())))
    (healthy,), _ = read_runs(["-"])
    assert healthy.troubles == ()


@given(st.sampled_from(sorted(module.KINDS)), st.data())
def test_no_line_is_missed_by_the_quick_search(kind: str, data: st.DataObject):
    """Whatever a pattern of a kind finds holds one of the words that blocks are searched for."""
    line = data.draw(st.from_regex(module.KINDS[kind], fullmatch=True))

    assert module._anything(b"before\n" + line + b" after\n")
