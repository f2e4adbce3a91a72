"""The table of all policy keys: type, default and meaning of each. The docs and `lakewarden policy` print it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import StrEnum
from typing import assert_never

from lakewarden.errors import PolicyError
from lakewarden.policy.values import InvalidValue, PolicyValue, ValueType, is_none, read, show

MEBIBYTE = 1 << 20
_MANY_BYTES = 2**63 - 1
_MANY_HOURS = 24 * 365 * 1000
_MANY = 2**31 - 1


class PropertyRule(StrEnum):
    """What a table's own properties may set for a key. Writers set these; operators set every other layer.

    The values are the words that the docs and messages use.
    """

    ANY = "any value"
    MORE = "only more than the operator's value"
    ADD = "only names besides the operator's"
    LESS = "only less than the operator's value"
    OFF = "only false"
    ON = "only true"
    UNSET = "any value, where the operator says nothing"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Key:
    """One row of the table of keys. `least` and `most` limit a number, or the length of a list.

    `call_least` is the limit for a single call, if it is lower. `by_property` says what a table's properties
    may set; `safer` lists the choices from the least to the most careful, for a key that properties may set
    only to MORE careful ones; `unset` is the number that `none` counts as in that comparison.
    """

    name: str
    kind: ValueType
    default: PolicyValue
    sentence: str
    least: float | None = None
    most: float | None = None
    above: float | None = None
    choices: tuple[str, ...] = ()
    example: str = ""
    call_only: bool = False
    may_be_none: bool = False
    call_least: float | None = None
    by_property: PropertyRule = PropertyRule.NOTHING
    safer: tuple[str, ...] = ()
    unset: float = math.inf

    @property
    def optional(self) -> bool:
        """Whether `none` is allowed: the key is then not set."""
        return self.default is None or self.may_be_none

    def parse(self, found: object, where: str, *, call: bool = False) -> PolicyValue:
        """The value in its normal form, or a PolicyError that says what is allowed. `where` is the layer it came from."""
        if self.optional and is_none(found):
            return None
        try:
            value = read(self.kind, found)
        except InvalidValue as error:
            raise self._refusal(found, where, str(error)) from None
        if not self._fits(value, call):
            raise self._refusal(found, where)
        return value

    def may_say(self, value: PolicyValue, operators: PolicyValue, *, is_set: bool) -> bool:
        """Whether a table's property may have this value while the operator's layers have the other one.

        `is_set`: the operator set the value; it is not only the default.
        """
        match self.by_property:
            case PropertyRule.ANY:
                return True
            case PropertyRule.MORE:
                return self._at_least(value, operators)
            case PropertyRule.ADD:
                return not set(_several(value)) <= set(_several(operators))
            case PropertyRule.LESS:
                return self._at_least(operators, value)
            case PropertyRule.OFF:
                return value is False
            case PropertyRule.ON:
                return value is True
            case PropertyRule.UNSET:
                return not is_set
            case PropertyRule.NOTHING:
                return False
            case _:
                assert_never(self.by_property)

    def with_operators(self, value: PolicyValue, operators: PolicyValue) -> PolicyValue:
        """The effective value if a table's property may set this one."""
        if self.by_property is not PropertyRule.ADD:
            return value
        names = (str(each) for each in (*_several(operators), *_several(value)))
        return tuple(dict.fromkeys(names))

    def _at_least(self, one: PolicyValue, other: PolicyValue) -> bool:
        if self.safer:
            return self.safer.index(str(one)) >= self.safer.index(str(other))
        return self._number(one) >= self._number(other)

    def _number(self, value: PolicyValue) -> float:
        return float(value) if isinstance(value, int | float) else self.unset

    def allowed(self) -> str:
        """The allowed values in words: `a size in bytes, at least 1`."""
        if self.choices:
            words = "one of " + ", ".join(self.choices)
        else:
            words = ", ".join(filter(None, (_WORDS[self.kind], self._bounds())))
        return f"{words}, or none" if self.optional else words

    def _bounds(self) -> str:
        parts = []
        if self.above is not None:
            parts.append(f"above {self.above:g}")
        if self.least is not None:
            parts.append(f"at least {_plain(self.least)}")
        if self.call_least is not None:
            parts.append(f"for one call at least {_plain(self.call_least)}")
        if self.most is not None and self.most not in (_MANY, _MANY_BYTES, _MANY_HOURS):
            parts.append(f"at most {self.most:g}")
        return " and ".join(parts)

    def _fits(self, value: PolicyValue, call: bool = False) -> bool:
        if self.choices and value not in self.choices:
            return False
        size = len(value) if isinstance(value, tuple) else value
        if isinstance(size, bool) or not isinstance(size, int | float):
            return True
        least = self.call_least if call and self.call_least is not None else self.least
        return (
            (least is None or size >= least)
            and (self.most is None or size <= self.most)
            and (self.above is None or size > self.above)
        )

    def _refusal(self, value: object, where: str, why: str = "") -> PolicyError:
        example = self.example or (show(self.default) if self.default is not None else _EXAMPLES[self.kind])
        detail = f"; {why}" if why else ""
        reason = (
            f"found {value!r} ({where}){detail}; allowed: {self.allowed()}; for example {self.name}={example}"
        )
        return PolicyError(key=self.name, reason=reason)


def _several(value: PolicyValue) -> tuple[str | int, ...]:
    return value if isinstance(value, tuple) else ()


def _plain(number: float) -> str:
    """Without an exponent: people compare sizes by eye."""
    return str(int(number)) if float(number).is_integer() else f"{number:g}"


_WORDS = {
    ValueType.BOOL: "true or false",
    ValueType.COUNT: "a whole number",
    ValueType.BYTES: "a size in bytes or with a unit (MB is 1,000,000, MiB is 1,048,576)",
    ValueType.HOURS: "hours, or a number with m, h, d or w",
    ValueType.RATIO: "a number",
    ValueType.PERCENT: "a percentage",
    ValueType.CHOICE: "a word",
    ValueType.TEXT: "text",
    ValueType.FILTER: "comparisons of columns with literals (=, <>, <, <=, >, >=, in, between, like 'prefix%', is null), joined by and, or, not",
    ValueType.SPEC: "current, keep, or the id of one of the table's partition specs",
    ValueType.COLUMNS: "different column names",
    ValueType.SORT: "columns, each with asc or desc, nulls first or nulls last when wanted",
    ValueType.NAMES: "different names",
    ValueType.IDS: "one or more snapshot ids",
}

_EXAMPLES = {
    ValueType.BOOL: "true",
    ValueType.COUNT: "100",
    ValueType.BYTES: "128MiB",
    ValueType.HOURS: "30d",
    ValueType.RATIO: "0.3",
    ValueType.PERCENT: "25",
    ValueType.CHOICE: "auto",
    ValueType.TEXT: "main",
    ValueType.FILTER: "day >= '2026-01-01'",
    ValueType.SPEC: "current",
    ValueType.COLUMNS: "a, b",
    ValueType.SORT: "a, b desc nulls last",
    ValueType.NAMES: "a, b",
    ValueType.IDS: "6342913400512931861",
}


def _switch(name: str, default: bool, sentence: str) -> Key:
    return Key(name, ValueType.BOOL, default, sentence)


def _count(name: str, default: int | None, sentence: str, least: int = 1) -> Key:
    return Key(name, ValueType.COUNT, default, sentence, least=least, most=_MANY)


def _size(name: str, default: int | None, sentence: str) -> Key:
    return Key(name, ValueType.BYTES, default, sentence, least=1, most=_MANY_BYTES, example="128MiB")


def _floored(name: str, default: int, sentence: str) -> Key:
    """A key with a minimum: a very small value would make a file or a commit of every row. A single call may go lower."""
    return replace(_size(name, default, sentence), least=MEBIBYTE, call_least=1)


def _hours(name: str, default: int | None, sentence: str, least: int = 0, example: str = "30d") -> Key:
    return Key(name, ValueType.HOURS, default, sentence, least=least, most=_MANY_HOURS, example=example)


def _choice(name: str, default: str, choices: tuple[str, ...], sentence: str) -> Key:
    return Key(name, ValueType.CHOICE, default, sentence, choices=choices)


def _text(name: str, default: str | None, sentence: str, example: str) -> Key:
    return Key(name, ValueType.TEXT, default, sentence, example=example)


_ROWS: tuple[Key, ...] = (
    _switch("maintenance_enabled", True, "master switch of the table's pass"),
    # compact
    _switch("rewrite_enabled", True, "whether small files are compacted"),
    _choice("rewrite_engine", "arrow", ("arrow", "iceberg"), "which engine rewrites data files; iceberg is the format's own writer: Iceberg's on Spark, Paimon's for Paimon tables"),
    _choice("rewrite_encodings", "auto", ("auto", "classic", "modern"), "classic writes the Parquet encodings every reader knows; modern adds delta and byte-stream-split, smaller and faster, which older vectorised readers refuse (Spark 3.5 with Iceberg up to 1.10); auto is classic, but for columns whose source files already use one of these"),
    _choice("rewrite_strategy", "auto", ("auto", "binpack", "sort", "zorder", "hilbert"), "auto is zorder when rewrite_zorder_columns is set, else sort when the table has a sort order, else binpack"),
    Key("rewrite_zorder_columns", ValueType.COLUMNS, None, "columns to cluster by", least=2, most=4),
    Key("rewrite_sort_columns", ValueType.SORT, None, "sort by these instead of the table's sort order"),
    _text("rewrite_branch", "main", "the branch to work on; others are untouched", "main"),
    Key("rewrite_output_spec_id", ValueType.SPEC, "current", "partition spec of the outputs; keep leaves files of older specs in theirs; where it is set, files of other specs are moved even if they are alone or large enough", least=0, most=_MANY),
    _floored("rewrite_max_group_bytes", 107374182400, "bound of one unit of work and commit"),
    _floored("rewrite_target_bytes", 134217728, "size outputs aim at"),
    _size("rewrite_small_bytes", 33554432, "files below this are candidates"),
    _size("rewrite_max_bytes", 1073741824, "files above this are split"),
    _count("rewrite_min_input_files", 8, "candidates a partition needs before it is rewritten; of a table with primary keys, sorted runs a bucket needs"),
    _choice("rewrite_merge", "auto", ("auto", "full", "minor"), "tables with primary keys: full makes one sorted run of a bucket, minor merges the newest runs as Paimon's writers do, which moves less; auto is full where the bucket is small or a quarter of it is new"),
    Key("rewrite_where", ValueType.FILTER, None, "only partitions and files that match this filter; it selects files, never rows", example="day >= '2026-01-01'"),
    _hours("rewrite_sealed_after_hours", None, "only time partitions that closed at least this long ago", example="6h"),
    _size("rewrite_max_bytes_per_run", None, "stop after this much input; the run is partial and the next one goes on"),
    _count("rewrite_max_commits", None, "bound on the commits of one run"),
    _choice("rewrite_digest", "auto", ("auto", "rows", "off"), "how a rewrite proves its rows before it commits: auto hashes every value that is decoded on its way in and out, and copies whole pages only by their checksums; rows copies no pages, so every row is hashed; off only counts, and compares the checksums of pages that are copied"),
    # compact-deletes
    _switch("delete_compaction_enabled", True, "whether files that carry many deletes are rewritten without them"),
    _count("delete_compaction_min_deletes", 1, "delete files a data file carries before it is rewritten"),
    Key("delete_compaction_ratio", ValueType.RATIO, 0.3, "or: the share of its rows that are deleted", above=0, most=1),
    # rewrite-manifests
    _switch("manifest_rewrite_enabled", True, "whether manifests are compacted"),
    _count("manifest_rewrite_min_manifests", 100, "how many manifests trigger it"),
    _size("manifest_target_bytes", 8388608, "size manifests aim at"),
    # expire
    _switch("snapshot_expiry_enabled", True, "whether snapshots expire"),
    _hours("snapshot_retention_hours", 720, "older snapshots may expire"),
    _count("snapshot_min_retained", 5, "this many snapshots are always kept"),
    _count("snapshot_max_retained", None, "the window keeps at most this many snapshots, the newest"),
    _count("snapshot_expire_limit", None, "expire at most this many snapshots in one run"),
    _hours("snapshot_restart_hours", 720, "how long after its last commit a streaming writer (Flink, Spark, Kafka Connect, Paimon) may come back: until then the snapshots stay by which it finds that commit"),
    Key("snapshot_ref_retention_hours", ValueType.HOURS, None, "tags and branches of Iceberg tables that say no age of their own are dropped so long after the commit of their snapshot; never when not set", above=0, most=_MANY_HOURS, example="90d"),
    Key("snapshot_ids", ValueType.IDS, None, "for one call only: expire just these; holds still win", call_only=True),
    # expire-partitions
    _switch("partition_expiry_enabled", False, "whether old partitions expire"),
    _hours("partition_ttl_hours", None, "partitions older than this expire", least=1, example="90d"),
    _text("partition_time_column", None, "the partition column that holds the time; when not set, the first whose type tells one, else the first", "dt"),
    _text("partition_time_pattern", None, "how partition columns make up the time, for a time spread over several", "$year-$month-$day"),
    _text("partition_time_formatter", None, "how that time is written; when not set, as 2026-03-01 or 2026-03-01 12:00:00", "yyyyMMdd"),
    _choice("partition_expiry_strategy", "values-time", ("values-time", "update-time"), "whether a partition's age counts from the end of the time it names, or from its last change"),
    _count("partition_expire_limit", None, "expire at most this many partitions in one run, the oldest first"),
    Key("partition_list", ValueType.NAMES, None, "for one call only: drop just these partitions, whatever their age", example="dt=2026-03-01, dt=2026-03-02", call_only=True),
    Key("partition_where", ValueType.TEXT, None, "for one call only: drop just the partitions that match this filter over partition columns, whatever their age", example="dt < '2026-01-01' and region = 'eu'", call_only=True),
    Key("partition_drop_all", ValueType.BOOL, False, "for one call only: whether a run may drop every partition the table has; without it such a run is refused", call_only=True),
    # sweep and purge
    _switch("orphan_sweep_enabled", False, "whether scheduled passes sweep by listing"),
    _hours("orphan_grace_hours", 168, "how old a file must be before a sweep may trash it", least=24, example="7d"),
    Key("orphan_max_percent", ValueType.PERCENT, 25, "a sweep that would trash more than this share of what it listed refuses", least=0, most=100),
    Key("sweep_inventory", ValueType.TEXT, None, "for one call only: judge by this inventory (a Parquet or CSV file, or a table or view Spark knows) instead of listing", example="inventory.parquet", call_only=True),
    Key("own_places", ValueType.NAMES, None, "folders that are the table's own besides the location it was first seen at: a place that its properties name (write.data.path and others), or that its location was changed to, is swept and purged only inside one of them", example="s3://bucket/data/events"),
    _switch("purge_outside_location", False, "whether purge deletes trashed files outside the table's own folders: files that were taken in from elsewhere, which others may use"),
    _hours("delete_grace_hours", 24, "how long a file stays in the trash before it is purged; below 1 only in the table's own policy or the call", example="24h"),
    # handoff
    _switch("handoff_enabled", False, "whether expiring snapshots are copied to a colder tier first"),
    _text("handoff_catalog", None, "the catalog that receives them", "cold"),
    _text("handoff_storage_class", None, "the storage class they are copied to", "GLACIER_IR"),
    _hours("handoff_retention_hours", None, "how long after its hand-off a snapshot's data stays in handoff_storage_class, before it goes to handoff_deep_storage_class; for good when not set", example="365d"),
    _text("handoff_deep_storage_class", "DEEP_ARCHIVE", "the storage class that data of older cold snapshots goes to", "DEEP_ARCHIVE"),
    _hours("cold_retention_hours", None, "how long after its hand-off a snapshot stays in the colder tier at all; for good when not set", least=1, example="2555d"),
    _switch("snapshot_expiry_reserved", False, "whether only Lakewarden may expire snapshots; the gateway turns others away"),
    Key("protected_tags", ValueType.NAMES, None, "tags that stay whatever their age, and that nobody drops or moves through the gateway, by name or pattern", example="audit-*, release-2026"),
    # lineage
    _switch("history_compaction_enabled", True, "whether old lineage history is summarised"),
    Key("lineage_required_keys", ValueType.NAMES, ("writer.id", "writer.commit_hash", "writer.invocation_id", "lineage.operation"), "summary keys every commit must carry", may_be_none=True),
    Key("lineage_allowed_operations", ValueType.NAMES, None, "values lineage.operation may have; any when not set", example="append, compaction"),
    Key("lineage_overwrite_operators", ValueType.NAMES, None, "who may overwrite; any named operator when not set", example="ana, ben"),
)  # fmt: skip

# What a table's properties may set. They tune a rewrite or keep more. All other keys are closed to them: such a
# key deletes, shortens a grace, widens a scope, names another catalog or carries an expression.
_BY_PROPERTY: dict[PropertyRule, tuple[str, ...]] = {
    PropertyRule.ANY: (
        "rewrite_encodings",
        "rewrite_strategy",
        "rewrite_zorder_columns",
        "rewrite_sort_columns",
        "rewrite_branch",
        "rewrite_output_spec_id",
        "rewrite_target_bytes",
        "rewrite_small_bytes",
        "rewrite_max_bytes",
        "rewrite_min_input_files",
        "rewrite_merge",
        "delete_compaction_min_deletes",
        "delete_compaction_ratio",
        "manifest_rewrite_min_manifests",
        "manifest_target_bytes",
    ),
    PropertyRule.MORE: (
        "snapshot_retention_hours",
        "snapshot_min_retained",
        "snapshot_max_retained",
        "snapshot_restart_hours",
        "snapshot_ref_retention_hours",
        "partition_ttl_hours",
        "orphan_grace_hours",
        "delete_grace_hours",
        "cold_retention_hours",
        "rewrite_digest",
        "rewrite_engine",
        "rewrite_sealed_after_hours",
    ),
    PropertyRule.ADD: ("protected_tags", "lineage_required_keys"),
    PropertyRule.LESS: (
        "rewrite_max_group_bytes",
        "rewrite_max_bytes_per_run",
        "rewrite_max_commits",
        "snapshot_expire_limit",
        "partition_expire_limit",
        "orphan_max_percent",
    ),
    PropertyRule.OFF: (
        "maintenance_enabled",
        "rewrite_enabled",
        "delete_compaction_enabled",
        "manifest_rewrite_enabled",
        "history_compaction_enabled",
        "snapshot_expiry_enabled",
        "partition_expiry_enabled",
        "orphan_sweep_enabled",
        "purge_outside_location",
    ),
    PropertyRule.ON: ("snapshot_expiry_reserved",),
    PropertyRule.UNSET: ("lineage_allowed_operations", "lineage_overwrite_operators"),
}
# The format's own writers prove only a count, whatever `rewrite_digest` requests.
_SAFER = {"rewrite_digest": ("off", "auto", "rows"), "rewrite_engine": ("iceberg", "arrow")}
# Without the setting that seals partitions, a partition may be rewritten at once.
_UNSET = {"rewrite_sealed_after_hours": -math.inf}
_SAYS = {name: say for say, names in _BY_PROPERTY.items() for name in names}

KEYS: tuple[Key, ...] = tuple(
    replace(
        each,
        by_property=_SAYS.get(each.name, PropertyRule.NOTHING),
        safer=_SAFER.get(each.name, ()),
        unset=_UNSET.get(each.name, math.inf),
    )
    for each in _ROWS
)

_BY_NAME = {each.name: each for each in KEYS}


def key(name: str, where: str = "call") -> Key:
    """The key of that name, or a PolicyError with the closest names."""
    found = _BY_NAME.get(name)
    if found is None:
        raise PolicyError(key=name, reason=f"no such key ({where}); {_closest(name)}")
    return found


def _closest(name: str) -> str:
    near = get_close_matches(name.lower().replace("-", "_"), _BY_NAME, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else "every key is in `lakewarden policy TABLE`"
