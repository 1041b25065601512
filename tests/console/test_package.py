"""The page is in the wheel: who installs it needs no build step, and no network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_wheel_has_the_page_and_its_licences(tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    shutil.copytree(ROOT / "headrace", tree / "headrace", ignore=shutil.ignore_patterns("*.so"))
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"),
            *("--no-build-isolation", "--wheel-dir", str(tmp_path), str(tree)),
        ],
        env=os.environ | {"HEADRACE_NO_COMPILE": "1"},
        check=True,
        timeout=240,
    )
    [wheel] = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    static = ROOT / "headrace" / "console" / "static"
    wanted = {str(p.relative_to(ROOT)) for p in static.rglob("*") if p.is_file()}
    assert {Path(w).name for w in wanted} >= {"index.html", "LICENSE.uPlot", "mark.svg"}
    assert wanted <= names
