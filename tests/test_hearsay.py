"""Hearsay: sentences about failures are not the failures' own reports."""

from pathlib import Path

import pytest

from stabcli.diagnosis import diagnose
from stabcli.readers import read_runs
from stabcli.troubles import gravity, troubles

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=12, GPU has fallen off the bus."
ECC = "CUDA error: uncorrectable ECC error encountered"
TIMEOUT = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8)"


def scanned(tmp_path: Path, line: str, after: int = 200):
    """Findings of a healthy run into whose text a line is put."""
    rows = [f"step {s}, loss={3 - s / 200:.4f}, lr=1e-4\n" for s in range(1, 301)]
    path = tmp_path / "train.log"
    path.write_text("".join([*rows[:after], line + "\n", *rows[after:]]))
    (run,), _ = read_runs([str(path)])
    return [f for i in diagnose(run, only=("hardware-fault",)).incidents for f in i.findings]


@pytest.mark.parametrize(
    "line",
    [
        "Health check passed: no GPU has fallen off the bus",
        "[INFO] verified that no GPU has fallen off the bus (dcgmi health: Healthy)",
        "No uncorrectable ECC error encountered since boot",
        "[rank0]: node a1 ran 30 days without uncorrectable ECC errors",
        "ERROR: none, 0 NCCL errors",
        "dmesg: found 0 uncorrectable ECC errors",
        "Checked dmesg for 'NVRM: Xid' : 0 matches",
        "NCCL error: none",
        f"docs: see https://docs.nvidia.com/deploy/xid-errors/ for {XID}",
        f"[config] on_error: ['NCCL error', '{ECC}', 'Xid 79']",
        f'on_error: "{ECC}"',
        '{"on_error": ["NCCL error: x"], "config": 1}',
        f"Previous run had {XID} on node12, node12 is now excluded",
        f"node12 was excluded: the last job ended in {ECC}",
        "elastic: will retry on NCCL error up to 3 times",
        "NCCL error handling: async",
        "epoch summary: ncclSystemError=0 ncclRemoteError=0",
        "watchdog: armed for collective operation timeout after 600 s",
        "monitor: alert rules loaded: NVRM: Xid (PCI:*): 79 -> page, NCCL error -> ticket",
        "test_watchdog: Watchdog caught collective operation timeout -> handled OK",
        f"If you see {ECC}, drain the node",
        f"sample text: '{XID}'",
        f"chaos: simulated {TIMEOUT}",
    ],
)
def test_who_denies_quotes_or_prepares_for_a_failure_reports_none(tmp_path: Path, line: str):
    """Checks that passed, settings, documentation, past runs: not even a notice."""
    assert scanned(tmp_path, line) == []
    assert scanned(tmp_path, line, after=300) == []


@pytest.mark.parametrize(
    "line",
    [
        f"the operator wrote that {XID}",
        f"summary of node a1 | {ECC}",
        "cluster report on the NCCL error of rank 3",
        '{"level": "error", "msg": "NCCL error: unhandled system error"}',
    ],
)
def test_a_sentence_of_unknown_shape_is_a_notice_at_most(tmp_path: Path, line: str):
    """In the middle of a run and at its end."""
    for after in (200, 300):
        (found,) = scanned(tmp_path, line, after)
        assert (found.severity, found.tags) == ("notice", ())


def test_a_count_that_is_no_longer_0_is_another_line(tmp_path: Path):
    """What was denied at every step so far may be told at the next."""
    path = tmp_path / "train.log"
    lines = [f"at {s}: found {n} uncorrectable ECC errors\n" for s, n in ((1, 0), (2, 0), (30, 2))]
    path.write_text("".join(lines))
    assert [said.line for said in troubles(path)[0]] == [3]


PREFIXES = [
    "",
    "[ 1234.5678] ",
    "[Mon Jan  5 11:02:17 2026] ",
    "Nov 29 12:01:02 node3 kernel: [123.4] ",
    "2026-11-29T12:01:02.123+00:00 gpu-a1 kernel: ",
    "[node3] ",
    "node3: ",
    "node3: Mon Jan  5 11:02:17 UTC 2026: ",
    "[1,3]<stderr>:",
    "worker-1 | ",
    "3: ",
    "[rank3]: ",
    "[default0]:[rank0]: ",
    "(TaskRunner pid=412, ip=10.0.0.2) ",
]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("gpu-fault", XID),
        ("gpu-fault", f"RuntimeError: {ECC}"),
        ("gpu-fault", f"torch.AcceleratorError: {ECC}"),
        ("gpu-fault", f"2026-11-29 12:00:01,123 - trainer - ERROR - {ECC}"),
        ("gpu-fault", (f"[E1129 12:11:02.1 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0 Rank 3]"
         f" Process group watchdog thread terminated with exception: {ECC}")),
        ("gpu-fault", f"  what():  {ECC}"),
        ("gpu-fault", "GPU 3: Uncorrectable ECC errors: 2"),
        ("communication", f"[E1129 12:11:02.1 ProcessGroupNCCL.cpp:616] [Rank 3] {TIMEOUT}"),
        ("communication", ("torch.distributed.DistBackendError: NCCL error in: "
         "../torch/csrc/ProcessGroupNCCL.cpp:1970, unhandled system error")),
        ("communication", (f"RuntimeError: NCCL communicator was aborted on rank 3. Original reason"
         f" for failure was: [Rank 3] {TIMEOUT}")),
        ("communication", ("[E ProcessGroupNCCL.cpp:828] Some NCCL operations have failed or timed"
         " out. Due to the asynchronous nature of CUDA kernels")),
        (
            "communication",
            ("[E105 11:02:17.12 ProcessGroupNCCL.cpp:542] [Rank 0] Collective WorkNCCL(SeqNum=1)"
            " raised the following async exception: NCCL error: remote process exited"),
        ),
        ("communication", "Failed, NCCL error common.cu:958 'unhandled cuda error'"),
    ],
)  # fmt: skip
def test_what_failed_is_believed_whatever_stands_before_each_line(
    tmp_path: Path, prefix: str, kind: str, line: str
):
    """Kernels, launchers, loggers, Ray and ranks all put something of their own before it."""
    path = tmp_path / "train.log"
    path.write_text(f"{prefix}{line}\n")
    (said,), _ = troubles(path)
    assert (said.kind, gravity(said.kind, said.text)) == (
        kind, "fatal" if kind == "gpu-fault" else "fault")  # fmt: skip
