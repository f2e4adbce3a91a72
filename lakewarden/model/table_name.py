"""A table's name: its parts, and one text for people and for keys of the state database."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lakewarden.errors import UsageError


@dataclass(frozen=True, slots=True, order=True)
class TableRef:
    """A table by catalog, namespace and name; prints as `lake.db.events`. A table of no namespace prints as `lake.events`.

    A part that contains a dot or a back-quote is printed between back-quotes. So no two tables have the same text, which is
    the table's key in the state database.
    """

    catalog: str
    namespace: tuple[str, ...]
    name: str

    @classmethod
    def parse(cls, text: str) -> TableRef:
        """Any part may be between back-quotes; a back-quote inside is written twice."""
        parts = _PART.findall(text)
        if _NAME.fullmatch(text) is None or len(parts) < 2:
            raise UsageError(
                reason=f"read table name {text!r}: it needs a catalog and a name",
                hint="write it as CATALOG.NAMESPACE.TABLE, for example lake.db.events; "
                "a part that holds a dot goes between back-quotes: lake.`my.db`.events",
            )
        plain = [quoted.replace("``", "`") if quoted else bare for quoted, bare in parts]
        return cls(plain[0], tuple(plain[1:-1]), plain[-1])

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.catalog, *self.namespace, self.name)

    @property
    def short(self) -> str:
        """Without the catalog, for engines whose current catalog is set."""
        return joined(self.parts[1:])

    def __str__(self) -> str:
        return joined(self.parts)


# One part: between back-quotes, or without any back-quote and dot.
_PART = re.compile(r"`((?:[^`]|``)+)`|([^`.]+)")
_NAME = re.compile(rf"(?:{_PART.pattern})(?:\.(?:{_PART.pattern}))*")


def joined(parts: Sequence[str]) -> str:
    """The parts of a name as one text, with back-quotes where needed."""
    return ".".join(
        "`" + part.replace("`", "``") + "`" if "." in part or "`" in part or not part else part
        for part in parts
    )


def printed(text: str) -> str:
    """A table name in its printed form; other text stays unchanged."""
    try:
        return str(TableRef.parse(text))
    except UsageError:
        return text
