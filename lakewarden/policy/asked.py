"""The jobs that a table's policy requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lakewarden.model.run import Job

if TYPE_CHECKING:  # only names are needed when a command starts
    from lakewarden.policy.resolve import Policy

# Jobs that a pass skips unless the policy switches them on.
WHERE_ASKED: Mapping[Job, str] = {
    Job.EXPIRE_PARTITIONS: "partition_expiry_enabled",
    Job.HANDOFF: "handoff_enabled",
    Job.SWEEP: "orphan_sweep_enabled",
    Job.COMPACT_HISTORY: "history_compaction_enabled",
}
SWITCHES: Mapping[Job, str] = {
    Job.COMPACT_DELETES: "delete_compaction_enabled",
    Job.COMPACT: "rewrite_enabled",
    Job.REWRITE_MANIFESTS: "manifest_rewrite_enabled",
    Job.EXPIRE: "snapshot_expiry_enabled",
    **WHERE_ASKED,
}


def jobs_by(policy: Policy) -> tuple[Job, ...]:
    """The jobs that a table's policy requests, in the order of a pass."""
    return tuple(job for job in Job if job not in SWITCHES or policy.bool(SWITCHES[job]))
