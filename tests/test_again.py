"""Which tests may run again, and that the list names only tests that exist."""

import ast
import json
from pathlib import Path

import pytest

from tests import again

ROOT = Path(__file__).resolve().parent.parent


def test_flaky_tests_exist_and_say_why():
    for node, reason in again.FLAKY.items():
        file, _, name = node.partition("::")
        tree = ast.parse((ROOT / file).read_text())
        functions = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        assert name in functions, node
        assert len(reason.split()) > 3, node


@pytest.mark.parametrize("others", [[], ["tests/b.py::test_y"]])
def test_any_other_failure_stands(tmp_path, monkeypatch, others):
    path = tmp_path / "lastfailed"
    failed = ["tests/a.py::test_x[1]@tests/a.py", *others]
    path.write_text(json.dumps(dict.fromkeys(failed, True)))
    monkeypatch.setattr(again, "FLAKY", {"tests/a.py::test_x": "a reason of some words"})
    ran = []
    monkeypatch.setattr(pytest, "main", lambda args: ran.append(args) or 0)
    assert again.main(path) == (1 if others else 0)
    assert ran == ([] if others else [["-q", "-n0", "tests/a.py::test_x[1]"]])


def test_nothing_failed_that_is_known(tmp_path):
    assert again.main(tmp_path / "none") == 1
