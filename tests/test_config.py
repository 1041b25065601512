"""Settings: their sources, and the values that are refused."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from headrace.config import MemoryParts, Settings, address, given, outdated
from headrace.errors import HeadraceError, UserError
from headrace.redaction import redact
from headrace.server.explained import explained, meanings, strangers, unit_of

MANUAL = Path(__file__).resolve().parent.parent / "docs" / "manual" / "settings.md"


def test_later_sources_win(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text(
        "source = 'host=file'\nbatch_interval_ms = 10\n"
        "[headrace.spark]\nmaster = 'local[1]'\nwarm = false\n"
    )
    env = {"HEADRACE_BATCH_INTERVAL_MS": "20", "HEADRACE_TEST_DSN": "x", "PATH": "y"}
    settings = Settings.load({"batch_interval_ms": None}, file, env)
    assert settings.source == "host=file"
    assert (settings.batch_interval_ms, settings.spark_master) == (20, "local[1]")
    assert settings.spark_warm is False
    assert Settings.load({"batch_interval_ms": 30}, file, env).batch_interval_ms == 30


def test_json_round_trip():
    settings = Settings(source="host=x password=y", data_dir=Path("/d"), spark_warm=False)
    assert Settings.from_json(settings.to_json()) == settings
    assert Settings.from_env({"HEADRACE_SETTINGS": settings.to_json()}) == settings
    assert settings.worker_socket == Path("/d/run/worker.sock")


def test_secrets_are_not_shown():
    settings = Settings(
        source="host=x password=s3cret",
        decode_from="host=y password=s3cret",
        eval_dsn="postgresql://u:s3cret@h/d",
    )
    assert "s3cret" not in repr(settings)
    assert "s3cret" not in redact("postgresql://u:s3cret@h/d")
    assert redact("no dsn at all = = =") == "<malformed DSN>"


@pytest.mark.parametrize(
    "values",
    [
        {"nonsense": 1},
        {"batch_interval_ms": "soon"},
        {"batch_interval_ms": -1},
        {"spark_warm": "perhaps"},
        {"slot_name": "Not A Slot"},
        {"listen": "6432"},
        {"listen": "h:99999"},
        {"tls_cert": "x"},
        {"log_level": "loud"},
        {"wal_retention": "remote"},
        {"memory_bytes": 1_000_000},
    ],
)
def test_wrong_values_are_refused(values):
    with pytest.raises(HeadraceError):
        Settings.of(values)


def test_missing_file_and_environment(tmp_path):
    with pytest.raises(HeadraceError):
        Settings.load({}, tmp_path / "none.toml", {})
    with pytest.raises(HeadraceError):
        Settings.from_env({})


def test_address():
    assert address("127.0.0.1:0") == ("127.0.0.1", 0)
    assert address("[::1]:6432") == ("::1", 6432)


def test_one_budget_is_given_out():
    """A budget set by name leaves the budgets of the other parts as they are."""
    assert Settings().memory == MemoryParts(
        states=512 << 20,
        queues=256 << 20,
        batches=128 << 20,
        changes=64 << 20,
        transaction=32 << 20,
    )
    small = Settings(memory_bytes=64 << 20, state_memory_bytes=48 << 20, buffer_bytes_max=100)
    assert small.memory == MemoryParts(
        states=48 << 20, queues=16 << 20, batches=8 << 20, changes=100, transaction=50
    )


def test_a_misspelt_variable_is_refused():
    for key, meant in {
        "HEADRACE_BATCH_INTERVAL": "HEADRACE_BATCH_INTERVAL_MS",
        "HEADRACE_MEMORY_BYTE": "HEADRACE_MEMORY_BYTES",
        "HEADRACE_SPARK_MASTERS": "HEADRACE_SPARK_MASTER",
    }.items():
        with pytest.raises(UserError) as caught:
            Settings.load({}, None, {key: "1"})
        assert caught.value.code == "42704"
        assert meant in str(caught.value.hint)
    # Variables of other programs are ignored.
    Settings.load({}, None, {"HEADRACE_TEST_DSN": "x", "HEADRACE_FAULT": "x", "OTHER": "x"})


def test_each_setting_is_explained(tmp_path):
    file = tmp_path / "headrace.toml"
    file.write_text('[headrace]\nlisten = "127.0.0.1:7000"')
    env = {"HEADRACE_SOURCE": "host=x password=pa55", "HEADRACE_SLOW_BATCH_MS": "7"}
    lines = explained({"http": "127.0.0.1:1"}, file, env)
    text = "\n".join(lines)
    assert f"listen = 127.0.0.1:7000  ({file})" in lines
    assert "slow_batch_ms = 7 ms  (HEADRACE_SLOW_BATCH_MS)" in lines
    assert "http = 127.0.0.1:1  (command line)" in lines
    assert "catalog_poll_ms = 1000 ms  (default)" in lines
    assert "pa55" not in text
    assert meanings().keys() == {f.name for f in dataclasses.fields(Settings)}
    assert all(meanings().values())
    for field in dataclasses.fields(Settings):
        assert bool(unit_of(field.name)) == (field.type == "int"), field.name


def test_a_former_name_of_a_setting_is_accepted(tmp_path):
    file = tmp_path / "headrace.toml"
    file.write_text("[headrace]\nlane_ms = 8")
    env = {"HEADRACE_SOURCE": "host=x"}
    former = {**env, "HEADRACE_LANE_MS": "7"}
    assert Settings.load({}, None, former).slow_batch_ms == 7
    assert Settings.load({}, file, env).slow_batch_ms == 8
    both = {"HEADRACE_SLOW_BATCH_MS": "9", **former}
    assert Settings.load({}, file, both).slow_batch_ms == 9
    present = tmp_path / "present.toml"
    present.write_text("[headrace]\nslow_batch_ms = 8")
    assert Settings.load({}, present, former).slow_batch_ms == 7, "the environment has priority"
    assert outdated(given({}, None, former)) == [
        'setting "lane_ms" (HEADRACE_LANE_MS) is called "slow_batch_ms" now'
    ]
    assert outdated(given({}, None, {**env, "HEADRACE_SLOW_BATCH_MS": "9"})) == []
    assert strangers(former) == []


def test_a_variable_that_nobody_reads_is_told():
    env = {
        "HEADRACE_DSN": "x",
        "HEADRACE_SLOW_BATCH_MS": "7",
        # Set by Kubernetes for a service of this name; set by the tests.
        "HEADRACE_PORT_6432_TCP_ADDR": "x",
        "HEADRACE_SERVICE_HOST": "x",
        "HEADRACE_TEST_DSN": "x",
        "HEADRACE_DIFF_SEED": "1",
    }
    assert strangers(env) == ["HEADRACE_DSN"]
    assert explained(None, None, env)[-1] == "! HEADRACE_DSN is not a setting, and has no effect"


SECTIONS = {
    "source": "The server",
    "slot_name": "The stream and the views",
    "spark_master": "Populations",
    "worker_listen": "Workers on other machines",
    "log_level": "Log and traces",
}
HEAD = """# Settings

This page lists every setting of the server, with its default and its meaning. Usually, an environment variable is enough:

```console
$ HEADRACE_MEMORY_BYTES=4000000000 headrace config
```

`headrace config` prints every setting with its value and its origin. Settings are read when the server starts; `CALL headrace.reload()` applies some of them later.
A setting can be given in three ways. If it is given more than once, the last of these wins:

1. in a TOML file (`--config FILE`), as `name = value`; the name may be divided into a table and a key (`memory_bytes`, or `bytes` in table `[memory]`);
2. as an environment variable `HEADRACE_NAME`; a misspelt variable is refused;
3. as a flag on the command line, for some settings (`headrace start --help`).
"""


def page() -> str:
    out = [HEAD]
    defaults = {f.name: getattr(Settings(), f.name) for f in dataclasses.fields(Settings)}
    defaults["data_dir"] = "~/.local/share/headrace"
    for name, lines in meanings().items():
        if name in SECTIONS:
            out += [f"## {SECTIONS[name]}\n", "| setting | default | is |", "| --- | --- | --- |"]
        value = str(defaults[name]).lower() if defaults[name] in (True, False) else defaults[name]
        shown = " ".join(filter(None, (str(value), unit_of(name))))
        meaning = " ".join(lines).replace("``", "`").replace("|", "\\|")
        out.append(f"| `{name}` | {f'`{shown}`' if shown else '(empty)'} | {meaning} |")
        later = list(meanings())[list(meanings()).index(name) + 1 :]
        if later and later[0] in SECTIONS:
            out.append("")
    return "\n".join(out) + "\n"


def test_the_manual_has_all_settings_as_they_are():
    if os.environ.get("REWRITE"):
        MANUAL.write_text(page())
    assert MANUAL.read_text() == page(), "run it with REWRITE=1"
