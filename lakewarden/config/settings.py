"""Every setting there is: its section, name, type, default and what it means. `docs/configuration.md` is made from this table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SECTIONS = (
    "state",
    "spark",
    "engine",
    "budgets",
    "catalogs",
    "policy",
    "paths",
    "lineage",
    "gateway",
    "schedule",
    "worker",
    "health",
    "console",
    "prices",
)


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table of settings, as the docs print it."""

    section: str
    name: str
    type: str
    default: Any
    sentence: str


SETTINGS: tuple[Setting, ...] = (
    Setting("state", "url", "address", "sqlite:///lakewarden.db", "the state database: sqlite:///PATH (relative to the file's folder) or postgresql://USER:PASSWORD@HOST/NAME"),
    Setting("spark", "master", "text", "local[*]", "the Spark master that moves the rows: local[N], local[*], spark://HOST:PORT, k8s://ADDRESS or yarn"),
    Setting("spark", "conf", "table of text", {}, "Spark's own properties, handed to the session as they are"),
    Setting("spark", "jars", "list of text", [], "jars to use instead of the pinned ones; relative to the file's folder"),
    Setting("engine", "task_memory_mb", "whole number", 512, "memory one rewrite task may use, in MB; what needs more is split or spilled"),
    Setting("budgets", "max_tasks", "whole number or all", 4, "rewrite tasks at once, over everything this process does; never more than Spark has cores; `all`: as many as it has cores"),
    Setting("budgets", "available_mb_per_s", "number", None, "what the store can deliver, in MB/s (1 MB is 1,000,000 bytes); reading and writing each take at most 30 % of it unless they have a limit of their own"),
    Setting("budgets", "read_mb_per_s", "number or none", None, "MB/s all rewrite tasks together may read; 30 % of available_mb_per_s where that is set, else no limit; `none`: no limit"),
    Setting("budgets", "write_mb_per_s", "number or none", None, "MB/s all rewrite tasks together may write; 30 % of available_mb_per_s where that is set, else no limit; `none`: no limit"),
    Setting("budgets", "requests_per_s", "number or none", None, "requests per second all rewrite tasks together may send to the store"),
    Setting("budgets", "deletes_per_s", "number or none", None, "files per second that one purge may delete"),
    Setting("budgets", "pause_compaction", "list of windows", [], "when scheduled compactions start nothing new, in UTC: 09:00-17:00, over midnight 22:00-06:00, on some days Mon-Fri 09:00-17:00"),
    Setting("budgets", "pause_expiry", "list of windows", [], "when the worker starts no expire, expire-partitions, handoff, purge or sweep, in UTC; written as pause_compaction is"),
    Setting("budgets", "backoff_url", "address", None, "a Prometheus server to ask before each rewrite task; no other task starts while backoff_query is above backoff_above"),
    Setting("budgets", "backoff_query", "text", None, "the PromQL to ask, such as the 95th percentile of query latency; of several values the highest counts"),
    Setting("budgets", "backoff_above", "number", None, "the value of backoff_query above which tasks wait"),
    Setting("budgets", "backoff_poll_seconds", "whole number", 15, "seconds between two questions to Prometheus"),
    Setting("budgets", "backoff_max_wait_seconds", "whole number", 600, "seconds after which a waiting task starts all the same, so that upkeep slows down and never stops"),
    Setting("paths", "aliases", "list of text", [], "pairs of places that tables use two names of: `/mnt/a = /mnt/b` where both are one place, `s3://old != s3://new` where they are not; each is about all that lies below"),
    Setting("lineage", "history", "text", "state", "where the detail of compacted lineage history is kept: `state`, in the state database, or `table`, as files in each table's own metadata folder"),
    Setting("lineage", "openlineage_url", "address", None, "a server that takes OpenLineage events about every run, as http://HOST:PORT/api/v1/lineage"),
    Setting("lineage", "openlineage_file", "path", None, "a file that OpenLineage events are appended to, one a line; relative to the file's folder"),
    Setting("lineage", "openlineage_namespace", "text", "lakewarden", "the namespace of the jobs in OpenLineage events"),
    Setting("gateway", "catalog", "text", None, "the REST catalog of [catalogs] that the gateway stands in front of; not needed where there is only one"),
    Setting("gateway", "host", "text", "127.0.0.1", "the address the gateway listens on"),
    Setting("gateway", "port", "whole number", 8181, "the port the gateway listens on"),
    Setting("gateway", "tls_certificate", "path", None, "a PEM certificate, to serve HTTPS; relative to the file's folder"),
    Setting("gateway", "tls_key", "path", None, "the certificate's PEM key; relative to the file's folder"),
    Setting("gateway", "client_seconds", "whole number", 30, "how long a client may take to send the headers of a request, and then its body; a slower one is answered 408"),
    Setting("gateway", "connections_per_address", "whole number", 256, "connections that one client may have at a time; more are answered 429. A proxy in front is one client"),
    Setting("gateway", "timeout_seconds", "whole number", 60, "how long the catalog behind may take for an answer; a commit that takes longer is told as unknown, never as failed"),
    Setting("schedule", "mode", "interval or cron", "interval", "`interval`: a whole pass of each table every interval_seconds; `cron`: each job at its own times below"),
    Setting("schedule", "interval_seconds", "whole number", 3600, "seconds from the start of a table's pass to the next one; with `cron`, of jobs that are continuous"),
    Setting("schedule", "expire_partitions", "cron or continuous or never", "30 23 * * *", "when expire-partitions is due, with `cron`; five fields, in UTC"),
    Setting("schedule", "compact_deletes", "cron or continuous or never", "continuous", "when compact-deletes is due, with `cron`"),
    Setting("schedule", "compact", "cron or continuous or never", "continuous", "when compact is due, with `cron`"),
    Setting("schedule", "rewrite_manifests", "cron or continuous or never", "0 2 * * 0", "when rewrite-manifests is due, with `cron`"),
    Setting("schedule", "expire", "cron or continuous or never", "0 0 * * *", "when expire is due, with `cron`"),
    Setting("schedule", "handoff", "cron or continuous or never", "0 2 * * *", "when handoff is due, with `cron`; where the policy asks for it, what it hands off expires right after"),
    Setting("schedule", "purge", "cron or continuous or never", "0 4 * * *", "when purge is due, with `cron`"),
    Setting("schedule", "sweep", "cron or continuous or never", "0 6 * * *", "when sweep is due, with `cron`, where the policy switches it on"),
    Setting("schedule", "compact_history", "cron or continuous or never", "0 3 1 * *", "when compact-history is due, with `cron`"),
    Setting("worker", "tables", "list of text", ["*"], "patterns of the tables the worker looks after, as lake.db.*; a pattern that begins with ! leaves tables out"),
    Setting("worker", "parallel_tables", "whole number", 2, "tables worked on at once; all of them share the budgets"),
    Setting("worker", "lease_seconds", "whole number", 15, "how long a leader that says nothing keeps leading; after that a standby takes over"),
    Setting("worker", "poll_seconds", "whole number", 2, "seconds between two looks for requests and for tables that are due"),
    Setting("worker", "discover_seconds", "whole number", 300, "seconds between two looks for new and dropped tables"),
    Setting("worker", "max_failures", "whole number", 10, "failures in a row after which a table is suspended until somebody resumes it"),
    Setting("worker", "retry_seconds", "whole number", 60, "seconds a table waits after its first failure; doubled with each further one, up to retry_max_seconds"),
    Setting("worker", "retry_max_seconds", "whole number", 3600, "the longest such wait"),
    Setting("worker", "drain_seconds", "whole number", 600, "seconds that running work has after SIGTERM; then it is stopped cleanly"),
    Setting("worker", "console", "true or false", True, "whether the worker serves the console and the REST API too, on the address of [console]"),
    Setting("health", "stats_interval_seconds", "whole number", 60, "seconds between two looks at every table's health"),
    Setting("health", "keep_days", "whole number", 90, "days that numbers stay for charts and what-if, older ones are thinned out to one a day; ended requests, loads and pins, silent writers, warnings that are over and what is known of dropped tables go after them"),
    Setting("health", "delete_ratio", "number", 0.3, "warn where so many delete files per data file, or this share of rows deleted, is reached"),
    Setting("health", "delete_ratio_files", "whole number", 8, "and the table has at least so many data files"),
    Setting("health", "manifests", "whole number", 100, "warn at this many manifests"),
    Setting("health", "small_files", "whole number", 1000, "warn at this many files below the policy's rewrite_small_bytes"),
    Setting("health", "traces_url", "address", None, "an OpenTelemetry collector that takes traces of runs over HTTP, as http://HOST:4318/v1/traces"),
    Setting("console", "host", "text", "127.0.0.1", "the address that the console, the REST API and /metrics listen on; on any but the loopback, tokens are needed"),
    Setting("console", "port", "whole number", 8480, "the port they listen on"),
    Setting("console", "read_tokens", "list of text", [], "who may look, as NAME=TOKEN; a token has 16 characters at least: \"ana=${ANA_TOKEN}\""),
    Setting("console", "operate_tokens", "list of text", [], "who may also ask for passes, pin, restore, cancel and change policies, as NAME=TOKEN"),
    Setting("console", "tls_certificate", "path", None, "a PEM certificate, to serve HTTPS; relative to the file's folder"),
    Setting("console", "tls_key", "path", None, "the certificate's PEM key; relative to the file's folder"),
    Setting("console", "requests_per_s", "number", 50, "requests a second that one client may send; more are answered 429"),
    Setting("console", "connections_per_address", "whole number", 64, "connections that one client may have at a time; more are answered 429. A proxy in front is one client"),
    Setting("console", "max_body_kb", "whole number", 64, "the largest body that is read; larger ones are answered 413"),
    Setting("console", "spark_seconds", "number", 120, "how long a call that reads a table through Spark may take; then it is answered 504"),
    Setting("prices.CLASS", "storage_gb_month", "number", None, "dollars for a GiB of that storage class, a month; the defaults are Amazon's list prices for us-east-1"),
    Setting("prices.CLASS", "put_per_1000", "number", None, "dollars for a thousand objects that are written"),
    Setting("prices.CLASS", "get_per_1000", "number", None, "dollars for a thousand objects that are read"),
    Setting("prices.CLASS", "retrieval_gb", "number", None, "dollars for a GiB that is read"),
    Setting("prices.CLASS", "minimum_days", "number", None, "days an object is billed for at least"),
    Setting("prices.CLASS", "minimum_bytes", "number", None, "bytes an object is billed for at least"),
    Setting("prices.CLASS", "overhead_bytes", "number", None, "bytes each object is billed for beyond its own"),
    Setting("prices.CLASS", "restore_per_1000", "number", None, "dollars for a thousand objects that an archive is asked to make readable"),
    Setting("catalogs.NAME", "format", "iceberg or paimon", "iceberg", "the format of the catalog's tables"),
    Setting("catalogs.NAME", "complete", "true or false", True, "whether the catalog lists every table that it has; false, and purge deletes nothing outside a table's own folders, in any catalog"),
    Setting("catalogs.NAME", "PROPERTY", "text", None, "any other key is the format's own catalog property: type, uri, warehouse, io-impl, s3.endpoint …"),
    Setting("policy", "KEY", "policy value", None, "what a policy key is for every table, unless something more specific says otherwise"),
    Setting("policy.tables", "pattern", "text", None, "the tables an entry of [[policy.tables]] is for, as lake.db.*; its other keys are policy keys, and later entries win"),
    Setting("policy.trust_table_properties", "pattern", "text", None, "tables whose own properties may set the keys below to any value, also to ones that delete more or sooner"),
    Setting("policy.trust_table_properties", "keys", "list of text", None, "the policy keys that these tables are trusted with, by name"),
)  # fmt: skip
