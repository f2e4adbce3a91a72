"""Errors for Paimon catalogs that cannot be reached, with a hint what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from lakewarden.errors import LakewardenError, Outage, Unreachable
from lakewarden.model.location import S3, local_path, scheme_of
from lakewarden.tables.errors import no_warehouse
from lakewarden.tables.jvm import is_java, java_causes, java_reason
from lakewarden.tables.paimon.io_properties import address

# The message of S3 without the request ids, which do not help the user.
_S3_ANSWER = re.compile(r"\(Service: (\w+), Status Code: (\d+)[^)]*\).*")
_METASTORES = "`metastore` is filesystem (the default), jdbc, rest or hive"


def catalog_error(error: BaseException, what: str) -> LakewardenError:
    """The error for a Java exception from a catalog or its files, with a message for users."""
    return Unreachable(what=what, reason=_reason(error), kind=Outage.CATALOG, hint=_hint_from_s3(error))


def cannot_open(error: BaseException, catalog: str, properties: Mapping[str, str]) -> LakewardenError:
    """The error for a catalog that does not answer or cannot be opened, with its address and a hint."""
    where = address(properties)
    what = f"catalog {catalog} ({where})" if where else f"catalog {catalog}"
    hint = _hint_from_classes(error, properties) or _hint_from_s3(error)
    return Unreachable(what=what, reason=_reason(error), kind=Outage.CATALOG, hint=hint)


def refuse_missing_folder(catalog: str, properties: Mapping[str, str]) -> None:
    """Raises if the warehouse folder is missing. Paimon would create it: a wrong name or a missing mount would look like an
    empty lake."""
    folder = local_path(properties.get("warehouse", ""))
    if properties.get("metastore", "filesystem") != "filesystem" or not folder or not folder.startswith("/"):
        return
    if not Path(folder).is_dir():
        raise no_warehouse(catalog, folder)


def _reason(error: BaseException) -> str:
    return _S3_ANSWER.sub(r"(\1 says \2)", java_reason(error))


def _hint_from_s3(error: BaseException) -> str | None:
    """A hint for known S3 errors; None if the usual hint is right."""
    messages = " ".join(message for _, message in java_causes(error))
    if "Status Code: 400" in messages:
        return (
            "S3 gives this answer if requests are signed for another region: set s3.endpoint.region for the catalog, "
            "and check its other s3 properties"
        )
    return None


def _hint_from_classes(error: BaseException, properties: Mapping[str, str]) -> str | None:
    """A hint if Paimon lacks a jar or a property to open such a catalog; None otherwise."""
    warehouse = properties.get("warehouse", "")
    scheme = scheme_of(warehouse)
    if is_java(error, "FactoryException"):
        return _METASTORES
    if (
        scheme in S3
        and scheme != "s3"
        and is_java(error, "ClassNotFoundException", "UnsupportedSchemeException")
    ):
        return f"Paimon's S3 client accepts only s3://: set warehouse to s3{warehouse[3:]}"
    if not is_java(error, "UnsupportedSchemeException"):
        return None
    if scheme == "s3" and not _has_keys(properties):
        return "set s3.access-key and s3.secret-key for the catalog: Paimon requires both"
    return (
        f"the session lacks Paimon's jar for {scheme}://, paimon-{scheme}: add it to `jars` under [spark], or to the session's own; "
        f"`python -m lakewarden.spark.jars paimon-s3` fetches the one for s3"
    )


def _has_keys(properties: Mapping[str, str]) -> bool:
    return all(
        f"s3.{name}-key" in properties or f"s3.{name}.key" in properties for name in ("access", "secret")
    )
