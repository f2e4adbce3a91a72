"""Finds the commits that streaming writers need to restart: each writer looks for its own last commit so that
it commits nothing twice.

Iceberg's Flink sink, Spark's structured streaming and Kafka Connect walk from a branch's head, parent by
parent, until a snapshot's summary names the writer. If a snapshot in between is missing, the walk ends, the
writer believes that it never committed, and commits again. So the whole chain from the head down to its newest
commit is kept. Paimon looks for a commit user by number, from the newest snapshot down: there a kept snapshot
keeps all later ones.

Our own commits do not carry these keys forward: one snapshot has room for one job, and the copied older commit
of a job would hide a newer commit of that job that comes in between.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from lakewarden.model.hold import Hold, HoldKind
from lakewarden.model.location import normal
from lakewarden.model.table import Snapshot, TableView

# How long to wait for a streaming writer after its last commit, if no policy applies.
RESTARTS = timedelta(days=30)
FLINK_JOB = "flink.job-id"
FLINK_MANIFESTS = "flink.manifests.location"
# Flink puts its job's id into the names of manifests that it has not committed yet.
_FLINK_MANIFEST = re.compile(r"/([0-9a-f]{32})-[^/]*-\d+-\d+-\d+-\d+[^/]*\.avro$")
_FLINK_OPERATOR, _FLINK_CHECKPOINT = "flink.operator-id", "flink.max-committed-checkpoint-id"
_SPARK_QUERY, _SPARK_EPOCH = "spark.sql.streaming.queryId", "spark.sql.streaming.epochId"
_KAFKA_OFFSETS = "kafka.connect.offsets."
_PAIMON_USER, _PAIMON_COMMIT = "commit-user", "commit-identifier"
# Our own commits to Paimon: a restarted run finds its commit by lineage.run_id.
_OURS = "lakewarden"
# Flink and Paimon use this number for the last commit of a bounded input: the job has ended.
_ENDED = str(2**63 - 1)
# A finished job may still fail over to its last commit, but only for a short time.
_AFTER_ITS_END = timedelta(days=1)
# A writer starts the files of its next commit before the last one is made, and commits may wait for an unavailable catalog.
_BEFORE_THE_COMMIT = timedelta(days=1)
# These writers keep the names of uncommitted files in their own state, which cannot be read here.
_KAFKA, _PAIMON, _FLINK = "Kafka Connect", "Paimon commit user", "Flink job"


@dataclass(frozen=True, slots=True)
class Writer:
    """A streaming writer: the engine's name, the id by which it finds its commits, and which part of the job it is."""

    engine: str
    id: str
    part: str = ""


@dataclass(frozen=True, slots=True)
class WriterProgress:
    """How far a writer had got at one commit."""

    writer: Writer
    told: str
    ended: bool = False


def progress(format_: str, summary: Mapping[str, str]) -> Iterator[WriterProgress]:
    """The streaming writers that this summary names, one row for each kind of writer."""
    if format_ == "paimon":
        user, commit = summary.get(_PAIMON_USER), summary.get(_PAIMON_COMMIT)
        if user is not None and user != _OURS and commit is not None and commit != _ENDED:
            yield WriterProgress(Writer(_PAIMON, user), f"commit {commit}")
        return
    job, checkpoint = summary.get(FLINK_JOB), summary.get(_FLINK_CHECKPOINT)
    if job is not None and checkpoint is not None:
        writer = Writer(_FLINK, job, summary.get(_FLINK_OPERATOR, ""))
        yield WriterProgress(writer, f"checkpoint {checkpoint}", checkpoint == _ENDED)
    query, epoch = summary.get(_SPARK_QUERY), summary.get(_SPARK_EPOCH)
    if query is not None and epoch is not None:
        yield WriterProgress(Writer("Spark query", query), f"epoch {epoch}")
    for key, offsets in summary.items():
        if key.startswith(_KAFKA_OFFSETS):
            yield WriterProgress(Writer(_KAFKA, key.removeprefix(_KAFKA_OFFSETS)), f"offsets {offsets}")


def held_for_restarts(view: TableView, within: timedelta, now: datetime) -> Iterator[Hold]:
    """Holds on the commits that streaming writers of this table need to restart, each with its chain."""
    return held_in(view.format, view.snapshots, list(_heads(view)), within, now)


def held_in(
    format_: str, snapshots: Sequence[Snapshot], heads: Iterable[int | None], within: timedelta, now: datetime
) -> Iterator[Hold]:
    """The newest commit of each streaming writer on each branch, and the chain from the branch's head down to
    it.

    A writer that has not committed for longer than `within` holds nothing. If a chain is already broken, the
    newest commit is still held: a person may roll back to it.
    """
    newest_commits: dict[tuple[Writer, int], tuple[WriterProgress, Snapshot, dict[int, None]]] = {}
    by_id = {each.id: each for each in snapshots}
    for head in dict.fromkeys(heads):
        seen: set[Writer] = set()
        passed: dict[int, None] = {}
        while head is not None and head in by_id and head not in passed:
            snapshot = by_id[head]
            for each in progress(format_, snapshot.summary):
                if each.writer not in seen:
                    seen.add(each.writer)
                    place = newest_commits.setdefault((each.writer, head), (each, snapshot, {}))
                    place[2].update(passed)
            passed[head] = None
            head = snapshot.parent_id
    newest: set[Writer] = set()
    for snapshot in sorted(snapshots, key=_order, reverse=True):
        for each in progress(format_, snapshot.summary):
            if each.writer not in newest:
                newest.add(each.writer)
                newest_commits.setdefault((each.writer, snapshot.id), (each, snapshot, {}))
    for each, snapshot, chain in newest_commits.values():
        until = snapshot.committed_at + (min(within, _AFTER_ITS_END) if each.ended else within)
        if until > now:
            holder = f"{each.writer.engine} {each.writer.part}".rstrip()
            yield Hold(
                HoldKind.STREAM,
                each.writer.id,
                holder,
                each.told,
                snapshot.id,
                chain=tuple(chain),
                since=snapshot.committed_at,
                until=until,
            )


@dataclass(frozen=True, slots=True)
class Uncommitted:
    """Files that no snapshot names yet and that a streaming writer will commit after a restart.

    Flink's Iceberg sink names them in manifests with the id of its job: `files` are the files that those
    manifests name, in normal form. Other writers do not publish such names: every file written after `since`
    may belong to them.
    """

    files: frozenset[str] = frozenset()
    since: datetime | None = None

    def names(self, path: str) -> bool:
        return bool(self.files) and normal(path) in self.files

    def may_include(self, modified: datetime) -> bool:
        return self.since is not None and modified >= self.since


def flink_manifests(view: TableView, paths: Iterable[str]) -> dict[str, str]:
    """Of these files, the manifests that Flink has not committed yet, each with its job, if the table's history
    knows the job.
    """
    jobs = {each.summary.get(FLINK_JOB) for each in view.snapshots} - {None}
    matches = ((path, _FLINK_MANIFEST.search(path)) for path in paths if jobs)
    return {path: match[1] for path, match in matches if match is not None and match[1] in jobs}


def uncommitted_since(
    view: TableView, unread: Collection[str], within: timedelta, now: datetime
) -> datetime | None:
    """The time from which files may belong to the next commit of a writer whose uncommitted files are unknown.
    None without such a writer.

    `unread` are Flink jobs with a manifest that cannot be read. A table may also keep these manifests in a
    place that is not listed.
    """
    newest: dict[Writer, tuple[datetime, bool]] = {}
    for snapshot in view.snapshots:
        for each in progress(view.format, snapshot.summary):
            newest[each.writer] = max(
                newest.get(each.writer, (snapshot.committed_at, False)), (snapshot.committed_at, each.ended)
            )
    unlisted = FLINK_MANIFESTS in view.properties
    moments = [
        committed
        for writer, (committed, ended) in newest.items()
        if writer.engine in (_KAFKA, _PAIMON, _FLINK)
        and committed + (_AFTER_ITS_END if ended else within) > now
        and (writer.id in unread or (not ended and (writer.engine != _FLINK or unlisted)))
    ]
    return min(moments) - _BEFORE_THE_COMMIT if moments else None


def _heads(view: TableView) -> Iterator[int | None]:
    yield view.current_snapshot_id
    yield from (ref.snapshot_id for ref in view.refs if ref.kind == "branch" and not ref.has_copy)


def _order(snapshot: Snapshot) -> tuple[int, datetime]:
    return snapshot.sequence_number, snapshot.committed_at
