"""List the files that setuptools would put into a wheel and a source distribution.

Run in the root of the source, with a folder for setuptools's own files; prints JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, cast

from setuptools import Distribution


def main(folder: str) -> None:
    """Print ``{"wheel": […], "sdist": […]}``, paths relative to the source."""
    distribution = Distribution({"script_name": "setup.py"})
    distribution.parse_config_files()
    distribution.script_name = "setup.py"
    info = cast("Any", distribution.get_command_obj("egg_info"))
    info.egg_base = folder
    info.ensure_finalized()
    info.run()
    listed = Path(folder, "headrace.egg-info", "SOURCES.txt").read_text().splitlines()
    build = cast("Any", distribution.get_command_obj("build_py"))
    build.ensure_finalized()
    wheel = [os.path.relpath(path) for _, _, path in build.find_all_modules()]
    wheel += [
        os.path.relpath(Path(source, name))
        for _, source, _, names in build.data_files
        for name in names
        if Path(source, name).is_file()
    ]
    sdist = [path for path in listed if not os.path.relpath(path).startswith("..")]
    sys.stdout.write(json.dumps({"wheel": sorted(set(wheel)), "sdist": sorted(set(sdist))}))


if __name__ == "__main__":
    main(sys.argv[1])
