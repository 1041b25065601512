"""Peers in separate environments: installed with pip, run as processes, checked by their answer."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.peers.data import VIEWS
from bench.peers.lines import Line
from bench.shapes import SHAPES
from headrace.process.java import java_home

_INSTALL_S: Final = 1_800
_RUN_S: Final = 1_200


@dataclass(frozen=True, slots=True)
class Peer:
    """Another program; ``run_NAME.py`` runs its query."""

    name: str
    package: str
    given: str
    streams: bool
    """Whether the peer gets the first rows and the changes as one stream.

    Another run gets the first rows alone; the difference is the cost of the changes.
    """


PEERS: Final = (
    Peer("duckdb", "duckdb==2.0.0", "all changes at once, then the query again; one answer", False),
    Peer("polars", "polars==2.1.0", "whole tables, the changes in them; one answer", False),
    Peer(
        "flink",
        "apache-flink==2.3.0",
        "signed rows as JSON in files, only the columns it needs; answers thrown away",
        True,
    ),
)


def measure(
    peer: Peer, cache: Path, folder: Path, answers: dict[str, tuple[int, float]]
) -> Iterator[Line]:
    """Yield a line for each view; the line gives the reason where there is no figure."""
    try:
        python = _installed(peer, cache)
    except (OSError, subprocess.SubprocessError) as error:
        note = f"{peer.package} cannot be installed: {_last(error)}"
        yield from (Line(peer.name, view, peer.given, note=note) for view in answers)
        return
    for view, answer in answers.items():
        try:
            told = _run(peer, python, folder, view, "all")
            if _differs(told["answer"], answer):
                note = f"no figure: its answer is {told['answer']}, Postgres' {list(answer)}"
                yield Line(peer.name, view, peer.given, note=note)
                continue
            first = {"seconds": 0.0, "cpu_s": 0.0}
            if peer.streams:
                first = _run(peer, python, folder, view, "fill")
        except (OSError, subprocess.SubprocessError) as error:
            yield Line(peer.name, view, peer.given, note=f"it does not run: {_last(error)}")
            continue
        seconds, cpu_s = (told[k] - first[k] for k in ("seconds", "cpu_s"))
        note = "-" if min(seconds, cpu_s) > 0 else "too few changes: its start takes longer"
        yield Line(peer.name, view, peer.given, seconds, cpu_s, note)


def _installed(peer: Peer, cache: Path) -> Path:
    """Return the Python of the peer's environment, which is made if it does not exist."""
    home = cache / peer.package
    python, done = home / "bin" / "python", home / "installed"
    if not done.exists():
        _quietly([sys.executable, "-m", "venv", "--clear", str(home)], _INSTALL_S)
        words = ("--quiet", "--disable-pip-version-check", "--root-user-action", "ignore")
        _quietly([str(python), "-m", "pip", "install", *words, peer.package], _INSTALL_S)
        done.touch()
    return python


def _run(peer: Peer, python: Path, folder: Path, view: str, stream: str) -> dict[str, Any]:
    script = Path(__file__).with_name(f"run_{peer.name}.py")
    words = (str(folder), view, SHAPES[view], VIEWS[view], stream)
    printed = _quietly([str(python), str(script), *words], _RUN_S)
    told: dict[str, Any] = json.loads(printed.strip().rpartition("\n")[2])
    return told


def _quietly(words: list[str], timeout_s: float) -> str:
    """Run a program outside our Python environment, and return its output."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        words,
        check=True,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=kept | {"JAVA_HOME": java_home()},
    )
    return done.stdout


def _last(error: Exception) -> str:
    """Return the last line of a failed program's output."""
    said = getattr(error, "stderr", None) or str(error)
    text = said.decode(errors="replace") if isinstance(said, bytes) else said
    return text.strip().rpartition("\n")[2][:200]


def _differs(told: list[float], answer: tuple[int, float]) -> bool:
    """Return whether the peer's answer differs from Postgres'; then its figure is worthless."""
    rows, total = answer
    return told[0] != rows or not math.isclose(told[1], total, rel_tol=1e-9, abs_tol=0.01)
