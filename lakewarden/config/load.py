"""Where settings are read from: the file's tables, environment variables, and the checks that turn them into typed values.

Every value keeps the place it was found in, because that is what a message about it has to name.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from lakewarden.config.aliases import Aliases
from lakewarden.config.settings import SECTIONS, SETTINGS
from lakewarden.errors import ConfigError
from lakewarden.model.prices import FIELDS, PRICES, Price
from lakewarden.redact import redact, redact_url

PREFIX = "LAKEWARDEN_"
FORMATS = ("iceberg", "paimon")

_DEFAULTS = {(each.section, each.name): each.default for each in SETTINGS}
_TYPES = {(each.section, each.name): each.type for each in SETTINGS}
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_MASTER = re.compile(
    r"local-cluster\[\d+,\d+,\d+\]|local(\[(\*|[1-9]\d*)(\s*,\s*[1-9]\d*)?\])?|yarn|(spark|k8s)://\S+"
)
_CATALOG_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_DATABASE = re.compile(r"sqlite:///.+|postgres(ql)?(\+psycopg)?://.+")
_SERVER = re.compile(r"https?://([^\s/?#@]+@)?([^\s/?#@:\[\]]+|\[[\da-fA-F:.]+\])(:\d{1,5})?(/[^\s?#@]*)?")

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY, _TIME = "|".join(DAYS), r"(?:[01]\d|2[0-3]):[0-5]\d"
# A window of the week, in UTC. Its days are those it begins on; one that ends before it begins ends on the next day.
WINDOW = re.compile(
    rf"(?:(?P<first>{_DAY})(?:[-–](?P<last>{_DAY}))?\s+)?"
    rf"(?P<start>{_TIME})\s*[-–]\s*(?!(?P=start))(?P<end>{_TIME}|24:00)",
    re.IGNORECASE,
)

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """A value and the place it was found in: a file, a variable, the call."""

    key: Key
    value: object
    where: str

    def refuse(self, reason: str) -> NoReturn:
        raise ConfigError(key=".".join(self.key), where=self.where, reason=reason)

    def expected(self, allowed: str) -> NoReturn:
        self.refuse(f"found {self._shown()}; allowed: {allowed}")

    def _shown(self) -> str:
        # A list or a table may hold secrets under any name: only what it is gets told.
        if isinstance(self.value, str | int | float):
            return repr(redact(self.key[-1], self.value))
        return {dict: "a table", list: "a list", type(None): "nothing"}.get(
            type(self.value), f"a {type(self.value).__name__}"
        )


def flatten(tree: Mapping[str, Any], where: str) -> dict[Key, Found]:
    """The file's tables as single values by key; an unknown section or key is refused."""
    found: dict[Key, Found] = {}
    for section, body in tree.items():
        here = Found((section,), body, where)
        if section not in SECTIONS:
            here.refuse(f"no such section; {_closest(section, SECTIONS)}")
        for each in _section(here):
            found[each.key] = each
    return found


def _section(here: Found) -> Iterator[Found]:
    for name, value in _table(here).items():
        each = Found((*here.key, name), value, here.where)
        if here.key == ("policy",):
            yield each
        elif here.key == ("catalogs",):
            yield from _catalog(each)
        elif here.key == ("prices",):
            yield from _prices(each)
        else:
            yield from _known(each)


def _known(each: Found) -> Iterator[Found]:
    names = [name for section, name in _DEFAULTS if section == each.key[0]]
    if each.key[1] not in names:
        each.refuse(f"no such setting; {_closest(each.key[1], names)}")
    yield from _dotted(each, each.key) if each.key == ("spark", "conf") else [each]


def _catalog(each: Found) -> Iterator[Found]:
    if not _CATALOG_NAME.fullmatch(each.key[1]):
        each.refuse(
            "a catalog's name is letters, digits, _ and -, because tables are written CATALOG.NAMESPACE.TABLE"
        )
    yield each
    yield from _dotted(each, each.key)


def _prices(each: Found) -> Iterator[Found]:
    for name, value in _table(each).items():
        found = Found((*each.key, name), value, each.where)
        if name not in FIELDS:
            found.refuse(f"no such price; {_closest(name, FIELDS)}")
        yield found


def _dotted(here: Found, prefix: Key) -> Iterator[Found]:
    """TOML reads an unquoted `s3.endpoint` as a table `s3`; the property it means has the dot in its name."""
    for name, value in _table(here).items():
        each = Found((*here.key, name), value, here.where)
        if isinstance(value, Mapping):
            yield from _dotted(each, prefix)
        else:
            yield Found((*prefix, ".".join(each.key[len(prefix) :])), value, here.where)


def _table(here: Found) -> Mapping[str, Any]:
    if not isinstance(here.value, Mapping):
        here.expected("a table of settings")
    return here.value


def _closest(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"


def from_environment(environ: Mapping[str, str], catalogs: Iterable[str]) -> dict[Key, Found]:
    """What LAKEWARDEN_ variables set. `catalogs` are the names the file spells, which variables cannot in upper case."""
    spelling = {name.lower(): name for name in catalogs}
    found: dict[Key, Found] = {}
    for variable in sorted(name for name in environ if name.startswith(PREFIX)):
        for each in _variable(variable, environ[variable], spelling):
            found[each.key] = each
    return found


def _variable(variable: str, text: str, spelling: Mapping[str, str]) -> Iterator[Found]:
    key = tuple(variable.removeprefix(PREFIX).lower().split("__"))
    here = Found(key, text, f"environment variable {variable}")
    if len(key) == 1:
        _check_single(here, variable)
        return
    match key:
        case ("policy", "tables" | "trust_table_properties", *_):
            here.refuse(f"patterns are set in the file, as [[policy.{key[1]}]]")
        case ("policy", _):
            yield here
        case ("catalogs", name, *rest):
            tree: Any = {rest[0]: text} if len(rest) == 1 else _json(here, dict)
            yield from flatten({"catalogs": {spelling.get(name, name): tree}}, here.where).values()
        case ("spark", "conf"):
            yield from flatten({"spark": {"conf": _json(here, dict)}}, here.where).values()
        case (section, name) if _TYPES.get((section, name), "").startswith("list of"):
            parts = _json(here, list) if text.lstrip().startswith("[") else text.split(",")
            yield Found(key, parts, here.where)
        case (section, name):
            yield from flatten({section: {name: text}}, here.where).values()
        case _:
            here.refuse("it goes deeper than any setting")


def _check_single(here: Found, variable: str) -> None:
    """Other LAKEWARDEN_ variables are not settings; one that only lacks an underscore would be ignored unseen."""
    section, _, name = here.key[0].partition("_")
    if section in SECTIONS and name:
        here.refuse(f"write the section with two underscores: {PREFIX}{section.upper()}__{name.upper()}")


def _json(here: Found, kind: type) -> Any:
    try:
        value = json.loads(str(here.value))
    except ValueError:
        value = None
    if not isinstance(value, kind):
        # The text may hold secrets under any name, so it is not repeated.
        here.refuse("it is not a JSON " + ("object" if kind is dict else "list"))
    return value


@dataclass(frozen=True, slots=True)
class Settings:
    """The merged values, handed out typed and checked."""

    found: Mapping[Key, Found]
    environ: Mapping[str, str]

    def _get(self, *key: str) -> Found:
        return self.found.get(key) or Found(key, _DEFAULTS[key[0], key[1]], "defaults")

    def state_url(self, base: Path) -> str:
        found = self._get("state", "url")
        url = self._expand(found, _as_text(found))
        if not _DATABASE.fullmatch(url) or ":memory:" in url:
            found.refuse(
                f"found {redact_url(url)!r}; allowed: sqlite:///PATH or postgresql://USER:PASSWORD@HOST/NAME"
            )
        place = url.removeprefix("sqlite:///")
        return url if place == url or place.startswith("/") else f"sqlite:///{base / place}"

    def master(self) -> str:
        found = self._get("spark", "master")
        if not _MASTER.fullmatch(_as_text(found)):
            found.expected(
                "local[N], local[*], local-cluster[N,CORES,MB], spark://HOST:PORT, k8s://ADDRESS or yarn (not Connect: the driver's JVM is needed)"
            )
        return _as_text(found)

    def jars(self, base: Path) -> tuple[str, ...]:
        found = self._get("spark", "jars")
        if not isinstance(found.value, list | tuple) or not all(
            isinstance(each, str) and each.strip() for each in found.value
        ):
            found.expected("a list of paths or addresses of jars")
        return tuple(each if ":" in each else str(base / each) for each in map(str.strip, found.value))

    def count(self, section: str, name: str) -> int:
        found = self._get(section, name)
        text = str(found.value)
        if isinstance(found.value, bool | float) or not re.fullmatch(r"[1-9]\d{0,8}", text):
            found.expected("a whole number, at least 1")
        return int(text)

    def port(self, section: str) -> int:
        found = self._get(section, "port")
        number = self.count(section, "port")
        if number > 65_535:
            found.expected("a port, 1 to 65535")
        return number

    def switch(self, section: str, name: str) -> bool:
        found = self._get(section, name)
        if str(found.value).lower() not in ("true", "false"):
            found.expected("true or false")
        return str(found.value).lower() == "true"

    def above_zero(self, section: str, name: str) -> float:
        found = self._get(section, name)
        value = _number(found)
        if value is None or value <= 0:
            found.expected("a number above 0")
        return value

    def texts(self, section: str, name: str) -> tuple[str, ...]:
        """A list of texts, with environment variables filled in."""
        found = self._get(section, name)
        if not isinstance(found.value, list | tuple) or not all(
            isinstance(each, str) and each.strip() for each in found.value
        ):
            found.expected("a list of text")
        return tuple(self._expand(found, each.strip()) for each in found.value)

    def unset(self, section: str, name: str) -> tuple[str, ...]:
        """Environment variables that this list of texts names and that are not there."""
        found = self._get(section, name).value
        texts = [each for each in found if isinstance(each, str)] if isinstance(found, list | tuple) else []
        named = (match[1] for each in texts for match in _REFERENCE.finditer(each))
        return tuple(each for each in named if each not in self.environ)

    def refuse(self, section: str, name: str, reason: str) -> NoReturn:
        """For what only the reader of a value can judge: names the place it was found in."""
        self._get(section, name).refuse(reason)

    def one_of(self, section: str, name: str, *allowed: str) -> str:
        found = self._get(section, name)
        if found.value not in allowed:
            found.expected(" or ".join(allowed))
        return str(found.value)

    def maybe_text(self, section: str, name: str) -> str | None:
        found = self._get(section, name)
        return None if found.value is None else _sentence(found)

    def maybe_path(self, section: str, name: str, base: Path) -> str | None:
        text = self.maybe_text(section, name)
        return None if text is None else str(base / text)

    def maybe_server(self, section: str, name: str) -> str | None:
        found = self._get(section, name)
        return None if found.value is None else self._server(found)

    def prices(self) -> dict[str, Price]:
        """The defaults, with what the settings say; a class that has none needs at least what its storage costs."""
        made = dict(PRICES)
        for key, found in self.found.items():
            if key[0] != "prices":
                continue
            value = _number(found)
            if value is None or value < 0:
                found.expected("a number, at least 0")
            made[key[1]] = replace(made.get(key[1], Price(0.0)), **{key[2]: value})
        return made

    def tasks(self) -> int | None:
        """At most so many at once; None for as many as there are cores."""
        found = self._get("budgets", "max_tasks")
        if found.value == "all":
            return None
        if isinstance(found.value, bool | float) or not re.fullmatch(r"[1-9]\d{0,8}", str(found.value)):
            found.expected("a whole number, at least 1, or all")
        return int(str(found.value))

    def rate(self, name: str, otherwise: float | None = None) -> float | None:
        """So much per second, or None where there is no limit. `otherwise` holds where nothing is said."""
        found = self._get("budgets", name)
        if found.value is None:
            return otherwise
        if found.value == "none":
            return None
        value = _number(found)
        if value is None or value <= 0:
            found.expected("a number above 0, or none")
        return value

    def aliases(self) -> Aliases:
        texts = self.texts("paths", "aliases")
        for each in texts:
            try:
                Aliases.of([each])
            except ValueError:
                self._get("paths", "aliases").refuse(
                    f"found {each!r}; allowed: two places, neither inside the other, as /mnt/a = /mnt/b or s3://old != s3://new"
                )
        return Aliases.of(texts)

    def windows(self, name: str) -> tuple[str, ...]:
        found = self._get("budgets", name)
        if not isinstance(found.value, list | tuple) or not all(
            isinstance(each, str) for each in found.value
        ):
            found.expected("a list of windows such as 09:00-17:00")
        windows = [each.strip() for each in found.value]
        for each in windows:
            if not WINDOW.fullmatch(each):
                found.refuse(
                    f"found {each!r}; allowed: HH:MM-HH:MM in UTC, with days if need be, as Mon-Fri 09:00-17:00;"
                    " a whole day is 00:00-24:00"
                )
        return tuple(windows)

    def backoff(self) -> tuple[str | None, str | None, float | None]:
        """The server, the query and the threshold: all three, or none."""
        names = ("backoff_url", "backoff_query", "backoff_above")
        url, query, above = every = [self._get("budgets", name) for name in names]
        said = next((each for each in every if each.value is not None), None)
        if said is None:
            return None, None, None
        for each in every:
            if each.value is None:
                # A message names the place to change: where the others are.
                Found(each.key, None, said.where).refuse(
                    f"found nothing, but {said.key[-1]} is set; it takes {', '.join(names)} together"
                )
        return self._server(url), _sentence(query), _threshold(above)

    def _server(self, found: Found) -> str:
        url = self._expand(found, _as_text(found))
        if not _SERVER.fullmatch(url):
            found.refuse(
                f"found {redact_url(url)!r}; allowed: http://HOST:PORT or https://HOST, with a path if need be"
            )
        return url.rstrip("/")

    def catalogs(self) -> list[str]:
        return list(dict.fromkeys(key[1] for key in self.found if key[0] == "catalogs"))

    def properties(self, *prefix: str) -> tuple[dict[str, str], frozenset[str]]:
        """The properties under a key as text, and the names of those that environment variables filled."""
        entries = {key[-1]: each for key, each in self.found.items() if key[:-1] == prefix}
        texts = {name: self._expand(each, _as_text(each)) for name, each in entries.items()}
        return texts, frozenset(name for name, each in entries.items() if _REFERENCE.search(_as_text(each)))

    def check_format(self, catalog: str, name: str) -> None:
        if name not in FORMATS:
            self.found["catalogs", catalog, "format"].expected(" or ".join(FORMATS))

    def is_complete(self, catalog: str, text: str) -> bool:
        if text.lower() not in ("true", "false"):
            self.found["catalogs", catalog, "complete"].expected("true or false")
        return text.lower() == "true"

    def policy(self) -> dict[str, object]:
        return {
            key[1]: each.value
            for key, each in self.found.items()
            if key[0] == "policy" and key[1] not in ("tables", "trust_table_properties")
        }

    def trusted(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        found = self.found.get(("policy", "trust_table_properties"))
        if found is None:
            return ()
        if not isinstance(found.value, list | tuple):
            found.expected("entries written as [[policy.trust_table_properties]], each with pattern and keys")
        return tuple(_trusted(Found(found.key, each, found.where)) for each in found.value)

    def patterns(self) -> tuple[tuple[str, Mapping[str, object]], ...]:
        found = self.found.get(("policy", "tables"))
        if found is None:
            return ()
        if not isinstance(found.value, list | tuple):
            found.expected("entries written as [[policy.tables]]")
        return tuple(_pattern(Found(found.key, each, found.where)) for each in found.value)

    def _expand(self, found: Found, text: str) -> str:
        return _REFERENCE.sub(lambda match: self._variable(found, match[1]), text)

    def _variable(self, found: Found, name: str) -> str:
        if name not in self.environ:
            found.refuse(f"it names the environment variable {name}, which is not set")
        return self.environ[name]


def _pattern(entry: Found) -> tuple[str, Mapping[str, object]]:
    values = dict(_table(entry))
    pattern = values.pop("pattern", None)
    if not isinstance(pattern, str) or not pattern.strip():
        Found((*entry.key, "pattern"), pattern, entry.where).expected("text such as lake.db.*")
    return pattern.strip(), values


def _trusted(entry: Found) -> tuple[str, tuple[str, ...]]:
    pattern, values = _pattern(entry)
    keys = values.get("keys")
    fits = isinstance(keys, list | tuple) and keys and all(isinstance(each, str) for each in keys)
    if not fits or len(values) > 1:
        entry.expected("pattern and keys, a list of policy keys, and nothing else")
    return pattern, tuple(str(each) for each in values["keys"])  # type: ignore[attr-defined]


def _as_text(found: Found) -> str:
    """Format properties are text; TOML's numbers and switches are written the way the formats read them."""
    if isinstance(found.value, bool):
        return "true" if found.value else "false"
    if not isinstance(found.value, str | int | float):
        found.expected("text, a number, true or false")
    return str(found.value)


def _number(found: Found) -> float | None:
    """The value as a number; None if it is none, or endless."""
    if isinstance(found.value, bool) or not isinstance(found.value, str | int | float):
        return None
    try:
        value = float(found.value)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def _threshold(found: Found) -> float:
    value = _number(found)
    if value is None:
        found.expected("a number")
    return value


def _sentence(found: Found) -> str:
    if not isinstance(found.value, str) or not found.value.strip():
        found.expected("text")
    return found.value.strip()
