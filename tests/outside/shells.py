"""Check the command lines of pages without running them, by the parsers and files of the programs.

Each program on a page has its check here; a program without one is an error.
"""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import yaml
from psycopg.conninfo import conninfo_to_dict

from headrace.config import Settings
from headrace.embedded import demo
from headrace.server.cli import parser
from headrace.server.explained import strangers
from tests.outside.pages import ROOT, Typed
from tests.packages import manifests

MAKEFILE = (ROOT / "Makefile").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SETTINGS = set(Settings.__dataclass_fields__)
BENCHES = {"bench": "bench.__main__", "bench-peers": "bench.peers.__main__"}


class Strict(argparse.ArgumentParser):
    """A parser that raises instead of exiting."""

    def error(self, message: str) -> NoReturn:
        raise AssertionError(f"{self.prog}: {message}")


def check(line: str) -> None:
    """Check one line as typed.

    Raises: AssertionError: it would not do what the page says: no such flag, setting, file, target
    …
    """
    for part in re.split(r" && ", line):
        words = shlex.split(part, comments=True)
        given = {}
        while words and re.match(r"\w+=", words[0]):
            name, _, value = words.pop(0).partition("=")
            given[name] = value
        for name, value in given.items():
            check_variable(name, value)
        if words:
            name = Path(words[0]).name
            assert name in PROGRAMS, f"nobody knows how to check {name}"
            PROGRAMS[name](words[1:])


def check_variable(name: str, value: str) -> None:
    """Check that a variable for Headrace is a setting with a valid value."""
    assert name.startswith("HEADRACE_"), f"{name} means nothing to us"
    assert strangers({name: value}) == [], f"{name} is not a setting"
    Settings.load({}, None, {name: value.replace("…", "x")})
    if name == "HEADRACE_SOURCE":
        conninfo_to_dict(value)


def check_answers(typed: Typed) -> None:
    """Check the answer of a command that answers the same everywhere."""
    if typed.words.endswith("headrace version"):
        assert typed.answer == (f"headrace {PROJECT['version']}",)


def _headrace(words: Sequence[str]) -> None:
    if words[:1] == ["demo"]:
        options = Strict("headrace demo")
        demo.add_arguments(options)
        options.parse_args(words[1:])
        return
    if words[-1:] == ["--help"]:
        words = words[:-1]
    try:
        arguments = vars(parser().parse_args(words))
    except SystemExit:
        raise AssertionError(f"headrace {' '.join(words)}: wrong usage") from None
    flags = {k: v for k, v in arguments.items() if k in SETTINGS and v is not None}
    source = flags.pop("source", None)
    if source not in (None, "$DSN", "…"):
        conninfo_to_dict(source)
    Settings.load(flags, None, {})


def _make(words: Sequence[str]) -> None:
    targets = re.findall(r"^([\w-]+):", MAKEFILE, re.MULTILINE)
    given = dict(word.split("=", 1) for word in words if "=" in word)
    asked = [word for word in words if "=" not in word]
    assert asked, "make without a target"
    assert [word for word in asked if word not in targets] == []
    for name in given:
        assert f"$({name})" in MAKEFILE, f"{name}: nobody reads it"
    for target in asked:
        if target in BENCHES:
            importlib.import_module(BENCHES[target]).arguments(shlex.split(given.get("ARGS", "")))


def _python(words: Sequence[str]) -> None:
    assert list(words[:2]) == ["-m", "venv"]
    assert len(words) == 3


def _pip(words: Sequence[str]) -> None:
    options = Strict("pip")
    options.add_argument("--constraint", type=Path)
    options.add_argument("what")
    assert words[0] == "install"
    said = options.parse_args(words[1:])
    assert said.constraint is None or (ROOT / said.constraint).exists()
    if said.what.endswith(".whl"):
        version = re.escape(PROJECT["version"])
        tags = r"(cp3\d+-cp3\d+-manylinux_\d+_\d+_x86_64|…)"
        assert re.fullmatch(f"headrace-{version}-{tags}.whl", said.what), said.what
        return
    extra = re.fullmatch(r"headrace\[(\w+)\]", said.what)
    assert extra, said.what
    assert extra[1] in PROJECT["optional-dependencies"]


def _docker(words: Sequence[str]) -> None:
    options = Strict("docker")
    verbs = options.add_subparsers(dest="verb", required=True)
    build = verbs.add_parser("build")
    build.add_argument("-t")
    build.add_argument("context")
    run = verbs.add_parser("run")
    run.add_argument("-d", action="store_true")
    run.add_argument("--name")
    for flag in "pve":
        run.add_argument(f"-{flag}", action="append", default=[])
    run.add_argument("image")
    compose = verbs.add_parser("compose")
    compose.add_argument("--profile")
    compose.add_argument("--build", action="store_true")
    compose.add_argument("up")
    said = options.parse_args([*words])
    if said.verb == "compose":
        profiles = {p for s in COMPOSE["services"].values() for p in s.get("profiles", ())}
        assert said.up == "up"
        assert said.profile is None or said.profile in profiles
        return
    assert (said.t if said.verb == "build" else said.image) == f"headrace:{PROJECT['version']}"
    if said.verb == "build":
        assert said.context == "."
        return
    exposed = re.findall(r"^EXPOSE (.+)$", DOCKERFILE, re.MULTILINE)[0].split()
    assert [port.split(":")[1] for port in said.p] == exposed
    kept = re.findall(r"^VOLUME (.+)$", DOCKERFILE, re.MULTILINE)
    assert [volume.split(":")[1] for volume in said.v] == kept
    for variable in said.e:
        check_variable(*variable.split("=", 1))


def _kubectl(words: Sequence[str]) -> None:
    if words[0] == "apply":
        flag, folder = words[1:]
        assert flag == "-k"
        assert (ROOT / folder / "kustomization.yaml").exists()
        return
    assert list(words[:3]) == ["create", "secret", "generic"]
    name, file = words[3:]
    made = file.removeprefix("--from-file=")
    objects = manifests.base()
    secrets = [
        v["secret"]["secretName"] for v in manifests.pod(objects)["volumes"] if "secret" in v
    ]
    assert secrets == [name]
    assert f"{manifests.mounts(objects)['source']}/{made}" in manifests.container(objects)["args"]


def _systemctl(words: Sequence[str]) -> None:
    verb, unit = words
    assert verb in ("start", "stop", "restart")
    assert (ROOT / f"deploy/systemd/{unit}.service").exists()


def _psql(words: Sequence[str]) -> None:
    options = Strict("psql", add_help=False)
    for flag in "hpU":
        options.add_argument(f"-{flag}")
    options.add_argument("database")
    said = options.parse_args([*words])
    assert said.p == Settings().listen.rpartition(":")[2]
    assert said.database == "shop"


def _echo(words: Sequence[str]) -> None:
    """Check the console's link: the token is read from the file where it is stored."""
    [told] = words
    found = re.search(r"\$\(cat (\S+)\)", told)
    assert found
    assert Path(found[1]).expanduser() == Path(Settings().data_dir) / "console.token"


PROGRAMS: dict[str, Callable[[Sequence[str]], None]] = {
    "headrace": _headrace,
    "make": _make,
    "python3": _python,
    "pip": _pip,
    "docker": _docker,
    "kubectl": _kubectl,
    "systemctl": _systemctl,
    "psql": _psql,
    "echo": _echo,
}
