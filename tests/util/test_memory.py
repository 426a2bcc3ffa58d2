"""Memory limits of machine, container and process, in a fake and in the real /proc."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from dslide.errors import MemoryNeeded
from dslide.util import memory


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    write(
        tmp_path / "proc",
        {"meminfo": "MemTotal:  900 kB\nMemAvailable:  800 kB\n", "self/statm": "50 10 5 1 0 3 0"},
    )
    return tmp_path / "proc"


def available(proc: Path) -> int:
    return memory.available_bytes(proc, proc.parent / "cgroup")


def test_without_limits_the_machine_decides(proc: Path) -> None:
    write(proc, {"self/cgroup": "0::/\n"})
    assert available(proc) == 800 * 1024


def test_version_2_limit_minus_usage_plus_page_cache(proc: Path) -> None:
    write(proc, {"self/cgroup": "0::/job/step\n"})
    write(
        proc.parent / "cgroup",
        {
            "job/memory.max": "5000\n",
            "job/memory.current": "4000\n",
            "job/memory.stat": "anon 100\ninactive_file 700\n",
            "job/step/memory.max": "max\n",
            "job/step/memory.current": "3000\n",
        },
    )
    assert available(proc) == 5000 - 4000 + 700


def test_version_2_seen_from_inside_a_container(proc: Path) -> None:
    write(proc, {"self/cgroup": "0::/outer/path\n"})
    write(proc.parent / "cgroup", {"memory.max": "5000\n", "memory.current": "1000\n"})
    assert available(proc) == 4000


def test_version_1(proc: Path) -> None:
    write(proc, {"self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/docker/ab\n"})
    write(
        proc.parent / "cgroup/memory/docker/ab",
        {
            "memory.limit_in_bytes": "9000\n",
            "memory.usage_in_bytes": "2000\n",
            "memory.stat": "inactive_file 1\ntotal_inactive_file 50\n",
        },
    )
    assert available(proc) == 9000 - 2000 + 50


def test_usage_above_the_limit_leaves_nothing(proc: Path) -> None:
    write(proc, {"self/cgroup": "0::/\n"})
    write(proc.parent / "cgroup", {"memory.max": "10\n", "memory.current": "1000\n"})
    assert available(proc) == 0


def test_address_space_limit_counts() -> None:
    code = "from dslide.util import memory; print(memory.available_bytes())"
    limit = 3 * 10**8
    run = subprocess.run(
        [sys.executable, "-c", code],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        capture_output=True,
        text=True,
        check=True,
    )
    assert 0 < int(run.stdout) < limit


FREED = """
import numpy as np
from dslide.util import memory
before = memory.peak_rss_bytes()
block = np.ones(before - memory.rss_bytes() + 64_000_000, np.uint8)
size = block.nbytes
del block
print(before, size, memory.peak_rss_bytes())
"""


def test_the_peak_includes_freed_memory() -> None:
    """In a process of its own: the peak of this one may be that of tests before, gigabytes above what it has now."""
    run = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, timeout=60)
    before, size, peak = map(int, run.stdout.split())
    assert before + 60_000_000 <= peak < before + size + 64_000_000


def test_check_names_need_and_advice() -> None:
    memory.check_memory(1, "nothing", "")
    with pytest.raises(MemoryNeeded, match=r"^training needs about 9,000 TB but .* are available; use less$"):
        memory.check_memory(9 * 10**15, "training", "use less")
