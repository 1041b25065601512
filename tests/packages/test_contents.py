"""Files of a wheel and a source distribution, compared with those of the repository."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OF_GIT = {".gitignore"}
"""Files that a source distribution lacks."""
PAGES = "headrace/console/manual/"
"""The manual as HTML pages, which `make manual` makes."""


def files(*arguments: str) -> set[str]:
    """Return the files that git lists."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("this is no checkout")
    return {name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()}


def pages() -> set[str]:
    """Return the files of the manual's pages."""
    made = {str(p.relative_to(ROOT)) for p in (ROOT / PAGES).rglob("*") if p.is_file()}
    assert f"{PAGES}manual/start.html" in made, "run make manual"
    return made


@pytest.fixture(scope="module")
def tracked() -> set[str]:
    return files()


@pytest.fixture(scope="module")
def listed(tmp_path_factory) -> dict[str, set[str]]:
    """The files that setuptools would take."""
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("listed.py"), tmp_path_factory.mktemp("info")],
        cwd=ROOT,
        env=os.environ | {"HEADRACE_NO_COMPILE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return {kind: set(names) for kind, names in json.loads(done.stdout).items()}


def test_a_wheel_has_what_lies_beside_the_code(listed, tracked):
    """SQL, C types, py.typed, pages: every file of the package except READMEs."""
    ours = {n for n in tracked if n.startswith("headrace/") and not n.endswith("README.md")}
    assert {Path(name).suffix for name in ours} >= {".py", ".sql", ".pxd", ".typed"}
    assert sorted(ours - listed["wheel"]) == []
    # New files that are not committed yet are allowed; files made by a build are not.
    new = files("--others", "--exclude-standard", "headrace")
    assert sorted(listed["wheel"] - ours - new - pages()) == []
    assert sorted(pages() - listed["wheel"]) == []


def test_a_source_distribution_has_what_git_has(listed, tracked):
    assert sorted(tracked - listed["sdist"] - OF_GIT) == []
    new = files("--others", "--exclude-standard")
    assert sorted(listed["sdist"] - tracked - new - pages()) == []


def test_a_machine_without_a_compiler_is_told_so(tmp_path):
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--force"]
    done = subprocess.run(
        [*command, "--build-lib", tmp_path, "--build-temp", tmp_path],
        cwd=ROOT,
        env=os.environ | {"CC": "no-such-compiler"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode
    told = done.stderr.strip().splitlines()
    assert len(told) == 1
    assert "a C compiler (no-such-compiler)" in told[0]
    assert "apt install" in told[0]


def test_the_version_has_one_owner(tracked):
    """``pyproject.toml`` has it; the changelog begins with this version or an unreleased one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", project["version"])
    assigned = re.compile(r"^__version__\s*=", re.MULTILINE)
    package = [n for n in tracked if n.startswith("headrace/") and n.endswith(".py")]
    assert [n for n in package if assigned.search((ROOT / n).read_text())] == []
    heads = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heads[0] in ("Unreleased", project["version"])
    assert project["version"] in heads[:2]
    assert len(set(heads)) == len(heads)


def test_wheels_are_built_for_every_python_that_is_promised():
    """Classifiers, ``requires-python`` and the versions that cibuildwheel builds agree."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    promised = {
        c.rpartition(" ")[2]
        for c in config["project"]["classifiers"]
        if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", c)
    }
    built = {
        f"3.{tag.removeprefix('cp3').removesuffix('-*')}"
        for tag in config["tool"]["cibuildwheel"]["build"]
    }
    assert promised == built
    assert f">={min(promised, key=lambda v: int(v[2:]))}" == config["project"]["requires-python"]


def test_the_image_has_the_python_that_spark_finds():
    """The image's path to Spark names the Python version, and so does the base of both stages."""
    text = (ROOT / "Dockerfile").read_text()
    bases = set(re.findall(r"^FROM python:(3\.\d+)-", text, re.MULTILINE))
    assert len(bases) == 1
    assert set(re.findall(r"lib/python(3\.\d+)/", text)) <= bases
