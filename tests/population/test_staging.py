"""The staging directory of a population, with tasks that still run after its end."""

from __future__ import annotations

import contextlib
import threading

from headrace.population import staging


def test_removed_beside_tasks_that_go_on(tmp_path):
    stop = threading.Event()
    staged = staging.of_view(tmp_path, 1)

    def task(part: str) -> None:
        while not stop.is_set():
            with contextlib.suppress(FileNotFoundError):
                staged.write_progress(part, 1)

    tasks = [threading.Thread(target=task, args=(str(number),)) for number in range(4)]
    for thread in tasks:
        thread.start()
    try:
        for _ in range(100):
            staged.make()
            staged.remove()
            assert list(tmp_path.iterdir()) == []
    finally:
        stop.set()
        for thread in tasks:
            thread.join()


def test_what_a_killed_removal_left_is_an_orphan(tmp_path, monkeypatch):
    staged = staging.of_view(tmp_path, 1)
    staged.make()
    staged.seal({})
    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):

        def killed(path):
            raise KeyboardInterrupt

        patch.setattr("shutil.rmtree", killed)
        staged.remove()
    assert staging.sealed(tmp_path) == []
    assert len(staging.remove_orphans(tmp_path, {1})) == 1
    assert list(tmp_path.iterdir()) == []
