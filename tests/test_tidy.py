"""Rules of the source that no linter has; each failure says how to repair it.

Reads the tree as text; imports nothing of it.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import arrows, limits

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "headrace"
MODULES = sorted(PACKAGE.rglob("*.py"))

README_LINES_MAX = 40
FILE_BYTES_MAX = 100_000
PICTURE_BYTES_MAX = 250_000

# Folder -> the folders that it may import, exactly: an entry without an import is removed. From the
# top; an import leads only to a folder further down. The top modules (types, errors, clock, config,
# events) may be imported everywhere; they import no folder.
ROOMS: dict[str, set[str]] = {
    "server": {
        *("console", "embedded", "kernels", "postgres", "process"),
        *("replay", "runtime", "sql", "state"),
    },
    "console": {"postgres", "process", "sql"},
    "views": {
        *("collections", "expressions", "forks", "planner", "population", "postgres"),
        *("process", "provenance", "reading", "sink", "sources", "sql"),
    },
    "provenance": {
        *("collections", "expressions", "kernels", "population", "postgres", "process", "state"),
    },
    "forks": {"collections", "expressions", "network", "process", "state"},
    "replay": {
        *("collections", "embedded", "expressions", "forwarder", "kernels", "network"),
        *("postgres", "process", "runtime", "sql", "state", "storage"),
    },
    "embedded": {"process", "sql"},
    "population": {
        *("collections", "expressions", "kernels", "planner", "postgres", "process"),
        *("reading", "sink", "sql", "state"),
    },
    "runtime": {
        *("collections", "expressions", "forwarder", "kernels", "network", "postgres"),
        *("process", "sink", "sql", "state", "storage"),
    },
    "sources": {"forwarder", "kernels", "postgres", "process", "sql"},
    "planner": {"collections", "expressions", "postgres", "sql"},
    "sink": {"kernels", "postgres", "sql"},
    "forwarder": {"kernels", "postgres"},
    "collections": {"expressions", "kernels", "process", "state"},
    "expressions": {"kernels", "postgres", "process"},
    "storage": {"process"},
    "network": {"process"},
    "state": {"kernels", "process"},
    "sql": {"postgres", "process"},
    "kernels": set(),
    "postgres": set(),
    "reading": {"process"},
    "process": set(),
}

# The same inside the planner; a name with a dot is a file.
PLANNER: dict[str, set[str]] = {
    ".__init__": {".plan", ".request", "physical"},
    ".plan": {
        *(".graph", ".limits", ".readings", ".request", "analyse", "binding", "bodies"),
        *("logical", "passes"),
        *("physical", "scalars"),
    },
    ".readings": {".graph", ".request", "analyse", "front"},
    "front": {".limits", "analyse"},
    "physical": {".limits", ".graph", ".request", "analyse", "binding", "logical", "scalars"},
    "passes": {".limits", "analyse", "binding", "logical", "rules", "scalars"},
    "rules": {".limits", "logical"},
    "binding": {".limits", ".request", "analyse", "bodies", "logical", "scalars"},
    "bodies": {"analyse", "scalars"},
    "placement": set(),
    ".request": {".limits", ".graph", "logical"},
    "scalars": {".limits", "analyse", "logical"},
    "logical": {".limits", "analyse"},
    "analyse": {".limits"},
    ".limits": set(),
    ".graph": set(),
}

# The same inside the worker: first the parts of the engine, then the modules of other threads
# (``threads``) and the data classes (``records``).
RUNTIME: dict[str, set[str]] = {
    ".worker": {
        *(".engine_state", ".engine", ".activity", ".insight", ".measures", ".operators"),
        ".durable_units",
    },
    ".worker_process": {".worker_service"},
    ".joined": set(),
    ".worker_service": {".lagging_session", ".worker_batches", "records"},
    ".worker_batches": {"records", "threads"},
    ".lagging_session": {"records"},
    ".activity": {".engine_state"},
    ".measures": {".engine_state", ".insight", "records"},
    ".insight": {".engine_state", "records"},
    ".operators": {".engine_state", "records"},
    ".engine": {
        *(
            ".read_ahead",
            ".attaching",
            ".engine_state",
            ".overload",
            ".commits",
            ".durability",
            ".durable_units",
            ".failover",
            ".retries",
        ),
        *(
            ".worker_handles",
            ".intake",
            ".state_reuse",
            ".catching_up",
            ".lateness",
            ".leaving",
            ".lifecycle",
            ".loading",
            ".moving",
            ".partitions",
        ),
        *(
            ".recovery",
            ".reconnects",
            ".sharing",
            ".change_capture",
            ".ticker",
            ".waits",
            ".watch",
            ".watermark",
            ".coverage",
            "threads",
        ),
    },
    ".recovery": {
        *(".engine_state", ".durability", ".failover", ".leaving", ".loading", ".replay"),
        ".sharing",
        *("records", "threads"),
    },
    ".durable_units": {".engine_state", ".durability", ".worker_handles", "records"},
    ".moving": {".engine_state", ".durability", ".lifecycle", ".loading", "records"},
    ".state_reuse": {".engine_state", ".durability", ".lifecycle", "records"},
    ".lifecycle": {".engine_state", ".leaving", ".loading", ".change_capture", ".waits", "records"},
    ".overload": {".engine_state", "threads", "records"},
    ".catching_up": {
        ".engine_state",
        ".slow_groups",
        ".batch_ends",
        ".coalesced_batch",
        ".commits",
        ".intake",
        ".lateness",
        ".cursor",
        ".cursors",
        ".change_capture",
        ".watch",
        ".worker_handles",
        "records",
        "threads",
    },
    ".slow_groups": {".engine_state", "threads", "records"},
    ".batch_ends": {".change_capture", ".cursors", ".engine_state", "records"},
    ".coalesced_batch": {*(".cursor", ".watch", ".worker_handles"), *("threads", "records")},
    ".cursors": {".cursor", ".engine_state", ".log_cursor", ".source_cursor", ".watch", "records"},
    ".log_cursor": {".cursor", ".watch", "records"},
    ".source_cursor": {".copied_stream", ".cursor", ".engine_state", ".watch", "records"},
    ".copied_stream": {"records"},
    ".cursor": {".watch", "records"},
    ".attaching": {".engine_state", ".durability", ".sharing"},
    ".read_ahead": {".engine_state", "records"},
    ".reconnects": {".engine_state", ".leaving", ".loading", "records"},
    ".intake": {
        ".engine_state",
        ".leading",
        ".worker_handles",
        ".leaving",
        ".watch",
        "records",
        "threads",
    },
    ".commits": {
        *(".engine_state", ".lateness", ".leading", ".leaving", ".change_capture", ".waits"),
        "records",
    },
    ".leading": {".engine_state", "records"},
    ".retries": {".engine_state", ".leaving", ".result_tables", "records"},
    ".loading": {
        *(
            ".engine_state",
            ".durability",
            ".worker_handles",
            ".leaving",
            ".result_tables",
            ".sharing",
        ),
        *(".watch", "records"),
    },
    ".leaving": {
        ".engine_state",
        ".durability",
        ".worker_handles",
        ".sharing",
        ".waits",
        ".watch",
        "records",
    },
    ".partitions": {
        *(
            ".engine_state",
            ".departures",
            ".durability",
            ".worker_handles",
            ".sharing",
            ".subplan_members",
        ),
        *(".watch", "records"),
    },
    ".departures": {".engine_state", ".watch", "records"},
    ".sharing": {
        ".engine_state",
        ".durability",
        ".worker_handles",
        ".subplan_members",
        ".watch",
        "records",
    },
    ".subplan_members": {".engine_state", "records"},
    ".worker_handles": {".engine_state", "records", "threads"},
    ".watch": {".engine_state", "records"},
    ".watermark": {".engine_state", "records"},
    ".lateness": {".engine_state", "records", "threads"},
    ".result_tables": {".engine_state", "records"},
    ".durability": {
        ".engine_state",
        ".failover",
        ".queue_priority",
        ".replication_wait",
        "records",
        "threads",
    },
    ".replication_wait": {".engine_state", ".failover"},
    ".failover": {".engine_state", "records"},
    ".queue_priority": {".engine_state", "records"},
    ".waits": {".engine_state", "records"},
    ".change_capture": {".engine_state", "records"},
    ".ticker": {".engine_state", ".coverage", "records"},
    ".coverage": {".engine_state", "records"},
    ".replay": {".engine_state", "records"},
    ".engine_state": {"records", "threads"},
    "threads": {"records"},
    "records": set(),
}
THREADS = {
    *(
        "batches",
        "checkpoints",
        "link",
        "ownership",
        "pipeline",
        "pipelined_commit",
        "single_job",
        "writing",
    ),
}
RECORDS = {
    *(
        "remote_worker",
        "columns",
        "coordinator",
        "counted",
        "culprit",
        "edges",
        "gauges",
        "histogram",
    ),
    *("lsn_pins", "incoming", "jobs", "registry", "signatures"),
    *(
        "positions",
        "packing",
        "log_pins",
        "intake_log",
        "row_transfer",
        "shared",
        "lagging",
        "snapshots",
        "event_log",
    ),
    *(
        "crash_attribution",
        "statuses",
        "unit_feeds",
        "unit_index",
        "unit_links",
        "unit_position",
        "views",
    ),
}

# Exceptions from a limit of tests/limits.py or from a rule, with their reasons; an entry that is no
# longer needed is removed.
LARGE: dict[str, str] = {}
WIDE: dict[str, str] = {}
LONG: dict[str, str] = {}
OPENING: dict[str, str] = {"postgres/connect.py": "the one door"}

CITED = re.compile(r"(?<![\w-])(?:[AEFNRT]-\d{1,2}|[EH]\d{1,2})(?![\w-])")
"""Ids of docs/behaviours.md."""
SPAN = re.compile(r"\b([EH])(\d{1,2})[-–]\1?(\d{1,2})\b|\b([AEFNT]-)(\d{1,2})(?:/(\d{1,2}))+")
PAPERS = re.compile(
    r"\b(?:requirements|reliability|architecture|datapath|peers|house-style|layout|topology)\.md"
)
"""Pages that this repository does not have."""

OTHER_LOG: dict[str, str] = {"events.py": "the bridge from it to structlog"}
OTHER_CODEC: dict[str, str] = {"collections/subplans.py": "what is equal is told by its very text"}
_PLANS = "a plan passes between two processes of one engine, over a pipe, and is not stored"
OTHER_PICKLE: dict[str, str] = {
    "population/planner_child.py": _PLANS,
    "population/planner_processes.py": _PLANS,
}

BANNED_CALLS = {
    "print": "log with structlog; programs write with sys.stdout.write",
    "time.time": "headrace.clock",
    "time.time_ns": "headrace.clock",
    "time.monotonic": "headrace.clock, which a test can replace",
    "time.perf_counter": "headrace.clock.monotonic",
    "time.sleep": "headrace.clock.sleep",
    "datetime.now": "headrace.clock",
    "datetime.utcnow": "headrace.clock",
    "datetime.datetime.now": "headrace.clock",
    "eval": "parse it",
    "exec": "write it out",
}
ONE_PROCESS = (
    r"uuid\.|secrets\.|os\.(getp|urandom|open)|open$|clock\.|threading\.Thread|socket\.|mmap\."
)
TYPED_READS = {"msgspec.convert", "msgspec.json.decode"}
"""Not for our own classes: two threads that first decode one at once crash the process."""
BUILTINS = {"dict", "list", "tuple", "set", "str", "int", "float", "bool", "_TYPES", "name"}
BANNED_MODULES = {
    "random": "nothing here may be random; take the value as an argument",
    "json": "msgspec",
    "logging": "structlog",
    "pickle": "JSON, or bytes of a described layout",
}


def name_of(path: Path) -> str:
    """Return the dotted module name of a file."""
    return arrows.module_name(path, ROOT)


def rooms(module: str) -> str | None:
    """Return the folder of a module; None for a top module."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and (PACKAGE / parts[1]).is_dir() else None


def phases(module: str) -> str | None:
    """Return the part of the planner that a module belongs to."""
    parts = module.split(".")
    if parts[1:2] != ["planner"]:
        return None
    if (PACKAGE / Path(*parts[1:3])).is_dir() and len(parts) > 2:
        return parts[2]
    return f".{parts[2] if len(parts) > 2 else '__init__'}"


def floors(module: str) -> str | None:
    """Return the part of the worker that a module belongs to."""
    parts = module.split(".")
    if parts[1:2] != ["runtime"] or len(parts) < 3:
        return None
    name = parts[2]
    return "threads" if name in THREADS else "records" if name in RECORDS else f".{name}"


def wrong_arrows(
    found: arrows.Graph, table: dict[str, set[str]], place: Callable[[str], str | None]
) -> list[str]:
    """Return the differences from ``table``, and the imports in it that lead upwards."""
    places = {m: p for m in found if (p := place(m)) is not None}
    actual = arrows.between(found, places)
    order = list(table)
    out = [f"{name} is not in the table" for name in actual.keys() - set(table)]
    for name, allowed in table.items():
        now = actual.get(name, set())
        out += [f"{name} may not import {other}" for other in sorted(now - allowed)]
        out += [f"{name} does not need {other}" for other in sorted(allowed - now)]
        lower = order[order.index(name) :]
        out += [f"{name} imports {o} above it" for o in sorted(allowed - set(lower))]
    for module, targets in found.items():
        if len(module.split(".")) == 2 and rooms(module) is None:  # a top module
            out += [f"{module} imports {t}" for t in targets if rooms(t)]
    return out


def typed(call: ast.Call) -> set[str]:
    """Return the names in the type that a call of msgspec decodes."""
    kinds = [k.value for k in call.keywords if k.arg == "type"] or call.args[1:2]
    return {n.id for kind in kinds for n in ast.walk(kind) if isinstance(n, ast.Name)} | {
        n.attr for kind in kinds for n in ast.walk(kind) if isinstance(n, ast.Attribute)
    }


def by_import(tree: ast.Module) -> list[str]:
    """Return the calls at import time whose results two forked processes must not share."""
    out, left = [], list[ast.AST](tree.body)
    while left:
        node = left.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        left += ast.iter_child_nodes(node)
        if isinstance(node, ast.Call) and re.match(ONE_PROCESS, ast.unparse(node.func)):
            out.append(f"line {node.lineno}: {ast.unparse(node.func)}(): by each process itself")
    return out


def banned(tree: ast.AST) -> list[str]:
    """Return the calls and modules that have a replacement."""
    out = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in BANNED_CALLS:
                out.append(f"line {node.lineno}: {called}(): {BANNED_CALLS[called]}")
            if called in TYPED_READS and not BUILTINS.issuperset(typed(node)):
                out.append(f"line {node.lineno}: {called}(): a Decoder, made by the import")
    for line, name in arrows.imported(tree):
        if name in BANNED_MODULES:
            out.append(f"line {line}: import {name}: {BANNED_MODULES[name]}")
    return out


def is_kernel(path: Path) -> bool:
    return path.parent in {PACKAGE / "kernels", PACKAGE / "state" / "map"}


def other_than(known: dict[str, str], name: str, found: list[str]) -> list[str]:
    """Return ``found``, unless ``name`` is a known exception; report one without findings."""
    if name in known:
        return [] if found else [f"{name} need not stand in the table any more"]
    return found


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_module(path: Path) -> None:
    text, tree = path.read_text(), limits.tree(path)
    name = str(path.relative_to(PACKAGE))
    found = banned(tree) if path.name != "clock.py" else []  # clock.py is the replacement itself
    json = [f for f in found if f.endswith(BANNED_MODULES["json"])]
    log = [f for f in found if "import logging" in f]
    pickle = [f for f in found if "import pickle" in f]
    problems = [f for f in found if f not in (*json, *log, *pickle)] + by_import(tree)
    problems += other_than(OTHER_PICKLE, name, pickle)
    problems += other_than(OTHER_CODEC, name, json)
    problems += other_than(OTHER_LOG, name, log)
    problems += limits.long_functions(tree)
    problems += limits.long_prose(text, tree)
    if not is_kernel(path):
        problems += other_than(LARGE, name, limits.large_classes(tree))
        problems += other_than(WIDE, name, limits.wide_functions(tree))
    if path.parts[-2] != "embedded":
        problems += other_than(OPENING, name, sorted(set(limits.opens(tree))))
    lines = text.count("\n")
    long = [f"{lines} lines"] * (lines > limits.FILE_LINES_MAX)
    problems += other_than(LONG, name, long)
    if text.strip() and not ast.get_docstring(tree):
        problems.append("no module docstring: say what it owns and promises")
    assert not problems, f"{path.relative_to(ROOT)}:\n" + "\n".join(problems)


@functools.cache
def imports() -> arrows.Graph:
    found = arrows.graph(PACKAGE)
    assert len(found) > 250
    return found


@pytest.mark.parametrize(
    ("table", "place"),
    [
        pytest.param(ROOMS, rooms, id="rooms"),
        pytest.param(PLANNER, phases, id="planner"),
        pytest.param(RUNTIME, floors, id="runtime"),
    ],
)
def test_arrows_are_those_of_the_table(table, place) -> None:
    wrong = wrong_arrows(imports(), table, place)
    assert not wrong, "\n".join(wrong)


def test_there_is_no_circle() -> None:
    found = arrows.circles(imports())
    assert not found, found


def test_every_folder_has_a_short_readme() -> None:
    problems = []
    for folder in sorted({p.parent for p in MODULES} - {PACKAGE}):
        if [p.name for p in folder.glob("*.py") if p.read_text().strip()] == []:
            continue
        readme = folder / "README.md"
        if not readme.exists():
            problems.append(f"{folder.relative_to(PACKAGE)}: no README.md")
        elif readme.read_text().count("\n") > README_LINES_MAX:
            problems.append(f"{folder.name}/README.md: over {README_LINES_MAX} lines")
    assert not problems, problems


def nowhere(page: Path) -> list[str]:
    """Return the files that a page names and that do not exist in any of ``roots``."""
    roots = [page.parent, page.parent.parent, PACKAGE, ROOT, ROOT / "tests"]
    roots += [ROOT / "tests" / p for p in page.parent.relative_to(ROOT).parts[1:2]]
    named = re.findall(r"`((?:\w+/)*\w+\.(?:py|sql|pxd))`", page.read_text())
    return [n for n in named if not any((root / n).exists() for root in roots)]


def test_pages_name_files_that_are_there() -> None:
    pages = [p for f in ("headrace", "tests", "bench", "docs") for p in (ROOT / f).rglob("*.md")]
    assert len(pages) > 30
    missing = {str(p.relative_to(ROOT)): n for p in pages if (n := nowhere(p))}
    assert missing == {}


def test_every_collection_and_rule_has_its_test() -> None:
    tests = "\n".join(
        path.read_text()
        for path in [*(ROOT / "tests" / "collections").glob("*.py"), *(ROOT / "tests").glob("*.py")]
        if path != Path(__file__)
    )
    missing = []
    for path in sorted((PACKAGE / "collections").glob("*.py")):
        named = ROOT / "tests" / "collections" / f"test_{path.stem}.py"
        missing += [
            f"{node.name} ({named.relative_to(ROOT)})"
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.ClassDef)
            and any(ast.unparse(b) in {"Collection", "Chain", "ByKey"} for b in node.bases)
            and node.name != "Chain"  # the base class of Filter, Map and Fused
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
    # A derived setting uses the setting that it is derived from.
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
    used = {name for p in MODULES for _, name in arrows.imported(limits.tree(p))}
    for name in ("pyproject.toml", "Makefile", "setup.py"):
        texts[ROOT / name] = (ROOT / name).read_text()
    unused = [
        module
        for path, module in ((p, name_of(p)) for p in MODULES)
        if path.name != "__init__.py"
        and module not in used
        # A module that is started by its name, as a process, is used.
        and not any(module in text for other, text in texts.items() if other != path)
    ]
    assert not unused, f"nothing uses {unused}: remove, or use"


def not_installed(names: set[str], installer: str) -> set[str]:
    """Return the SQL files that are missing in the installer's ``FILES``."""
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
    # Upgrades are named by their number (tests/sql/test_upgrades.py).
    names = {name for name in names if not re.fullmatch(r"upgrade_\d+\.sql", name)}
    wrong = not_installed(names, (folder / "install.py").read_text())
    assert not wrong, wrong


def cited(text: str) -> set[str]:
    """Return the ids of behaviours in a text; ``E1-E4`` and ``F-10/11`` name several."""
    found = set(CITED.findall(text))
    for letter, first, last, family, one, _ in SPAN.findall(text):
        if letter:
            found |= {f"{letter}{n}" for n in range(int(first), int(last) + 1)}
        else:
            numbers = re.search(rf"{family}{one}((?:/\d+)+)", text)
            found |= {f"{family}{n}" for n in (numbers[1] if numbers else "").split("/") if n}
    return found


def test_every_id_is_explained() -> None:
    page = ROOT / "docs" / "behaviours.md"
    explained = set(re.findall(r"^\| ([A-Z]-?\d+) \|", page.read_text(), re.MULTILINE))
    used: set[str] = set()
    papers = []
    for folder in ("headrace", "tests", "bench", "docs"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in {".py", ".md", ".sql"} or path == page:
                continue
            text = path.read_text(encoding="utf-8")
            used |= cited(text) if path != Path(__file__) else set()
            papers += [str(path)] * bool(PAPERS.search(text) and path != Path(__file__))
    assert len(used) > 50
    assert used - explained == set(), "say in docs/behaviours.md what they mean"
    assert explained - used - cited(page.read_text().split("## Hazards")[1]) == set()
    assert papers == [], "a clone cannot follow them"


def test_id_rule_itself() -> None:
    assert cited("(E1-E4, H39) T-24") == {"E1", "E2", "E3", "E4", "H39", "T-24"}
    assert cited("F-10/11; SQLSTATE 55H01, E2E, UTF-8, A-10-b") == {"F-10", "F-11"}
    assert PAPERS.search("see reliability.md 3")


def is_source(content: bytes) -> bool:
    """Return whether the content is a source that people can read: text of a limited size."""
    return len(content) <= FILE_BYTES_MAX and b"\0" not in content


def test_every_file_is_source() -> None:
    """Files that were built or downloaded do not belong here."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("no clone, but an archive")
    files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    assert len(files) > 100
    others = [f for f in files if f.is_file() and not is_source(f.read_bytes())]
    assert [f for f in others if not is_picture(f)] == []


def is_picture(path: Path) -> bool:
    """Return whether the file is a picture of the manual, which a test makes."""
    content = path.read_bytes()
    return (
        path.parent == ROOT / "docs" / "manual" / "img"
        and content.startswith(b"\x89PNG\r\n")
        and len(content) <= PICTURE_BYTES_MAX
    )


def test_source_rule_itself() -> None:
    assert is_source(b"x = 1\n")
    assert not is_source(b"PK\0")
    assert not is_source(b"x" * (FILE_BYTES_MAX + 1))


def test_sql_file_rule_itself() -> None:
    installer = 'FILES: Final = ("a.sql",)\nx = "*.sql b.sql"'
    assert not_installed({"a.sql", "b.sql"}, installer) == {"b.sql"}


def made(folder: Path, files: dict[str, str]) -> arrows.Graph:
    """Return the import graph of a package with these files."""
    for name, text in files.items():
        path = folder / "p" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return arrows.graph(folder / "p")


def test_arrow_rule_itself(tmp_path: Path) -> None:
    found = made(
        tmp_path,
        {
            "__init__.py": "",
            "a/__init__.py": "",
            "b/__init__.py": "",
            "a/x.py": "def f():\n    from p.b import y",
            "b/y.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import p.a.x",
        },
    )

    def place(module: str) -> str | None:
        parts = module.split(".")
        return parts[1] if len(parts) > 1 else None

    assert wrong_arrows(found, {"a": {"b"}, "b": {"a"}}, place) == ["b imports a above it"]
    assert wrong_arrows(found, {"a": set(), "b": {"a"}}, place)[0] == "a may not import b"
    unused = {"a": {"b", "c"}, "b": {"a"}, "c": set()}
    assert "a does not need c" in wrong_arrows(found, unused, place)
    assert "b is not in the table" in wrong_arrows(found, {"a": {"b"}}, place)
    assert arrows.circles(found) == [["p.a.x", "p.b.y"]]


def test_banned_rule_itself() -> None:
    found = banned(ast.parse("import random\nimport time\ntime.time()\nprint(1)"))
    assert len(found) == 3
    assert banned(ast.parse("from json import dumps\nimport jsonschema")) == [
        "line 1: import json: msgspec"
    ]
    read = "msgspec.json.decode(x, type=dict[str, int]); msgspec.json.decode(x, type=list[Spec])"
    assert banned(ast.parse(read + "; msgspec.convert(x, a.Spec)")) == [
        "line 1: msgspec.json.decode(): a Decoder, made by the import",
        "line 1: msgspec.convert(): a Decoder, made by the import",
    ]


def test_import_rule_itself() -> None:
    text = (
        "A = uuid.uuid4().hex\nclass B:\n    c = os.getpid()\n    def d(self): open(1)\ne = open(2)"
    )
    assert len(by_import(ast.parse(text))) == 3


def test_an_import_starts_no_thread() -> None:
    """A forked process would not have the thread."""
    text = "import headrace.runtime.worker, headrace.views.builder, threading as t"
    subprocess.run(
        [sys.executable, "-c", f"{text}; raise SystemExit(t.active_count() - 1)"], check=True
    )


def test_limits_themselves() -> None:
    body = "\n".join("    x = 1" for _ in range(limits.FUNCTION_LINES_MAX))
    assert limits.long_functions(ast.parse(f"def f():\n{body}\n"))
    assert not limits.long_functions(ast.parse(f"def f():\n{body[10:]}\n"))
    methods = "\n".join(f"    def m{i}(self): ..." for i in range(limits.METHODS_MAX))
    assert not limits.large_classes(ast.parse(f"class C:\n{methods}"))
    more = f"class C:\n{methods}\n    async def more(self): ..."
    assert limits.large_classes(ast.parse(more)) == [f"C: {limits.METHODS_MAX + 1} methods"]
    seven = ", ".join(f"a{i}" for i in range(limits.PARAMETERS_MAX))
    assert not limits.wide_functions(ast.parse(f"def f(self, {seven}): ..."))
    assert limits.wide_functions(ast.parse(f"def f({seven}, *, b): ..."))
    assert limits.opens(ast.parse("async def f(): await psycopg.AsyncConnection.connect(x)"))
    one, two = ast.parse("class A: ..."), ast.parse("class A: ...\nclass _B: ...")
    assert limits.namesakes({"x": one, "y": two}) == {"A": ["x", "y"]}
    assert other_than({}, "x", ["f"]) == ["f"]
    assert other_than({"x": "why"}, "x", ["f"]) == []
    assert other_than({"x": "why"}, "x", [])


def test_oids_have_names() -> None:
    trees = limits.read([p for p in MODULES if not is_kernel(p)])
    types = next(tree for path, tree in trees.items() if path == PACKAGE / "types.py")
    oids = {
        value.value
        for node in ast.walk(types)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)
        for value in node.value.elts
        if isinstance(value, ast.Constant) and isinstance(value.value, int)
    }
    assert len(oids) > 30
    found = {
        name_of(path): bare
        for path, tree in trees.items()
        if path != PACKAGE / "types.py" and (bare := limits.bare_oids(tree, frozenset({0, *oids})))
    }
    assert found == {}, "they are named in headrace/types.py"


def test_oid_rule_itself() -> None:
    oids = frozenset({0, 16, 20, 25, 705, 1043})
    assert limits.bare_oids(ast.parse("x = f(1043)"), oids) == ["1043"]
    assert limits.bare_oids(ast.parse("x = {16, 20, 25, 0}"), oids)
    assert not limits.bare_oids(ast.parse("x = (16, 20, 3, 25); y = 25"), oids)


def test_prose_that_is_too_long_is_seen() -> None:
    text = f'"""{"x" * 110}"""\nx = "{"x" * 110}"\n    # {"x" * 110}\n'
    found = limits.long_prose(text, ast.parse(text))
    assert [f.split(":")[0] for f in found] == ["line 1", "line 3"]


def test_a_class_has_a_name_of_its_own() -> None:
    trees = {
        name_of(path): tree for path, tree in limits.read(MODULES).items() if not is_kernel(path)
    }
    assert len(trees) > 250
    found = limits.namesakes(trees)
    assert found == {}, found


def test_tests_wait_for_conditions() -> None:
    paths = [p for p in (ROOT / "tests").rglob("*.py") if p.name != "waiting.py"]
    assert len(paths) > 200
    paths = [p for p in paths if "sleep(" in p.read_text()]  # the others need no parsing
    found = {
        str(path.relative_to(ROOT)): asleep
        for path, tree in limits.read(paths).items()
        if (asleep := limits.sleeps(tree))
    }
    assert found == {}, "tests/waiting.py has what waits, and says for what"


def test_sleep_rule_itself() -> None:
    assert limits.sleeps(ast.parse("time.sleep(1)")) == ["time.sleep(1)"]
    assert limits.sleeps(ast.parse("async def f(): await asyncio.sleep(0.1)"))
    assert not limits.sleeps(ast.parse("async def f(): await asyncio.sleep(0)"))


SQL = PACKAGE / "sql"


def relations() -> frozenset[str]:
    """Return the tables of schema headrace."""
    made = re.compile(r"^CREATE TABLE (?:IF NOT EXISTS )?headrace\.(\w+)", re.MULTILINE)
    return frozenset(r for p in SQL.glob("*.sql") for r in made.findall(p.read_text()))


def outside(room: Path) -> dict[str, ast.AST]:
    """Return the modules outside ``room``, by name."""
    trees = limits.read([p for p in MODULES if p.parent != room])
    return {name_of(path): tree for path, tree in trees.items()}


def test_the_catalog_is_of_sql_alone() -> None:
    names = relations()
    assert len(names) > 5
    trees = outside(SQL)
    found = {m: t for m, tree in trees.items() if (t := limits.catalog_texts(tree, names))}
    assert found == {}, "a function of headrace/sql/ does it"


def test_a_status_is_no_text() -> None:
    status = ast.parse((SQL / "status.py").read_text())
    members = (n for c in limits.classes(status) for n in c.body)
    words = frozenset(n.targets[0].id.lower() for n in members if isinstance(n, ast.Assign))
    assert len(words) > 7
    trees = outside(SQL)
    found = {m: t for m, tree in trees.items() if (t := limits.bare_statuses(tree, words))}
    assert found == {}, "they are named in headrace/sql/status.py"


def test_catalog_rules_themselves() -> None:
    def named(text: str) -> list[str]:
        return limits.catalog_texts(ast.parse(text), frozenset({"views", "meta"}))

    assert named("x = 'SELECT FROM headrace.views'")
    assert named("x = f'SELECT {c} FROM headrace.views v'")
    assert named("x = 'SELECT FROM headrace.{}'")
    assert named("x = 'SELECT FROM headrace.' + name")
    assert named("x = f'SELECT FROM {SCHEMA}.meta'")
    assert named("x = sql.Identifier('headrace', 'meta')")
    assert not named("x = 'headrace.views.builder', 'See headrace.list_views()'")
    assert not named("def f():\n    'What headrace.views has.'")

    def bare(text: str) -> list[str]:
        return limits.bare_statuses(ast.parse(text), frozenset({"error", "paused"}))

    assert bare("if view.status == 'error': ...")
    assert bare("if row['status'] not in ('running', 'paused'): ...")
    assert bare("ERROR: Final = 'error'")
    assert bare("view.status = 'paused'")
    assert bare("f(status='error')")
    assert bare("x = {'status': 'error'}")
    assert not bare("x = {'error': 1}; y = level == 'error'; s = view.status == ERROR")


def unpacked(source: str) -> list[int]:
    """Return the lines of calls that unpack a literal tuple or list."""
    return [
        argument.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        for argument in node.args
        if isinstance(argument, ast.Starred) and isinstance(argument.value, ast.Tuple | ast.List)
    ]


def test_calls_are_written_normally() -> None:
    texts = {path: path.read_text() for path in MODULES}
    some = {path: text for path, text in texts.items() if re.search(r"\*[(\[]", text)}
    found = [f"{p.relative_to(ROOT)}:{n}" for p, text in some.items() for n in unpacked(text)]
    assert not found, f"write the arguments of the call without unpacking a tuple: {found}"


def test_call_rule_itself() -> None:
    assert unpacked("f(*(1, 2))\nf(*a)\nx = (*(1, 2), 3)\nf(0, *[1])\n") == [1, 4]


RESTARTS = {"engine.py": {"fail_batch", "_abandon", "_finish", "_close"}, "worker.py": {"carries"}}
"""Functions that may end the one replication stream: after connection loss, at the end, when an
administrator takes back a batch (T-30), and once when changes of other databases begin to come."""


def restarts(source: str) -> set[str]:
    """Return the innermost functions that mention ``rewind_soon``; '': outside of any."""
    found = set()

    def visit(node: ast.AST, function: str) -> None:
        if isinstance(node, ast.FunctionDef):
            function = node.name
        if isinstance(node, ast.Attribute) and node.attr == "rewind_soon":
            found.add(function)
        for child in ast.iter_child_nodes(node):
            visit(child, function)

    visit(ast.parse(source), "")
    return found


def test_no_view_restarts_the_stream() -> None:
    texts = {path.name: text for path in MODULES if "rewind_soon" in (text := path.read_text())}
    found = {name: functions for name, text in texts.items() if (functions := restarts(text))}
    assert found == RESTARTS, "a view that lacks batches reads them by itself (catching_up.py)"


def test_restart_rule_itself() -> None:
    source = "class A:\n    def go(self):\n        def in_it():\n            self.rewind_soon()\nx = b.rewind_soon\n"
    assert restarts(source) == {"in_it", ""}
