"""Each message that the page explains exists: its text is in the source."""

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "manual" / "troubleshooting.md"
QUOTED = re.compile(r"^\| `([^`]+)`", re.MULTILINE)
LEAST = 30


@functools.cache
def texts() -> list[str]:
    """Return all strings of the source, with … for inserted values, and all SQL files."""
    out = []
    for path in sorted((ROOT / "headrace").rglob("*.py")):
        tree = ast.parse(path.read_text())
        prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                parts = [str(v.value) if isinstance(v, ast.Constant) else "…" for v in node.values]
                out.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                out += [node.value] * (id(node) not in prose)
    for path in sorted((ROOT / "headrace" / "sql").glob("*.sql")):
        out += re.findall(r"'((?:[^']|'')*)'", path.read_text())
    return [re.sub(r"%(\d\$)?[sIL]", "…", text) for text in out]


def is_said(quoted: str, known: list[str]) -> bool:
    """Return whether one text contains the fixed words of ``quoted``, in order."""
    parts = [part.strip(' "') for part in quoted.split("…")]
    wanted = re.compile(".*".join(re.escape(part) for part in parts if part), re.DOTALL)
    return any(wanted.search(text) for text in known)


def test_each_message_is_in_the_source():
    known = texts()
    quoted = QUOTED.findall(PAGE.read_text())
    assert len(quoted) >= LEAST
    assert [said for said in quoted if not is_said(said, known)] == []


def test_a_message_that_nobody_says_is_noticed():
    known = texts()
    assert not is_said("the moon is not in the sky", known)
    assert not is_said('must be "logical"…but wal_level is', known)
