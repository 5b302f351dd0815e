"""The token file: what prepare_data.py writes and training maps into memory.

A data set is `NAME.json` (its header) and beside it `NAME.tokens`: tokens one after another, little-endian, uint16 or int32. For SFT there
is also `NAME.lengths` (int32: prompt length, total length, example by example). The header holds the number of tokens, so that a file that
was cut short is noticed.
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
_RENEW = "prepare the data again with prepare_data.py, or copy it again"


@dataclass(frozen=True, slots=True)
class Header:
    """What is in a data set. `examples` is 0 for text to be cut anywhere; `tokenizer` names what made the tokens."""

    format: int
    kind: str
    dtype: str
    tokens: int
    examples: int
    vocabulary: int
    end_of_text: int
    tokenizer: str

    def write(self, path: Path) -> None:
        """Write the header last: a data set without one is not complete."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", "utf-8")


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A data set, mapped into memory."""

    path: Path
    header: Header
    tokens: Tensor
    lengths: Tensor | None

    def read(self, start: int, count: int) -> Tensor:
        """Copy tokens out of the file, as int64.

        Raises:
            DataError: where one is outside the vocabulary: the look-up of a GPU would end in an obscure error, or in zeros.
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
        name: path of the header.
        kind: `text` or `examples`, what the caller can train on.
        vocabulary: of the model; a token outside it would end in an obscure error of the device.

    Raises:
        DataError: where it is missing, cut short, of another kind, or made for a larger vocabulary.
    """
    path = Path(name)
    header = _read_header(path)
    if header.kind != kind:
        raise DataError(f"{path}: holds {header.kind}, and {kind} is needed", fix="text is for pretrain.py, examples are for posttrain.py")
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
        raise DataError(f"{path}: no such file", fix="prepare_data.py writes it; data.files must be readable on every node") from None
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path}: not the header of a data set: {error}", fix="give the .json file that prepare_data.py wrote") from error
    if header.format != FORMAT or header.dtype not in _TYPES:
        raise DataError(f"{path}: format {header.format}, dtype {header.dtype}; this program reads format {FORMAT}", fix=_RENEW)
    return header


def _map(path: Path, dtype: torch.dtype, count: int) -> Tensor:
    wanted = count * dtype.itemsize
    try:
        found = path.stat().st_size
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}", fix=_RENEW) from error
    if found != wanted or not count:
        raise DataError(f"{path}: {found} bytes, and its header says {wanted}", fix=_RENEW)
    # Read-only: torch.from_file maps what may be written, which Linux counts as memory and refuses beyond that of the machine
    # (https://docs.kernel.org/mm/overcommit-accounting.html). torch warns of the same.
    with path.open("rb") as file, warnings.catch_warnings(action="ignore", category=UserWarning):
        return torch.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=dtype)
