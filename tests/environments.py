"""Separate Python environments in ``.bench``, for packages that are not installed here."""

from __future__ import annotations

import subprocess
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]


def programs(name: str, program: str, packages: Sequence[str], timeout_s: float) -> Path:
    """Return the folder of the programs of environment ``name``, created if it lacks ``program``."""
    folder = ROOT / ".bench" / name
    if not (folder / "bin" / program).exists():
        venv.create(folder, clear=True, with_pip=True)
        python = str(folder / "bin" / "python")
        pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*pip, "install", *packages], check=True, timeout=timeout_s)
    return folder / "bin"
