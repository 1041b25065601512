"""Each message that the page explains is one that somebody can get: its words stand in the source."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "manual" / "troubleshooting.md"
QUOTED = re.compile(r"^\| `([^`]+)`", re.MULTILINE)
LEAST = 30


def texts() -> str:
    """All texts of the source, a line each, with … for what is put in; and what SQL says."""
    out = []
    for path in sorted((ROOT / "headrace").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [str(v.value) if isinstance(v, ast.Constant) else "…" for v in node.values]
                out.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                out.append(node.value)
    out += [path.read_text() for path in sorted((ROOT / "headrace" / "sql").glob("*.sql"))]
    return re.sub(r"%[sI1]?\$?[sIL]?", "…", "\n".join(out))


def test_each_message_is_in_the_source():
    known = texts()
    quoted = QUOTED.findall(PAGE.read_text())
    assert len(quoted) >= LEAST
    missing = [
        said
        for said in quoted
        if not all(part.strip(' "') in known for part in said.split("…") if part.strip(' "'))
    ]
    assert missing == []


def test_a_message_that_nobody_says_is_noticed():
    assert "the moon is not in the sky" not in texts()
