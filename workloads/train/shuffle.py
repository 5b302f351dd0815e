"""A random permutation without stored state: an element depends on seed, epoch and index only."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Shuffle:
    """A permutation of 0 to `size` - 1 (a Feistel network with cycle walking: Black and Rogaway, CT-RSA 2002, section 4)."""

    size: int
    seed: int
    epoch: int

    def __getitem__(self, index: int) -> int:
        """Return the element at an index. Repeat the network while its value is outside the range."""
        half_bits = max(1, ((self.size - 1).bit_length() + 1) // 2)
        value = self._turn(index, half_bits)
        while value >= self.size:
            value = self._turn(value, half_bits)
        return value

    def _turn(self, value: int, half_bits: int) -> int:
        mask = (1 << half_bits) - 1
        left, right = value >> half_bits, value & mask
        for number in range(_ROUNDS):
            digest = hashlib.blake2b(f"{self.seed}/{self.epoch}/{number}/{right}".encode(), digest_size=8).digest()
            left, right = right, left ^ (int.from_bytes(digest) & mask)
        return left << half_bits | right
