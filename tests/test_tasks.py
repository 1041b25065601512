"""Tasks whose failure is logged."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from headrace.process.tasks import cancel, forever


def test_work_that_raises_is_begun_anew_until_it_returns():
    errors = iter([ValueError("a"), ValueError("a"), ExceptionGroup("b", [KeyError()])])
    begun = 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        for error in errors:
            raise error

    with capture_logs() as logs:
        asyncio.run(forever("test", work, 0))
    assert begun == 4
    # The same error again is not logged again.
    assert [line["loop"] for line in logs] == ["test", "test"]
    assert all(line["log_level"] == "error" and line["exc_info"] for line in logs)


@pytest.mark.parametrize("raising", [False, True], ids=["at work", "in the pause"])
def test_being_cancelled_ends_it(raising):
    async def main() -> None:
        begun = asyncio.Event()

        async def work() -> None:
            begun.set()
            if raising:
                raise ValueError
            await asyncio.Event().wait()

        task = asyncio.create_task(forever("test", work, 1000))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_what_is_cancelled_before_its_first_step_can_say_so():
    async def main() -> list[str]:
        said = []

        async def work() -> None:
            said.append("begun")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                said.append("cancelled")

        task = asyncio.create_task(work())
        cancel(task)
        await task
        cancel(task)
        return said

    assert asyncio.run(main()) == ["begun", "cancelled"]
