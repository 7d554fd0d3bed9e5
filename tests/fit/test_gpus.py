"""GPUs by the names that torch, nvidia-smi, Slurm and the cluster profiles give them."""

import pytest

from hpctrain.clusters import load
from hpctrain.fit import gpus

GIB = 1024**3
NAMES = {
    "NVIDIA H100 80GB HBM3": "NVIDIA H100 SXM",
    "NVIDIA H100 PCIe": "NVIDIA H100 PCIe",
    "NVIDIA H100 NVL": "NVIDIA H100 NVL",
    "nvidia_h100_80gb_hbm3": "NVIDIA H100 SXM",
    "h100": "NVIDIA H100 SXM",
    "NVIDIA H200": "NVIDIA H200",
    "NVIDIA B200": "NVIDIA B200",
    "NVIDIA GB200": "NVIDIA GB200",
    "NVIDIA GH200 480GB": "NVIDIA GH200 96GB",
    "NVIDIA GH200 120GB": "NVIDIA GH200 96GB",
    "NVIDIA A100-SXM4-40GB": "NVIDIA A100 SXM 40GB",
    "NVIDIA A100-SXM4-80GB": "NVIDIA A100 SXM 80GB",
    "NVIDIA A100-SXM-64GB": "NVIDIA A100 SXM 64GB",
    "NVIDIA A100-PCIE-40GB": "NVIDIA A100 PCIe 40GB",
    "NVIDIA A100 80GB PCIe": "NVIDIA A100 PCIe 80GB",
    "a100": "NVIDIA A100 SXM 40GB",
    "a100-80gb": "NVIDIA A100 SXM 80GB",
    "Tesla V100-SXM2-32GB": "NVIDIA V100 SXM2 32GB",
    "Tesla V100-SXM2-16GB": "NVIDIA V100 SXM2 16GB",
    "Tesla V100-PCIE-16GB": "NVIDIA V100 PCIe 16GB",
    "Tesla T4": "NVIDIA T4",
    "NVIDIA L4": "NVIDIA L4",
    "NVIDIA L40S": "NVIDIA L40S",
    "NVIDIA GeForce RTX 4090": "NVIDIA GeForce RTX 4090",
    "rtx4090": "NVIDIA GeForce RTX 4090",
    "rtx_4090": "NVIDIA GeForce RTX 4090",
    "NVIDIA GeForce RTX 5090": "NVIDIA GeForce RTX 5090",
    "NVIDIA RTX 6000 Ada Generation": "NVIDIA RTX 6000 Ada",
    "NVIDIA RTX A6000": "NVIDIA RTX A6000",
    "AMD Instinct MI250X": "AMD MI250X GCD",
    "AMD Instinct MI300X": "AMD MI300X",
    "AMD Instinct MI300A": "AMD MI300A",
    "mi250": "AMD MI250X GCD",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_known(name: str) -> None:
    found = gpus.find(name)
    assert found.name == NAMES[name]


@pytest.mark.parametrize(
    "name", ["", "H800", "gpu", "NVIDIA A1000", "Quadro K620", "xl40s", "mi25"]
)
def test_a_name_that_is_not_known_is_nothing(name: str) -> None:
    assert gpus.find(name) is None


def test_memory_decides_between_variants() -> None:
    assert [gpus.find("NVIDIA A100", size * GIB).name for size in (40, 64, 80)] == [
        f"NVIDIA A100 SXM {size}GB" for size in (40, 64, 80)
    ]
    assert gpus.find("NVIDIA H100", 64 * GIB).name == "NVIDIA H100 64GB"
    assert gpus.find("NVIDIA V100", 32 * GIB).name == "NVIDIA V100 SXM2 32GB"


@pytest.mark.parametrize("profile", sorted(load.available({})))
def test_every_gpu_of_a_shipped_profile_is_known(profile: str) -> None:
    for shape in load.load(profile, {}).profile.nodes.values():
        if shape.gpu is None:
            continue
        found = gpus.find(shape.gpu, shape.gpu_memory)
        assert found is not None, shape.gpu
        if shape.gpu_memory is not None:
            assert abs(found.memory - shape.gpu_memory) < 0.08 * shape.gpu_memory, (
                shape.gpu,
                found.name,
            )
            assert gpus.usable(shape.gpu, shape.gpu_memory) <= shape.gpu_memory


def test_no_row_hides_another() -> None:
    for name, memory in ((gpu.name, gpu.memory) for _, gpu in gpus._rows()):
        found = gpus.find(name, memory)
        assert found.name == name
        assert 10 * GIB < found.memory < 200 * GIB


def test_what_programs_can_have_is_less_than_what_is_built_in() -> None:
    assert gpus.usable("NVIDIA H100", 80 * GIB) == gpus.find("h100").memory < 80 * GIB
    assert gpus.usable("NVIDIA H100", 40 * GIB) == 40 * GIB  # a part of one, such as MIG makes
    assert gpus.usable("unheard of", 70 * GIB) == 70 * GIB
    assert gpus.usable(None, None) is None


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 10),
        ("nvidia_a100_3g.20gb", 20),
        ("a100_7g.40gb", 40),
        ("H100 1g.20gb+me", 20),
    ],
)
def test_a_part_of_a_gpu_is_not_the_whole(name: str, size: int) -> None:
    assert gpus.find(name) is None
    assert 0.9 * size * GIB < gpus.usable(name, None) < size * GIB
