"""The systemd unit under a real systemd: that of a container made from the image."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packages import images
from tests.packages.images import podman
from tests.packages.test_kubernetes import asked, free_port
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

SYSTEMD = images.ROOT / "deploy/systemd"
MACHINE = "headrace-unit"
CONTAINERFILE = """
FROM {image}
USER root
RUN apt-get update \\
 && apt-get install -y --no-install-recommends systemd systemd-sysv \\
 && usermod --home /var/lib/headrace headrace
STOPSIGNAL SIGRTMIN+3
ENTRYPOINT ["/sbin/init"]
CMD []
"""


def inside(*words: str, fails: bool = False) -> str:
    return podman("exec", MACHINE, *words, fails=fails)


def state(*names: str) -> list[str]:
    told = inside("systemctl", "show", "headrace", *(f"--property={name}" for name in names))
    found = dict(line.split("=", 1) for line in told.split())
    return [found[name] for name in names]


def log() -> str:
    return inside("journalctl", "--unit=headrace", "--no-pager", "--output=cat", "--lines=60")


@pytest.fixture(scope="module")
def machine(tmp_path_factory) -> Iterator[Path]:
    """A running systemd; the folder is its /etc/headrace."""
    folder = tmp_path_factory.mktemp("machine")
    file = folder / "Containerfile"
    file.write_text(CONTAINERFILE.format(image=images.build()))
    name = "localhost/headrace-unit:tested"
    words = ("--pull=never", "--format=docker", "--isolation=chroot", f"--tag={name}")
    podman("build", *words, f"--file={file}", folder, seconds=900)
    etc = folder / "etc"
    etc.mkdir()
    podman("rm", "--force", MACHINE, fails=True)
    mounts = (f"--volume={etc}:/etc/headrace:ro",)
    options = ("--privileged", "--systemd=always", "--network=host", "--no-healthcheck")
    try:
        podman("run", "--detach", f"--name={MACHINE}", *options, *mounts, name)
        wait_until(
            lambda: inside("systemctl", "is-system-running", fails=True) == "running\n",
            lambda: inside("systemctl", "--failed", "--no-pager", fails=True),
        )
        podman("cp", SYSTEMD / "headrace.service", f"{MACHINE}:/etc/systemd/system/")
        inside("systemctl", "daemon-reload")
        yield etc
    finally:
        podman("rm", "--force", MACHINE, fails=True)


@pytest.fixture
def settings(machine, database) -> Iterator[dict[str, str]]:
    """The settings of the unit's own file, for this database and for free ports."""
    text = (SYSTEMD / "headrace.env").read_text()
    values = {
        "HEADRACE_SOURCE": json.dumps(database),
        "HEADRACE_LISTEN": f"127.0.0.1:{free_port()}",
        "HEADRACE_HTTP": f"127.0.0.1:{free_port()}",
    }
    lines = [line.split("=", 1) for line in text.split("\n") if line and line[0] != "#"]
    assert {name for name, _ in lines} >= values.keys()
    values = dict(lines) | values | {"HEADRACE_ALLOW_TRUST": "on"}
    file = machine / "headrace.env"
    file.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    yield values
    inside("systemctl", "stop", "headrace", fails=True)


def test_the_unit_runs(settings, database):
    """All rights that the server, its processes and Spark need are there; it restarts and stops."""
    inside("systemctl", "start", "headrace")
    listen, http = (
        int(settings[name].rpartition(":")[2]) for name in ("HEADRACE_LISTEN", "HEADRACE_HTTP")
    )

    def ready() -> bool:
        assert state("ActiveState") == ["active"], log()
        return asked(http, "/readyz")[0] == 200

    wait_until(ready, log)
    images.assert_works(database, listen)
    [pid] = state("MainPID")
    told = inside("cat", f"/proc/{pid}/status")
    assert "NoNewPrivs:\t1" in told
    assert "Seccomp:\t2" in told
    assert "CapBnd:\t0000000000000000" in told
    # Killed, it is started again, with its views.
    inside("kill", "-KILL", pid)
    wait_until(lambda: state("MainPID", "NRestarts")[1] == "1", log)
    wait_until(lambda: asked(http, "/readyz")[0] == 200, log)
    inside("systemctl", "stop", "headrace")
    assert state("Result", "ExecMainStatus") == ["success", "0"], log()
    assert asked(http, "/livez")[0] == 0


def test_wrong_settings_are_not_tried_again(settings, machine):
    with (machine / "headrace.env").open("a") as file:
        file.write("HEADRACE_MEMORY_BYTES=plenty\n")
    inside("systemctl", "start", "headrace", fails=True)
    wait_until(lambda: state("ActiveState") == ["failed"], log)
    assert state("NRestarts", "ExecMainStatus") == ["0", "2"], log()
    inside("systemctl", "reset-failed", "headrace")
