"""Settings: where they come from, what is refused, and that no secret is ever shown."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lakewarden.config.schema import SETTINGS, BudgetsConfig, Config
from lakewarden.errors import ConfigError
from lakewarden.redact import redact, redact_url

FILE = """
[state]
url = "sqlite:///state/lw.db"

[spark]
master = "local[2]"
jars = ["jars/a.jar", "https://repo/b.jar"]
[spark.conf]
spark.ui.enabled = false
"spark.executor.memory" = "4g"

[catalogs.lake]
type = "rest"
uri = "http://rest:8181"
s3.endpoint = "http://minio:9000"
s3.path-style-access = true
clients = 4

[catalogs.Cold]
format = "paimon"
warehouse = "/cold"

[policy]
rewrite_target_bytes = "256MiB"

[[policy.tables]]
pattern = "lake.db.*"
snapshot_min_retained = 3

[[policy.tables]]
pattern = "lake.db.events"
snapshot_min_retained = 9
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "lakewarden.toml"
    path.write_text(FILE)
    return path


def load(path: Path | None = None, environ: Mapping[str, str] | None = None, **overrides: Any) -> Config:
    return Config.load(path, environ or {}, overrides)


def refused(text: str, tmp_path: Path, environ: Mapping[str, str] | None = None) -> ConfigError:
    path = tmp_path / "lakewarden.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path, environ)
    assert str(path) in caught.value.message or "environment variable" in caught.value.message
    return caught.value


def test_defaults_are_those_of_the_table() -> None:
    config = load()
    assert config.state.url == f"sqlite:///{Path.cwd()}/lakewarden.db"
    assert (config.spark.master, config.spark.conf, config.spark.jars) == ("local[*]", {}, ())
    assert (config.engine.task_memory_mb, config.catalogs, config.path) == (512, {}, None)


def test_every_setting_has_its_sentence() -> None:
    assert all(each.section and each.name and each.type and len(each.sentence) > 10 for each in SETTINGS)


def test_a_file_is_read_whole(file: Path, tmp_path: Path) -> None:
    config = load(file)
    assert config.state.url == f"sqlite:///{tmp_path}/state/lw.db"
    assert config.spark.jars == (f"{tmp_path}/jars/a.jar", "https://repo/b.jar")
    assert config.spark.conf == {"spark.ui.enabled": "false", "spark.executor.memory": "4g"}
    lake, cold = config.catalogs["lake"], config.catalogs["Cold"]
    assert (lake.format, lake.name, cold.format) == ("iceberg", "lake", "paimon")
    assert cold.properties == {"warehouse": "/cold"}
    assert lake.properties == {
        "type": "rest",
        "uri": "http://rest:8181",
        "s3.endpoint": "http://minio:9000",
        "s3.path-style-access": "true",
        "clients": "4",
    }
    assert config.policy.file == {"rewrite_target_bytes": "256MiB"}
    assert [pattern for pattern, _ in config.policy.patterns] == ["lake.db.*", "lake.db.events"]
    assert config.policy.patterns[1][1] == {"snapshot_min_retained": 9}


def test_the_environment_wins_over_the_file_and_the_call_over_both(file: Path) -> None:
    environ = {"LAKEWARDEN_SPARK__MASTER": "local[3]", "LAKEWARDEN_ENGINE__TASK_MEMORY_MB": "256"}
    assert load(file, environ).spark.master == "local[3]"
    assert load(file, environ).engine.task_memory_mb == 256
    assert load(file, environ, spark={"master": "yarn"}).spark.master == "yarn"
    assert Config.from_dict({"spark": {"master": "yarn"}}, environ).spark.master == "yarn"


def test_catalogs_from_the_environment(file: Path) -> None:
    environ = {
        "LAKEWARDEN_CATALOGS__LAKE__WAREHOUSE": "s3://lake",
        "LAKEWARDEN_CATALOGS__COLD": '{"s3.endpoint": "http://s3", "retries": 3}',
        "LAKEWARDEN_CATALOGS__NEW__TYPE": "hadoop",
    }
    catalogs = load(file, environ).catalogs
    assert catalogs["lake"].properties["warehouse"] == "s3://lake"
    assert catalogs["lake"].properties["type"] == "rest"
    assert catalogs["Cold"].properties == {"warehouse": "/cold", "s3.endpoint": "http://s3", "retries": "3"}
    assert catalogs["new"].properties == {"type": "hadoop"}


def test_a_catalog_may_be_declared_incomplete(file: Path) -> None:
    catalogs = load(file, {"LAKEWARDEN_CATALOGS__LAKE__COMPLETE": "false"}).catalogs
    assert (catalogs["lake"].complete, catalogs["Cold"].complete) == (False, True)
    assert "complete" not in catalogs["lake"].properties, "it is no property of Iceberg's"
    assert catalogs["lake"].to_dict()["complete"] is False
    with pytest.raises(ConfigError, match="true or false"):
        load(file, {"LAKEWARDEN_CATALOGS__LAKE__COMPLETE": "mostly"})


def test_spark_settings_from_the_environment(file: Path, tmp_path: Path) -> None:
    environ = {
        "LAKEWARDEN_SPARK__CONF": '{"spark.executor.memory": "8g"}',
        "LAKEWARDEN_SPARK__JARS": "x.jar, /y.jar",
    }
    spark = load(file, environ).spark
    assert spark.conf == {"spark.ui.enabled": "false", "spark.executor.memory": "8g"}
    assert spark.jars == (f"{tmp_path}/x.jar", "/y.jar")


def test_policy_from_the_environment_is_a_layer_of_its_own(file: Path) -> None:
    policy = load(file, {"LAKEWARDEN_POLICY__REWRITE_TARGET_BYTES": "1MiB"}).policy
    assert policy.environment == {"rewrite_target_bytes": "1MiB"}
    assert policy.file == {"rewrite_target_bytes": "256MiB"}


def test_other_variables_are_left_alone() -> None:
    load(None, {"LAKEWARDEN_CONFIG": "x.toml", "LAKEWARDEN_HOME": "/h", "PATH": "/bin"})


def test_a_reference_is_filled_and_hidden(tmp_path: Path) -> None:
    values = {
        "state": {"url": "postgresql://lw:${PG_PASS}@db/lw"},
        "catalogs": {"lake": {"type": "rest", "header.x-team": "a-${TEAM}", "uri": "http://rest"}},
        "spark": {"conf": {"spark.hadoop.thing": "${TEAM}", "spark.other": "${spark.app.name}"}},
    }
    config = Config.from_dict(values, {"PG_PASS": "hunter2", "TEAM": "sesame"})
    assert config.state.url == "postgresql://lw:hunter2@db/lw"
    assert config.catalogs["lake"].properties["header.x-team"] == "a-sesame"
    assert config.spark.conf == {"spark.hadoop.thing": "sesame", "spark.other": "${spark.app.name}"}
    for shown in (
        repr(config),
        str(config),
        str(config.to_dict()),
        repr(config.catalogs),
        repr(config.spark),
    ):
        assert "hunter2" not in shown
        assert "sesame" not in shown
    assert "http://rest" in repr(config)


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("state", "url", "${TEAM}"),
        ("budgets", "backoff_url", "${TEAM}"),
        ("paths", "aliases", ["${TEAM} = /a"]),
        ("console", "read_tokens", ["${TEAM}"]),
    ],
)
def test_a_message_shows_the_reference_and_not_its_value(section: str, name: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.from_dict({section: {name: value}}, {"TEAM": "sesame"})
    assert caught.value.message.startswith(f"cannot read {section}.")
    assert "sesame" not in caught.value.message
    assert caught.value.__cause__ is None and caught.value.__context__ is None


def test_fields_that_are_no_settings_cannot_be_set() -> None:
    for section, name in (("console", "unset"), ("spark", "hidden")):
        with pytest.raises(ConfigError, match="no such setting"):
            Config.from_dict({section: {name: ["x"]}})
    catalog = Config.from_dict({"catalogs": {"a": {"format": "paimon", "hidden": "x", "name": "b"}}})
    assert catalog.catalogs["a"].properties == {"hidden": "x", "name": "b"}


def test_a_missing_reference_names_file_key_and_variable(tmp_path: Path) -> None:
    error = refused('[catalogs.lake]\ns3.secret-access-key = "${NOPE}"', tmp_path)
    assert "catalogs.lake.s3.secret-access-key" in error.message
    assert "NOPE" in error.message


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("[sprak]\nmaster = 'yarn'", "sprak", "did you mean spark"),
        ("[spark]\nmastr = 'yarn'", "spark.mastr", "did you mean master"),
        (
            "[xyz]\na = 4",
            "xyz",
            "known: budgets, catalogs, console, engine, gateway, health, lineage, paths, policy, prices, schedule, spark, state, worker",
        ),
        ("[budgets]\nmax_task = 4", "budgets.max_task", "did you mean max_tasks"),
        ("[spark]\nmaster = 'sc://host'", "spark.master", "found 'sc://host'; allowed: local[N]"),
        ("[spark]\nmaster = 'local[0]'", "spark.master", "allowed"),
        ("[spark]\nmaster = 3", "spark.master", "found '3'"),
        ("[spark]\nconf = 'x'", "spark.conf", "found 'x'; allowed: a table of settings"),
        ("[spark]\njars = 'x'", "spark.jars", "allowed: a list"),
        (
            "[engine]\ntask_memory_mb = 0",
            "engine.task_memory_mb",
            "found '0'; allowed: a whole number, at least 1",
        ),
        ("[engine]\ntask_memory_mb = 1.5", "engine.task_memory_mb", "found '1.5'"),
        ("[engine]\ntask_memory_mb = true", "engine.task_memory_mb", "found 'True'"),
        (
            "[state]\nurl = 'mysql://u:hunter2@h/d'",
            "state.url",
            "found 'mysql://u:***@h/d'; allowed: sqlite:///PATH",
        ),
        ("[state]\nurl = 'sqlite:///:memory:'", "state.url", "allowed"),
        ("[state]\nurl = ['a']", "state.url", "found a list"),
        ("state = 1", "state", "allowed: a table"),
        ("[catalogs]\nlake = 1", "catalogs.lake", "allowed: a table"),
        (
            "[catalogs.lake]\nformat = 'delta'",
            "catalogs.lake.format",
            "found 'delta'; allowed: iceberg or paimon",
        ),
        ("[catalogs.lake]\nhosts = ['a']", "catalogs.lake.hosts", "found a list"),
        ("[catalogs.lake]\ntyp = 'hadoop'\nwarehouse = '/w'", "catalogs.lake.type", "it is missing"),
        ("[catalogs.'a.b']\ntype = 'rest'", "catalogs.a.b", "name is letters"),
        ("[policy]\ntables = 3", "policy.tables", "[[policy.tables]]"),
        (
            "[[policy.tables]]\nrewrite_enabled = true",
            "policy.tables.pattern",
            "found nothing; allowed: text",
        ),
        ("[[policy.tables]]\npattern = 3", "policy.tables.pattern", "found '3'"),
        ("[spark]\nmaster = \n", "the configuration", "line 2"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(text: str, key: str, words: str, tmp_path: Path) -> None:
    error = refused(text, tmp_path)
    assert error.message.startswith(f"cannot read {key} in {tmp_path}/lakewarden.toml: ")
    assert words in error.message
    assert "hunter2" not in error.message


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("LAKEWARDEN_STATE_URL", "x", "two underscores: LAKEWARDEN_STATE__URL"),
        ("LAKEWARDEN_POLICY_REWRITE_ENABLED", "x", "LAKEWARDEN_POLICY__REWRITE_ENABLED"),
        ("LAKEWARDEN_STATE__URI", "x", "did you mean url"),
        ("LAKEWARDEN_XYZ__X", "x", "no such section"),
        ("LAKEWARDEN_BUDGETS_MAX_TASKS", "2", "two underscores: LAKEWARDEN_BUDGETS__MAX_TASKS"),
        ("LAKEWARDEN_BUDGETS__READ_MB_PER_S", "fast", "found 'fast'; allowed: a number above 0, or none"),
        ("LAKEWARDEN_BUDGETS__PAUSE_COMPACTION", "09:00-17:00,late", "found 'late'; allowed: HH:MM-HH:MM"),
        ("LAKEWARDEN_BUDGETS__PAUSE_COMPACTION", "[1", "not a JSON list"),
        ("LAKEWARDEN_SPARK__MASTER", "lokal", "found 'lokal'"),
        ("LAKEWARDEN_SPARK__CONF", "a=b", "not a JSON object"),
        ("LAKEWARDEN_SPARK__JARS", "[1", "not a JSON list"),
        ("LAKEWARDEN_CATALOGS__LAKE", "hunter2", "not a JSON object"),
        ("LAKEWARDEN_CATALOGS__LAKE__A__B", "x", "not a JSON object"),
        ("LAKEWARDEN_ENGINE__TASK_MEMORY_MB", "lots", "found 'lots'"),
        ("LAKEWARDEN_POLICY__TABLES", "[]", "[[policy.tables]]"),
        ("LAKEWARDEN_POLICY__A__B", "x", "nested that deep"),
    ],
)
def test_a_wrong_variable_is_named(variable: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {variable: value})
    assert f"in environment variable {variable}: " in caught.value.message
    assert words in caught.value.message
    assert "hunter2" not in caught.value.message


def test_a_wrong_call_is_named() -> None:
    with pytest.raises(ConfigError, match=r"read spark\.mastr in call: no such setting"):
        Config.from_dict({"spark": {"mastr": "yarn"}})


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot open it"):
        load(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"a = '\xe9'")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(tmp_path / "latin.toml")


@pytest.mark.parametrize(
    "name",
    ["s3.secret-access-key", "jdbc.password", "token", "credential", "s3.session-token", "fs.s3a.access.key",
     "header.Authorization", "adls.connection-string.acc", "fs.azure.account.key.acc", "client_secret", "s3.sse.key",
     "spark.hadoop.fs.azure.sas.box.acc", "header.Cookie", "header.X-Tenant"],
)  # fmt: skip
def test_secret_names_are_masked(name: str) -> None:
    assert redact(name, "hunter2") == "***"
    config = Config.from_dict(
        {"catalogs": {"lake": {"type": "rest", name: "hunter2"}}, "spark": {"conf": {name: "hunter2"}}}
    )
    assert "hunter2" not in repr(config) + str(config.to_dict())
    assert config.catalogs["lake"].properties[name] == "hunter2"


@pytest.mark.parametrize(
    "name", ["s3.access-key-id", "uri", "warehouse", "s3.endpoint", "client.region", "disaster"]
)
def test_other_names_are_shown(name: str) -> None:
    assert redact(name, "plain") == "plain"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://lw:hunter2@db:5432/lw", "postgresql://lw:***@db:5432/lw"),
        ("postgresql://lw:hun@ter2@db/lw", "postgresql://lw:***@db/lw"),
        ("postgresql://lw:hun/ter2@db/lw", "postgresql://lw:***@db/lw"),
        (
            "jdbc:postgresql://db/lw?user=a&password=hunter2&ssl=1",
            "jdbc:postgresql://db/lw?user=a&password=***&ssl=1",
        ),
        ("https://acc.blob/x?sv=1&sig=hunter2", "https://acc.blob/x?sv=1&sig=***"),
        ("-Xmx1g -Dssl.trustStorePassword=hunter2 -Da=b", "-Xmx1g -Dssl.trustStorePassword=*** -Da=b"),
        ("-Dssl.keyStorePassword='hun ter2'", "-Dssl.keyStorePassword=***"),
        ("postgresql://lw@db/lw", "postgresql://lw@db/lw"),
        ("http://minio:9000/a", "http://minio:9000/a"),
        ("sqlite:////a/b.db", "sqlite:////a/b.db"),
    ],
)
def test_passwords_in_addresses_are_masked(url: str, shown: str) -> None:
    assert redact_url(url) == shown


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import lakewarden.policy.resolve", ("pydantic", "alembic", "pyspark", "pyarrow")),
        (
            "from lakewarden.config.schema import Config; Config.from_dict({})",
            ("alembic", "pyspark", "pyarrow", "fastapi"),
        ),
    ],
)
def test_loading_settings_needs_nothing_heavy(code: str, heavy: tuple[str, ...]) -> None:
    script = f"import sys; {code}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_drivers_sentence_is_shown_without_the_password_it_quotes() -> None:
    from lakewarden.redact import redact_text

    shown = redact_text(
        "No suitable driver found for jdbc:mysql://u:hunter2@h/db?password=hunter3 (SQLException)"
    )
    assert shown == "No suitable driver found for jdbc:mysql://u:***@h/db?password=*** (SQLException)"


# ------------------------------------------------------------ budgets

PROMETHEUS = "[budgets]\nbackoff_url = 'http://prom:9090/'\nbackoff_query = 'up'\nbackoff_above = 1"


def budgets(text: str, tmp_path: Path, environ: Mapping[str, str] | None = None) -> BudgetsConfig:
    path = tmp_path / "lakewarden.toml"
    path.write_text(text)
    return load(path, environ).budgets


def test_without_a_word_only_tasks_are_limited() -> None:
    assert load().budgets == BudgetsConfig()
    assert BudgetsConfig().max_tasks == 4
    assert [each for each in load().budgets.to_dict().values() if each] == [4, 15, 600]


def test_a_budget_is_three_tenths_of_what_there_is(tmp_path: Path) -> None:
    found = budgets("[budgets]\navailable_mb_per_s = 1000", tmp_path)
    assert (found.read_mb_per_s, found.write_mb_per_s, found.requests_per_s) == (300.0, 300.0, None)
    found = budgets(
        "[budgets]\navailable_mb_per_s = 100\nread_mb_per_s = 7.5\nwrite_mb_per_s = 'none'", tmp_path
    )
    assert (found.read_mb_per_s, found.write_mb_per_s) == (7.5, None)


def test_every_budget_is_read(tmp_path: Path) -> None:
    text = """
        [budgets]
        max_tasks = "all"
        read_mb_per_s = 30
        write_mb_per_s = 0.5
        requests_per_s = 200
        pause_compaction = ["09:00-17:00", " Mon-Fri 20:00-02:00"]
        backoff_url = "https://ann:${PROM_PASSWORD}@prom.example.com/mimir/"
        backoff_query = "up"
        backoff_above = -1.5
        backoff_poll_seconds = 5
        backoff_max_wait_seconds = 60
    """
    found = budgets(text, tmp_path, {"PROM_PASSWORD": "hunter2"})
    assert found == BudgetsConfig(
        max_tasks=None,
        read_mb_per_s=30.0,
        write_mb_per_s=0.5,
        requests_per_s=200.0,
        pause_compaction=("09:00-17:00", "Mon-Fri 20:00-02:00"),
        backoff_url="https://ann:hunter2@prom.example.com/mimir",
        backoff_query="up",
        backoff_above=-1.5,
        backoff_poll_seconds=5,
        backoff_max_wait_seconds=60,
    )
    assert "hunter2" not in repr(found) + str(found.to_dict())
    assert "https://ann:***@prom.example.com/mimir" in repr(found)


def test_budgets_from_the_environment(tmp_path: Path) -> None:
    environ = {
        "LAKEWARDEN_BUDGETS__MAX_TASKS": "2",
        "LAKEWARDEN_BUDGETS__READ_MB_PER_S": "none",
        "LAKEWARDEN_BUDGETS__WRITE_MB_PER_S": "12.5",
        "LAKEWARDEN_BUDGETS__PAUSE_COMPACTION": "09:00-17:00, Sat-Sun 10:00-11:00",
    }
    found = budgets("[budgets]\navailable_mb_per_s = 10\nread_mb_per_s = 1", tmp_path, environ)
    assert (found.max_tasks, found.read_mb_per_s, found.write_mb_per_s) == (2, None, 12.5)
    assert found.pause_compaction == ("09:00-17:00", "Sat-Sun 10:00-11:00")
    as_json = {"LAKEWARDEN_BUDGETS__PAUSE_COMPACTION": '["01:00-02:00"]'}
    assert budgets("", tmp_path, as_json).pause_compaction == ("01:00-02:00",)


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("max_tasks = 0", "max_tasks", "found '0'; allowed: a whole number, at least 1, or all"),
        ("max_tasks = 2.5", "max_tasks", "found '2.5'"),
        ("max_tasks = true", "max_tasks", "found 'True'"),
        ("max_tasks = 'some'", "max_tasks", "found 'some'"),
        ("available_mb_per_s = 0", "available_mb_per_s", "found '0'; allowed: a number above 0, or none"),
        ("read_mb_per_s = -1", "read_mb_per_s", "found '-1'"),
        ("write_mb_per_s = inf", "write_mb_per_s", "found 'inf'"),
        ("write_mb_per_s = nan", "write_mb_per_s", "found 'nan'"),
        ("requests_per_s = true", "requests_per_s", "found 'True'"),
        ("requests_per_s = [1]", "requests_per_s", "found a list"),
        (
            "pause_compaction = '09:00-17:00'",
            "pause_compaction",
            "found '09:00-17:00'; allowed: a list of windows",
        ),
        ("pause_compaction = [9]", "pause_compaction", "found a list; allowed: a list of windows"),
        ("pause_compaction = ['9-17']", "pause_compaction", "found '9-17'; allowed: HH:MM-HH:MM in UTC"),
        ("pause_compaction = ['25:00-26:00']", "pause_compaction", "found '25:00-26:00'"),
        ("pause_compaction = ['09:00-09:00']", "pause_compaction", "a whole day is 00:00-24:00"),
        ("pause_compaction = ['Mon-Fry 09:00-10:00']", "pause_compaction", "found 'Mon-Fry 09:00-10:00'"),
        (
            "backoff_above = 1",
            "backoff_url",
            "backoff_above is; set backoff_url, backoff_query, backoff_above together",
        ),
        ("backoff_url = 'http://p'", "backoff_query", "backoff_url is; set"),
        ("backoff_url = 'http://p'\nbackoff_query = 'up'", "backoff_above", "backoff_url is; set"),
        (
            "backoff_poll_seconds = 0",
            "backoff_poll_seconds",
            "found '0'; allowed: a whole number, at least 1",
        ),
        ("backoff_max_wait_seconds = 'x'", "backoff_max_wait_seconds", "found 'x'"),
    ],
)
def test_a_wrong_budget_is_named(text: str, key: str, words: str, tmp_path: Path) -> None:
    error = refused(f"[budgets]\n{text}", tmp_path)
    assert error.message.startswith(f"cannot read budgets.{key} in ")
    assert words in error.message


@pytest.mark.parametrize(
    ("old", "new", "key", "words"),
    [
        ("http://prom:9090/", "prom:9090", "backoff_url", "found 'prom:9090'; allowed: http://HOST:PORT"),
        ("http://prom:9090/", "file:///etc/x", "backoff_url", "allowed: http://HOST:PORT"),
        ("http://prom:9090/", "http://a:hunter2@h?x=1", "backoff_url", "found 'http://a:***@h?x=1'"),
        ("http://prom:9090/", "http://a:hunter2/1@h", "backoff_url", "found 'http://a:***@h'"),
        ("http://prom:9090/", "http://${NOPE}", "backoff_url", "environment variable NOPE"),
        ("'up'", "' '", "backoff_query", "allowed: text"),
        ("'up'", "3", "backoff_query", "found '3'; allowed: text"),
        ("above = 1", "above = 'high'", "backoff_above", "found 'high'; allowed: a number"),
        ("above = 1", "above = false", "backoff_above", "found 'False'"),
    ],
)
def test_a_wrong_back_off_is_named(old: str, new: str, key: str, words: str, tmp_path: Path) -> None:
    assert budgets(PROMETHEUS, tmp_path).backoff_url == "http://prom:9090"
    error = refused(PROMETHEUS.replace(old, new), tmp_path)
    assert error.message.startswith(f"cannot read budgets.{key} in ")
    assert words in error.message
    assert "hunter2" not in error.message


def test_only_who_serves_needs_the_tokens(tmp_path: Path) -> None:
    from lakewarden.console.auth import check

    console = {"read_tokens": ["bob=${BOB_TOKEN}"], "operate_tokens": ["ana=${ANA_TOKEN}"]}
    known = {"BOB_TOKEN": "b" * 20}
    lacking = Config.from_dict({"console": console}, known)
    assert "unset" not in lacking.console.to_dict()
    with pytest.raises(ConfigError, match="ANA_TOKEN, which is not set"):
        check(lacking.console)
    check(Config.from_dict({"console": console}, {**known, "ANA_TOKEN": "a" * 20}).console)
