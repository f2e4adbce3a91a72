"""What the gateway is told before it listens, and what it changes in the requests and answers it passes."""

from __future__ import annotations

import gzip
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from lakewarden.cli import main
from lakewarden.config.schema import Config
from lakewarden.errors import ConfigError
from lakewarden.gateway import responses as answers
from lakewarden.gateway.responses import GatewayResponse
from lakewarden.gateway.server import catalog_behind, without_address
from lakewarden.gateway.upstream import forwarded

REST = {"type": "rest", "uri": "http://127.0.0.1:1"}
OTHER = {"type": "hadoop", "warehouse": "/w"}


def config(catalogs: dict[str, Any], **gateway: Any) -> Config:
    return Config.from_dict({"catalogs": catalogs, "gateway": gateway}, {})


def test_it_stands_before_the_named_catalog_or_the_only_rest_catalog_there_is() -> None:
    assert catalog_behind(config({"a": REST, "b": OTHER})).name == "a"
    assert catalog_behind(config({"a": REST, "b": REST}, catalog="b")).name == "b"
    made_by = {"catalog-impl": "org.apache.iceberg.rest.RESTCatalog", "uri": "https://x"}
    assert catalog_behind(config({"a": made_by})).name == "a"


@pytest.mark.parametrize(
    ("catalogs", "named", "told"),
    [
        ({"b": OTHER}, {}, "REST catalogs are: none"),
        ({"a": REST, "b": REST}, {}, "REST catalogs are: a, b"),
        ({"a": REST, "b": OTHER}, {"catalog": "b"}, "which is no REST catalog"),
        ({"a": REST}, {"catalog": "c"}, "there is no such catalog"),
        ({"a": {"type": "rest"}}, {"catalog": "a"}, "which is no REST catalog with a uri"),
    ],
)
def test_which_catalog_is_meant_is_never_guessed(
    catalogs: dict[str, Any], named: dict[str, str], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        catalog_behind(config(catalogs, **named))


def written(folder: Path, gateway: str = "") -> str:
    path = folder / "lakewarden.toml"
    state = f'[state]\nurl = "sqlite:///{folder}/state.db"\n'
    path.write_text(
        f'{state}[catalogs.a]\ntype = "rest"\nuri = "http://127.0.0.1:1"\n[gateway]\n{gateway}', "utf-8"
    )
    return str(path)


def test_a_port_that_is_taken_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["--config", written(tmp_path), "gateway", "--port", str(port)]) == 2
    said = capsys.readouterr()
    assert f"listen on 127.0.0.1 port {port}: Address already in use" in said.err and "--port" in said.err


@pytest.mark.parametrize("more", ["", 'tls_key = "key.pem"\n'])
def test_a_certificate_that_cannot_be_used_is_told(
    more: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, 'tls_certificate = "cert.pem"\n' + more)
    assert main(["--config", path, "gateway"]) == 2
    assert "gateway.tls_certificate" in capsys.readouterr().err


def test_an_address_in_the_catalogs_configuration_is_taken_out_and_nothing_else() -> None:
    told = {
        "defaults": {"uri": "http://a", "b": "c"},
        "overrides": {"uri": "http://d", "prefix": "p"},
        "endpoints": [],
    }
    changed = without_address(answers.document(told))
    assert json.loads(changed.body) == {"defaults": {"b": "c"}, "overrides": {"prefix": "p"}, "endpoints": []}
    assert dict(changed.headers)[b"content-length"] == str(len(changed.body)).encode()
    for body in (b'{"defaults": {}, "overrides": {"prefix": "p"}}', b'{"overrides": null}'):
        same = GatewayResponse(200, (), body)
        assert without_address(same) is same
    for body in (b"no json", b"[]", gzip.compress(b"{}"), b"[" * 200_000):
        assert without_address(GatewayResponse(200, (), body)).status == 503, "there may be an address in it"
    failed = GatewayResponse(500, (), b'{"overrides": {"uri": "x"}}')
    assert without_address(failed) is failed


def test_headers_between_two_neighbours_go_no_further() -> None:
    sent = [
        (b"Host", b"gateway"),
        (b"Connection", b"close, X-One"),
        (b"X-One", b"1"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Upgrade", b"h2c"),
        (b"Expect", b"100-continue"),
        (b"Authorization", b"Bearer x"),
        (b"X-Iceberg-Access-Delegation", b"vended-credentials"),
    ]
    assert forwarded(sent) == sent[-2:]
