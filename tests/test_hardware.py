"""Peaks by name, and FLOPs of a token by convention."""

import pytest

from stabcli.hardware import CONVENTIONS, PEAKS, flops_per_token, peak


@pytest.mark.parametrize(
    ("gpu", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989.5),
        ("h100", 989.5),
        ("NVIDIA H100 PCIe", 756.5),
        ("H100PCIe", 756.5),
        ("NVIDIA H100 NVL", 835),
        ("H100-SXM5-80GB", 989.5),
        ("NVIDIA H200", 989.5),
        ("NVIDIA H20", 148),
        ("NVIDIA GB200", 2500),
        ("NVIDIA B200", 2250),
        ("NVIDIA GH200 480GB", 989.5),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A10", 125),
        ("Tesla V100-SXM2-32GB", 125),
        ("Tesla V100-PCIE-16GB", 112),
        ("NVIDIA L40S", 362.05),
        ("NVIDIA L40", 181.05),
        ("NVIDIA L4", 121),
        ("NVIDIA RTX A6000", 154.85),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("AMD Instinct MI300X", 1307.4),
        ("TPU v5p", 459),
        ("TPU v5 lite", 197),
    ],
)
def test_peak_of_the_longest_name_that_fits(gpu, tflops):
    """A GPU is known by whole words of its name; the most exact entry wins."""
    found = peak(gpu)

    assert found is not None
    assert found.tflops == tflops


@pytest.mark.parametrize(
    "gpu",
    [
        "",
        "cpu",
        "NVIDIA A1000",
        "NVIDIA A10G",
        "Quadro RTX 5000",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA GB10",
        "AMD Instinct MI300A",
        "x100",
    ],
)
def test_unknown_gpu_has_no_peak(gpu):
    """What is not in the table, or is only a part of a device, is not guessed."""
    assert peak(gpu) is None


def test_every_peak_has_a_source():
    """A figure without a source has no place in the table; names are unique."""
    assert all(p.source and p.tflops > 0 and p.name == p.name.lower() for p in PEAKS)
    assert len({p.name for p in PEAKS}) == len(PEAKS)
    assert all(peak(p.name) == p for p in PEAKS)


@pytest.mark.parametrize(
    ("convention", "expected"),
    [
        ("titan", 6 * (100 - 10) + 12 * 2 * 4 * 8),
        ("megatron", 6 * (100 - 10) + 6 * 2 * 4 * 8),
        ("hf", 6 * (100 - 10)),
        ("all-params", 6 * 100 + 12 * 2 * 4 * 8),
    ],
)
def test_flops_of_a_token(convention, expected):
    """The four conventions, written out."""
    flops = flops_per_token(
        convention, parameters=100, embeddings=10, layers=2, width=4, sequence_length=8
    )

    assert flops.value == expected
    assert flops.complete


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_flops_without_the_shape_are_six_a_parameter(convention):
    """Terms that need an unknown shape are left out, and that is said."""
    flops = flops_per_token(convention, parameters=100)

    assert flops.value == 600
    assert flops.formula == "6N"
    assert not flops.complete
