"""Training batches. A rank's batch depends on the settings, the number of previous sequences, and the rank only.

Shapes: B sequences of a micro-batch, L sequence length.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

import torch

from workloads.common.errors import DataError
from workloads.train.shuffle import Shuffle
from workloads.train.token_file import TokenFile, open_token_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from workloads.train.settings import Settings

IGNORED = -100
"""The target of an ignored position: the default of cross_entropy."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch: the tokens, and the expected next tokens."""

    tokens_BL: Tensor
    targets_BL: Tensor

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device."""
        return Batch(self.tokens_BL.to(device, non_blocking=True), self.targets_BL.to(device, non_blocking=True))


@dataclass(frozen=True, slots=True)
class Part:
    """A rank's part of each global batch, counted from 0, and its positions of each sequence, None for all."""

    number: int
    of: int
    positions: Tensor | None = None


class Samples(Protocol):
    """Sequences by number. Numbers beyond the end belong to the next epoch."""

    def sample(self, number: int) -> tuple[Tensor, Tensor]:
        """Return the tokens and the targets of a sequence."""
        ...


class SyntheticSamples:
    """Synthetic sequences with a rule to learn: each token is a function of the previous one, except one in eight, which is random."""

    def __init__(self, vocabulary: int, length: int, seed: int) -> None:
        """Store the parameters of the rule."""
        self.vocabulary, self.length, self.seed = vocabulary, length, seed

    def sample(self, number: int) -> tuple[Tensor, Tensor]:
        """Generate a sequence."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        noise = torch.randint(self.vocabulary, (self.length + 1,), generator=generator).tolist()
        fresh = (torch.rand(self.length + 1, generator=generator) < 1 / 8).tolist()
        values = [noise[0]]
        for index in range(1, self.length + 1):
            values.append(noise[index] if fresh[index] else (values[-1] * 5 + 7) % self.vocabulary)
        sequence = torch.tensor(values)
        return sequence[:-1], sequence[1:]


class TextSamples:
    """Windows of token files, in a random order that changes with the epoch."""

    def __init__(self, files: Sequence[TokenFile], length: int, seed: int) -> None:
        """Count the windows of each file."""
        self.files, self.length, self.seed = files, length, seed
        windows = [(file.header.tokens - 1) // length for file in files]
        self.ends = list(accumulate(windows))
        if not self.ends[-1]:
            raise DataError(
                f"{files[0].path}: not one sequence of {length} tokens", fix="prepare more text, or lower train.sequence_length"
            )

    def sample(self, number: int) -> tuple[Tensor, Tensor]:
        """Read a window from its file."""
        epoch, index = divmod(number, self.ends[-1])
        window = Shuffle(self.ends[-1], self.seed, epoch)[index]
        which = bisect_right(self.ends, window)
        start = (window - (self.ends[which - 1] if which else 0)) * self.length
        sequence = self.files[which].read(start, self.length + 1)
        return sequence[:-1], sequence[1:]


class ExampleSamples:
    """Prompts with responses, one per sequence. Only the tokens of the response are targets."""

    def __init__(self, files: Sequence[TokenFile], length: int, seed: int) -> None:
        """Compute the start of each example."""
        self.files, self.length, self.seed = files, length, seed
        self.lengths = [file.lengths.long() for file in files if file.lengths is not None]
        self.starts = [lengths[:, 1].cumsum(0) - lengths[:, 1] for lengths in self.lengths]
        self.ends = list(accumulate(len(lengths) for lengths in self.lengths))
        too_long = sum(int((lengths[:, 0] > length).sum()) for lengths in self.lengths)
        if too_long:
            raise DataError(
                f"{files[0].path}: {too_long} of {self.ends[-1]} prompts fill train.sequence_length ({length}) and leave no response",
                fix="raise train.sequence_length, or prepare the data with --longest",
            )

    def sample(self, number: int) -> tuple[Tensor, Tensor]:
        """Return an example, padded or truncated to the sequence length."""
        epoch, index = divmod(number, self.ends[-1])
        example = Shuffle(self.ends[-1], self.seed, epoch)[index]
        which = bisect_right(self.ends, example)
        row = example - (self.ends[which - 1] if which else 0)
        prompt, total = self.lengths[which][row].tolist()
        start = int(self.starts[which][row])
        taken = min(total, self.length + 1)
        sequence = torch.full((self.length + 1,), self.files[which].header.end_of_text)
        sequence[:taken] = self.files[which].read(start, taken)
        targets = sequence[1:].clone()
        targets[: prompt - 1] = IGNORED
        targets[taken - 1 :] = IGNORED
        return sequence[:-1], targets


def open_samples(settings: Settings, *, kind: str) -> Samples:
    """Open the data in the settings; `kind` is `text` or `examples`."""
    length, seed = settings.train.sequence_length, settings.train.seed
    if settings.data.source == "synthetic":
        return SyntheticSamples(settings.model.vocabulary, length, seed)
    files = [open_token_file(name, kind=kind, vocabulary=settings.model.vocabulary) for name in settings.data.files]
    return TextSamples(files, length, seed) if kind == "text" else ExampleSamples(files, length, seed)


class Batches:
    """The micro-batches of each step for one data rank, prefetched by a thread."""

    def __init__(self, samples: Samples, settings: Settings, part: Part, *, steps: int, first_sequence: int) -> None:
        """Prepare `steps` steps, starting at the sequence with this number."""
        self._positions = part.positions
        self._samples = samples
        self._global, self._micro = settings.train.global_batch, settings.train.micro_batch
        self._share = settings.train.global_batch // part.of
        self._offset = part.number * self._share
        self._ahead = settings.data.prefetch_steps
        self._next, self._end = first_sequence, first_sequence + steps * self._global
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="read-ahead")
        self._waiting: deque[Future[list[Batch]]] = deque()

    def next_step(self) -> list[Batch]:
        """Return the micro-batches of the next step; wait if they are not prefetched yet."""
        while len(self._waiting) <= self._ahead and self._next < self._end:
            self._waiting.append(self._reader.submit(self._read, self._next))
            self._next += self._global
        return self._waiting.popleft().result()

    def close(self) -> None:
        """Stop reading."""
        self._reader.shutdown(wait=True, cancel_futures=True)

    def _read(self, first_of_all: int) -> list[Batch]:
        first = first_of_all + self._offset
        pairs = [self._samples.sample(number) for number in range(first, first + self._share)]
        return [self._stack(pairs[start : start + self._micro]) for start in range(0, self._share, self._micro)]

    def _stack(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> Batch:
        tokens_BL, targets_BL = (torch.stack(part) for part in zip(*pairs, strict=True))
        if self._positions is None:
            return Batch(tokens_BL, targets_BL)
        return Batch(tokens_BL[:, self._positions], targets_BL[:, self._positions])
