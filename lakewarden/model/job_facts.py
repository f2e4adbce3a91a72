"""The table of jobs: one row per job with everything about it that is not code. `jobs/registry.py` adds the functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from lakewarden.model.run import Job


class Pause(StrEnum):
    """The quiet windows of `[budgets]`: `pause_compaction` and `pause_expiry`."""

    COMPACTION = "compaction"
    EXPIRY = "expiry"


@dataclass(frozen=True, slots=True)
class JobFacts:
    """One job. The defaults are those of most jobs."""

    # The policy key that switches the job off and on. Without one, every pass has the job.
    switch: str | None = None
    # The switch also counts in a pass that someone requests. Otherwise such a pass has the job, and its run says that it is off.
    strict_switch: bool = False
    # The value of `lineage.operation` in its commits. Empty: the job makes no snapshot.
    operation: str = ""
    # Jobs of one slot rewrite the same files: one at a time per table. Empty: a slot of its own.
    slot: str = ""
    # The quiet window in which the worker does not start the job.
    pause: Pause | None = None
    # With `[schedule]` in mode cron, the job is due at the times of this one if a table has both.
    timed_with: Job | None = None
    # The job deletes, or prepares a deletion: the worker skips it after an earlier stage of the pass failed.
    stage: bool = False
    # The job commits to the table, or puts files of the table into the trash or deletes them.
    changes_table: bool = True
    # Pending deletion batches of earlier runs are settled before the job plans.
    settles_trash: bool = False
    # The job may run on a table of the colder tier, which is read-only.
    on_cold_tables: bool = False
    # Planning lists the whole table: only `plan` and `run` do that, a look at the table does not.
    lists_table: bool = False
    # The words before a plan's totals. Empty: the job rewrites files.
    would: str = ""
    # The colour of its times on the page of the schedule. Empty: the colour of the other jobs.
    mark: str = ""
    # Beginnings of the names of its policy keys.
    key_prefixes: tuple[str, ...] = ()


# In the order of a pass. The partitions go first, so that no job compacts files that expire-partitions drops; the history
# comes last, so that it has the snapshots that expired in the same pass.
JOBS: Mapping[Job, JobFacts] = MappingProxyType(
    {
        Job.EXPIRE_PARTITIONS: JobFacts(
            switch="partition_expiry_enabled",
            strict_switch=True,
            operation="partition-expiry",
            pause=Pause.EXPIRY,
            would="would drop",
            key_prefixes=("partition_",),
        ),
        Job.COMPACT_DELETES: JobFacts(
            switch="delete_compaction_enabled",
            operation="compaction",
            slot="rewrite",
            pause=Pause.COMPACTION,
            key_prefixes=("delete_compaction_",),
        ),
        Job.COMPACT: JobFacts(
            switch="rewrite_enabled",
            operation="compaction",
            slot="rewrite",
            pause=Pause.COMPACTION,
            key_prefixes=("rewrite_",),
        ),
        Job.REWRITE_MANIFESTS: JobFacts(
            switch="manifest_rewrite_enabled", operation="manifest-rewrite", key_prefixes=("manifest_",)
        ),
        Job.HANDOFF: JobFacts(
            switch="handoff_enabled",
            strict_switch=True,
            pause=Pause.EXPIRY,
            stage=True,
            changes_table=False,
            would="would copy",
            mark="handoff",
            key_prefixes=("handoff_", "cold_"),
        ),
        Job.EXPIRE: JobFacts(
            switch="snapshot_expiry_enabled",
            pause=Pause.EXPIRY,
            timed_with=Job.HANDOFF,  # a snapshot that was handed off expires right after it
            stage=True,
            settles_trash=True,
            would="would expire",
            mark="expire",
            key_prefixes=("snapshot_",),
        ),
        Job.PURGE: JobFacts(
            pause=Pause.EXPIRY,
            stage=True,
            on_cold_tables=True,  # retention of the colder tier puts files into the trash too
            would="would erase",
            mark="purge",
            key_prefixes=("purge_", "delete_grace_"),
        ),
        Job.SWEEP: JobFacts(
            switch="orphan_sweep_enabled",
            strict_switch=True,
            pause=Pause.EXPIRY,
            stage=True,
            settles_trash=True,
            lists_table=True,
            would="would trash",
            mark="purge",
            key_prefixes=("orphan_", "sweep_", "own_places"),
        ),
        Job.COMPACT_HISTORY: JobFacts(
            switch="history_compaction_enabled",
            strict_switch=True,
            changes_table=False,
            would="would fold",
            key_prefixes=("history_",),
        ),
    }
)


def slot_of(job: Job | str) -> str:
    """The slot that a run of the job takes; for a job of a newer version, its name."""
    return (JOBS[Job(job)].slot if job in JOBS else "") or str(job)


def timed_as(job: Job, jobs: tuple[Job, ...]) -> Job:
    """The job whose times count for this one in a pass of these jobs."""
    other = JOBS[job].timed_with
    return other if other is not None and other in jobs else job
