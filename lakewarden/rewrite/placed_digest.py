"""A digest of values that must keep their positions: decoded columns in a file whose other columns are copied.

It is faster than the digest of rows, because it needs no hash of each row, and can be compared only with
digests of its own kind.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from lakewarden.rewrite.digest import Columns, Digest, Entries

_MASK = (1 << 64) - 1
# Rows weighted at a time, so that they stay in a core's second-level cache.
_BLOCK = 1 << 15
_WEIGHT = 0x9E37_79B9_7F4A_7C15
_WEIGHTS = np.arange(_BLOCK, dtype=np.uint64) * np.uint64(_WEIGHT)


def digest_in_place(
    batch: pa.RecordBatch, place: int, leave_out: frozenset[int] = frozenset(), known: Entries | None = None
) -> Digest:
    """The digest of these rows, the first of which is at `place`: the second sum weights each row by its place.

    `known` caches dictionaries from batch to batch; they must stay in memory.
    """
    columns = Columns(batch.num_rows, leave_out, known)
    for field, column in zip(batch.schema, batch.columns, strict=True):
        columns.add(field, column)
    sums = columns.sums()
    first = second = 0
    for start in range(0, len(sums), _BLOCK):
        part = sums[start : start + _BLOCK]
        here = int(np.add.reduce(part))
        np.multiply(part, _WEIGHTS[: len(part)], part)
        first += here
        second += int(np.add.reduce(part)) + here * (place + start) * _WEIGHT
    return Digest(len(sums), first & _MASK, second & _MASK)
