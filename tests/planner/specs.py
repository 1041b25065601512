"""Spec files: cases of a query and the plans that are expected, rewritten by one command.

=== title
--- query
SELECT …
--- logical
…
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Case:
    title: str
    parts: dict[str, str] = field(default_factory=dict)


def read(path: Path) -> tuple[str, list[Case]]:
    head, *blocks = ("\n" + path.read_text()).split("\n=== ")
    cases = []
    for block in blocks:
        title, *sections = block.split("\n--- ")
        case = Case(title.strip())
        for section in sections:
            name, _, text = section.partition("\n")
            case.parts[name.strip()] = text.strip("\n")
        cases.append(case)
    return head.strip("\n"), cases


def write(path: Path, head: str, cases: list[Case]) -> None:
    out = [head] if head else []
    for case in cases:
        lines = [f"=== {case.title}"]
        for name, text in case.parts.items():
            lines += [f"--- {name}", text]
        out.append("\n".join(lines))
    path.write_text("\n\n".join(out) + "\n")


def check(path: Path, rewrite: bool, expected: Callable[[Case], dict[str, str]]) -> None:
    """Compare every case of ``path`` with ``expected(case) -> parts``, or rewrite it."""
    head, cases = read(path)
    assert cases, f"{path.name} has no case"
    for case in cases:
        found = expected(case)
        if rewrite:
            kept = {k: v for k, v in case.parts.items() if k in ("query", "fires")}
            case.parts = kept | found
        else:
            for name, text in found.items():
                assert text == case.parts.get(name), f"{path.name}: {case.title}: {name}"
    if rewrite:
        write(path, head, cases)
