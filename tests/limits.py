"""How large the parts of a source may be, and what its parts are called: read as text."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
METHODS_MAX = 25
PARAMETERS_MAX = 7
PROSE_COLUMNS_MAX = 100
SMALL_MAX = 600
"""OIDs up to it are numbers as any other."""
MANY = 3
OPENING = ("psycopg.connect", "psycopg.AsyncConnection.connect")

Functions = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """All nodes of a tree: many rules look at them."""
    return tuple(ast.walk(tree))


def functions(tree: ast.AST) -> Iterator[Functions]:
    """Every function and method."""
    return (n for n in nodes(tree) if isinstance(n, Functions))


def classes(tree: ast.AST) -> Iterator[ast.ClassDef]:
    """Every class."""
    return (n for n in nodes(tree) if isinstance(n, ast.ClassDef))


def long_functions(tree: ast.AST) -> list[str]:
    """Functions over the limit, not counting the docstring."""
    out = []
    for node in functions(tree):
        assert node.end_lineno is not None
        lines = node.end_lineno - node.lineno + 1
        if ast.get_docstring(node):
            doc = node.body[0]
            assert doc.end_lineno is not None
            lines -= doc.end_lineno - doc.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            out.append(f"{node.name}: {lines} lines")
    return out


def large_classes(tree: ast.AST) -> list[str]:
    """Classes with too many methods."""
    return [
        f"{node.name}: {methods} methods"
        for node in classes(tree)
        if (methods := sum(isinstance(n, Functions) for n in node.body)) > METHODS_MAX
    ]


def wide_functions(tree: ast.AST) -> list[str]:
    """Functions with too many parameters; that of the object itself does not count."""
    out = []
    for node in functions(tree):
        taken = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        count = len(taken) - (bool(taken) and taken[0].arg in {"self", "cls"})
        if count > PARAMETERS_MAX:
            out.append(f"{node.name}: {count} parameters")
    return out


def long_prose(text: str, tree: ast.AST) -> list[str]:
    """Lines of docstrings and comments that are too long."""
    prose = {i for i, s in enumerate(text.split("\n"), 1) if s.lstrip().startswith("#")}
    for node in nodes(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str()), end_lineno=int(end)):
                prose |= set(range(node.lineno, end + 1))
    return [
        f"line {i}: {len(line)} columns"
        for i, line in enumerate(text.split("\n"), 1)
        if i in prose and len(line) > PROSE_COLUMNS_MAX
    ]


def opens(tree: ast.AST) -> list[str]:
    """Connections that are opened."""
    return [
        ast.unparse(node.func)
        for node in nodes(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") == "connect"  # most calls need no more
        and ast.unparse(node.func) in OPENING
    ]


def bare_oids(tree: ast.AST, oids: frozenset[int]) -> list[str]:
    """OIDs of types that are written as numbers.

    A small number is one where it stands among others of them.
    """
    out = []
    for node in nodes(tree):
        if isinstance(node, ast.Constant) and type(node.value) is int:
            out += [str(node.value)] * (node.value in oids and node.value > SMALL_MAX)
        elif isinstance(node, ast.Set | ast.Tuple | ast.List):
            values = [n.value for n in node.elts if isinstance(n, ast.Constant)]
            many = len(values) > MANY and len(values) == len(node.elts)
            if many and all(v in oids for v in values) and any(values):
                out.append(ast.unparse(node))
    return out


def namesakes(trees: Mapping[str, ast.AST]) -> dict[str, list[str]]:
    """Public classes whose name another one has as well, and where they are."""
    where: dict[str, list[str]] = {}
    for module, tree in trees.items():
        for node in classes(tree):
            if not node.name.startswith("_"):
                where.setdefault(node.name, []).append(module)
    return {name: found for name, found in where.items() if len(found) > 1}


def sleeps(tree: ast.AST) -> list[str]:
    """Where time is let pass; to let others go first (0) is something else."""
    return [
        ast.unparse(node)
        for node in nodes(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", getattr(node.func, "id", "")) == "sleep"
        and ast.unparse(node.args[0]) != "0"
    ]


@functools.cache
def tree(path: Path) -> ast.Module:
    """The tree of a file, parsed once for all rules."""
    return ast.parse(path.read_text(encoding="utf-8"))


def read(paths: list[Path]) -> dict[Path, ast.AST]:
    """Their trees."""
    return {path: tree(path) for path in paths}
