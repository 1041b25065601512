"""The third-party corpus in ``../shared/conformance``, if that folder exists.

``make test`` runs a fixed sample of 60 queries, ``make test-all`` all of them. Plain Postgres is
the oracle. The outcomes wrong, inconsistent, crash and refused_late are defects; unsupported is
allowed.
"""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import spread

FOLDER = Path(
    os.environ.get(
        "HEADRACE_CONFORMANCE", Path(__file__).resolve().parents[3] / "shared" / "conformance"
    )
)
# Numbers of queries that pass today: fewer is a regression, more must be entered here.
SAMPLE_PASSES = 58
CORPUS_PASSES = 1127
TIES = {"nexmark-45ad8cea"}
"""Rows tie in PARTITION BY and ORDER BY: Postgres shows whichever its heap has first.

So it may pass or not, and is not among ``CORPUS_PASSES``.
"""
DEFECTS = ("wrong", "inconsistent", "crash", "refused_late", "timeout")

pytestmark = pytest.mark.skipif(
    not (FOLDER / "run_conformance.py").exists(), reason="the conformance corpus is not here"
)


def run(engine, out: Path, *options: str) -> list[dict]:
    """Run the corpus; return one result for each case."""
    command = [
        sys.executable, str(FOLDER / "run_conformance.py"),
        "--source-dsn", engine.source, "--engine-dsn", engine.dsn,
        "--batch-groups", "8", "--wait", "10", "--out", str(out), *options,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout[-6000:])
    print(done.stderr[-2000:])
    lines = out.with_name(out.name + ".jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def assert_no_defect(results: list[dict]) -> collections.Counter:
    counts = collections.Counter(r["status"] for r in results)
    bad = [r for r in results if r["status"] in DEFECTS and r["id"] not in TIES]
    text = "\n".join(
        f"{r['status']} {r['id']}: {r['query'][:200]}\n  {r['detail'][:300]}" for r in bad[:10]
    )
    assert not bad, f"{counts}\n{text}"
    return counts


@pytest.mark.timeout(600)
def test_sample_of_60(engine, tmp_path):
    results = run(engine, tmp_path / "conf", "--sample", "60", "--seed", "2")
    counts = assert_no_defect(results)
    assert len(results) == 60
    assert counts["pass"] >= SAMPLE_PASSES, counts


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_whole_corpus_of_altered_views(start_engine, database, tmp_path):
    """Each view gets another column and loses it: every node must keep its state."""
    engine = start_engine(database, **spread.ALTERED)
    results = run(engine, tmp_path / "conf")
    counts = assert_no_defect(results)
    assert counts["pass"] >= CORPUS_PASSES, counts
    said = engine.log_path.read_text()
    assert said.count("view keeps its states") > len(results) / 2


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_whole_corpus(engine, tmp_path):
    results = run(engine, tmp_path / "conf")
    counts = assert_no_defect(results)
    assert len(results) == 1133
    assert counts["pass"] >= CORPUS_PASSES, counts
