"""Rule of the source: every public name of ``headrace`` has a caller in ``headrace``.

Reads the tree as text; imports nothing of it. A function, method, property or field whose name
occurs only at its definition is dead, or exists for a test and belongs there.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "headrace"

# Names that have no caller in the package, with the reason.
EXCEPTIONS = {
    "unsupported": "sqlglot's generator calls it",
    "dump": "what a store holds, pair by pair, for comparisons of two stores",
    **dict.fromkeys(("NO_ROW", "UNTOUCHED", "PRESENT"), "value of a kernel's answer"),
    **dict.fromkeys(
        ("allocations", "retired"), "counter of the state map, by which leaks are seen"
    ),
    "VersionedStore": "contract that docstrings and README name",
    "VersionedDatabase": "contract that docstrings and README name",
}

Defined = tuple[int, str]


def defined(tree: ast.Module) -> Iterator[Defined]:
    """Yield line and name of each public function, class and constant, method and field."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((node.lineno, t.id) for t in targets if isinstance(t, ast.Name))
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    for parent in ast.walk(tree):
        if isinstance(parent, ast.Module | ast.ClassDef):
            for node in parent.body:
                if isinstance(node, functions | ast.ClassDef):
                    yield node.lineno, node.name
                elif isinstance(parent, ast.ClassDef) and isinstance(node, ast.AnnAssign):
                    assert isinstance(node.target, ast.Name)
                    yield node.lineno, node.target.id


def used(tree: ast.Module) -> Iterator[str]:
    """Yield each name that is read, set, passed as a keyword or written as a text."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name, ctx=ast.Load()):
                yield name
            case ast.keyword(arg=str(name)):
                yield name
            case ast.Constant(value=str(name)) if name.isidentifier():
                yield name


def uncalled(trees: Iterable[tuple[str, ast.Module]]) -> list[str]:
    """Return place and name of definitions without a caller."""
    trees = list(trees)
    names = Counter(name for _, tree in trees for name in used(tree))
    return sorted(
        f"{where}:{line}: {name}"
        for where, tree in trees
        for line, name in defined(tree)
        if not name.startswith("_") and not names[name] and name not in EXCEPTIONS
    )


def test_what_is_public_has_a_caller() -> None:
    trees = ((str(p.relative_to(PACKAGE)), ast.parse(p.read_text())) for p in PACKAGE.rglob("*.py"))
    assert not (found := uncalled(trees)), "call it, make it private or move it: " + "\n".join(
        found
    )


def test_the_rule_itself() -> None:
    one = (
        "class A:\n    x: int\n    def f(self): ...\n    def g(self): ...\n    def _h(self): ...\n"
    )
    two = "import one\nN = 1\ndef main():\n    one.A().f()\n    main()\n"
    trees = [("one", ast.parse(one)), ("two", ast.parse(two))]
    assert uncalled(trees) == ["one:2: x", "one:4: g", "two:2: N"]
