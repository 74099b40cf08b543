import pytest

from packhorse.errors import InvalidInput
from packhorse.prices import instance_type, instance_types
from packhorse.units import MIB


@pytest.mark.parametrize(
    ("name", "mib"),
    [("c5.xlarge", 6584), ("c5.4xlarge", 27381), ("c5.9xlarge", 65269), ("m7i.2xlarge", 29317),
     ("g4dn.12xlarge", 178933), ("g5.12xlarge", 173400), ("inf1.6xlarge", 42536),
     ("inf1.24xlarge", 177976), ("inf2.24xlarge", 355262)],
)  # fmt: skip
def test_allocatable_memory_is_what_karpenter_predicts(name: str, mib: int) -> None:
    assert instance_type(name).allocatable_bytes // MIB == mib


@pytest.mark.parametrize(
    ("name", "usd"),
    [("inf1.6xlarge", 1.18), ("g4dn.12xlarge", 3.912), ("c7i.large", 0.08925),
     ("inf2.48xlarge", 12.98127), ("trn1.2xlarge", 1.34375)],
)  # fmt: skip
def test_prices_are_exact_and_dated(name: str, usd: float) -> None:
    found = instance_type(name)
    assert (found.usd_per_hour, found.price_date) == (usd, "2026-07-20")


def test_every_type_of_a_family_with_chips_names_them() -> None:
    for found in instance_types().values():
        assert (found.accelerator is None) == (found.family == "cpu")
        assert found.family in ("cpu", "gpu", "inf1", "inf2")
    chips = instance_type("inf1.6xlarge").accelerator
    assert chips is not None
    assert (chips.count, chips.memory_gib, chips.cores) == (4, 8, 4)


def test_an_unknown_type_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"'x9\.huge' is not in the catalogue: .*c5\.large"):
        instance_type("x9.huge")
