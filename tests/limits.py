"""Limits on the size of source files and their parts, and rules for names."""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

FILE_LINES_MAX = 640
"""The longest file is the list of settings, each with its docstring."""
FUNCTION_LINES_MAX = 80
"""A constructor that wires the parts of an engine is long, because the formatter gives each
argument of a long call a line."""
METHODS_MAX = 30
"""At the earlier limit of 25, 13 classes had exactly 25: their code was packed instead of split."""
PARAMETERS_MAX = 7
PROSE_COLUMNS_MAX = 100
SMALL_MAX = 600
"""Numbers up to it may be OIDs or any other number."""
MANY = 3
OPENING = ("psycopg.connect", "psycopg.AsyncConnection.connect")

STATUS = re.compile(r"\bstatus\b['\"\]]*$")

Functions = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Return all nodes of a tree; cached, because many rules look at them."""
    return tuple(ast.walk(tree))


def functions(tree: ast.AST) -> Iterator[Functions]:
    """Yield every function and method."""
    return (n for n in nodes(tree) if isinstance(n, Functions))


def classes(tree: ast.AST) -> Iterator[ast.ClassDef]:
    """Yield every class."""
    return (n for n in nodes(tree) if isinstance(n, ast.ClassDef))


def long_functions(tree: ast.AST) -> list[str]:
    """Return the functions over the limit, not counting the docstring."""
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
    """Return the classes with too many methods."""
    return [
        f"{node.name}: {methods} methods"
        for node in classes(tree)
        if (methods := sum(isinstance(n, Functions) for n in node.body)) > METHODS_MAX
    ]


def wide_functions(tree: ast.AST) -> list[str]:
    """Return the functions with too many parameters; ``self`` and ``cls`` do not count."""
    out = []
    for node in functions(tree):
        taken = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        count = len(taken) - (bool(taken) and taken[0].arg in {"self", "cls"})
        if count > PARAMETERS_MAX:
            out.append(f"{node.name}: {count} parameters")
    return out


def long_prose(text: str, tree: ast.AST) -> list[str]:
    """Return the lines of docstrings and comments that are too long."""
    prose = {i for i, s in enumerate(text.split("\n"), 1) if s.lstrip().startswith("#")}
    for told in docstrings(tree):
        prose |= set(range(told.lineno, (told.end_lineno or told.lineno) + 1))
    return [
        f"line {i}: {len(line)} columns"
        for i, line in enumerate(text.split("\n"), 1)
        if i in prose and len(line) > PROSE_COLUMNS_MAX
    ]


def opens(tree: ast.AST) -> list[str]:
    """Return the calls that open a connection."""
    return [
        ast.unparse(node.func)
        for node in nodes(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") == "connect"  # most calls need no more
        and ast.unparse(node.func) in OPENING
    ]


def bare_oids(tree: ast.AST, oids: frozenset[int]) -> list[str]:
    """Return the OIDs of types that are written as numbers.

    A small number counts only in a list of several OIDs.
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
    """Return the public classes whose name occurs more than once, with their modules."""
    where: dict[str, list[str]] = {}
    for module, tree in trees.items():
        for node in classes(tree):
            if not node.name.startswith("_"):
                where.setdefault(node.name, []).append(module)
    return {name: found for name, found in where.items() if len(found) > 1}


def sleeps(tree: ast.AST) -> list[str]:
    """Return the calls that sleep; ``sleep(0)`` only yields to other tasks and is allowed."""
    return [
        ast.unparse(node)
        for node in nodes(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", getattr(node.func, "id", "")) == "sleep"
        and ast.unparse(node.args[0]) != "0"
    ]


@functools.cache
def tree(path: Path) -> ast.Module:
    """Return the tree of a file, parsed once for all rules."""
    return ast.parse(path.read_text(encoding="utf-8"))


def docstrings(tree: ast.AST) -> set[ast.Constant]:
    """Return the strings that are statements: docstrings of any kind."""
    return {
        node.value
        for node in nodes(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def texts(tree: ast.AST) -> Iterator[str]:
    """Yield every string that is not a docstring."""
    told = docstrings(tree)
    for node in nodes(tree):
        match node:
            case ast.Constant(value=str(value)) if node not in told:
                yield value


def catalog_texts(tree: ast.AST, relations: frozenset[str]) -> list[str]:
    """Return the relations of schema headrace that SQL in strings names, also in pieces."""
    names = "|".join(sorted(relations))
    named = re.compile(
        rf"\bheadrace\.(?:{names})\b(?!\.\w)"
        r"|(?i:\b(?:from|into|update|join|table|on)\s+headrace\.)(?:\{|$)"
    )
    out = [found[0] for text in texts(tree) if (found := named.search(text))]
    for node in nodes(tree):
        if isinstance(node, ast.Call):
            given = [a.value for a in node.args if isinstance(a, ast.Constant)]
            pairs = itertools.pairwise(given)
            out += [r for schema, r in pairs if schema == "headrace" and r in relations]
        elif isinstance(node, ast.JoinedStr):
            values = [v.value for v in node.values if isinstance(v, ast.Constant)]
            pieces = [v for v in values if isinstance(v, str)]
            out += [p for p in pieces if re.match(rf"\.(?:{names})\b", p)]
    return out


def bare_statuses(tree: ast.AST, words: frozenset[str]) -> list[str]:
    """Return the places where a literal status is compared, passed or assigned."""

    def is_word(node: ast.AST | None) -> bool:
        values = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
        return any(isinstance(v, ast.Constant) and v.value in words for v in values)

    def is_status(node: ast.AST | None) -> bool:
        return node is not None and bool(STATUS.search(ast.unparse(node)))

    out: list[ast.AST] = []
    for node in nodes(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            found = any(map(is_word, sides)) and any(map(is_status, sides))
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            same = isinstance(node.value, ast.Constant) and (
                ast.unparse(target).lower() == node.value.value
            )
            found = is_word(node.value) and (same or is_status(target))
        elif isinstance(node, ast.keyword):
            found = is_word(node.value) and node.arg == "status"
        elif isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            found = any(is_word(v) and is_status(k) for k, v in pairs)
        else:
            continue
        out += [node] * found
    return [ast.unparse(node) for node in out]


def read(paths: list[Path]) -> dict[Path, ast.AST]:
    """Return the trees of the files."""
    return {path: tree(path) for path in paths}


# Sentences whose clause has a pronoun for its subject (tests/test_prose.py); they may only fall.
PROSE = {"headrace": 10, "tests": 0, "pages": 20}
