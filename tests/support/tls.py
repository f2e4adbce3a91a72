"""A certificate for 127.0.0.1 that nobody signed, and clients from another address of this machine."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import httpx


def pair(folder: Path) -> dict[str, str]:
    """The settings of a server that speaks TLS."""
    folder.mkdir(parents=True, exist_ok=True)
    key, certificate = folder / "key.pem", folder / "cert.pem"
    made = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost "
        f"-addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {certificate}"
    )
    subprocess.run(made.split(), check=True, capture_output=True)
    return {"tls_certificate": str(certificate), "tls_key": str(key)}


def elsewhere(settings: dict[str, str]) -> httpx.Client:
    """A client that trusts the certificate and comes from 127.0.0.2."""
    trusted = ssl.create_default_context(cafile=settings["tls_certificate"])
    return httpx.Client(transport=httpx.HTTPTransport(verify=trusted, local_address="127.0.0.2"), timeout=15)
