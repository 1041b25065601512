"""The Kubernetes objects of ``deploy/kubernetes``, as tests read them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
BASE = KUBERNETES / "base"
Objects = dict[tuple[str, str], dict[str, Any]]
"""By kind and name."""


def resources(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects in the files that a kustomization lists, without its changes to them."""
    said = yaml.safe_load((folder / "kustomization.yaml").read_text())
    listed = set(said["resources"])
    files = {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}
    assert {name for name in listed if (folder / name).is_file()} == files, "a file is not listed"
    for name in said["resources"]:
        if name in files:
            yield from yaml.safe_load_all((folder / name).read_text())
        else:
            yield from resources(folder / name)


def by_name(objects: Iterator[dict[str, Any]]) -> Objects:
    """Return objects by kind and name, which must be unique."""
    parts = list(objects)
    found = {(part["kind"], part["metadata"]["name"]): part for part in parts}
    assert len(found) == len(parts)
    return found


def base() -> Objects:
    """Return the objects of the base."""
    return by_name(resources(BASE))


def rendered(folder: Path) -> Objects:
    """Return the objects that the real kustomize makes of a folder; skip without it."""
    for words in (["kustomize", "build"], ["kubectl", "kustomize"]):
        if shutil.which(words[0]):
            done = subprocess.run(
                [*words, folder], capture_output=True, text=True, env=os.environ, check=False
            )
            assert done.returncode == 0, done.stderr
            assert not done.stderr, "kustomize warns"
            return by_name(yaml.safe_load_all(done.stdout))
    pytest.skip("neither kustomize nor kubectl is installed")


def pod(objects: Objects) -> dict[str, Any]:
    """Return the specification of the server's pod."""
    found: dict[str, Any] = objects["StatefulSet", "headrace"]["spec"]["template"]["spec"]
    return found


def container(objects: Objects) -> dict[str, Any]:
    """Return the only container of that pod."""
    [only] = pod(objects)["containers"]
    found: dict[str, Any] = only
    return found


def environment(objects: Objects) -> dict[str, str]:
    """Return the variables of the container; all of them have plain values."""
    return {entry["name"]: entry["value"] for entry in container(objects)["env"]}


def ports(objects: Objects) -> dict[str, int]:
    """Return the ports of the container by name."""
    return {port["name"]: port["containerPort"] for port in container(objects)["ports"]}


def mounts(objects: Objects) -> dict[str, str]:
    """Return the paths in the container by name of the volume."""
    return {mount["name"]: mount["mountPath"] for mount in container(objects)["volumeMounts"]}


def probes(objects: Objects) -> dict[str, tuple[str, str]]:
    """Return the name of the port and the path of each probe."""
    return {
        name: (probe["httpGet"]["port"], probe["httpGet"]["path"])
        for name, probe in container(objects).items()
        if name.endswith("Probe")
    }
