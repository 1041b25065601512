"""The systemd unit, the Dockerfile and the compose file; ``test_kubernetes.py`` has the rest."""

import configparser
import fnmatch
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from psycopg.conninfo import conninfo_to_dict

from headrace.config import Settings
from tests.packages.instructions import stages

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "deploy/systemd/headrace.service"
EXPOSURE_MAX = 11
"""Ten times what ``systemd-analyze security`` gives; the unit says what it cannot set."""
STOP_S = 25
"""Longest time that the server takes to stop (server/main.py)."""


def unit() -> dict[str, list[str]]:
    """Return section Service of the unit: the values of each key."""
    found: dict[str, list[str]] = {}
    section = UNIT.read_text().split("[Service]\n")[1].split("\n[")[0]
    for line in section.splitlines():
        if line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def settings_are_ours(environment: dict[str, str]) -> None:
    """Check that every variable is a setting; the server refuses a misspelt one."""
    names = {f"HEADRACE_{name.upper()}" for name in Settings.__dataclass_fields__}
    ours = {name for name in environment if name.startswith("HEADRACE_")}
    assert ours
    assert ours <= names


def test_the_unit_is_one_that_systemd_understands(tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd here")
    copy = tmp_path / UNIT.name
    program = tmp_path / "headrace"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copy.write_text(UNIT.read_text().replace("/opt/headrace/bin/headrace", str(program)))
    done = subprocess.run(
        ["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False
    )
    told = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (done.returncode, told) == (0, [])
    graded = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", copy],
        capture_output=True,
        text=True,
        check=False,
    )
    assert graded.returncode == 0, graded.stdout[-300:]


def test_the_unit_says_what_the_server_needs():
    said = unit()
    assert said["NoNewPrivileges"] == ["yes"]
    assert said["ProtectSystem"] == ["strict"]
    assert said["StateDirectory"] == ["headrace"]
    assert said["StateDirectoryMode"] == ["0700"], "the server would take others' rights away"
    assert "HEADRACE_DATA_DIR=/var/lib/headrace" in said["Environment"][0]
    assert said["KillMode"] == ["mixed"], "the server ends its processes itself"
    assert int(said["TimeoutStopSec"][0]) > STOP_S
    assert "WatchdogSec" not in said, "nobody would feed it"
    assert said["Restart"] == ["always"]
    wrong_usage = 2
    assert said["RestartPreventExitStatus"] == [str(wrong_usage)]


def test_the_units_settings(tmp_path):
    file = configparser.ConfigParser(delimiters="=", interpolation=None)
    file.optionxform = str
    file.read_string("[x]\n" + (UNIT.parent / "headrace.env").read_text())
    environment = {name: value.strip('"') for name, value in file["x"].items()}
    settings_are_ours(environment)
    done = subprocess.run(
        [sys.executable, "-m", "headrace.server.cli", "config"],
        env={"PATH": "", **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "CHANGE-ME" not in done.stdout
    assert len(done.stdout.splitlines()) >= len(Settings.__dataclass_fields__)


def test_the_image():
    build, image = stages()  # the compiler is not in the image
    last = dict(image)
    assert last["USER"] not in ("root", "0")
    assert "/readyz" in last["HEALTHCHECK"]
    assert last["ENTRYPOINT"] == '["headrace"]'
    assert "gcc" not in " ".join(rest for _, rest in image)
    assert any("pip wheel" in rest for _, rest in build)
    assert any("mkdocs build" in rest for _, rest in build), "the console serves the manual"
    # The copied files exist, and .dockerignore lets them pass.
    lets = (ROOT / ".dockerignore").read_text().split()
    assert lets[0] == "*"
    allowed = [name.removeprefix("!") for name in lets if name.startswith("!")]
    sources = [
        source
        for word, rest in build
        if word == "COPY" and "--from" not in rest
        for source in rest.split()[:-1]
    ]
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source, name) for name in allowed), f"{source}: .dockerignore"
    # pyproject.toml names the licence and the readme that the build needs.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {project["readme"], *project["license-files"], "setup.py"} <= set(sources)


def test_the_compose_file_fits_together():
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    services = compose["services"]
    used: set[str] = set()
    for name, service in services.items():
        assert "image" in service or "build" in service, name
        for mount in service.get("volumes", ()):
            volume = mount.split(":")[0]
            assert volume in compose["volumes"], f"{name}: {volume}"
            used.add(volume)
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), f"{name}: the passwords are known"
        waits = service.get("depends_on", {})
        for other in waits:
            condition = waits[other]["condition"] if isinstance(waits, dict) else "service_started"
            # A service of a profile may depend on one without a profile, but not the other way
            # round.
            assert set(services[other].get("profiles", ())) <= set(service.get("profiles", ()))
            if condition == "service_healthy":
                ours = services[other].get("build") and not services[other].get("healthcheck")
                assert ours or services[other]["healthcheck"].get("test"), f"{other} has no check"
        environment = service.get("environment", {})
        if any(key.startswith("HEADRACE_") for key in environment):
            settings_are_ours(environment)
        # The image's check asks the server's port.
        serves = service.get("command", [""])[0] == "start"
        assert not service.get("build") or serves or service["healthcheck"] == {"disable": True}
    assert used == set(compose["volumes"])
    ports = re.findall(r"EXPOSE (.+)", (ROOT / "Dockerfile").read_text())[0].split()
    assert [p.rsplit(":", 1)[1] for p in services["headrace"]["ports"]] == ports


def test_the_compose_file_says_how_to_log_in_at_the_console():
    """A newcomer reads one line; the server accepts that login from outside the container."""
    text = (ROOT / "docker-compose.yml").read_text()
    [(port, role, password)] = re.findall(
        r"^#   the console: http://localhost:(\d+), role (\w+), password (\w+)$", text, re.M
    )
    services = yaml.safe_load(text)["services"]
    environment = services["headrace"]["environment"]
    source = conninfo_to_dict(environment["HEADRACE_SOURCE"])
    assert (role, password) == (source["user"], source["password"])
    assert password == services["postgres"]["environment"]["POSTGRES_PASSWORD"]
    assert any(p.startswith(f"127.0.0.1:{port}:") for p in services["headrace"]["ports"])
    assert environment["HEADRACE_CONSOLE_PLAIN"] == "true"
