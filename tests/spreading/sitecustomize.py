"""Read by an engine under test whose views are to be spread over workers (``tests/spread.py``).

Each view that says nothing of it is placed on the next one of HEADRACE_TEST_PLACES.
"""

from __future__ import annotations

import dataclasses
import importlib.abc
import importlib.util
import itertools
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_PLACES = itertools.cycle(os.environ.get("HEADRACE_TEST_PLACES", "main").split(","))
_MODULE = "headrace.views.create"


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        create_view = module.create_view

        def spread(context: Any, job: Any, request: Any) -> Any:
            options = request.options
            if isinstance(options, dict) and not {"placement", "from"} & options.keys():
                options = {**options, "placement": next(_PLACES)}
                request = dataclasses.replace(request, options=options)
            return create_view(context, job, request)

        setattr(module, "create_view", spread)  # noqa: B010  mypy does not know it


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        found = importlib.util.find_spec(name)
        assert found is not None, "it is ours"
        assert found.loader is not None, "it is a file"
        found.loader = _Loader(found.loader)
        return found


sys.meta_path.insert(0, _Finder())
