"""The objects of Kubernetes: their references exist, and the container's command really runs."""

import contextlib
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

import psycopg
import pytest
import yaml
from psycopg.conninfo import conninfo_to_dict

from headrace.config import Settings
from tests import environments
from tests.packages import instructions, manifests
from tests.packages.manifests import KUBERNETES, ROOT
from tests.waiting import PATIENCE_S, wait_until

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
STOP_S = 25
"""Longest time that the server takes to stop (server/main.py)."""
SCHEMAS = ("kubernetes-validate==1.37.0",)
RESTRICTED_VOLUMES = {"name", "configMap", "emptyDir", "persistentVolumeClaim", "secret"}


def test_references_fit():
    found = manifests.base()
    of = found["StatefulSet", "headrace"]["spec"]
    assert of["replicas"] == 1, "a second server of a database refuses to start"
    labels = of["template"]["metadata"]["labels"].items()
    assert of["selector"]["matchLabels"].items() <= labels
    ports = manifests.ports(found)
    for (kind, name), part in found.items():
        if kind == "Service":
            assert part["spec"]["selector"].items() <= labels, name
            for port in part["spec"]["ports"]:
                assert ports[port["targetPort"]] == port["port"]
    assert ("Service", of["serviceName"]) in found
    pod = manifests.pod(found)
    assert ("ServiceAccount", pod["serviceAccountName"]) in found
    mounts = manifests.mounts(found)
    claims = {claim["metadata"]["name"] for claim in of["volumeClaimTemplates"]}
    assert set(mounts) == claims | {volume["name"] for volume in pod["volumes"]}
    assert pod["terminationGracePeriodSeconds"] > STOP_S
    for component in ("network-policy", "pod-monitor"):
        [part] = manifests.resources(KUBERNETES / "components" / component)
        key = "podSelector" if part["kind"] == "NetworkPolicy" else "selector"
        assert part["spec"][key]["matchLabels"].items() <= labels
        used = re.findall(r"'port': '(\w+)'", str(part["spec"]))
        assert used
        assert set(used) <= set(ports), component


def test_no_secret_is_in_the_base():
    found = manifests.base()
    assert "Secret" not in {kind for kind, _ in found}
    settings = manifests.environment(found)
    names = {f"HEADRACE_{name.upper()}" for name in Settings.__dataclass_fields__}
    assert settings.keys() <= names - {"HEADRACE_SOURCE", "HEADRACE_EVAL_DSN"}


def test_the_pod_is_restricted():
    """The rules of the Pod Security Standard "restricted", and a read-only root file system."""
    found = manifests.base()
    pod, container = manifests.pod(found), manifests.container(found)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert all("hostPort" not in port for port in container["ports"])
    assert all(volume.keys() <= RESTRICTED_VOLUMES for volume in pod["volumes"])
    assert pod["automountServiceAccountToken"] is False


def test_settings_and_image_fit():
    found = manifests.base()
    container, settings = manifests.container(found), manifests.environment(found)
    ports, mounts = manifests.ports(found), manifests.mounts(found)
    assert settings["HEADRACE_HTTP"] == f"0.0.0.0:{ports['http']}"
    assert settings["HEADRACE_LISTEN"] == f"0.0.0.0:{ports['postgres']}"
    # The root of the mount belongs to root, and the server makes its own directory private.
    assert settings["HEADRACE_DATA_DIR"].startswith(mounts["data"] + "/")
    limit = int(container["resources"]["limits"]["memory"].removesuffix("Gi")) << 30
    assert int(settings["HEADRACE_MEMORY_BYTES"]) * 3 < limit
    assert container["image"] == f"headrace:{VERSION}"
    # The user of the image, its ports, and the directories that it writes.
    told = dict(instructions.stages()[-1])
    run = [rest for word, rest in instructions.stages()[-1] if word == "RUN"]
    assert manifests.pod(found)["securityContext"]["runAsUser"] == 1000
    assert "--uid 1000 headrace" in run[0]
    assert set(map(str, ports.values())) == set(told["EXPOSE"].split())
    assert {"/var/lib/headrace", "/staging", "/home/headrace", "/tmp"} <= set(mounts.values())


def asked(port: int, path: str) -> tuple[int, str]:
    """Return status and body of a GET; 0 while nothing listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""
    except OSError:
        return 0, ""


@contextlib.contextmanager
def started(words: list[str], env: dict[str, str], log: Path):
    """Run a program in a process group of its own, which is killed at the end."""
    with log.open("wb") as file:
        child = subprocess.Popen(
            words, env=env, stdout=file, stderr=file, cwd=log.parent, start_new_session=True
        )
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def test_the_container_runs(database, tmp_path):
    """Its command, variables and Secret, with other directories and ports; then its probes."""
    found = manifests.base()
    container = manifests.container(found)
    [volume] = [v for v in manifests.pod(found)["volumes"] if "secret" in v]
    said = tomllib.loads((KUBERNETES / "example/headrace.toml").read_text())
    assert conninfo_to_dict(said["source"])["password"] == "CHANGE-ME"
    mounted = {}
    for name, path in manifests.mounts(found).items():
        (tmp_path / name).mkdir()
        mounted[path] = tmp_path / name
    secret = tmp_path / volume["name"] / "headrace.toml"
    secret.write_text(f"source = {json.dumps(database)}")
    secret.chmod(volume["secret"]["defaultMode"])
    assert not secret.stat().st_mode & stat.S_IRWXO, "the Secret is not for everybody"
    free = {port: free_port() for port in manifests.ports(found).values()}

    def here(text: str) -> str:
        for path, place in mounted.items():
            if text == path or text.startswith(path + "/"):
                return str(place) + text.removeprefix(path)
        return re.sub(r"^0\.0\.0\.0:(\d+)$", lambda m: f"127.0.0.1:{free[int(m[1])]}", text)

    [program] = instructions.entrypoint()
    words = [str(Path(sys.executable).with_name(program)), *map(here, container["args"])]
    env = {name: here(value) for name, value in manifests.environment(found).items()}
    env |= {"PATH": os.environ["PATH"], "HOME": str(mounted["/home/headrace"])}
    # The variables of a Service called headrace, as Kubernetes would add them, do no harm.
    env |= {"HEADRACE_SERVICE_HOST": "10.0.0.1", "HEADRACE_PORT": "tcp://10.0.0.1:6432"}
    env["HEADRACE_ALLOW_TRUST"] = "on"  # of the tests' Postgres
    log = tmp_path / "log"
    ports = {name: free[port] for name, port in manifests.ports(found).items()}
    with started(words, env, log) as child:
        for port, path in manifests.probes(found).values():

            def answered(port=port, path=path) -> bool:
                assert child.poll() is None, log.read_text()
                return asked(ports[port], path)[0] == 200

            wait_until(answered, f"{path} answers")
        [monitor] = manifests.resources(KUBERNETES / "components/pod-monitor")
        [scraped] = monitor["spec"]["podMetricsEndpoints"]
        status, metrics = asked(ports[scraped["port"]], scraped["path"])
        assert status == 200
        assert "headrace_" in metrics
        dsn = {"port": ports["postgres"], "host": "127.0.0.1"}
        with psycopg.connect(database, **dsn, autocommit=True) as conn:
            conn.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2)")
            conn.execute("CALL headrace.create_view('counted', 'SELECT count(*) AS n FROM t')")
            assert conn.execute("SELECT n FROM counted").fetchone() == (2,)
            conn.execute("CALL headrace.drop_view('counted')")
        child.send_signal(signal.SIGTERM)  # as the kubelet does
        assert child.wait(PATIENCE_S) == 0, log.read_text()
    # All files that it wrote are in mounted directories.
    assert {path.name for path in tmp_path.iterdir()} == {*manifests.mounts(found), "log"}


def test_kustomize_makes_the_example():
    found = manifests.rendered(KUBERNETES / "example")
    base = manifests.rendered(KUBERNETES / "base")
    assert base == manifests.base(), "the base changes nothing"
    assert found.keys() - base.keys() == {
        ("NetworkPolicy", "headrace"),
        ("PodMonitor", "headrace"),
        *((kind, name) for kind, name in found if kind == "Secret"),
    }
    assert {part["metadata"]["namespace"] for part in found.values()} == {"shop"}
    [secret] = [part["metadata"]["name"] for (kind, _), part in found.items() if kind == "Secret"]
    [volume] = [v for v in manifests.pod(found)["volumes"] if "secret" in v]
    assert secret == volume["secret"]["secretName"]
    assert secret.startswith(manifests.pod(base)["volumes"][0]["secret"]["secretName"] + "-")
    assert manifests.container(found)["image"] == f"registry.example/headrace:{VERSION}"
    template = found["StatefulSet", "headrace"]["spec"]["template"]
    assert "annotations" not in template["metadata"], "each metric is collected once"


@pytest.mark.slow  # installs a package of 22 MB in an environment of its own
@pytest.mark.timeout(900)
def test_schemas(tmp_path):
    """Each object has only fields of the schemas of Kubernetes, with their types."""
    # The Prometheus operator's resource has no schema there.
    objects = [*manifests.resources(KUBERNETES / "base")]
    objects += manifests.resources(KUBERNETES / "components/network-policy")
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    program = environments.programs("kubernetes", "kubernetes-validate", SCHEMAS, 600)
    program /= "kubernetes-validate"

    def validate() -> subprocess.CompletedProcess[str]:
        words = [program, "--strict", "--kubernetes-version", "1.37", file]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    done = validate()
    assert done.returncode == 0, done.stdout + done.stderr
    objects[0]["spce"] = {}
    file.write_text(yaml.safe_dump_all(objects))
    assert validate().returncode != 0, "a field that does not exist is noticed"
