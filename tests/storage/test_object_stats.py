"""Asking after many keys at once on S3: the answers are those of asking for each alone, in far fewer requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from botocore.exceptions import ClientError

from lakewarden.errors import Unreachable
from lakewarden.storage.objects import Objects
from tests.storage.test_objects import Place, fill, in_bucket
from tests.support.faults import proxy
from tests.support.s3 import MOTO_PAGE, S3

pytestmark = pytest.mark.services


def alone(place: Place, keys: Iterable[str]) -> list[Any]:
    return [stat for key in keys for stat in place.objects.stat([place.path(key)])]


def together(place: Place, keys: Sequence[str]) -> list[Any]:
    return place.objects.stat([place.path(key) for key in keys])


@pytest.mark.parametrize(("server", "scheme"), [("s3", "s3"), ("s3", "s3a"), ("exact_s3", "s3")])
def test_agrees_with_asking_one_by_one(request: pytest.FixtureRequest, server: str, scheme: str) -> None:
    """Names stores encode in several ways, keys that are not there, folders inside, and neighbours nobody asks after."""
    place = in_bucket(request.getfixturevalue(server), scheme)
    names = [f"{number:03}" for number in range(3 * MOTO_PAGE)]
    names += ["a b", "a+b", "a%20b", "a%2Bb", "ü", "x=y", "&<>", "z"]
    keys = [f"t/p=q r+s%/{name}" for name in names]
    others = [f"t/p=q r+s%/0{name}" for name in names] + [f"t/p=q r+s%/in/{name}" for name in names]
    fill(place, [*keys, *others])
    wanted = [*reversed(keys), *(f"{key}-gone" for key in keys), keys[0], "nowhere/x"]
    found = together(place, wanted)
    assert found == alone(place, wanted)
    assert [each is not None for each in found] == [True] * len(keys) + [False] * len(keys) + [True, False]


def test_takes_few_requests_where_keys_are_near(exact_s3: S3) -> None:
    with proxy(exact_s3.port) as faults:
        place = in_bucket(exact_s3)
        objects = Objects(exact_s3.io(faults.endpoint))
        near = [f"t/d=1/{number:04}" for number in range(10 * MOTO_PAGE)]
        fill(place, near)
        assert all(objects.stat([place.path(key) for key in near]))
        assert faults.requests <= 11


def test_takes_few_more_where_keys_are_far_apart(exact_s3: S3) -> None:
    with proxy(exact_s3.port) as faults:
        place = in_bucket(exact_s3)
        objects = Objects(exact_s3.io(faults.endpoint))
        fill(place, [f"t/d=1/{number:04}" for number in range(10 * MOTO_PAGE)])
        far = [f"t/d=1/{number:04}" for number in range(0, 10 * MOTO_PAGE, 10)]
        assert all(objects.stat([place.path(key) for key in far]))
        assert faults.requests == len(far) + 1 - 4, "four were on the one page that was looked at"


def test_what_a_listing_does_not_show_is_asked_for(exact_s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that lists in an order of its own, from the beginning, cut short, or not at all."""
    place = in_bucket(exact_s3)
    keys = [f"t/{number:04}" for number in range(3 * MOTO_PAGE)]
    fill(place, keys)
    whole = together(place, keys)
    assert all(whole)
    for answer in (
        lambda real: {**real, "Contents": real["Contents"][::-1][:30]},
        lambda real: {**real, "Contents": [], "IsTruncated": True},
        lambda real: {**real, "Contents": [{**row, "Key": f"x{row['Key']}"} for row in real["Contents"]]},
        lambda real: {},
    ):
        real = place.objects._s3.list_objects_v2
        with monkeypatch.context() as patched:
            patched.setattr(
                place.objects._s3, "list_objects_v2",
                lambda real=real, answer=answer, **asked: answer(real(**{**asked, "StartAfter": ""})),
            )  # fmt: skip
            assert together(place, keys) == whole


def test_whoever_may_not_list_asks_for_each(exact_s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    place = in_bucket(exact_s3)
    keys = [f"t/{number:04}" for number in range(MOTO_PAGE)]
    fill(place, keys)

    def denied(**_: Any) -> None:
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "ListObjectsV2")

    place.objects.stat([place.path("t/0000")])
    monkeypatch.setattr(place.objects._s3, "list_objects_v2", denied)
    assert all(together(place, keys))


def test_a_store_that_stays_busy_is_told(exact_s3: S3) -> None:
    with proxy(exact_s3.port) as faults:
        place = in_bucket(exact_s3)
        faults.busy_from = 1
        objects = Objects(exact_s3.io(faults.endpoint))
        with pytest.raises(Unreachable, match="SlowDown"):
            objects.stat([place.path(f"t/{number}") for number in range(100)])
        assert faults.requests <= 3, "a busy store is not asked for each key on top"
