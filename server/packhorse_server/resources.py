"""The CPUs and the memory that this process may use: the cgroup's, not the node's."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
MEMORY_SHARE = 0.85
"""Share of the limit that models may hold; the rest is the runtime, requests and activations."""


def granted_cpus(cgroup: Path = CGROUP) -> int:
    """Return the whole CPUs that the quota grants, at least one."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    limits = [available or 1]
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()  # cgroup v2
        if quota != "max":
            limits.append(round(int(quota) / int(period)))
    except (OSError, ValueError):
        try:
            quota_us = int((cgroup / "cpu/cpu.cfs_quota_us").read_text())  # v1; -1 is no limit
            period_us = int((cgroup / "cpu/cpu.cfs_period_us").read_text())
            if quota_us > 0:
                limits.append(round(quota_us / period_us))
        except (OSError, ValueError):
            pass
    return max(1, min(limits))


def memory_budget_bytes(cgroup: Path = CGROUP) -> int:
    """Return the bytes that models may hold where no setting says so."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            limits.append(int((cgroup / name).read_text()))
        except (OSError, ValueError):
            continue
    return int(min(limits) * MEMORY_SHARE)
