"""The S3 servers the other tests rely on."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from botocore.exceptions import ClientError

from tests.support.ports import answers
from tests.support.s3 import S3, s3_server

pytestmark = pytest.mark.services


@pytest.fixture(params=["s3", "exact_s3"])
def server(request: pytest.FixtureRequest) -> S3:
    found: S3 = request.getfixturevalue(request.param)
    return found


def test_listens_on_the_loopback_only(server: S3) -> None:
    connections = psutil.Process(server.pid).net_connections("tcp")
    listening = {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}


def test_takes_one_writer_of_two(server: S3) -> None:
    """Conditional writes, which decide races between committers on S3."""
    bucket = server.bucket()
    bucket.client.put_object(Bucket=bucket.name, Key="x", Body=b"first", IfNoneMatch="*")
    with pytest.raises(ClientError, match="PreconditionFailed"):
        bucket.client.put_object(Bucket=bucket.name, Key="x", Body=b"second", IfNoneMatch="*")


def test_objects_survive_a_crash(tmp_path: Path) -> None:
    with s3_server(tmp_path) as server:
        if server.kind == "moto":
            pytest.skip("moto keeps objects in memory")
        bucket = server.bucket()
        bucket.put("x", b"abc")
        server.kill()
        assert not answers(server.port)
        server.start()
        assert bucket.client.get_object(Bucket=bucket.name, Key="x")["Body"].read() == b"abc"
