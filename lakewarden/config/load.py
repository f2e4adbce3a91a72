"""Reads a configuration: the later of these wins: the file, then the environment, then what the call gives.

    LAKEWARDEN_STATE__URL=...                      [state] url: a double underscore goes one level down
    LAKEWARDEN_CATALOGS__LAKE__WAREHOUSE=...       [catalogs.lake] warehouse: lower case, single underscores stay
    LAKEWARDEN_CATALOGS__LAKE='{"s3.endpoint": …}' property names that have dots or dashes, as JSON
    LAKEWARDEN_POLICY__REWRITE_TARGET_BYTES=...    the policy layer "environment", which is below the file's [policy]

`${NAME}` inside an address, a catalog property, spark.conf or a token stands for the environment variable NAME, whose value is
never shown. Every value keeps its origin, because error messages show it.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from re import compile as pattern
from typing import Any, NoReturn

from pydantic import ValidationError

from lakewarden.config.schema import SETTINGS, Config
from lakewarden.config.types import ALLOWED, REFERENCE, ConfigSource
from lakewarden.errors import ConfigError
from lakewarden.redact import redact

PREFIX = "LAKEWARDEN_"
SECTIONS = tuple(dict.fromkeys(each.section.split(".")[0] for each in SETTINGS))
_LISTS = {(each.section, each.name) for each in SETTINGS if each.type.startswith("list of")}
_CATALOG_NAME = pattern(r"[A-Za-z_][A-Za-z0-9_-]*")
_ENTRIES = ("tables", "trust_table_properties")

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FoundSetting:
    """A value and its origin: a file, an environment variable or the call."""

    key: Key
    value: object
    where: str

    def refuse(self, reason: str, **more: str) -> NoReturn:
        raise ConfigError(key=".".join(self.key), where=self.where, reason=reason, **more)

    def expected(self, allowed: str) -> NoReturn:
        self.refuse(f"found {self._shown()}; allowed: {allowed}")

    def _shown(self) -> str:
        # A list or a table may contain secrets: only its type is shown.
        if isinstance(self.value, str | int | float):
            return repr(redact(self.key[-1], self.value))
        return {dict: "a table", list: "a list", type(None): "nothing"}.get(
            type(self.value), f"a {type(self.value).__name__}"
        )


Values = dict[Key, FoundSetting]


def load(
    path: Path | None, environ: Mapping[str, str], call: Mapping[str, Any], base: Path | None = None
) -> Config:
    """The settings from a file (if any), the environment and the call. Relative paths start at the file's
    folder, or at `base`."""
    file = {} if path is None else _flat(_read_toml(path), str(path))
    given = _flat(call, "call")
    catalogs = {key[1] for key in (*file, *given) if key[0] == "catalogs"}
    outside = _from_environment(environ, catalogs)
    layer = {key[1]: each.value for key, each in outside.items() if key[0] == "policy"}
    found = {**file, **{key: each for key, each in outside.items() if key[0] != "policy"}, **given}
    folder = (path.parent if path else base or Path()).resolve()
    try:
        tree = {**_tree(found, environ), "path": path}
        tree["policy"]["environment"] = layer
        config = Config.model_validate(tree, context=ConfigSource(environ, folder))
    except ValidationError as error:
        config, [first, *_] = None, error.errors()
    if config is None:
        _refuse(
            first, found
        )  # raised outside of `except`, so that no traceback shows the values in pydantic's error
    _check_types(config, found)
    return config


# ------------------------------------------------------------ the file, and what a call gives in its shape


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        reason = "there is no such file"
    except OSError as error:
        reason = f"cannot open it: {error.strerror}"
    except UnicodeDecodeError as error:
        reason = f"it is not UTF-8 text: byte {error.start} is wrong"
    except tomllib.TOMLDecodeError as error:
        reason = f"it is not TOML: {error}"
    raise ConfigError(key="the configuration", where=str(path), reason=reason)


def _flat(tree: Mapping[str, Any], where: str) -> Values:
    """The file's tables as single values by key. An unknown section or key is an error."""
    found: Values = {}
    for section, body in tree.items():
        here = FoundSetting((section,), body, where)
        if section not in SECTIONS:
            here.refuse(f"no such section; {_closest(section, SECTIONS)}")
        found |= {each.key: each for each in _section(here)}
    return found


def _section(here: FoundSetting) -> Iterator[FoundSetting]:
    for each in _table(here):
        match each.key:
            case ("policy", _):
                yield each
            case ("catalogs", name):
                if not _CATALOG_NAME.fullmatch(name):
                    each.refuse(
                        "a catalog's name is letters, digits, _ and -, because tables are written CATALOG.NAMESPACE.TABLE"
                    )
                yield each
                yield from _dotted(each, each.key)
            case ("prices", _):
                yield from (_known(price, "prices.CLASS", "price") for price in _table(each))
            case ("spark", "conf"):
                yield from _dotted(each, each.key)
            case _:
                yield _known(each, here.key[0], "setting")


def _known(each: FoundSetting, section: str, noun: str) -> FoundSetting:
    names = [setting.name for setting in SETTINGS if setting.section == section]
    if each.key[-1] not in names:
        each.refuse(f"no such {noun}; {_closest(each.key[-1], names)}")
    return each


def _dotted(here: FoundSetting, prefix: Key) -> Iterator[FoundSetting]:
    """TOML reads an unquoted `s3.endpoint` as a table `s3`; the intended property name contains the dot."""
    for each in _table(here):
        if isinstance(each.value, Mapping):
            yield from _dotted(each, prefix)
        else:
            yield FoundSetting((*prefix, ".".join(each.key[len(prefix) :])), each.value, here.where)


def _table(here: FoundSetting) -> list[FoundSetting]:
    if not isinstance(here.value, Mapping):
        here.expected("a table of settings")
    return [FoundSetting((*here.key, name), value, here.where) for name, value in here.value.items()]


def _closest(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"


# ------------------------------------------------------------ the environment


def _from_environment(environ: Mapping[str, str], catalogs: Iterable[str]) -> Values:
    """The settings in LAKEWARDEN_ variables. `catalogs` are the catalog names in the file's spelling, which
    upper-case variables lose."""
    spelling = {name.lower(): name for name in catalogs}
    variables = sorted(name for name in environ if name.startswith(PREFIX))
    every = (each for variable in variables for each in _variable(variable, environ[variable], spelling))
    return {each.key: each for each in every}


def _variable(variable: str, text: str, spelling: Mapping[str, str]) -> Iterator[FoundSetting]:
    key = tuple(variable.removeprefix(PREFIX).lower().split("__"))
    here = FoundSetting(key, text, f"environment variable {variable}")
    match key:
        case (single,):
            _check_single(here, *single.partition("_"))
        case ("policy", "tables" | "trust_table_properties", *_):
            here.refuse(f"patterns are set in the file, as [[policy.{key[1]}]]")
        case ("policy", _):
            yield here
        case ("catalogs", name, *rest):
            tree: Any = {rest[0]: text} if len(rest) == 1 else _json(here, dict)
            yield from _flat({"catalogs": {spelling.get(name, name): tree}}, here.where).values()
        case ("spark", "conf"):
            yield from _flat({"spark": {"conf": _json(here, dict)}}, here.where).values()
        case (section, name) if key in _LISTS:
            parts = _json(here, list) if text.lstrip().startswith("[") else text.split(",")
            yield FoundSetting(key, parts, here.where)
        case (section, name):
            yield from _flat({section: {name: text}}, here.where).values()
        case _:
            here.refuse("no setting is nested that deep")


def _check_single(here: FoundSetting, section: str, _: str, name: str) -> None:
    """Other LAKEWARDEN_ variables are not settings. One that only lacks an underscore is an error; else it
    would be ignored silently."""
    if section in SECTIONS and name:
        here.refuse(f"write the section with two underscores: {PREFIX}{section.upper()}__{name.upper()}")


def _json(here: FoundSetting, kind: type) -> Any:
    try:
        value = json.loads(str(here.value))
    except ValueError:
        value = None
    if not isinstance(value, kind):
        # The text may contain secrets, so the message does not repeat it.
        here.refuse("it is not a JSON " + ("object" if kind is dict else "list"))
    return value


# ------------------------------------------------------------ the models


def _tree(found: Values, environ: Mapping[str, str]) -> dict[str, Any]:
    """The values in the shape of the models."""
    tree: dict[str, Any] = {section: {} for section in SECTIONS}
    for (section, name, *rest), each in found.items():
        if section == "policy" and name not in _ENTRIES:
            tree["policy"].setdefault("file", {})[name] = each.value
        elif section == "catalogs":
            catalog = tree["catalogs"].setdefault(name, {"name": name, "properties": {}})
            for key in rest:
                (catalog if key in ("format", "complete") else catalog["properties"])[key] = each.value
        elif rest:
            tree[section].setdefault(name, {})[rest[0]] = each.value
        else:
            tree[section][name] = each.value
    for body, properties in (
        *((each, "properties") for each in tree["catalogs"].values()),
        (tree["spark"], "conf"),
    ):
        body["hidden"] = [name for name, value in body.get(properties, {}).items() if _references(value)]
    tokens = [
        each for role in ("read_tokens", "operate_tokens") for each in _texts(tree["console"].get(role))
    ]
    unset = [name for each in tokens for name in _references(each) if name not in environ]
    if unset:
        tree["console"] |= {"read_tokens": (), "operate_tokens": (), "unset": unset}
    return tree


def _texts(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []


def _references(value: object) -> list[str]:
    return REFERENCE.findall(value) if isinstance(value, str) else []


def _refuse(error: Any, found: Values) -> NoReturn:
    """Raise the first of pydantic's errors as a message that names the setting and its origin."""
    key = tuple(each for each in error["loc"] if isinstance(each, str))
    if key[0] == "catalogs":
        key = (*key[:2], *(each for each in key[2:3] if each != "properties"), *key[3:])
    context = error.get("ctx", {})
    key, near = (*key, *filter(None, [context.get("key")])), (*key, context.get("beside", ""))
    places = [*(key[:length] for length in range(len(key), 0, -1)), near]
    where = next((found[each].where for each in places if each in found), "defaults")
    here = FoundSetting(key, error["input"], where)
    if error["type"] == ALLOWED:
        here.expected(error["msg"])
    here.refuse(error["msg"])


def _check_types(config: Config, found: Values) -> None:
    """Require a catalog type: without one, Iceberg assumes Hive and creates an empty metastore in the current
    folder."""
    for name, catalog in config.catalogs.items():
        properties = catalog.properties
        says = properties.keys() & {"type", "catalog-impl"} or properties.get("uri", "").startswith("thrift:")
        if catalog.format == "iceberg" and not says:
            where = next(each.where for key, each in found.items() if key[:2] == ("catalogs", name))
            hint = 'a folder: type = "hadoop"; others: rest, jdbc, hive, glue, nessie; or name a class with catalog-impl'
            FoundSetting(("catalogs", name, "type"), None, where).refuse("it is missing", hint=hint)
