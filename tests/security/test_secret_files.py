"""Files with secrets that other users may read, or have created, are refused by name."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from headrace.config import Settings
from headrace.console.access import Access
from headrace.errors import HeadraceError, PrerequisiteError
from headrace.process import durable, keys, password_files, secret_files
from headrace.runtime import joined
from headrace.server import cli, doctor, main, tls

OTHER = 4711
"""A user ID that is neither root's nor that of the tests."""
NAMED = {"token_file", "console_token_file", "tls_key"}
"""Settings that name a file with a secret."""


@pytest.fixture
def other_user(monkeypatch):
    """Make files of root belong to another user than this process."""
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)


def secret(path: Path, mode: int, text: str = "w2.0123456789abcdef") -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
@pytest.mark.parametrize(
    ("owner", "mode", "accepted"),
    [
        *((OTHER, mode, True) for mode in (0o600, 0o400, 0o700)),
        *((OTHER, mode, False) for mode in (0o640, 0o604, 0o620, 0o602, 0o610, 0o644, 0o666)),
        *((0, mode, True) for mode in (0o600, 0o640, 0o440, 0o400)),
        *((0, mode, False) for mode in (0o644, 0o444, 0o660, 0o650, 0o601, 0o777)),
        *((OTHER + 1, mode, False) for mode in (0o600, 0o640, 0o644)),
    ],
)
def test_owner_and_permissions_decide(tmp_path, other_user, owner, mode, accepted):
    path = secret(tmp_path / "s", mode)
    os.chown(path, owner, -1)
    if accepted:
        secret_files.check(path)
        assert secret_files.read(path)
        return
    for act in (secret_files.check, secret_files.read):
        with pytest.raises(PrerequisiteError, match=f'"{path}"') as caught:
            act(path)
        assert f'chmod 600 "{path}"' in str(caught.value.hint)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_group_of_root_may_not_read_what_libpq_ignores_then(tmp_path, other_user):
    path = secret(tmp_path / "s", 0o640)
    secret_files.check(path)
    with pytest.raises(PrerequisiteError):
        secret_files.check(path, of_root=False)


def test_pipes_have_no_permissions_that_count(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o644)
    secret_files.check(tmp_path / "pipe")
    secret_files.check(Path(os.devnull))


def test_all_settings_with_secrets_are_known_here():
    fields = {f.name for f in dataclasses.fields(Settings)}
    assert {name for name in fields if name.endswith(("_file", "_key"))} == NAMED


def uses(settings: Settings, name: str) -> None:
    """Use the file of setting ``name`` as a start does."""
    match name:
        case "token_file":
            joined.token(settings)
        case "console_token_file":
            Access(settings)
        case "tls_key":
            tls.server_context(settings)


@pytest.mark.parametrize("name", sorted(NAMED))
def test_each_setting_refuses_an_exposed_file(tmp_path, name):
    pair = keys.load_or_create(tmp_path / "keys")
    certificate = secret(tmp_path / "cert.pem", 0o644, pair.certificate.decode())
    words = pair.key.decode() if name == "tls_key" else "w2.0123456789abcdef"
    path = secret(tmp_path / "s", 0o644, words)
    paths = {name: str(path)} | ({"tls_cert": str(certificate)} if name == "tls_key" else {})
    settings = Settings(data_dir=tmp_path, **paths)
    with pytest.raises(PrerequisiteError, match="group or world access"):
        uses(settings, name)
    if name != "token_file":  # `check` runs on the engine, a token file is used by a worker
        [found] = [f for f in doctor._machine(settings) if f.name == "secret files"]
        assert "group or world access" in str(found.problem)
    path.chmod(0o600)
    uses(settings, name)


def test_a_worker_with_an_exposed_token_does_not_start(tmp_path):
    path = secret(tmp_path / "t", 0o644)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "headrace.server.cli", "worker", "--join", "host=/nowhere"),
            *("--token-file", str(path), "--data-dir", str(tmp_path / "data")),
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert f'token file "{path}" has group or world access' in done.stderr
    assert f'chmod 600 "{path}"' in done.stderr


def test_configuration_with_a_password(tmp_path, monkeypatch):
    monkeypatch.delenv("HEADRACE_SOURCE", raising=False)
    file = secret(tmp_path / "headrace.toml", 0o644, "source = 'host=h dbname=d'\n")
    words = cli.parser().parse_args(["check", "--config", str(file)])
    assert cli.settings_of(words).source == "host=h dbname=d"
    secret(file, 0o644, "[headrace]\nsource = 'host=h password=sesame'\n")
    with pytest.raises(PrerequisiteError, match="configuration file"):
        cli.settings_of(words)
    file.chmod(0o600)
    assert "sesame" in cli.settings_of(words).source


def test_password_file_of_a_source(tmp_path, monkeypatch):
    file = secret(tmp_path / "pass", 0o644, "*:*:*:*:sesame\n")
    dsn = make_conninfo("host=/nowhere dbname=d", passfile=str(file))
    with pytest.raises(PrerequisiteError, match="password file"):
        joined.join(Settings(source=dsn, data_dir=tmp_path))
    with pytest.raises(PrerequisiteError, match="password file"):
        main.prepare(Settings(source=dsn, data_dir=tmp_path))
    monkeypatch.setenv("PGPASSFILE", str(file))
    with pytest.raises(PrerequisiteError, match="password file"):
        password_files.check("host=/nowhere dbname=d")
    password_files.check("host=/nowhere dbname=d password=other")  # libpq does not read the file
    file.chmod(0o600)
    with pytest.raises(HeadraceError, match="nowhere"):
        main.prepare(Settings(source=dsn, data_dir=tmp_path))


def test_service_file_with_a_password(tmp_path, monkeypatch):
    file = secret(tmp_path / "services", 0o644, "[s]\nhost=/nowhere\n")
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    password_files.check("service=s")
    secret(file, 0o644, "[s]\nhost=/nowhere\npassword=sesame\n")
    with pytest.raises(PrerequisiteError, match="service file"):
        password_files.check("service=s")
    password_files.check("host=/nowhere")


def test_no_service_file_is_no_error(tmp_path, monkeypatch):
    """A missing home, or a directory that may not be read, is no error."""
    monkeypatch.delenv("PGSERVICEFILE", raising=False)
    monkeypatch.setattr(Path, "home", classmethod(lambda _: (_ for _ in ()).throw(RuntimeError)))
    password_files.check("service=s")
    monkeypatch.undo()
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    secret(tmp_path / "services", 0o644, "[s]\npassword=sesame\n")

    def refuse(*_args, **_more):
        raise PermissionError

    monkeypatch.setattr(Path, "read_text", refuse)
    password_files.check("service=s")


def test_own_files_are_closed_again(tmp_path):
    settings = Settings(data_dir=tmp_path)
    Access(settings)
    made = keys.load_or_create(tmp_path / "keys")
    for path in (tmp_path / "console.token", tmp_path / "keys" / "link.pem"):
        path.chmod(0o664)
    Access(settings)
    assert keys.load_or_create(tmp_path / "keys") == made
    for path in (tmp_path / "console.token", tmp_path / "keys" / "link.pem"):
        assert path.stat().st_mode & 0o777 == 0o600
    durable.replace(tmp_path / "console.token", b"again", 0o600)
    assert (tmp_path / "console.token").stat().st_mode & 0o777 == 0o600
    assert sorted(p.name for p in tmp_path.iterdir()) == ["console.token", "keys"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_own_files_that_another_user_has_made_are_refused(tmp_path):
    Access(Settings(data_dir=tmp_path))
    os.chown(tmp_path / "console.token", OTHER, -1)
    with pytest.raises(PrerequisiteError, match="belongs to another user"):
        Access(Settings(data_dir=tmp_path))
