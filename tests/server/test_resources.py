import os
from pathlib import Path

from packhorse_server.resources import MEMORY_SHARE, granted_cpus, memory_budget_bytes


def test_the_quota_counts_and_not_the_node(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    assert granted_cpus(tmp_path) == 1
    (tmp_path / "cpu.max").write_text("20000 100000\n")
    assert granted_cpus(tmp_path) == 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert granted_cpus(tmp_path) == len(os.sched_getaffinity(0))
    (tmp_path / "cpu.max").unlink()
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("100000")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000")
    assert granted_cpus(tmp_path) == 1
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("-1")
    assert granted_cpus(tmp_path) == len(os.sched_getaffinity(0))


def test_the_memory_limit_counts_and_not_the_node(tmp_path: Path) -> None:
    everything = memory_budget_bytes(tmp_path)
    (tmp_path / "memory.max").write_text("1000000\n")
    assert memory_budget_bytes(tmp_path) == int(1_000_000 * MEMORY_SHARE)
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_budget_bytes(tmp_path) == everything
