"""`python -m bench.gateway`: what the gateway adds to a commit, and how many commits it can reject.

The catalog is Iceberg's reference server on this machine. The client uses HTTP/1.1 over plain sockets,
because a client library would take longer than what is measured. Commits go directly and through the gateway
in turns, to the same table.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from bench.findings import Check
from lakewarden import clock
from tests.support.gateway import LINEAGE, gateway
from tests.support.rest_catalog import rest_catalog

_CONNECTIONS = 16
# Commits after which old snapshots expire, so that the table does not grow during the measurement.
_EVERY = 25


@dataclass(frozen=True, slots=True)
class Site:
    direct: str
    through: str
    uuid: str
    path: str = "/v1/namespaces/db/tables/t"

    def commit(self, number: int, **summary: str) -> bytes:
        snapshot = {
            "snapshot-id": number,
            "sequence-number": number,
            "timestamp-ms": 1_800_000_000_000 + number,
            "manifest-list": f"file:///nowhere/snap-{number}.avro",
            "summary": {"operation": "append", **LINEAGE, **summary},
            "schema-id": 0,
        }
        named = {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": number}
        return self._body({"action": "add-snapshot", "snapshot": snapshot}, named)

    def removal(self, numbers: list[int]) -> bytes:
        return self._body({"action": "remove-snapshots", "snapshot-ids": numbers})

    def _body(self, *updates: dict[str, Any]) -> bytes:
        same = {"type": "assert-table-uuid", "uuid": self.uuid}
        return json.dumps({"requirements": [same], "updates": list(updates)}).encode()


def measure(site: Site, commits: int, seconds: float, rate: float) -> tuple[Check, ...]:
    """Latency in turns, then rejections at a steady rate and at full speed."""
    direct, through = asyncio.run(_latencies(site, commits))
    paced = asyncio.run(_refusals(site, seconds, rate))
    full = asyncio.run(_refusals(site, seconds, None))
    return (
        Check("a commit directly, p50", 1000 * _at(direct, 0.5), unit=" ms"),
        Check("a commit directly, p99", 1000 * _at(direct, 0.99), unit=" ms"),
        Check("added by the gateway, p50", 1000 * (_at(through, 0.5) - _at(direct, 0.5)), most=3, unit=" ms"),
        Check("added by the gateway, p99", 1000 * (_at(through, 0.99) - _at(direct, 0.99)), unit=" ms"),
        Check(f"refusals a second, where {rate:g} are sent", paced.rate, least=0.99 * rate),
        Check("such a refusal, p99", 1000 * _at(paced.seconds, 0.99), unit=" ms"),
        Check("refusals a second, as fast as they go", full.rate, least=rate),
        Check("answers that were no refusal", paced.errors + full.errors, most=0),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gateway", description=__doc__)
    parser.add_argument(
        "--commits", type=int, default=500, help="commits, directly and through the gateway each"
    )
    parser.add_argument("--seconds", type=float, default=20, help="seconds of rejections")
    parser.add_argument("--rate", type=float, default=500, help="rejections per second that must be reached")
    parser.add_argument("--out", type=Path, help="write the results to this file, as JSON")
    options = parser.parse_args(arguments)
    with _site() as site:
        found = measure(site, options.commits, options.seconds, options.rate)
    for each in found:
        goal = "" if each.least is None and each.most is None else f"   {'met' if each.met else 'missed'}"
        print(f"{each.name:<45}{each.found:>10.2f}{each.unit}{goal}")
    if options.out:
        options.out.write_text(json.dumps([asdict(each) for each in found], indent=2), "utf-8")
    return 0 if all(each.met for each in found) else 1


@contextmanager
def _site() -> Iterator[Site]:
    with (
        tempfile.TemporaryDirectory(prefix="gateway-") as folder,
        rest_catalog(Path(folder) / "rest") as rest,
        gateway(Path(folder) / "gateway", rest.uri) as running,
    ):
        httpx.post(f"{rest.uri}/v1/namespaces", json={"namespace": ["db"], "properties": {}})
        field = {"id": 1, "name": "a", "type": "long", "required": False}
        schema = {"type": "struct", "schema-id": 0, "fields": [field]}
        made = httpx.post(f"{rest.uri}/v1/namespaces/db/tables", json={"name": "t", "schema": schema})
        yield Site(rest.uri, running.uri, made.json()["metadata"]["table-uuid"])


class _Line:
    """One connection that is kept open."""

    def __init__(self, uri: str, path: str) -> None:
        self._address = urlsplit(uri)
        self._path = path

    async def open(self) -> _Line:
        self._reader, self._writer = await asyncio.open_connection(self._address.hostname, self._address.port)
        return self

    async def post(self, body: bytes) -> tuple[int, float]:
        """The status, and the time for the whole answer."""
        head = f"POST {self._path} HTTP/1.1\r\nHost: {self._address.netloc}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        began = clock.monotonic()
        self._writer.write(head.encode() + body)
        told = await self._reader.readuntil(b"\r\n\r\n")
        await self._rest(told.lower())
        return int(told.split(b" ", 2)[1]), clock.monotonic() - began

    async def _rest(self, head: bytes) -> None:
        if b"content-length:" in head:
            await self._reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
            return
        while size := int(await self._reader.readline(), 16):
            await self._reader.readexactly(size + 2)
        await self._reader.readexactly(2)

    def close(self) -> None:
        self._writer.close()


async def _latencies(site: Site, pairs: int) -> tuple[list[float], list[float]]:
    lines = [await _Line(uri, site.path).open() for uri in (site.direct, site.through)]
    times: tuple[list[float], list[float]] = ([], [])
    number, last = 0, 0
    for pair in range(-_EVERY, pairs):  # the first commits warm up all three processes
        for which in (0, 1) if pair % 2 else (1, 0):
            number += 1
            status, seconds = await lines[which].post(site.commit(number))
            if status != 200:
                raise RuntimeError(f"a commit was answered with {status}")
            if pair >= 0:
                times[which].append(seconds)
        if pair % _EVERY == 0 and number - 1 > last:
            await lines[0].post(site.removal(list(range(last + 1, number))))
            last = number - 1
    for line in lines:
        line.close()
    return times


@dataclass(frozen=True, slots=True)
class _Load:
    rate: float
    seconds: list[float]
    errors: int


async def _refusals(site: Site, lasting: float, rate: float | None) -> _Load:
    """At this rate, each request is sent on time whether or not earlier ones were answered; None: each after
    the answer to the one before."""
    body, found, errors = site.commit(1, **{"writer.id": ""}), list[float](), 0
    began = clock.monotonic()

    async def sender(first: int) -> None:
        nonlocal errors
        line, number = await _Line(site.through, site.path).open(), first
        while clock.monotonic() - began < lasting:
            if rate is not None:
                await asyncio.sleep(max(0.0, began + number / rate - clock.monotonic()))
                number += _CONNECTIONS
            status, seconds = await line.post(body)
            found.append(seconds)
            errors += status != 403
        line.close()

    await asyncio.gather(*(sender(each) for each in range(_CONNECTIONS)))
    return _Load(len(found) / (clock.monotonic() - began), found, errors)


def _at(times: list[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(share * len(times)))]


if __name__ == "__main__":
    sys.exit(main())
