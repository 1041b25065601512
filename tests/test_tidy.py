"""Rules of the source that no linter knows (house-style 3): each failure says what to do.

Reads the tree as text; imports nothing of it.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "headrace"
MODULES = sorted(PACKAGE.rglob("*.py"))

FILE_LINES_MAX = 800
FUNCTION_LINES_MAX = 70
README_LINES_MAX = 40
FILE_BYTES_MAX = 100_000

# Folder -> what it may import (architecture.md 3).  The top modules (types, errors, clock,
# config…) are everybody's; they import no folder.
ALLOWED: dict[str, set[str]] = {
    "kernels": set(),
    "expressions": {"kernels"},
    "state": {"kernels"},
    "storage": {"kernels"},
    "forwarder": {"kernels"},
    "sink": {"kernels"},
    "sql": set(),
    "collections": {"expressions", "state", "kernels"},
    "planner": {"collections", "expressions"},
    # The worker runs the stream and the sink; control messages are its `rpc`.
    "runtime": {
        *("collections", "expressions", "forwarder", "kernels", "sink"),
        *("state", "storage"),
    },
    # The builder writes first results through the sink and states as the worker reads them.
    "population": {
        *("collections", "embedded", "expressions", "forwarder", "kernels"),
        *("planner", "runtime.faults", "runtime.rpc", "sink", "sql", "state"),
    },
    "embedded": set(),
    "server": {
        *("collections", "embedded", "expressions", "forwarder", "kernels"),
        *("planner", "population", "runtime", "sink", "sql", "state", "storage"),
    },
}

BANNED_CALLS = {
    "print": "log with structlog; programs write with sys.stdout.write",
    "time.time": "time.monotonic, or headrace.clock for the time of day",
    "time.time_ns": "time.monotonic_ns",
    "datetime.now": "headrace.clock",
    "datetime.utcnow": "headrace.clock",
    "datetime.datetime.now": "headrace.clock",
    "eval": "parse it",
    "exec": "write it out",
}
BANNED_MODULES = {
    "random": "nothing here may be random; take the value as an argument",
    "logging": "structlog",
    "pickle": "JSON, or bytes of a described layout",
}


def name_of(path: Path) -> str:
    """Dotted module name of a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import, also those inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module
            yield from ((node.lineno, f"{node.module}.{a.name}") for a in node.names)


def wrong_imports(module: str, tree: ast.AST) -> list[str]:
    """Imports of ``module`` against the direction of the table."""
    parts = module.split(".")
    folder = parts[1] if (PACKAGE / parts[1]).is_dir() else ""
    out = []
    for line, name in imported(tree):
        target = name.split(".")
        if target[0] != "headrace" or len(target) < 2:
            continue
        if not (PACKAGE / target[1]).is_dir() or target[1] == folder:
            continue
        allowed = ALLOWED.get(folder, set())
        # `from headrace.runtime import rpc` yields headrace.runtime first: judge the leaf.
        partial = {a.split(".")[0] for a in allowed if "." in a}
        exact = ".".join(target[1:3])
        if target[1] in allowed or exact in allowed:
            continue
        if target[1] in partial and len(target) == 2:
            continue
        out.append(f"line {line}: {folder or module} may not import {name}")
    return out


def banned(tree: ast.AST) -> list[str]:
    """Calls and modules that have a replacement."""
    out = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in BANNED_CALLS:
                out.append(f"line {node.lineno}: {called}(): {BANNED_CALLS[called]}")
    for line, name in imported(tree):
        if name in BANNED_MODULES:
            out.append(f"line {line}: import {name}: {BANNED_MODULES[name]}")
    return out


def long_functions(tree: ast.AST) -> list[str]:
    """Functions over the limit, not counting the docstring."""
    out = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        assert node.end_lineno is not None
        lines = node.end_lineno - node.lineno + 1
        if ast.get_docstring(node):
            doc = node.body[0]
            assert doc.end_lineno is not None
            lines -= doc.end_lineno - doc.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            out.append(f"line {node.lineno}: {node.name} has {lines} lines; split it")
    return out


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_module(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    problems = wrong_imports(name_of(path), tree) if path.parent != PACKAGE else []
    if path.name != "clock.py":  # the replacement itself
        problems += banned(tree)
    problems += long_functions(tree)
    lines = text.count("\n")
    if lines > FILE_LINES_MAX:
        problems.append(f"{lines} lines; at most {FILE_LINES_MAX}: split it by subject")
    if text.strip() and not ast.get_docstring(tree):
        problems.append("no module docstring: say what it owns and promises")
    assert not problems, f"{path.relative_to(ROOT)}:\n" + "\n".join(problems)


def test_every_folder_has_a_place_in_the_table() -> None:
    folders = {p.parent.name for p in PACKAGE.glob("*/__init__.py")}
    assert folders <= set(ALLOWED)


def test_every_folder_has_a_short_readme() -> None:
    problems = []
    for folder in sorted({p.parent for p in PACKAGE.glob("*/*.py")}):
        if [p.name for p in folder.glob("*.py") if p.read_text().strip()] == []:
            continue
        readme = folder / "README.md"
        if not readme.exists():
            problems.append(f"{folder.name}: no README.md")
        elif readme.read_text().count("\n") > README_LINES_MAX:
            problems.append(f"{folder.name}/README.md: over {README_LINES_MAX} lines")
    assert not problems, problems


def test_every_collection_and_rule_has_its_test() -> None:
    tests = "\n".join(
        path.read_text()
        for path in [
            *(ROOT / "tests" / "collections").glob("*.py"),
            *(ROOT / "tests").glob("*.py"),
        ]
        if path != Path(__file__)
    )
    missing = []
    for path in sorted((PACKAGE / "collections").glob("*.py")):
        named = ROOT / "tests" / "collections" / f"test_{path.stem}.py"
        missing += [
            f"{node.name} ({named.relative_to(ROOT)})"
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.ClassDef)
            and any(ast.unparse(b) in {"Collection", "Chain"} for b in node.bases)
            and node.name != "Chain"  # what Filter, Map and Fused share
            and not named.exists()
            and not re.search(rf"\b{node.name}\(", tests)
        ]
    for path in sorted((PACKAGE / "planner" / "rules").glob("*.py")):
        spec = ROOT / "tests" / "planner" / "rules" / f"{path.stem}.spec"
        test = spec.with_name(f"test_{path.stem}.py")
        if path.stem != "__init__" and not spec.exists() and not test.exists():
            missing.append(str(spec.relative_to(ROOT)))
    assert not missing, missing


def test_every_setting_has_a_reader() -> None:
    config = PACKAGE / "config.py"
    if not config.exists():
        pytest.skip("there are no settings")
    fields = [
        item.target.id
        for node in ast.walk(ast.parse(config.read_text()))
        if isinstance(node, ast.ClassDef) and node.name == "Settings"
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    ]
    code = "\n".join(p.read_text() for p in MODULES if p != config)
    # A derived setting reads what it is derived from.
    code += "\n".join(
        ast.unparse(item)
        for node in ast.walk(ast.parse(config.read_text()))
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(d) == "property" for d in node.decorator_list)
        for item in node.body
    )
    unread = [f for f in fields if not re.search(rf"\.{f}\b", code)]
    assert not unread, f"settings that nobody reads: {unread}"


def test_every_module_is_used() -> None:
    texts = {p: p.read_text() for p in MODULES}
    used = {name for t in texts.values() for _, name in imported(ast.parse(t))}
    for name in ("pyproject.toml", "Makefile", "setup.py"):
        texts[ROOT / name] = (ROOT / name).read_text()
    unused = [
        module
        for path, module in ((p, name_of(p)) for p in MODULES)
        if path.name != "__init__.py"
        and module not in used
        # Started by its name, as a process.
        and not any(module in text for other, text in texts.items() if other != path)
    ]
    assert not unused, f"nothing uses {unused}: remove, or use"


def not_installed(names: set[str], installer: str) -> set[str]:
    """SQL files that are no entry of the installer's ``FILES``."""
    files = [
        ast.literal_eval(node.value)
        for node in ast.walk(ast.parse(installer))
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id == "FILES"
        and node.value is not None
    ]
    assert len(files) == 1, "the installer has one list of files"
    return names ^ set(files[0])


def test_every_sql_file_is_installed() -> None:
    folder = PACKAGE / "sql"
    names = {p.name for p in folder.glob("*.sql")}
    wrong = not_installed(names, (folder / "install.py").read_text())
    assert not wrong, wrong


def is_source(content: bytes) -> bool:
    """Whether it is what somebody reads: text, and no more than a person can take in."""
    return len(content) <= FILE_BYTES_MAX and b"\0" not in content


def test_every_file_is_source() -> None:
    """What was built or downloaded beside the work does not belong here."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False
    )
    if listed.returncode:
        pytest.skip("no clone, but an archive")
    files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    assert len(files) > 100
    others = [f for f in files if f.is_file() and not is_source(f.read_bytes())]
    assert others == []


def test_source_rule_itself() -> None:
    assert is_source(b"x = 1\n")
    assert not is_source(b"PK\0")
    assert not is_source(b"x" * (FILE_BYTES_MAX + 1))


def test_sql_file_rule_itself() -> None:
    installer = 'FILES: Final = ("a.sql",)\nx = "*.sql b.sql"'
    assert not_installed({"a.sql", "b.sql"}, installer) == {"b.sql"}


@pytest.mark.parametrize(
    ("module", "source", "count"),
    [
        ("headrace.kernels.x", "from headrace.state import rocks", 1),
        ("headrace.kernels.x", "from headrace.types import BOOL", 0),
        ("headrace.population.x", "from headrace.runtime import rpc", 0),
        ("headrace.population.x", "from headrace.runtime.worker import main", 1),
        ("headrace.server.x", "import headrace.process.rpc", 0),
    ],
)
def test_import_rule_itself(module: str, source: str, count: int) -> None:
    assert bool(wrong_imports(module, ast.parse(source))) == bool(count)


def test_banned_rule_itself() -> None:
    found = banned(ast.parse("import random\nimport time\ntime.time()\nprint(1)"))
    assert len(found) == 3


def test_length_rule_itself() -> None:
    body = "\n".join("    x = 1" for _ in range(FUNCTION_LINES_MAX))
    assert long_functions(ast.parse(f"def f():\n{body}\n"))
    assert not long_functions(ast.parse(f"def f():\n{body[10:]}\n"))
