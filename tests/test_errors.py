"""Errors: the repair is a value that survives copies and processes; the text decides nothing."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import headrace
from headrace import errors
from headrace.errors import RESYNC, ContinuityLost, DefiniteFailure, Repair, RightEnded, Then
from headrace.runtime.leaving import with_hint

VIEW = SimpleNamespace(argument="public.v")
CALL = "CALL headrace.resync_view('public.v')"
REPAIRS = (
    (None, f"{CALL} rebuilds it."),
    (RESYNC, f"{CALL} rebuilds it."),
    (Repair("Create the table again"), f"Create the table again, then {CALL}."),
    (Repair("Run: GRANT x", Then.RESUMED), "Run: GRANT x; then the view goes on by itself."),
    # These hints only look like repairs.
    (str(RESYNC), str(RESYNC)),
    ("Call it, then create the view again.", "Call it, then create the view again."),
)


@pytest.mark.parametrize(("hint", "shown"), REPAIRS)
def test_the_repair_decides_which_call_a_stopped_view_names(hint, shown):
    error = DefiniteFailure("it was dropped", detail="Now.", hint=hint)
    copies = (
        error,
        error.again(detail="Later."),
        ContinuityLost(error.message, hint=error.advice),
        errors.from_wire(errors.to_wire(error)),
    )
    assert [with_hint(each, VIEW).hint for each in copies] == [shown] * len(copies)
    assert {each.hint for each in copies} == {None if hint is None else str(hint)}


def test_a_repair_is_no_field_of_the_postgres_protocol():
    error = RightEnded("denied", hint=Repair("Run: GRANT x", Then.RESUMED))
    assert error.fields() == {
        "C": RightEnded.sqlstate,
        "M": "denied",
        "H": "Run: GRANT x; then the view goes on by itself.",
    }


def test_names_in_the_calls_that_hints_name_are_literals():
    """``tokens.argument`` quotes them; ``View.argument`` is one without its outer quotes."""
    found = []
    for path, tree in parsed(r"headrace\.\w+\('"):
        texts = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
        found += [f"{path.name}:{node.lineno}" for node in texts if bare_name(node)]
    assert [place for place in found if not place.startswith("calls.py:")] == []


def bare_name(text: ast.JoinedStr) -> bool:
    """Whether quotes of a call's argument stand around any value, which may contain quotes."""
    return any(
        isinstance(before, ast.Constant)
        and re.search(r"headrace\.\w+\('$", before.value)
        and isinstance(value, ast.FormattedValue)
        and ast.unparse(value.value) not in ("view.argument", "argument")
        for before, value in itertools.pairwise(text.values)
    )


def test_no_code_decides_by_the_text_of_a_hint():
    found = []
    for path, tree in parsed(r"\.hint\b"):
        found += [f"{path.name}:{node.lineno}" for node in ast.walk(tree) if reads_text(node)]
    assert found == []


def parsed(wanted: str) -> Iterator[tuple[Path, ast.Module]]:
    """Yield the modules of ``headrace`` in whose text ``wanted`` occurs."""
    for path in sorted(Path(headrace.__file__).parent.rglob("*.py")):
        if re.search(wanted, text := path.read_text()):
            yield path, ast.parse(text)


def reads_text(node: ast.AST) -> bool:
    """Whether ``node`` compares or takes apart a hint."""
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        to_none = any(isinstance(s, ast.Constant) and s.value is None for s in sides)
        return any(map(is_hint, sides)) and not (len(sides) == 2 and to_none)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return is_hint(node.func.value)
    return False


def is_hint(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "hint"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("error.hint in (None, RESYNC)", True),
        ("error.hint.endswith(x)", True),
        ("'x' in error.hint", True),
        ("error.hint is None", False),
        ("print(error.hint)", False),
    ],
)
def test_that_check(code, expected):
    assert any(map(reads_text, ast.walk(ast.parse(code)))) is expected


@pytest.mark.parametrize(
    ("code", "withheld"),
    [
        ("22P02", True),  # invalid input: the text of a value
        ("P0001", True),  # RAISE in a function of a user
        ("AB123", True),  # the same with a code of its own
        ("2201B", True),
        ("42P01", False),  # the name of a table
        ("55P03", False),
        ("55H05", False),
        ("57014", False),
    ],
)
def test_texts_about_hidden_rows_are_withheld(code, withheld):
    shown = DefiniteFailure("no secret", detail="Of secret.", sqlstate=code).without_values()
    assert shown.code == code
    assert ("secret" not in f"{shown.message} {shown.detail}") is withheld
