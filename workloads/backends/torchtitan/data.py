"""The data of the native trainer for TorchTitan: synthetic sequences, or token files of prepare_data.py.

A rank's batch depends on the number of previous sequences of the run, so a run can resume with another number of ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torchtitan.components.dataloader import BaseDataLoader

from workloads.train.data import Samples, SyntheticSamples, TextSamples
from workloads.train.token_file import open_token_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor


def open_samples(settings: Mapping[str, Any], vocabulary: int) -> Samples:
    """Open the data that the common settings name."""
    length, seed = settings["train.sequence_length"], settings["train.seed"]
    if settings["data.source"] == "synthetic":
        return SyntheticSamples(vocabulary, length, seed)
    return TextSamples([open_token_file(name, kind="text", vocabulary=vocabulary) for name in settings["data.files"]], length, seed)


def end_of_text(settings: Mapping[str, Any], vocabulary: int) -> int:
    """Return the token between two documents; -1 if there is none."""
    if settings["data.source"] == "synthetic":
        return -1
    return open_token_file(settings["data.files"][0], kind="text", vocabulary=vocabulary).header.end_of_text


class SampleLoader(BaseDataLoader):  # type: ignore[misc]  # TorchTitan is not installed where types are checked
    """The micro-batches of one data-parallel rank."""

    def __init__(self, samples: Samples, *, batch: int, rank: int, ranks: int) -> None:
        """Start with the first sequence."""
        self._samples, self._batch, self._rank, self._ranks = samples, batch, rank, ranks
        self._taken = 0  # sequences that all ranks together have read

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
        """Return micro-batches without end."""
        while True:
            first = self._taken + self._rank * self._batch
            pairs = [self._samples.sample(first + index) for index in range(self._batch)]
            self._taken += self._batch * self._ranks
            yield {"input": torch.stack([pair[0] for pair in pairs])}, torch.stack([pair[1] for pair in pairs])

    def state_dict(self) -> dict[str, Any]:
        """Return the position; it is the same on all ranks."""
        return {"taken": self._taken}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue at a position."""
        self._taken = int(state_dict["taken"])
