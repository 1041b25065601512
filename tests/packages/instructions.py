"""The Dockerfile, as tests read it."""

from __future__ import annotations

import json
from pathlib import Path

DOCKERFILE = Path(__file__).resolve().parents[2] / "Dockerfile"


def instructions() -> list[tuple[str, str]]:
    """Return each instruction with its arguments."""
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def stages() -> list[list[tuple[str, str]]]:
    """Return the instructions of each stage; the first of each is FROM."""
    out: list[list[tuple[str, str]]] = []
    for word, rest in instructions():
        if word == "FROM":
            out.append([])
        out[-1].append((word, rest))
    return out


def entrypoint() -> list[str]:
    """Return the image's program."""
    found: list[str] = json.loads(dict(stages()[-1])["ENTRYPOINT"])
    return found
