"""How we write: sentences name their subject, and names are standard terms.

A sentence whose clause begins with *what*, *who*, *nobody* … hides the thing that it is about (a view,
a caller, a row).  The rule finds such clauses in docstrings, comments and pages.  It is a heuristic:
the numbers in ``limits.PROSE`` are what it finds today, and may only fall.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import limits

ROOT = Path(__file__).resolve().parent.parent
_PRONOUNS = "what|who|whoever|whatever|nobody|somebody|others|ours|everybody|anybody|whichever"
_CONJUNCTIONS = (
    "and|but|or|if|when|where|while|that|because|so|than|as|until|unless|for|once|whether|though"
    "|since|before|after|nor"
)
PRONOUN = re.compile(rf"\b(?:{_PRONOUNS})\b", re.IGNORECASE)
SUBJECT = re.compile(
    rf"(?:^|[,;:(]\s+|\b(?:{_CONJUNCTIONS})\s+)(?:{_PRONOUNS})\b(?![^.]*\?)", re.IGNORECASE
)
HOME_MADE = frozenset(
    {
        *("ahead", "altered", "aside", "away", "book", "continued", "crew", "deaths", "deeds"),
        *("desk", "display", "doorway", "halves", "healing", "heir", "holds", "homes", "keeping"),
        *("kept", "lane", "lookout", "moment", "nursery", "orders", "outpost", "outside", "packs"),
        *("parcels", "partners", "people", "poison", "quick", "remade", "remedies", "reshape"),
        *("residence", "retained", "shelf", "story", "suspects", "taps", "told", "train"),
        *("urgency", "weighing", "whereabouts"),
    }
)
"""Words that are not terms of the field; no part of a file or class name may be one."""
STANDARD = frozenset({"held", "read_ahead", "retained_values", "ReadAhead", "RetainedValues"})
"""Names with such a word that are standard terms, or the name of a table."""


def sentences(text: str) -> list[str]:
    """Split a text into sentences; text in backticks counts as one word."""
    text = re.sub(r"\s+", " ", re.sub(r"(``?)[^`]*\1", "x", text))
    return [s for s in re.split(r"(?<=[.!?])\s+(?=[A-Z`\"'(])", text) if s.strip()]


def hidden_subject(sentence: str) -> bool:
    """Return whether a clause of ``sentence`` has a pronoun for its subject."""
    return not sentence.rstrip().endswith("?") and SUBJECT.search(sentence) is not None


def texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring, attribute docstring and block of comments."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield statement.lineno, text
    block: list[str] = []
    last = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if block and token.start[0] != last + 1:
                yield last, " ".join(block)
                block = []
            block.append(token.string.lstrip("#").strip())
            last = token.start[0]
    if block:
        yield last, " ".join(block)


def paragraphs(page: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each paragraph, list item and table cell; code is left out."""
    page = re.sub(r"```.*?```", lambda m: "\n" * m[0].count("\n"), page, flags=re.DOTALL)
    page = re.sub(r"(?m)^ {4}.*$", "", page)
    at = 1
    for part in re.split(r"(\n\s*\n|\n(?=[-|#*] ?))", page):
        for cell in re.split(r"\s\|\s|^\|", part):
            yield at, cell
        at += part.count("\n")


def tracked(*patterns: str) -> list[Path]:
    """Return the files that git tracks, except the changelog, whose lines are history."""
    listed = subprocess.run(
        ["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in listed.stdout.split() if name != "CHANGELOG.md"]


AREAS = {"headrace": ["headrace/*.py"], "tests": ["tests/*.py", "bench/*.py"], "pages": ["*.md"]}


@pytest.mark.parametrize("area", AREAS)
def test_sentences_name_their_subject(area: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {sentence[:90]}"
        for path in tracked(*AREAS[area])
        if PRONOUN.search(whole := path.read_text())
        for line, text in (paragraphs if path.suffix == ".md" else texts)(whole)
        if PRONOUN.search(text)
        for sentence in sentences(text)
        if hidden_subject(sentence)
    ]
    assert len(found) <= limits.PROSE[area], "\n".join([*found[-20:], f"{len(found)} in all"])


def parts(name: str) -> list[str]:
    """Return the words of a name in snake or camel case."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_")


def test_files_and_classes_have_standard_names() -> None:
    names: list[tuple[str, str]] = []
    for path in tracked("headrace/*.py"):
        names.append((path.stem, str(path.relative_to(ROOT))))
        names += [
            (node.name, f"{path.relative_to(ROOT)}:{node.lineno}")
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ClassDef)
        ]
    found = [
        f"{where}: {name}"
        for name, where in names
        if HOME_MADE & set(parts(name)) and name not in STANDARD
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("sentence", "hidden"),
    [
        ("Who asks the query again pays for the table.", True),
        ("It waits, and nobody else may write.", True),
        ("Of these what is left counts.", False),  # not seen: the rule looks at clauses
        ("The view waits until whoever holds the lock has committed.", True),
        ("The caller learns what has changed.", False),
        ("Who pays?", False),
        ("Systems that run the query again pay for the whole table.", False),
    ],
)
def test_sentence_rule_itself(sentence: str, hidden: bool) -> None:
    assert hidden_subject(sentence) == hidden


def test_texts_and_paragraphs_are_found() -> None:
    source = '"""One."""\n# two\n# three\nx = 1\n"""Four."""\ndef f():\n    """Five."""\n# six\n'
    assert [text for _, text in texts(source)] == ["One.", "Four.", "Five.", "two three", "six"]
    page = "# A\nb\n\n- c\n- d\n\n    code\n\n```\nmore\n```\n| e | f |\n"
    words = " ".join(text for _, text in paragraphs(page)).split()
    assert [w for w in words if w.isalpha()] == ["A", "b", "c", "d", "e", "f"]
    assert parts("SideLane") == parts("side_lane") == ["side", "lane"]
