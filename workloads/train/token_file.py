"""The token file, which prepare_data.py writes and training maps into memory.

A data set consists of `NAME.json` (header) and `NAME.tokens` (little-endian, uint16 or int32). SFT data also has `NAME.lengths` (int32:
prompt length and total length of each example). The header contains the number of tokens, to detect truncated files.
"""

from __future__ import annotations

import json
import mmap
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from workloads.common.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 1
_TYPES = {"uint16": (torch.uint16, 2), "int32": (torch.int32, 4)}
_RENEW = "recreate the data with prepare_data.py, or repeat the copy"


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a data set. `examples` is 0 for text, which can be cut anywhere; `tokenizer` is the name of the tokenizer."""

    format: int
    kind: str
    dtype: str
    tokens: int
    examples: int
    vocabulary: int
    end_of_text: int
    tokenizer: str

    def write(self, path: Path) -> None:
        """Write the header. It is written last: a data set without header is incomplete."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", "utf-8")


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A data set, mapped into memory."""

    path: Path
    header: Header
    tokens: Tensor
    lengths: Tensor | None

    def read(self, start: int, count: int) -> Tensor:
        """Return a copy of tokens, as int64.

        Raises:
            DataError: A token is outside the vocabulary, which would cause an unclear error or zeros on a GPU.
        """
        taken = self.tokens[start : start + count].long()
        largest = int(taken.max()) if len(taken) else 0
        if largest >= self.header.vocabulary or int(taken.min()) < 0:
            raise DataError(
                f"{self.path.with_suffix('.tokens')}: token {largest} near position {start}, and its header says vocabulary"
                f" {self.header.vocabulary}",
                fix=_RENEW,
            )
        return taken


def open_token_file(name: str, *, kind: str, vocabulary: int) -> TokenFile:
    """Map a data set into memory.

    Args:
        name: Path of the header.
        kind: The required kind: `text` or `examples`.
        vocabulary: Size of the model's vocabulary.

    Raises:
        DataError: The data set is missing, truncated, of another kind, or has a larger vocabulary.
    """
    path = Path(name)
    header = _read_header(path)
    if header.kind != kind:
        raise DataError(
            f"{path}: holds {header.kind}, and {kind} is needed", fix="use text with pretrain.py, and examples with posttrain.py"
        )
    if header.vocabulary > vocabulary:
        raise DataError(
            f"{path}: made by {header.tokenizer} with {header.vocabulary} tokens, and model.vocabulary is {vocabulary}",
            fix=f"set model.vocabulary={header.vocabulary} or larger",
        )
    dtype, _ = _TYPES[header.dtype]
    tokens = _map(path.with_suffix(".tokens"), dtype, header.tokens)
    lengths = _map(path.with_suffix(".lengths"), torch.int32, 2 * header.examples).view(-1, 2) if kind == "examples" else None
    return TokenFile(path, header, tokens, lengths)


def _read_header(path: Path) -> Header:
    try:
        header = Header(**json.loads(path.read_text("utf-8")))
    except FileNotFoundError:
        raise DataError(
            f"{path}: no such file", fix="create it with prepare_data.py in a folder that every node can read, or correct data.files"
        ) from None
    except (OSError, ValueError, TypeError) as error:
        raise DataError(
            f"{path}: not the header of a data set: {error}", fix="set data.files to a .json file of prepare_data.py"
        ) from error
    if header.format != FORMAT or header.dtype not in _TYPES:
        raise DataError(f"{path}: format {header.format}, dtype {header.dtype}; this program reads format {FORMAT}", fix=_RENEW)
    return header


def _map(path: Path, dtype: torch.dtype, count: int) -> Tensor:
    expected = count * dtype.itemsize
    try:
        found = path.stat().st_size
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}", fix=_RENEW) from error
    if found != expected or not count:
        raise DataError(f"{path}: {found} bytes, and its header says {expected}", fix=_RENEW)
    # Map read-only: torch.from_file maps writable memory, which Linux limits to the host's memory
    # (https://docs.kernel.org/mm/overcommit-accounting.html). torch warns about read-only buffers.
    with path.open("rb") as file, warnings.catch_warnings(action="ignore", category=UserWarning):
        return torch.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=dtype)
