"""The choice of the Java version; the wheel's starts although Spark asks for a later one."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import PrerequisiteError
from headrace.process import java


@pytest.fixture(autouse=True)
def fresh_choice() -> Iterator[None]:
    java.java_home.cache_clear()
    yield
    java.java_home.cache_clear()


def fake_java(home: Path, version: str) -> Path:
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    binary.chmod(0o755)
    return home


def test_java_home_of_the_caller_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fake_java(tmp_path / "jdk", "21.0.2")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.java_home() == str(home)


def test_the_wheel_is_used_when_the_system_has_only_an_old_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = fake_java(tmp_path / "old", "1.8.0_392")
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", f"{old}/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = java.java_home()
    assert home.startswith(str(tmp_path / "cache"))
    done = subprocess.run(
        [f"{home}/bin/java", "--add-modules=jdk.incubator.vector", "-Da=b c", "-version"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert "version" in done.stderr
    assert java._version(Path(home) / "bin" / "java") >= java.OLDEST


def test_without_any_java_the_hint_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PrerequisiteError) as caught:
        java.java_home()
    assert "JAVA_HOME" in str(caught.value.hint)
