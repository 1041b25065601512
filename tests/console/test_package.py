"""The page is in the wheel: its users need neither a build step nor a network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "headrace" / "console" / "static").glob("*.js"))
CONTAINERS = (
    *("a", "button", "dd", "div", "dl", "dt", "figure", "form", "h1", "h2", "h3", "header", "li"),
    *("main", "nav", "p", "section", "small", "span", "table", "tbody", "td", "th", "thead", "tr"),
    *("code", "details", "label", "ol", "option", "output", "pre", "select", "strong", "summary"),
    *("textarea", "ul"),
)
"""Elements with an end tag."""


@pytest.mark.slow
def test_the_wheel_has_the_page_and_its_licences(tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    shutil.copytree(ROOT / "headrace", tree / "headrace", ignore=shutil.ignore_patterns("*.so"))
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"),
            *("--no-build-isolation", "--wheel-dir", str(tmp_path), str(tree)),
        ],
        env=os.environ | {"HEADRACE_NO_COMPILE": "1"},
        check=True,
        timeout=240,
    )
    [wheel] = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    static = ROOT / "headrace" / "console" / "static"
    # The README beside the vendored files is for readers of the source.
    files = (p for p in static.rglob("*") if p.is_file() and p.name != "README.md")
    wanted = {str(p.relative_to(ROOT)) for p in files}
    assert {Path(w).name for w in wanted} >= {"index.html", "LICENSE.uPlot", "mark.svg"}
    assert wanted <= names


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_element_is_closed(page):
    """An element left open in a template would be shown as its own name."""
    text = page.read_text()
    counts = {
        name: (len(re.findall(rf"<{name}(?=[\s>])", text)), text.count(f"</{name}>"))
        for name in CONTAINERS
    }
    assert {name: both for name, both in counts.items() if both[0] != both[1]} == {}
