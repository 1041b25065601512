"""Files that hold a secret: only this process's user, or root, may be able to read them.

The rule is libpq's for private keys (``fe-secure-openssl.c``), with the owner checked as the server
does.  A file of this process's user must have no group or world access.  A file of root may be
readable by its group, which is how orchestrators mount secrets.  Pipes are exempt: the permissions
of a shell's ``<(…)`` mean nothing.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

import structlog

from headrace.errors import PrerequisiteError

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_OF_ROOT: Final = stat.S_IWGRP | stat.S_IXGRP | stat.S_IRWXO
_log = structlog.get_logger(__name__)


def check(path: Path, what: str = "secret", *, of_root: bool = True) -> None:
    """Refuse a file that another user owns, or that other users may read or write.

    ``of_root``: whether the group may read a file of root; not so for libpq's password file.

    Raises:
        PrerequisiteError: the file is exposed.
        OSError: the file does not exist.
    """
    _check(path, path.stat(), what, of_root=of_root)


def read(path: Path, what: str = "secret") -> str:
    """Return the text of a secret file that an operator has made.

    Raises:
        PrerequisiteError: other users may read the file.
        OSError: the file cannot be read.
        UnicodeDecodeError: the file is not UTF-8.
    """
    with path.open(encoding="utf-8") as file:
        _check(path, os.fstat(file.fileno()), what)
        return file.read()


def restrict(path: Path, what: str = "secret") -> None:
    """Make a file of the data directory readable by this process's user alone, if it exists.

    Permissions that have been widened are reset with a warning, as for the data directory:
    Kubernetes widens them at each mount of a volume with ``fsGroup``.

    Raises:
        PrerequisiteError: another user owns the file.
        OSError: the permissions cannot be changed.
    """
    with contextlib.suppress(FileNotFoundError):
        found = path.stat()
        if found.st_uid == os.geteuid() and _is_exposed(found, of_root=False):
            path.chmod(0o600)
            mode = f"{stat.S_IMODE(found.st_mode):04o}"
            _log.warning("secret file was readable by other users", file=str(path), mode=mode)
        _check(path, path.stat(), what)


def _is_exposed(found: os.stat_result, *, of_root: bool = True) -> bool:
    forbidden = _OTHERS_OF_ROOT if of_root and not found.st_uid else _OTHERS
    return stat.S_ISREG(found.st_mode) and bool(found.st_mode & forbidden)


def _check(path: Path, found: os.stat_result, what: str, *, of_root: bool = True) -> None:
    if not stat.S_ISREG(found.st_mode):
        return
    if found.st_uid not in (0, os.geteuid()):
        raise PrerequisiteError(
            f'{what} file "{path}" belongs to another user',
            detail=f"Its owner has the user ID {found.st_uid}; this process has {os.geteuid()}.",
            hint=f'chown {os.geteuid()} "{path}" && chmod 600 "{path}"',
        )
    if _is_exposed(found, of_root=of_root):
        raise PrerequisiteError(
            f'{what} file "{path}" has group or world access',
            detail=f"Its permissions are {stat.S_IMODE(found.st_mode):04o}; they may be 0600 or"
            f" less{', or 0640 or less if root owns it' if of_root else ''}.",
            hint=f'Run chmod 600 "{path}", and replace the secret if another user may have read it.'
            + (" For a secret that Kubernetes mounts: defaultMode: 0440." if of_root else ""),
        )
