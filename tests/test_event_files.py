"""Files of events: each event is read once, also if the files are renamed or torn."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import event_files
from headrace.event_files import EventFile, EventTail, parsed


def event(n: object, **fields: object) -> dict[str, object]:
    return {"event": "something happened", "level": "info", "process": "p", "n": n, **fields}


def numbers(tail: EventTail, most: int = 1_000) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for each in tail.read(most):
        found.setdefault(each.process, []).append(each.fields["n"])
    return found


@pytest.mark.parametrize("seed", range(20))
def test_each_event_is_read_once_and_in_order(tmp_path, monkeypatch, seed):
    rng = random.Random(seed)
    monkeypatch.setattr(event_files, "BYTES_MAX", 3_000)
    names = ["commander", "worker", "worker a/b", "source ö"]
    files = {name: EventFile(tmp_path, name) for name in names}
    written: dict[str, list[int]] = {}
    read: dict[str, list[int]] = {}
    since = dict.fromkeys(names, 0)
    tail = EventTail(tmp_path)
    for n in range(400):
        name = rng.choice(names)
        files[name].append(event(n, text="x" * rng.randrange(60)) | {"process": name})
        written.setdefault(name, []).append(n)
        since[name] += 1
        if rng.random() < 0.05:
            files[name] = EventFile(tmp_path, name)  # the process ends, and another begins
        if max(since.values()) > 20 or rng.random() < 0.1:  # of 3 000 bytes, twenty lines
            while found := numbers(tail, rng.choice([1, 7, 1_000])):
                for process, several in found.items():
                    read.setdefault(process, []).extend(several)
            since = dict.fromkeys(names, 0)
    for process, several in numbers(tail).items():
        read.setdefault(process, []).extend(several)
    assert read == written
    assert len(list(tmp_path.iterdir())) == 2 * len(names)
    assert max(path.stat().st_size for path in tmp_path.iterdir()) <= 3_000


def test_a_reader_that_comes_later_begins_with_the_file_before(tmp_path, monkeypatch):
    monkeypatch.setattr(event_files, "BYTES_MAX", 1_000)
    file = EventFile(tmp_path, "worker")
    for n in range(100):
        file.append(event(n))
    [found] = numbers(EventTail(tmp_path)).values()
    assert found == list(range(found[0], 100))
    assert 8 < len(found) < 20


def test_two_processes_of_one_name(tmp_path):
    program = (
        "import sys\nfrom pathlib import Path\nfrom headrace.event_files import EventFile\n"
        "file = EventFile(Path(sys.argv[1]), 'worker')\n"
        "for n in range(500):\n"
        "    file.append({'event': 'e', 'level': 'info', 'process': sys.argv[2], 'n': n})\n"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path), name]) for name in "ab"
    ]
    assert [each.wait() for each in running] == [0, 0]
    assert numbers(EventTail(tmp_path), 2_000) == {"a": list(range(500)), "b": list(range(500))}


def test_two_writers_of_one_name_follow_each_other_to_the_next_file(tmp_path, monkeypatch):
    """A process may still end while the next one of its name has begun."""
    monkeypatch.setattr(event_files, "BYTES_MAX", 2_000)
    writers = [EventFile(tmp_path, "worker") for _ in range(2)]
    tail, found = EventTail(tmp_path), []
    for n in range(300):
        writers[n % 7 == 0].append(event(n))
        if n % 5 == 4:
            found += numbers(tail)["p"]
    assert found == list(range(300))


def test_a_flood_of_one_process_takes_no_place_of_another(tmp_path):
    for n in range(500):
        EventFile(tmp_path, "builder").append(event(n))
    EventFile(tmp_path, "worker").append(event(0) | {"process": "w"})
    assert numbers(EventTail(tmp_path), 10) == {"p": list(range(9)), "w": [0]}


def test_a_torn_line_waits_for_its_end_and_a_damaged_one_is_left_out(tmp_path):
    file = EventFile(tmp_path, "worker")
    file.append(event(1))
    tail = EventTail(tmp_path)
    path = tmp_path / "worker.jsonl"
    whole = path.read_bytes()
    assert numbers(tail) == {"p": [1]}
    with path.open("ab") as end:
        end.write(whole[:30])
        end.flush()
        assert numbers(tail) == {}
        end.write(whole[30:])
        end.write(b"\0\0\0\xff\n{}\n[1]\n" + b'{"at": 1, "seq": "x"}\n')
    file.append(event(2))
    assert numbers(tail) == {"p": [1, 2]}


def test_any_value_has_a_line(tmp_path):
    class Odd:
        def __str__(self) -> str:
            return "odd\0"

    values = [
        *("nul\0", "half \ud800 pair", "x" * 100_000, 1 << 70, -1.5, float("nan"), None, True),
        *(b"bytes\0", Odd(), [1, "a\0", Odd()], {"k\0": Path("/x"), 3: {1, 2}}, {"x" * 9: "y"}),
    ]
    file = EventFile(tmp_path, "worker")
    for n, value in enumerate(values):
        file.append(event(n, value=value))
    file.append(event(len(values), **{f"f{i}": "x" * 7_999 for i in range(20)}))
    lines = (tmp_path / "worker.jsonl").read_bytes().splitlines()
    assert len(lines) == len(values) + 1
    assert all(parsed(line) for line in lines)
    assert max(map(len, lines)) < 64_000
    assert b"\\u0000" not in b"".join(lines)


def test_a_file_that_cannot_be_written_harms_nothing(tmp_path):
    folder = tmp_path / "no folder"
    folder.write_text("")
    file = EventFile(folder, "worker")
    file.append(event(1))
    folder.unlink()
    file.append(event(2))
    assert numbers(EventTail(folder)) == {"p": [2]}
    assert (folder / "worker.jsonl").stat().st_mode & 0o777 == 0o600


def test_files_of_processes_that_have_gone(tmp_path, monkeypatch):
    for name in ("one", "two"):
        EventFile(tmp_path, name).append(event(1))
    event_files.remove_old(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    monkeypatch.setattr(event_files, "_OLD_S", -60)
    event_files.remove_old(tmp_path)
    assert list(tmp_path.iterdir()) == []
