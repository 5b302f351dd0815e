"""workloads.train: preparing, mapping and shuffling data, and the batches of each rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from workloads.common.errors import DataError
from workloads.train import prepare_data
from workloads.train.data import IGNORED, Batches, ExampleSamples, Part, SyntheticSamples, TextSamples, open_samples
from workloads.train.load_settings import load_settings
from workloads.train.shuffle import Shuffle
from workloads.train.token_file import Header, open_token_file

if TYPE_CHECKING:
    from workloads.train.data import Samples


def prepare(folder: Path, kind: str, *lines: object, options: tuple[str, ...] = ()) -> str:
    """Prepare a data set of JSON lines; return its header's path."""
    source = folder / f"{kind}.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert prepare_data.main([kind, str(source), "--out", str(folder / "set"), *options]) == 0
    return str(folder / "set.json")


def all_targets(samples: Samples, count: int) -> list[list[int]]:
    """Return the tokens of the first sequences."""
    return [samples.sample(number)[0].tolist() for number in range(count)]


def test_each_document_ends_with_an_end_of_text_token(tmp_path: Path) -> None:
    """Token 256 of the bytes tokenizer."""
    header = prepare(tmp_path, "text", {"text": "ab"}, {"text": "é"})
    found = open_token_file(header, kind="text", vocabulary=257)

    assert found.tokens.tolist() == [97, 98, 256, 0xC3, 0xA9, 256]
    assert (found.header.tokenizer, found.header.vocabulary) == ("bytes", 257)


def test_an_epoch_contains_every_window_once(tmp_path: Path) -> None:
    """The next epoch has another order, and each target is the next token."""
    header = prepare(tmp_path, "text", {"text": "".join(chr(33 + i % 90) for i in range(400))})
    samples = TextSamples([open_token_file(header, kind="text", vocabulary=257)], 16, seed=1)
    first, second = all_targets(samples, 25), [samples.sample(25 + number)[0].tolist() for number in range(25)]
    tokens, targets = samples.sample(3)

    assert len({tuple(window) for window in first}) == 25
    assert sorted(first) == sorted(second)
    assert first != second
    assert targets[:-1].tolist() == tokens[1:].tolist()


def test_several_data_sets_are_combined(tmp_path: Path) -> None:
    """The samples contain windows of all files."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    headers = [prepare(tmp_path / name, "text", {"text": name * 40}) for name in ("a", "b")]
    samples = TextSamples([open_token_file(header, kind="text", vocabulary=257) for header in headers], 8, seed=1)

    assert {sequence[0] for sequence in all_targets(samples, 10)} == {97, 98}


def test_only_the_response_has_targets(tmp_path: Path) -> None:
    """With its end-of-text token; prompt and padding are ignored."""
    header = prepare(tmp_path, "examples", {"prompt": "abc", "response": "xy"})
    samples = ExampleSamples([open_token_file(header, kind="examples", vocabulary=257)], 8, seed=1)
    tokens, targets = samples.sample(0)

    assert tokens.tolist() == [97, 98, 99, 120, 121, 256, 256, 256]
    assert targets.tolist() == [IGNORED, IGNORED, 120, 121, 256, IGNORED, IGNORED, IGNORED]


def test_a_response_that_is_too_long_is_truncated(tmp_path: Path) -> None:
    """`--longest` skips the example instead."""
    lines = ({"prompt": "ab", "response": "x" * 20}, {"prompt": "ab", "response": "y"})
    whole = ExampleSamples([open_token_file(prepare(tmp_path, "examples", *lines), kind="examples", vocabulary=257)], 6, seed=1)
    header = prepare(tmp_path, "examples", *lines, options=("--longest", "10"))

    assert sorted(whole.sample(number)[1].tolist() for number in range(2)) == [
        [IGNORED, 120, 120, 120, 120, 120],
        [IGNORED, 121, 256, IGNORED, IGNORED, IGNORED],
    ]
    assert open_token_file(header, kind="examples", vocabulary=257).header.examples == 1


def test_recreating_a_data_set_does_not_change_mapped_data(tmp_path: Path) -> None:
    """The files are replaced."""
    old = open_token_file(prepare(tmp_path, "text", {"text": "aaaa"}), kind="text", vocabulary=257)
    new = open_token_file(prepare(tmp_path, "text", {"text": "b"}), kind="text", vocabulary=257)

    assert old.tokens.tolist() == [97, 97, 97, 97, 256]
    assert new.tokens.tolist() == [98, 256]


@pytest.mark.parametrize(
    ("kind", "line", "expected"),
    [
        ("text", {"txt": "a"}, "text.jsonl:1: no string in the field 'text'"),
        ("examples", {"prompt": "a"}, "examples.jsonl:1: no string in the field 'response'"),
        ("examples", {"prompt": "", "response": "b"}, "examples.jsonl:1: an empty prompt or response"),
    ],
)
def test_wrong_input_is_an_error_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, line: object, expected: str
) -> None:
    """No header is written, so the incomplete data set cannot be used."""
    source = tmp_path / f"{kind}.jsonl"
    source.write_text(json.dumps(line) + "\n")

    assert prepare_data.main([kind, str(source), "--out", str(tmp_path / "set")]) == 66
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "set.json").exists()


def test_missing_truncated_or_unsuitable_data_is_an_error(tmp_path: Path) -> None:
    """A missing file, too few bytes, text for SFT, and a vocabulary that is too large."""
    header = prepare(tmp_path, "text", {"text": "abcdef"})
    for arguments, expected in (
        (("nothing.json", "text", 257), "no such file"),
        ((header, "examples", 257), "holds text, and examples is needed"),
        ((header, "text", 100), "model.vocabulary is 100"),
    ):
        with pytest.raises(DataError, match=expected):
            open_token_file(arguments[0], kind=arguments[1], vocabulary=arguments[2])
    (tmp_path / "set.tokens").write_bytes(b"\0\0")
    with pytest.raises(DataError, match="2 bytes, and its header says 14"):
        open_token_file(header, kind="text", vocabulary=257)


def test_data_larger_than_memory_is_mapped(tmp_path: Path) -> None:
    """A sparse file of twice the host's memory and swap."""
    values = dict(line.split(":") for line in Path("/proc/meminfo").read_text("utf-8").splitlines())
    tokens = sum(int(values[name].split()[0]) for name in ("MemTotal", "SwapTotal")) * 1024
    Header(1, "text", "uint16", tokens, 0, 257, 256, "bytes").write(tmp_path / "large.json")
    with (tmp_path / "large.tokens").open("wb") as file:
        file.truncate(2 * tokens)
    found = open_token_file(str(tmp_path / "large.json"), kind="text", vocabulary=257)

    assert found.read(tokens - 2, 2).tolist() == [0, 0]


def test_a_token_outside_the_vocabulary_is_an_error_with_its_file(tmp_path: Path) -> None:
    """For example in a damaged token file."""
    header = prepare(tmp_path, "text", {"text": "abcdef"})
    (tmp_path / "set.tokens").write_bytes(b"\x61\x00" * 5 + b"\x00\x04" * 2)
    samples = TextSamples([open_token_file(header, kind="text", vocabulary=512)], 6, seed=1)

    with pytest.raises(DataError, match=r"set\.tokens: token 1024 .* vocabulary 257"):
        samples.sample(0)


def test_the_name_of_a_data_set_may_contain_dots(tmp_path: Path) -> None:
    """`books.v2` does not replace `books.v1`."""
    (tmp_path / "a.txt").write_text("a")
    for name in ("books.v1", "books.v2"):
        assert prepare_data.main(["text", str(tmp_path / "a.txt"), "--out", str(tmp_path / name)]) == 0

    assert sorted(path.name for path in tmp_path.glob("books*")) == [
        "books.v1.json",
        "books.v1.tokens",
        "books.v2.json",
        "books.v2.tokens",
    ]
    assert open_token_file(str(tmp_path / "books.v1.json"), kind="text", vocabulary=257).tokens.tolist() == [97, 256]


@pytest.mark.parametrize(("name", "message"), [("a.txt", "a.txt: not UTF-8"), ("a.jsonl", "a.jsonl:1: not JSON in UTF-8")])
def test_text_in_another_encoding_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, message: str) -> None:
    """Latin-1."""
    (tmp_path / name).write_bytes(b'{"text": "\xe9"}\n')

    assert prepare_data.main(["text", str(tmp_path / name), "--out", str(tmp_path / "set")]) == 66
    assert message in capsys.readouterr().err


def test_special_tokens_of_a_tokenizer_are_not_added(tmp_path: Path) -> None:
    """No start token between prompt and response. The vocabulary extends to the largest id, also with gaps."""
    tokenizers = pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
    model = tokenizers.models.WordLevel({"a": 0, "b": 1, "<|end_of_text|>": 2, "<s>": 9}, unk_token="a")
    built = tokenizers.Tokenizer(model)
    built.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    built.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 9)])
    built.save(str(tmp_path / "tokenizer.json"))
    header = prepare(tmp_path, "examples", {"prompt": "a b", "response": "b"}, options=("--tokenizer", str(tmp_path / "tokenizer.json")))
    found = open_token_file(header, kind="examples", vocabulary=10)

    assert found.tokens.tolist() == [0, 1, 1, 2]
    assert found.header.vocabulary == 10


@pytest.mark.parametrize("size", [1, 2, 3, 64, 100, 1000])
def test_shuffling_is_a_permutation(size: int) -> None:
    """For powers of two and other sizes; seed and epoch change the order."""
    order = [Shuffle(size, 1, 0)[index] for index in range(size)]

    assert sorted(order) == list(range(size))
    assert size < 64 or order != [Shuffle(size, 1, 1)[index] for index in range(size)] != [
        Shuffle(size, 2, 1)[index] for index in range(size)
    ]


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("ahead", [0, 2])
def test_a_global_batch_is_the_same_for_any_number_of_ranks(ranks: int, ahead: int) -> None:
    """The parts together are the sequences of the step, also after a start in the middle."""
    settings = load_settings([], ["train.global_batch=8", "train.micro_batch=2", f"data.prefetch_steps={ahead}"])
    samples = SyntheticSamples(512, 64, seed=1)
    parts = [Batches(samples, settings, Part(number, ranks), steps=3, first_sequence=16) for number in range(ranks)]
    for step in range(3):
        found = [sequence.tolist() for part in parts for batch in part.next_step() for sequence in batch.tokens_BL]

        assert found == [samples.sample(16 + 8 * step + number)[0].tolist() for number in range(8)]
    for part in parts:
        part.close()


def test_a_missing_data_file_is_an_error(tmp_path: Path) -> None:
    """When the samples are opened."""
    settings = load_settings([], ["data.source=files", f"data.files={tmp_path}/none.json"])

    with pytest.raises(DataError, match="no such file"):
        open_samples(settings, kind="text")
