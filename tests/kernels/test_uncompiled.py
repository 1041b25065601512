"""The kernels run uncompiled too: their tests pass on a copy of the source without extensions.

All but the state map, which is raw memory and has a readable reference instead.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPILED_ONLY = ("test_skiplist.py", Path(__file__).name)


def run(folder: Path, *words: str) -> None:
    """Run tests of the kernels, in a copy of the tree that has no compiled module."""
    for part in ("headrace", "tests"):
        shutil.copytree(
            ROOT / part, folder / part, ignore=shutil.ignore_patterns("*.so", "*.c", "__pycache__")
        )
    shutil.copy(ROOT / "pyproject.toml", folder)
    env = os.environ | {"PYTHONPATH": str(folder)}
    where = "import headrace.kernels.rows as m; print(m.__file__)"
    seen = subprocess.run(
        [sys.executable, "-c", where],
        cwd=folder, env=env, capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    assert seen == str(folder / "headrace" / "kernels" / "rows.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *words],
        cwd=folder, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:]


def test_rows_and_numerics(tmp_path):
    files = (f"tests/kernels/test_{n}.py" for n in ("rows", "numeric"))
    run(tmp_path, "-m", "not slow", *files)


@pytest.mark.slow
def test_all_but_the_state_map(tmp_path):
    names = sorted(p.name for p in (ROOT / "tests" / "kernels").glob("test_*.py"))
    run(tmp_path, *(f"tests/kernels/{n}" for n in names if n not in COMPILED_ONLY))
