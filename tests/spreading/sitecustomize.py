"""Loaded by an engine under test whose views are created in another way (``tests/spread.py``).

HEADRACE_TEST_PLACES: each view without a placement is placed on the next of these workers.
HEADRACE_TEST_ALTERED: each view is altered, to one with another column and back, right after it was
created. A step that is refused is skipped.
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


def _altering(create_view: Any) -> Any:
    from headrace.errors import BugError, HeadraceError
    from headrace.sql.verbs import AlterView
    from headrace.sql.view_spec import ViewSpec
    from headrace.views.alter import alter_view

    def altered(context: Any, job: Any, request: Any) -> Any:
        options = ViewSpec.of({"sharing": False, **request.options.given})
        request = dataclasses.replace(request, options=options)
        answer = create_view(context, job, request)
        query = request.query.rstrip("; \n")
        for text in (f"SELECT q.*, 1 AS one_more FROM ({query}) q", request.query):
            about = {"caller": request.caller, "settings": request.settings}
            try:
                done = alter_view(context, job, AlterView(request.name, text, **about))
            except BugError:
                raise
            except HeadraceError:
                continue  # for example, two of its columns have the same name
            answer |= {"view_id": done["view_id"]}
        return answer

    return altered


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        create_view = module.create_view
        if "HEADRACE_TEST_ALTERED" in os.environ:
            setattr(module, "create_view", _altering(create_view))  # noqa: B010
        if "HEADRACE_TEST_PLACES" not in os.environ:
            return

        def spread(context: Any, job: Any, request: Any) -> Any:
            if not {"placement", "from"} & request.options.given.keys():
                options = request.options.with_placement(next(_PLACES))
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
