"""Convert text to a data set for training: `prepare_data.py text --out DIR/NAME FILE…` or `prepare_data.py examples --out DIR/NAME FILE…`.

text: each plain file is one document; in a .jsonl file, each line is one document, in the field `text`.
examples: .jsonl files with the fields `prompt` and `response`.
Tokenizer: bytes (256 values and an end-of-text token), or a `tokenizer.json` of the package `tokenizers`.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import sys
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

if not __package__:
    # Started by path: replace this folder in sys.path by the root.
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from workloads.common.errors import DataError, WorkloadError
from workloads.train.token_file import FORMAT, Header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """A tokenizer. `name` contains the checksum of its file."""

    name: str
    vocabulary: int
    end_of_text: int
    encode: Callable[[str], Sequence[int]]


BYTES = Tokenizer("bytes", 257, 256, lambda text: text.encode())


def load_tokenizer(path: str, end_of_text: str) -> Tokenizer:
    """Load a tokenizer.json."""
    try:
        tokenizers = importlib.import_module("tokenizers")
    except ImportError as error:
        raise DataError(f"{path}: the package tokenizers is not installed", fix="pip install tokenizers, or omit --tokenizer") from error
    loaded = tokenizers.Tokenizer.from_file(path)
    end = loaded.token_to_id(end_of_text)
    if end is None:
        raise DataError(f"{path}: no token {end_of_text}", fix="set its end-of-text token with --end-of-text")
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    # Token ids may have gaps, so use the largest id. Special tokens that the tokenizer adds to a text (start, end) are omitted: they would
    # appear between prompt and response, and this program adds the end-of-text token itself.
    vocabulary = max(loaded.get_vocab(with_added_tokens=True).values()) + 1
    return Tokenizer(
        f"{Path(path).name} sha256:{digest[:16]}", vocabulary, end, lambda text: loaded.encode(text, add_special_tokens=False).ids
    )


def prepare_text(files: Sequence[Path], out: Path, tokenizer: Tokenizer) -> Header:
    """Write the tokens of every document, each followed by an end-of-text token."""
    count = 0
    with _new(out, ".tokens") as tokens:
        for document in _documents(files):
            ids = [*tokenizer.encode(document), tokenizer.end_of_text]
            _write(tokens, ids, tokenizer)
            count += len(ids)
    return _finish(out, "text", tokenizer, tokens=count, examples=0)


def prepare_examples(files: Sequence[Path], out: Path, tokenizer: Tokenizer, *, longest: int) -> Header:
    """Write prompt, response and lengths of every example. Skip examples longer than `longest` tokens (0: no limit)."""
    count, examples, too_long = 0, 0, 0
    with _new(out, ".tokens") as tokens, _new(out, ".lengths") as lengths:
        for location, line in _lines(files):
            prompt, response = (tokenizer.encode(_text(line, field, location)) for field in ("prompt", "response"))
            if not prompt or not response:
                raise DataError(f"{location}: an empty prompt or response", fix="remove or complete the line")
            total = len(prompt) + len(response) + 1
            if longest and total > longest:
                too_long += 1
                continue
            _write(tokens, [*prompt, *response, tokenizer.end_of_text], tokenizer)
            _little_endian(array("i", (len(prompt), total))).tofile(lengths)
            count, examples = count + total, examples + 1
    if too_long:
        print(f"skipped {too_long} examples longer than {longest} tokens", file=sys.stderr)
    return _finish(out, "examples", tokenizer, tokens=count, examples=examples)


def _documents(files: Sequence[Path]) -> Iterator[str]:
    for path in files:
        if path.suffix == ".jsonl":
            for location, line in _lines([path]):
                yield _text(line, "text", location)
        else:
            try:
                yield path.read_text("utf-8")
            except UnicodeDecodeError as error:
                raise DataError(f"{path}: not UTF-8: {error}", fix="convert it, for example with iconv") from error


def _lines(files: Sequence[Path]) -> Iterator[tuple[str, object]]:
    for path in files:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield f"{path}:{number}", json.loads(line.decode())
                except ValueError as error:
                    raise DataError(f"{path}:{number}: not JSON in UTF-8: {error}", fix="write one JSON object per line") from error


def _text(line: object, field: str, location: str) -> str:
    text = line.get(field) if isinstance(line, dict) else None
    if not isinstance(text, str):
        fix = "write the field `text` for text, or `prompt` and `response` for examples"
        raise DataError(f"{location}: no string in the field {field!r}", fix=fix)
    return text


def _new(out: Path, suffix: str) -> IO[bytes]:
    return _unfinished(out, suffix).open("wb")


def _unfinished(out: Path, suffix: str) -> Path:
    """Return the temporary path of a part: a running training keeps its mapping of the old file."""
    return _part(out, f"{suffix}.new")


def _part(out: Path, suffix: str) -> Path:
    """Return the path of a part. The name may contain dots, as in `books.v2`."""
    return out.with_name(out.name + suffix)


def _write(file: IO[bytes], ids: Sequence[int], tokenizer: Tokenizer) -> None:
    _little_endian(array("H" if tokenizer.vocabulary <= 2**16 else "i", ids)).tofile(file)


def _little_endian(values: array[int]) -> array[int]:
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _finish(out: Path, kind: str, tokenizer: Tokenizer, *, tokens: int, examples: int) -> Header:
    if not tokens:
        raise DataError(f"{out}: nothing to write", fix="pass files that contain text")
    dtype = "uint16" if tokenizer.vocabulary <= 2**16 else "int32"
    header = Header(FORMAT, kind, dtype, tokens, examples, tokenizer.vocabulary, tokenizer.end_of_text, tokenizer.name)
    _part(out, ".json").unlink(missing_ok=True)
    for suffix in (".tokens", ".lengths") if examples else (".tokens",):
        _unfinished(out, suffix).replace(_part(out, suffix))
    header.write(_part(out, ".json"))
    return header


def main(argv: Sequence[str]) -> int:
    """Prepare a data set; return the exit code."""
    parser = argparse.ArgumentParser(prog="prepare_data", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("text", "examples"))
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--out", type=Path, required=True, help="folder and name of the data set, without suffix")
    parser.add_argument("--tokenizer", help="a tokenizer.json (default: bytes)")
    parser.add_argument("--end-of-text", default="<|end_of_text|>", help="the tokenizer's end-of-text token (default: %(default)s)")
    parser.add_argument("--longest", type=int, default=0, help="skip examples with more tokens; 0: no limit")
    options = parser.parse_args(argv)
    try:
        tokenizer = load_tokenizer(options.tokenizer, options.end_of_text) if options.tokenizer else BYTES
        options.out.parent.mkdir(parents=True, exist_ok=True)
        if options.kind == "text":
            header = prepare_text(options.files, options.out, tokenizer)
        else:
            header = prepare_examples(options.files, options.out, tokenizer, longest=options.longest)
    except OSError as error:
        print(f"prepare_data: {error}\n  fix: pass existing files, and a writable folder with --out", file=sys.stderr)
        return DataError.exit_code
    except WorkloadError as error:
        print(f"prepare_data: {error.what}\n  fix: {error.fix}", file=sys.stderr)
        return error.exit_code
    print(f"{_part(options.out, '.json')}: {header.tokens} tokens, {header.examples or 'no'} examples, vocabulary {header.vocabulary}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
