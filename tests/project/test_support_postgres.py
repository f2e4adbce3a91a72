"""The PostgreSQL the other tests rely on."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from tests.support.postgres import Postgres

pytestmark = pytest.mark.services


def test_databases_are_fresh_and_apart(postgres: Postgres) -> None:
    first, second = postgres.fresh_database(), postgres.fresh_database()
    with sa.create_engine(first.url).begin() as connection:
        connection.execute(sa.text("create table t (a int)"))
    with sa.create_engine(second.url).connect() as connection:
        assert not sa.inspect(connection).has_table("t")


def test_asks_for_the_password(postgres: Postgres) -> None:
    wrong = sa.make_url(postgres.fresh_database().url).set(password="wrong")
    with pytest.raises(sa.exc.OperationalError, match="password authentication failed"):
        sa.create_engine(wrong).connect()


def test_the_password_is_not_in_the_repr(postgres: Postgres) -> None:
    assert postgres.admin.password not in repr(postgres)
