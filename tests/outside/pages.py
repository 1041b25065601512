"""The pages of the documentation, as the tests of this folder read them.

A page is prose and *blocks*: fences, and lines indented by four blanks. Code to execute is in
fences with a language; output is compared.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
MANUAL = DOCS / "manual"
STATEMENT = re.compile(r"((?:\$\$.*?\$\$|'(?:[^']|'')*'|--[^\n]*|[^;'$-]|[-$])+);", re.DOTALL)
FENCE = re.compile(r"^``` *(\S*).*$")
SQL = re.compile(r"(CALL|SELECT|CREATE|ALTER|DROP|INSERT|UPDATE|DELETE|GRANT)\b")
PROGRAM = re.compile(r"\$ |# |(make|headrace|pip|docker|psql|\.venv/bin/\w+) ")
PICTURE = re.compile("[\u2500-\u257f\u25b2-\u25c4]")
SIGNATURE = re.compile(r"(CALL )?headrace\.\w+\([^;]*$")


@dataclass(frozen=True, slots=True)
class Block:
    """A fence, or indented lines; ``line`` is its first line, ``before`` the paragraph above."""

    page: Path
    line: int
    kind: str
    body: str
    before: str

    def __str__(self) -> str:
        begin = self.body.strip().split("\n")[0][:60]
        return f"{self.page.relative_to(ROOT)}:{self.line} [{self.kind}] {begin}"


def documents() -> list[Path]:
    """Return every page: the manual, the other documents, the README."""
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def page_of(name: str) -> Path:
    """Return the file of a page of the manual."""
    return MANUAL / f"{name}.md"


def text(page: str) -> str:
    """Return the text of a page of the manual."""
    return page_of(page).read_text()


def kind_of(body: str) -> str:
    """Return the kind of indented lines, judged by their beginning."""
    first = body.lstrip().split("\n")[0]
    if PICTURE.search(body):
        return "picture"
    for kind, pattern in (("signature", SIGNATURE), ("sql", SQL), ("console", PROGRAM)):
        if pattern.match(first):
            return kind
    if first.startswith("{"):
        return "json"
    return "error" if first.startswith("ERROR:") else "shown"


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page, in order."""
    return list(_blocks(page, page.read_text().split("\n")))


def _blocks(page: Path, lines: list[str]) -> Iterator[Block]:
    at, before = 0, ""
    while at < len(lines):
        line, begin = lines[at], at
        fence = FENCE.match(line)
        if fence:
            end = next(i for i in range(at + 1, len(lines)) if lines[i].rstrip() == "```")
            body, at = "\n".join(lines[at + 1 : end]), end + 1
            yield Block(page, begin + 1, fence[1] or "none", body, before)
        elif line.startswith("    ") and (at == 0 or not lines[at - 1].strip()):
            taken = list(
                itertools.takewhile(lambda x: x.startswith("    ") or not x.strip(), lines[at:])
            )
            at += len(taken)
            body = "\n".join(x[4:] for x in taken).rstrip("\n")
            yield Block(page, begin + 1, kind_of(body), body, before)
        else:
            if line.strip():
                before = f"{before}\n{line}" if at and lines[at - 1].strip() else line
            at += 1


def fences(page: str, language: str) -> list[str]:
    """Return the examples of a page of the manual in one language, in order."""
    return [block.body for block in blocks(page_of(page)) if block.kind == language]


def statements(body: str) -> list[str]:
    """Return the statements of an example, each without its semicolon.

    Raises: AssertionError: a part of the example is no statement, so no test would send it.
    """
    left = STATEMENT.sub("", body)
    left = re.sub(r"--[^\n]*", "", left).strip()
    assert not left, f"this is sent by nobody: {left}"
    return [found[1] for found in STATEMENT.finditer(body)]


@dataclass(frozen=True, slots=True)
class Typed:
    """A line typed at a prompt of a session, and its answer."""

    prompt: str
    words: str
    answer: tuple[str, ...]

    @property
    def is_shell(self) -> bool:
        """Return whether the line is for a shell, not SQL at psql's prompt."""
        return self.prompt == "$"


def session(body: str) -> list[Typed]:
    """Parse a terminal session: ``$`` is a shell's prompt, ``shop=>`` and ``shop=#`` are psql's.

    Without any prompt all lines are typed into a shell.
    """
    if not re.search(r"^(\$|\w+=[>#]) ", body, re.MULTILINE):
        plain = [line for line in body.split("\n") if not line.startswith("# ")]
        body = "\n".join(
            line if not line.strip() or line.startswith("    ") else f"$ {line}" for line in plain
        )
    out: list[Typed] = []
    lines = iter(body.split("\n"))
    for line in lines:
        found = re.match(r"(\$|\w+=[>#]) (.*)$", line)
        if not found:
            if line.strip():
                assert out, f"nobody has asked for {line}"
                out[-1] = Typed(out[-1].prompt, out[-1].words, (*out[-1].answer, line))
            continue
        words = found[2]
        while words.endswith("\\") or (found[1] != "$" and ";" not in words):
            words = words.removesuffix("\\") + "\n" + next(lines).strip()
        out.append(Typed(found[1], words.replace("\n", " "), ()))
    return out
