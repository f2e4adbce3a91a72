"""Deletes many keys of one bucket and reports the result of each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
from botocore.parsers import ResponseParserError

from lakewarden import clock
from lakewarden.storage.s3_client import code, reason

# The most keys per request, and the most parallel requests: more would only cause SlowDown.
BULK, PARALLEL, PARALLEL_SINGLE = 1000, 4, 16
# Seconds before a retry for keys that a busy store refused in an accepted request; botocore retries only whole requests.
PAUSES = (0.2, 0.5, 1.0, 2.0)

_BUSY = {"InternalError", "ServiceUnavailable", "SlowDown", "RequestTimeout", "OperationAborted"}
_MISSING = {"404", "NoSuchKey"}
# Stores without the bulk request, or with another signature for it.
_NO_BULK = {"501", "NotImplemented", "405", "MethodNotAllowed", "MissingContentMD5", "InvalidDigest"}
# XML cannot contain these characters: such a key gets its own request.
_UNFIT_FOR_XML = re.compile("[\x00-\x1f\x7f-\x9f\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a key may still exist, and whether to retry: in its own request if the store's bulk answer does not
    mention the key.
    """

    reason: str
    again: bool = False
    alone: bool = False


class Deletion:
    """The work of one call. A key counts as deleted only if the store says so; deleting it twice is harmless."""

    def __init__(self, client: Any, bucket: str) -> None:
        self._client, self._bucket = client, bucket
        self._down: Failure | None = None

    def run(self, keys: Sequence[str]) -> dict[str, str]:
        """Delete the keys. Returns the keys that may still exist, with the reason."""
        alone = {key for key in keys if _UNFIT_FOR_XML.search(key)}
        failed = self._round(keys, alone)
        for pause in PAUSES:
            again = [key for key, failure in failed.items() if failure.again]
            if not again:
                break
            clock.sleep(pause)
            alone |= {key for key in again if failed[key].alone}
            failed = {key: each for key, each in failed.items() if not each.again} | self._round(again, alone)
        return {key: failed[key].reason for key in keys if key in failed}

    def _round(self, keys: Sequence[str], alone: Set[str]) -> dict[str, Failure]:
        together = [key for key in keys if key not in alone]
        failed = self._one_by_one([key for key in keys if key in alone])
        with ThreadPoolExecutor(PARALLEL, thread_name_prefix="delete-s3") as pool:
            for each in pool.map(self._bulk, _chunks(together)):
                failed |= each
        return failed

    def _bulk(self, keys: Sequence[str]) -> dict[str, Failure]:
        if self._down:
            return dict.fromkeys(keys, self._down)
        try:
            answer = self._client.delete_objects(
                Bucket=self._bucket, Delete={"Objects": [{"Key": key} for key in keys], "Quiet": False}
            )
        except ClientError as error:
            if code(error) in _NO_BULK:
                return self._one_by_one(keys)
            return dict.fromkeys(keys, Failure(reason(error)))
        except (BotoCoreError, ResponseParserError) as error:
            return dict.fromkeys(keys, self._unanswered(error))
        return _failures(keys, answer)

    def _one_by_one(self, keys: Sequence[str]) -> dict[str, Failure]:
        if not keys:
            return {}
        with ThreadPoolExecutor(PARALLEL_SINGLE, thread_name_prefix="delete-s3") as pool:
            answers = list(pool.map(self._single, keys))
        return {key: failure for key, failure in zip(keys, answers, strict=True) if failure}

    def _single(self, key: str) -> Failure | None:
        if self._down:
            return self._down
        try:
            self._client.delete_object(Bucket=self._bucket, Key=key)
        except ClientError as error:
            return None if code(error) in _MISSING else Failure(reason(error))
        except (BotoCoreError, ResponseParserError) as error:
            return self._unanswered(error)
        return None

    def _unanswered(self, error: Exception) -> Failure:
        """The failure for an answer that cannot be used. An unreadable answer is retried. If all attempts of
        botocore got no answer, the remaining keys are skipped.
        """
        if isinstance(error, HTTPClientError):
            self._down = Failure(f"no answer from the store: {reason(error)}")
            return self._down
        return Failure(f"no readable answer from the store: {reason(error)}", again=True)


def _chunks(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    return (keys[start : start + BULK] for start in range(0, len(keys), BULK))


def _failures(keys: Sequence[str], answer: Mapping[str, Any]) -> dict[str, Failure]:
    gone = {each["Key"] for each in answer.get("Deleted", ())}
    refused = {each["Key"]: each for each in answer.get("Errors", ()) if "Key" in each}
    failed = {key: _refusal(refused.get(key)) for key in keys if key not in gone}
    return {key: failure for key, failure in failed.items() if failure}


def _refusal(answer: Mapping[str, Any] | None) -> Failure | None:
    if answer is None:
        return Failure("the store's answer does not mention it", again=True, alone=True)
    name, message = answer.get("Code", "refused"), answer.get("Message", "")
    if name in _MISSING:
        return None
    return Failure(f"{name}: {message}" if message else name, again=name in _BUSY)
