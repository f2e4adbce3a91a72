"""Paimon tables in a bucket of a real S3 server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from lakewarden.storage.generation_file import WITNESS
from lakewarden.storage.objects import Objects
from tests.support.paimon import PaimonLab, lakewarden
from tests.support.s3 import REGION, Bucket


@dataclass
class BucketLab(PaimonLab):
    bucket: Bucket = field(kw_only=True)

    def place(self, table: str) -> str:
        return f"{self.bucket.url}/wh/db.db/{table.rsplit('.', 1)[1]}"

    def objects(self) -> dict[str, tuple[int, str]]:
        """Every object of the bucket with its size and etag.

        Without the marks of empty folders that Hadoop's S3 makes, and without what Lakewarden leaves beside the metadata.
        """
        batches = Objects(self.bucket.server.io()).list(self.bucket.url)
        rows = [row for batch in batches for row in batch.to_pylist()]
        return {
            row["path"]: (row["size"], row["stamp"])
            for row in rows
            if not row["path"].endswith(("/", WITNESS))
        }

    def on_disk(self, table: str) -> set[str]:
        return self.below(self.place(table))

    def below(self, place: str) -> set[str]:
        return {path.removeprefix(f"{place}/") for path in self.objects() if path.startswith(f"{place}/")}

    def put(self, table: str, name: str) -> None:
        self.bucket.put(f"{self._key(self.place(table))}/{name}")

    @contextmanager
    def twin(self, table: str) -> Iterator[tuple[Any, Any]]:
        """A copy for Paimon's own tools, elsewhere in the bucket."""
        here, there = self.place(table), f"{self.bucket.url}/twin"
        for name in self.on_disk(table):
            source = {"Bucket": self.bucket.name, "Key": f"{self._key(here)}/{name}"}
            self.bucket.client.copy_object(Bucket=self.bucket.name, Key=f"twin/{name}", CopySource=source)
        yield self.maker.at(self.load(table), there), there
        for name in self.below(there):
            self.bucket.client.delete_object(Bucket=self.bucket.name, Key=f"twin/{name}")

    def _key(self, path: str) -> str:
        return path.removeprefix(f"{self.bucket.url}/")


def s3_properties(bucket: Bucket) -> dict[str, str]:
    """In Paimon's words; few retries, so that a test of a server that is gone ends soon."""
    return {
        "s3.endpoint": bucket.server.endpoint,
        "s3.access-key": bucket.server.access_key,
        "s3.secret-key": bucket.server.secret_key,
        "s3.endpoint.region": REGION,
        "s3.path.style.access": "true",
        "s3.attempts.maximum": "1",
        "s3.retry.limit": "1",
    }


@contextmanager
def bucket_lab(spark: SparkSession, bucket: Bucket, folder: Path, **more: str) -> Iterator[BucketLab]:
    warehouse, properties = f"{bucket.url}/wh", {**s3_properties(bucket), **more}
    with lakewarden(spark, folder, warehouse=warehouse, **properties) as lw:
        yield BucketLab(
            spark, Path("nowhere"), lw, properties={**properties, "warehouse": warehouse}, bucket=bucket
        )
