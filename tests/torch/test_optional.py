"""PyTorch is optional: nothing but `dslide.torch` imports it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import dslide


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)


def test_the_rest_of_the_package_imports_no_torch() -> None:
    root = Path(dslide.__file__).parent
    extras = (root / "torch", root / "ray")  # packages that need one
    files = [path.relative_to(root.parent) for path in root.rglob("*.py") if path.parent not in extras]
    modules = [".".join(path.with_suffix("").parts) for path in files if path.stem != "__main__"]
    # Imported on demand: tensorboardX looks for torch itself, and mlflow may be absent.
    modules = [name for name in modules if name not in ("dslide.training.tensorboard", "dslide.tracking.mlflow_model")]
    assert {"dslide.sklearn.estimator", "dslide.comm.sockets"} <= set(modules)
    program = f"import sys, {', '.join(modules)}\nassert 'torch' not in sys.modules"
    done = run(program)
    assert done.returncode == 0, done.stderr


def test_without_torch_one_sentence_says_what_is_needed() -> None:
    for hidden in ("'torch'", "'torch.library'"):
        done = run(f"import sys; sys.modules[{hidden}] = None; import dslide.torch")
        assert done.stderr.splitlines()[-1] == (
            "ImportError: dslide.torch needs PyTorch 2.4 or newer: pip install 'dslide[torch]'"
        )
