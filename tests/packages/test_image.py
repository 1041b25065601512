"""The image: built from the Dockerfile, and run as the pod of the Kubernetes base."""

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.packages import images, instructions, manifests
from tests.packages.images import podman
from tests.packages.test_kubernetes import asked, free_port
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

POD = "headrace-tested"
CONTAINER = f"{POD}-headrace"


@pytest.fixture(scope="module")
def image() -> str:
    return images.build()


def pod(image: str, secret: Path, ports: dict[str, int]) -> str:
    """Return the pod of the base as podman takes it: host network, no probes, a folder as Secret.

    Its probes need systemd in podman, and its version 4 does not decode Secrets.
    """
    found = manifests.base()
    spec, container = manifests.pod(found), manifests.container(found)
    for name in manifests.probes(found):
        del container[name]
    del container["ports"], container["resources"]
    container["image"] = image
    for entry in container["env"]:
        for name, port in manifests.ports(manifests.base()).items():
            entry["value"] = re.sub(f"^0.0.0.0:{port}$", f"127.0.0.1:{ports[name]}", entry["value"])
    container["env"].append({"name": "HEADRACE_ALLOW_TRUST", "value": "on"})
    spec["hostNetwork"] = True
    spec["volumes"] = [
        {"name": v["name"], "hostPath": {"path": str(secret)}} if "secret" in v else v
        for v in spec["volumes"]
    ] + [{"name": "data", "persistentVolumeClaim": {"claimName": "headrace-tested"}}]
    metadata = {"name": POD, "labels": {"app": POD}}
    return yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


@contextlib.contextmanager
def played(text: str, folder: Path) -> Iterator[None]:
    file = folder / "pod.yaml"
    file.write_text(text)

    def remove() -> None:
        podman("pod", "rm", "--force", POD, fails=True)
        podman("volume", "rm", "--force", "headrace-tested", fails=True)

    remove()
    try:
        podman("kube", "play", file)
        yield
    finally:
        remove()


def inside(*words: str) -> str:
    return podman("exec", CONTAINER, *words)


def test_the_pod_serves(image, database, tmp_path):
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "headrace.toml").write_text(f"source = {json.dumps(database)}")
    (secret / "headrace.toml").chmod(0o444)
    ports = {name: free_port() for name in manifests.ports(manifests.base())}
    with played(pod(image, secret, ports), tmp_path):

        def ready() -> bool:
            assert podman("inspect", "--format={{.State.Running}}", CONTAINER) == "true\n", logs()
            return asked(ports["http"], "/readyz")[0] == 200

        wait_until(ready, logs)
        # No rights, and nothing to write but the volumes.
        assert inside("id", "-u") == "1000\n"
        status = inside("cat", "/proc/1/status")
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd"):
            assert re.search(rf"^{name}:\t0+$", status, re.MULTILINE), status
        assert re.search(r"^NoNewPrivs:\t1$", status, re.MULTILINE)
        assert re.search(r"^\S+ / overlay ro,", inside("cat", "/proc/mounts"), re.MULTILINE)
        # The manual of the console, and the kernels compiled.
        status, page = asked(ports["http"], "/manual/manual/start.html")
        assert (status, "<title>" in page) == (200, True)
        kernels = (images.ROOT / "tests/packages/kernels.py").read_text()
        inside("/opt/headrace/bin/python", "-I", "-c", kernels)
        images.assert_works(database, ports["postgres"])
        # The image's own check, at the port of this pod.
        words = healthcheck()
        assert "127.0.0.1:8080" in words[-1]
        inside(*words[:-1], words[-1].replace("127.0.0.1:8080", f"127.0.0.1:{ports['http']}"))
        podman(
            "stop",
            f"--time={manifests.pod(manifests.base())['terminationGracePeriodSeconds']}",
            CONTAINER,
        )
        told = podman("inspect", "--format={{.State.ExitCode}} {{.State.OOMKilled}}", CONTAINER)
        assert told == "0 false\n", f"killed after the grace period: {logs()}"


def healthcheck() -> list[str]:
    rest = dict(instructions.stages()[-1])["HEALTHCHECK"]
    return json.loads(rest.partition(" CMD ")[2])


def logs() -> str:
    return podman("logs", "--tail=60", CONTAINER, fails=True)
