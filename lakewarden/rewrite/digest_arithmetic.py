"""The arithmetic of `digest`: folding, spreading and mixing 64-bit words, and the keys of fields and positions."""

from __future__ import annotations

import math
import threading
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

MASK = (1 << 64) - 1


def _root(number: int) -> np.uint64:
    """The first 64 binary digits of a square root's fraction, made odd: constants that are not chosen by hand."""
    return np.uint64(math.isqrt(number << 128) & MASK | 1)


SCATTER, MIX, START, SEQUENCE, LENGTH, BEYOND, ROW, AGAIN, TWICE = map(
    _root, (2, 3, 5, 7, 11, 13, 17, 19, 23)
)
HALF = np.uint64(32)
NAN = np.uint64(0x7FF8 << 48)

# Values mixed at a time, so that scratch memory and input stay in a core's second-level cache. Half or twice as
# many cost 5 % more, a quarter as many 20 % more; new memory for a whole batch would cost three times as much.
BLOCK = 49_152


class Scratch(threading.local):
    """Reusable memory that keeps nothing between two calls: allocating it each time would cost as much as the arithmetic."""

    def __init__(self) -> None:
        self._blocks = np.empty((2, BLOCK), np.uint64)

    def of(self, words: int) -> tuple[Words, Words]:
        return self._blocks[0, :words], self._blocks[1, :words]


scratch = Scratch()


def fold(words: Words, spare: Words) -> Words:
    return np.bitwise_xor(words, np.right_shift(words, HALF, spare), words)


def spread(words: Words, first: np.uint64, second: np.uint64 | Words, out: Words, spare: Words) -> Words:
    """One to one, and zero maps to zero. Enough for values that are added and folded again; one fold less saves
    a fifth of the time.
    """
    np.multiply(words, first, out)
    np.multiply(fold(out, spare), second, out)
    return out


def mix(words: Words, first: np.uint64, second: np.uint64, out: Words) -> Words:
    """Spread and fold, so that no sum of these can be constructed from parts. At most one block at a time."""
    spare = scratch.of(len(words))[1]
    return fold(spread(words, first, second, out, spare), spare)


def keys(numbers: Words) -> Words:
    started = numbers + START
    return mix(started, SCATTER, MIX, started) | np.uint64(1)


@lru_cache(maxsize=4096)
def field_keys(id_: int) -> tuple[np.uint64, np.uint64, np.uint64]:
    first, second, here = keys(np.arange(4 * id_, 4 * id_ + 3, dtype=np.uint64))
    return first, second, here


def position_keys(first: int, count: int) -> Words:
    """Keys of the words of a sequence; precomputed for all but very long strings."""
    if first + count <= len(_EARLY):
        return _EARLY[first : first + count]
    return keys(np.arange(first, first + count, dtype=np.uint64) * np.uint64(4) + np.uint64(3))


_EARLY = keys(np.arange(BLOCK, dtype=np.uint64) * np.uint64(4) + np.uint64(3))
