"""Messages use SQL terms: no name of a class, of a tree node or of a rule reaches a user."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import pytest

import headrace
from headrace.planner.logical import nodes as logical
from headrace.planner.logical.node_names import _CONSTRUCTS, _JOINS

ROOT = Path(headrace.__file__).parent
FOLDERS = ("planner", "expressions", "collections")
ERRORS = {
    *("UnsupportedError", "UserError", "PrerequisiteError", "PrivilegeError"),
    *("DefiniteFailure", "RowError", "FailingRow", "refuse", "_refuse", "no"),
}
"""Errors for users and the functions that raise them; a BugError is for developers."""
KINDS = {cls.__name__.removesuffix("Node") for cls in get_args(logical.Node)}
NODES = KINDS - {"Filter", "Values"} | {f"{kind}Node" for kind in KINDS}
JARGON = re.compile(
    rf"\b({'|'.join(NODES)}|{'|'.join(n.upper() for n in NODES - {'Distinct', 'Union', 'Join', 'Recursive', 'Window', 'Aggregate'})})\b"
    r"|\b(semi|anti)[ -]?join|\bnode\b|\b[A-Z]{4,}EXPR\b|\brtekind\b|\bcollection\b"
)


def files():
    return sorted(p for f in FOLDERS for p in (ROOT / f).rglob("*.py"))


def messages(tree: ast.AST):
    """Yield the arguments of all calls that raise an error for a user."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        if name in ERRORS:
            yield from call.args
            yield from (k.value for k in call.keywords if k.arg in ("detail", "hint"))


@pytest.mark.parametrize("path", files(), ids=lambda p: p.relative_to(ROOT).as_posix())
def test_messages_have_no_words_of_ours(path):
    for message in messages(ast.parse(path.read_text())):
        where = f"{path.name}:{message.lineno}"
        for part in ast.walk(message):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                assert not JARGON.search(part.value), f"{where}: {part.value}"
            if isinstance(part, ast.FormattedValue):
                for inner in ast.walk(part):
                    found = getattr(inner, "attr", None)
                    assert found not in ("__name__", "kind", "rtekind"), where


def test_the_check_finds_what_it_looks_for():
    for bad in ("SetOp over r", "SETOP over r", "a TopK here", "an anti join", "a WorkTable"):
        assert JARGON.search(bad), bad
    bad = 'self.refuse(f"{type(node).__name__.upper()} over r")'
    [message] = messages(ast.parse(bad))
    assert any(getattr(n, "attr", None) == "__name__" for n in ast.walk(message))


def test_every_node_has_its_words():
    spoken = {cls.__name__.removesuffix("Node") for cls in _CONSTRUCTS}
    assert spoken | {"Join", "Apply", "Aggregate", "SetOp"} == KINDS
    assert not any(JARGON.search(w) for w in (*_CONSTRUCTS.values(), *_JOINS.values()))
