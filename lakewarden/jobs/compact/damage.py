"""Damage in files that the formats' own writers are about to read. These writers do not check page
checksums, so wrong values would become the table's rows or deletes. The kernel decodes the files first, with checksums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from lakewarden.jobs.fsck.decode import data_footers, decode, delete_footers
from lakewarden.jobs.run_context import RunContext
from lakewarden.model.actions import RewriteGroup
from lakewarden.model.files import FileSet
from lakewarden.model.location import normal
from lakewarden.model.table import TableView
from lakewarden.rewrite.interface import GroupResult, RewriteProblem
from lakewarden.rewrite.read.decode import Footer, WrongFooter
from lakewarden.spark.tasks import Meter, task_reason
from lakewarden.tables.jvm import JavaError

_ADVICE = "`lakewarden fsck TABLE --deep` names every damaged file"


def sound(
    groups: Sequence[RewriteGroup], view: TableView, files: FileSet, context: RunContext
) -> tuple[list[RewriteGroup], list[GroupResult]]:
    """Groups without a damaged file, and the damage of the others."""
    places = sorted({place for group in groups for place in group.deletes})
    paths = pa.array([path for group in groups for path in group.paths()], pa.string())
    taken = replace(
        files,
        files=files.files.filter(pc.is_in(files.files["path"], value_set=paths)),
        deletes=tuple(files.deletes[place] for place in places),
    )
    wrong = _damaged([*data_footers(taken)[0], *delete_footers(taken)[0]], view, context)
    at_fault = {normal(each.path): each for each in wrong}
    good, bad = [], []
    for group in groups:
        named = [*group.paths(), *(files.deletes[place].path for place in group.deletes)]
        first = next((at_fault[path] for path in map(normal, named) if path in at_fault), None)
        if first is None:
            good.append(group)
        else:
            bad.append(
                GroupResult(group, (), RewriteProblem(False, "", f"{first}; {_ADVICE}"), engine=group.engine)
            )
    return good, bad


def merge_trouble(view: TableView, files: FileSet, context: RunContext) -> str:
    """Why position-delete files cannot be merged, empty where they can. Those that came since the plan are not looked at."""
    wanted = [each for each in delete_footers(files)[0] if each.delete and each.delete.kind == "position"]
    try:
        wrong = _damaged(wanted, view, context)
    except JavaError as error:
        return f"cannot merge delete files: {task_reason(error)}"
    return f"cannot merge delete files: {wrong[0]}; {_ADVICE}" if wrong else ""


def _damaged(wanted: Sequence[Footer], view: TableView, context: RunContext) -> list[WrongFooter]:
    """A store that only the format's library reaches is no damage, nor is a type that only it decodes."""
    io = context.format.write_properties(view.ref)
    what = f"lakewarden {view.ref}: checksums of {len(wanted)} files"
    wrong = decode(context.spark, wanted, io, Meter(context.spark), context.run_id, what)
    return [each for each in wrong if each.damaged]
