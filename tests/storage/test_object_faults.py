"""A store that is slow, busy, cut off or garbled: a listing is whole or raises, a deletion tells of every path."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from lakewarden.errors import Unreachable
from lakewarden.storage.objects import Objects
from tests.support.faults import Faults, proxy
from tests.support.s3 import MOTO_PAGE, S3, Bucket

pytestmark = pytest.mark.services

KEYS = [f"t/{number:04}" for number in range(5 * MOTO_PAGE)]


@pytest.fixture
def bucket(exact_s3: S3) -> Bucket:
    made = exact_s3.bucket()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(made.put, KEYS))
    made.put("large", b"x" * 5000)
    return made


@pytest.fixture
def faults(exact_s3: S3) -> Iterator[Faults]:
    with proxy(exact_s3.port) as made:
        yield made


@pytest.fixture
def objects(exact_s3: S3, faults: Faults) -> Objects:
    return Objects({**exact_s3.io(faults.endpoint), "s3.request-timeout": "2"})


def paths(bucket: Bucket) -> list[str]:
    return [f"{bucket.url}/{key}" for key in KEYS]


def listed(objects: Objects, bucket: Bucket) -> list[str]:
    return sorted(path for batch in objects.list(f"{bucket.url}/t") for path in batch["path"].to_pylist())


def left(bucket: Bucket) -> list[str]:
    """Asked without the proxy."""
    return listed(Objects(bucket.server.io()), bucket)


def test_without_faults(objects: Objects, bucket: Bucket, faults: Faults) -> None:
    assert listed(objects, bucket) == paths(bucket)
    assert objects.delete(paths(bucket)) == {}
    assert left(bucket) == []
    assert faults.requests >= 6


def test_signatures_survive_the_proxy(s3: S3) -> None:
    with proxy(s3.port) as faults:
        made = s3.bucket()
        made.put("t/x y+z")
        assert listed(Objects(s3.io(faults.endpoint)), made) == [f"{made.url}/t/x y+z"]


def test_a_store_that_is_busy_now_and_then(objects: Objects, bucket: Bucket, faults: Faults) -> None:
    faults.busy_every = 3
    assert listed(objects, bucket) == paths(bucket)
    assert all(objects.stat(paths(bucket)[:9]))
    assert objects.delete(paths(bucket)) == {}
    assert left(bucket) == []


def test_a_store_that_stays_busy(objects: Objects, bucket: Bucket, faults: Faults) -> None:
    faults.busy_from = 3
    with pytest.raises(Unreachable, match=f"reach bucket {bucket.name}: SlowDown"):
        listed(objects, bucket)
    with pytest.raises(Unreachable):
        objects.stat(paths(bucket)[:1])
    failed = objects.delete(paths(bucket))
    assert list(failed) == paths(bucket)
    assert set(failed.values()) == {"SlowDown: Please reduce your request rate."}
    assert left(bucket) == paths(bucket)


@pytest.mark.parametrize("after", [0, 300])
def test_connections_cut_in_the_middle_of_an_answer(
    objects: Objects, bucket: Bucket, faults: Faults, after: int
) -> None:
    faults.cut_from, faults.cut_after = 3, after
    with pytest.raises(Unreachable, match=f"reach bucket {bucket.name}"):
        listed(objects, bucket)
    with pytest.raises(Unreachable, match="IncompleteRead"):
        objects.read(f"{bucket.url}/large")
    failed = objects.delete(paths(bucket))
    assert set(left(bucket)) <= set(failed), "no key may count as gone that is not"
    if after:
        assert list(failed) == paths(bucket), "half an answer is none"


def test_a_store_that_is_slow(objects: Objects, bucket: Bucket, faults: Faults) -> None:
    faults.latency = 0.05
    assert listed(objects, bucket) == paths(bucket)
    assert objects.delete(paths(bucket)[:10]) == {}


def test_a_store_that_takes_too_long(bucket: Bucket, faults: Faults) -> None:
    faults.latency = 1.0
    hasty = {**bucket.server.io(faults.endpoint), "s3.request-timeout": "0.2", "s3.retry.num-retries": "1"}
    with pytest.raises(Unreachable, match=r"(?i)timeout"):
        listed(Objects(hasty), bucket)


def test_a_broken_answer_to_a_deletion_is_asked_for_again(
    objects: Objects, bucket: Bucket, faults: Faults
) -> None:
    faults.break_deletes = 1
    assert objects.delete(paths(bucket)) == {}
    assert left(bucket) == []


def test_answers_that_stay_broken_make_no_success(objects: Objects, bucket: Bucket, faults: Faults) -> None:
    faults.break_deletes = 1000
    failed = objects.delete(paths(bucket))
    assert list(failed) == paths(bucket)
    assert all(failed.values())


def test_keys_refused_within_an_accepted_request(objects: Objects, bucket: Bucket, faults: Faults) -> None:
    faults.refuse_keys = {KEYS[3], KEYS[77]}
    failed = objects.delete(paths(bucket))
    assert failed == {f"{bucket.url}/{key}": "InternalError: try again" for key in sorted(faults.refuse_keys)}
    # The store acted although it said otherwise; asking again once it answers settles it.
    faults.refuse_keys = set()
    assert objects.delete(list(failed)) == {}
    assert left(bucket) == []


def test_a_key_the_answer_does_not_mention_is_asked_for_alone(
    objects: Objects, bucket: Bucket, faults: Faults
) -> None:
    faults.forget_keys = {KEYS[5], KEYS[6]}
    assert objects.delete(paths(bucket)) == {}
    assert left(bucket) == []
    assert sorted(faults.alone) == sorted(f"/{bucket.name}/{key}" for key in faults.forget_keys)
