"""The types of settings: how a value is read, how it is shown, and which values are allowed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn

from cronsim import CronSim, CronSimError
from pydantic import (
    Field,
    GetCoreSchemaHandler,
    InstanceOf,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
)
from pydantic_core import CoreSchema, PydanticCustomError, PydanticUseDefault, core_schema

from lakewarden.config.aliases import Aliases
from lakewarden.redact import MASK, redact_url

CONTINUOUS, NEVER = "continuous", "never"
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY, _TIME = "|".join(DAYS), r"(?:[01]\d|2[0-3]):[0-5]\d"
# A weekly window in UTC. Its days are the days it begins on. If the end is before the start, it ends on the next day.
WINDOW = re.compile(
    rf"(?:(?P<first>{_DAY})(?:[-–](?P<last>{_DAY}))?\s+)?"
    rf"(?P<start>{_TIME})\s*[-–]\s*(?!(?P=start))(?P<end>{_TIME}|24:00)",
    re.IGNORECASE,
)
REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_MASTER = re.compile(
    r"local-cluster\[\d+,\d+,\d+\]|local(\[(\*|[1-9]\d*)(\s*,\s*[1-9]\d*)?\])?|yarn|(spark|k8s)://\S+"
)
_DATABASE = re.compile(r"(?!.*:memory:)(sqlite:///.+|postgres(ql)?(\+psycopg)?://.+)")
_SERVER = re.compile(r"https?://([^\s/?#@]+@)?([^\s/?#@:\[\]]+|\[[\da-fA-F:.]+\])(:\d{1,5})?(/[^\s?#@]*)?")
_ANY_DAY = datetime(2026, 1, 1, tzinfo=UTC)
_TOKEN_LENGTH = 16

# The pydantic error types that `load` handles: a value that is not allowed, and an error with its own reason.
ALLOWED, REFUSED = "allowed", "refused"


def refuse(reason: str, **context: str) -> NoReturn:
    raise PydanticCustomError(REFUSED, reason, context or None)


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """The environment, and the folder that relative paths start from."""

    environ: Mapping[str, str]
    base: Path


@dataclass(frozen=True, slots=True)
class SettingType:
    """The type of a setting: its name in the docs, its allowed values as shown in errors, and how text is
    parsed.

    A model that is created by code has no source: nothing is filled in from the environment, and paths stay
    unchanged.
    """

    name: str
    allowed: str = ""
    read: Callable[[Any, ConfigSource | None], Any] = lambda value, _: value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_wrap_validator_function(self._check, handler(source))

    def _check(self, value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        try:
            return handler(self.read(value, info.context))
        except PydanticCustomError:
            raise
        except ValidationError as error:
            if any(each["type"] in (ALLOWED, REFUSED) for each in error.errors()):
                raise  # a nested value has already raised a more specific error
        except ValueError:
            pass  # any parse error means the same: the value is not allowed
        raise PydanticCustomError(ALLOWED, self.allowed or self.name)


def _plain(value: Any) -> str:
    """Format properties are text: TOML numbers and booleans are converted to the spelling that the formats
    read."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float):
        raise ValueError(value)
    return str(value)


def _expanded(value: Any, source: ConfigSource | None) -> str:
    """The text with environment variables filled in."""

    def variable(found: re.Match[str]) -> str:
        if source is None:
            return found[0]
        if found[1] not in source.environ:
            refuse(f"it names the environment variable {found[1]}, which is not set")
        return source.environ[found[1]]

    return REFERENCE.sub(variable, _plain(value))


def _text(value: Any, _: ConfigSource | None) -> str:
    if value is None:
        raise PydanticUseDefault
    return _filled(value)


def _filled(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(value)
    return value.strip()


def _path(value: Any, source: ConfigSource | None) -> str:
    return str((source.base if source else Path()) / _filled(value))


def _master(value: Any, _: ConfigSource | None) -> str:
    return _matching(_MASTER, _plain(value))


def _server(value: Any, source: ConfigSource | None) -> str:
    return _matching(_SERVER, _expanded(value, source)).rstrip("/")


def _database(value: Any, source: ConfigSource | None) -> str:
    url = _matching(_DATABASE, _expanded(value, source))
    place = url.removeprefix("sqlite:///")
    return (
        url
        if source is None or place in (url, str(source.base / place))
        else f"sqlite:///{source.base / place}"
    )


def _matching(pattern: re.Pattern[str], text: str) -> str:
    if not pattern.fullmatch(text):
        raise ValueError(text)
    return text


def _whole(value: Any, _: ConfigSource | None) -> int:
    if isinstance(value, bool | float):
        raise ValueError(value)
    return int(_matching(re.compile(r"[1-9]\d{0,8}"), str(value)))


def _tasks(value: Any, source: ConfigSource | None) -> int | None:
    """None means one task per core. In a configuration this is written `all`."""
    return None if value == "all" or (value is None and source is None) else _whole(value, source)


def _number(value: Any, _: ConfigSource | None) -> Any:
    if isinstance(value, bool):
        raise ValueError(value)
    return value


def _rate(value: Any, source: ConfigSource | None) -> Any:
    return None if value == "none" else _number(value, source)


def _switch(value: Any, _: ConfigSource | None) -> bool:
    if str(value).lower() not in ("true", "false"):
        raise ValueError(value)
    return str(value).lower() == "true"


def _list(value: Any) -> list[str]:
    if not isinstance(value, list | tuple):
        raise ValueError(value)
    return [_filled(each) for each in value]


def _texts(value: Any, source: ConfigSource | None) -> list[str]:
    return [_expanded(each, source) for each in _list(value)]


def _jars(value: Any, source: ConfigSource | None) -> list[str]:
    return [each if ":" in each else _path(each, source) for each in _list(value)]


def _windows(value: Any, _: ConfigSource | None) -> list[str]:
    windows = _list(value)
    for each in windows:
        if not WINDOW.fullmatch(each):
            refuse(
                f"found {each!r}; allowed: HH:MM-HH:MM in UTC, with days if need be, as Mon-Fri 09:00-17:00;"
                " a whole day is 00:00-24:00"
            )
    return windows


def _aliases(value: Any, source: ConfigSource | None) -> Aliases:
    if isinstance(value, Aliases):
        return value
    texts = _texts(value, source)
    for written, each in zip(value, texts, strict=True):
        try:
            Aliases.of([each])
        except ValueError:
            refuse(
                f"found {written.strip()!r}; allowed: two places, neither inside the other,"
                " as /mnt/a = /mnt/b or s3://old != s3://new"
            )
    return Aliases.of(texts)


def _times(value: Any, _: ConfigSource | None) -> str:
    line = NEVER if value is None else _filled(value)
    if line in (CONTINUOUS, NEVER):
        return line
    try:
        if len(line.split()) != 5:
            raise CronSimError("it needs five fields: minute, hour, day, month, weekday")
        CronSim(line, _ANY_DAY)
    except CronSimError as error:
        refuse(f"found {line!r}: {error}; or write {CONTINUOUS} or {NEVER}")
    return line


def _tokens(value: Any, source: ConfigSource | None) -> list[str]:
    """Entries contain secrets, so no message repeats one."""
    entries = _texts(value, source)
    for name, equals, secret in map(split_token, entries):
        if not equals or not name:
            refuse('an entry is not NAME=TOKEN, as "ana=${ANA_TOKEN}"')
        if len(secret) < _TOKEN_LENGTH:
            refuse(
                f"the token of {name} has fewer than {_TOKEN_LENGTH} characters; `openssl rand -hex 24` makes one"
            )
        if secret.startswith("$"):
            refuse(
                f"the token of {name} begins with $ and names no variable;"
                " write ${NAME}, with braces, for an environment variable"
            )
    return entries


def split_token(entry: str) -> tuple[str, str, str]:
    name, equals, secret = entry.partition("=")
    return name.strip(), equals, secret.strip()


def _shown_tokens(entries: tuple[str, ...]) -> list[str]:
    return [f"{split_token(each)[0]}={MASK}" for each in entries]


_COUNT = "a whole number, at least 1"
_FINITE = Field(allow_inf_nan=False)
_ABOVE_ZERO = Field(gt=0, allow_inf_nan=False)

Text = Annotated[str, SettingType("text", "text", _text)]
Pattern = Annotated[str, SettingType("text", "text such as lake.db.*", lambda value, _: _filled(value))]
FilePath = Annotated[str, SettingType("path", "text", _path)]
Property = Annotated[str, SettingType("text", "text, a number, true or false", _expanded)]
Properties = Annotated[Mapping[str, Property], SettingType("table of text", "a table of settings")]
Master = Annotated[
    str,
    SettingType(
        "text",
        "local[N], local[*], local-cluster[N,CORES,MB], spark://HOST:PORT, k8s://ADDRESS or yarn (not Connect: the driver's JVM is needed)",
        _master,
    ),
]
Address = Annotated[
    str,
    SettingType("address", "http://HOST:PORT or https://HOST, with a path if need be", _server),
    PlainSerializer(redact_url),
]
Database = Annotated[
    str,
    SettingType("address", "sqlite:///PATH or postgresql://USER:PASSWORD@HOST/NAME", _database),
    PlainSerializer(redact_url),
]
Count = Annotated[int, SettingType("whole number", _COUNT, _whole)]
Port = Annotated[int, Field(le=65_535), SettingType("whole number", "a port, 1 to 65535", _whole)]
Tasks = Annotated[int | None, SettingType("whole number or all", f"{_COUNT}, or all", _tasks)]
Number = Annotated[float, _FINITE, SettingType("number", "a number", _number)]
Positive = Annotated[float, _ABOVE_ZERO, SettingType("number", "a number above 0", _number)]
Cost = Annotated[
    float, Field(ge=0, allow_inf_nan=False), SettingType("number", "a number, at least 0", _number)
]
Rate = Annotated[
    Annotated[float, _ABOVE_ZERO] | None, SettingType("number or none", "a number above 0, or none", _rate)
]
Switch = Annotated[bool, SettingType("true or false", "", _switch)]
Texts = Annotated[tuple[str, ...], SettingType("list of text", "a list of text", _texts)]
Jars = Annotated[tuple[str, ...], SettingType("list of text", "a list of paths or addresses of jars", _jars)]
Pauses = Annotated[
    tuple[str, ...], SettingType("list of windows", "a list of windows such as 09:00-17:00", _windows)
]
When = Annotated[str, SettingType("cron or continuous or never", "text", _times)]
Places = Annotated[
    InstanceOf[Aliases],
    SettingType("list of text", "a list of text", _aliases),
    PlainSerializer(Aliases.texts),
]
Tokens = Annotated[
    tuple[str, ...], SettingType("list of text", "a list of text", _tokens), PlainSerializer(_shown_tokens)
]
