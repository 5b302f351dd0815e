"""primus_bootstrap.launch.masking: masking of secrets."""

from __future__ import annotations

import json

import pytest

from primus_bootstrap.launch.masking import is_secret_name, mask_environment, mask_text, mask_words, secret_values


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "WANDB_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "DB_PASSWORD",
        "--auth-token",
        "apiKey",
        "GITHUB_PAT",
        "registry.password",
        "PGPASSWD",
    ],
)
def test_names_of_secrets(name: str) -> None:
    """Common names of tokens, keys and passwords, in any spelling."""
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "HSA_KERNARG_POOL_SIZE",
        "PATH",
        "PWD",
        "TOKENIZERS_PARALLELISM",
        "MONKEY",
        "SSH_AUTH_SOCK",
        "KEYBOARD",
        "data.tokenizer",
        "train.tokens",
        "NCCL_DEBUG",
        "eos_token_id",
        "tokenizer.pad_token",
        "stop_token_ids",
    ],
)
def test_names_without_secrets(name: str) -> None:
    """Names that only contain such letters are not masked."""
    assert not is_secret_name(name)


def test_values_with_the_shape_of_a_secret_are_masked_under_any_name() -> None:
    """Tokens with a typical prefix, and passwords in URLs."""
    text = "pull hf_abcdefghijklmnopqrstuv from https://me:geheim@host/x with ghp_0123456789abcdefghij and AKIAABCDEFGHIJKLMNOP"

    assert mask_text(text) == "pull *** from https://me:***@host/x with *** and ***"


def test_a_secret_value_is_masked_in_other_variables() -> None:
    """A password that another variable repeats must not leak there."""
    masked = mask_environment({"DB_PASSWORD": "geheim123", "DB_URL": "postgres geheim123 host", "N": "8"})

    assert masked == {"DB_PASSWORD": "***", "DB_URL": "postgres *** host", "N": "8"}


def test_command_lines() -> None:
    """Options with a secret's name hide their value in both spellings; a following option is not a value."""
    words = ("--token", "abc", "--api-key=def", "HF_TOKEN=ghi", "--password", "--verbose", "lr=0.1")

    assert mask_words(words) == ("--token", "***", "--api-key=***", "HF_TOKEN=***", "--password", "--verbose", "lr=0.1")


def test_assignments_in_options() -> None:
    """A variable passed to an engine or to Slurm on the command line is masked like any other."""
    words = ("--env=HF_TOKEN=ghi", "--export=ALL,A=b,WANDB_API_KEY=jkl", "--engine-arg=--env=DB_PASSWORD=x", "--env=A=b", "data.files=a,b")
    shown = (
        "--env=HF_TOKEN=***",
        "--export=ALL,A=b,WANDB_API_KEY=***",
        "--engine-arg=--env=DB_PASSWORD=***",
        "--env=A=b",
        "data.files=a,b",
    )

    assert mask_words(words) == shown


def test_a_switch_with_a_secrets_name_is_masked_only_there() -> None:
    """The word stays in all other texts."""
    environment = {"HF_HUB_DISABLE_IMPLICIT_TOKEN": "true", "TOKEN_LIMIT": "4096", "A": "true 4096"}

    assert mask_environment(environment) == {"HF_HUB_DISABLE_IMPLICIT_TOKEN": "***", "TOKEN_LIMIT": "***", "A": "true 4096"}


def test_a_secret_is_masked_by_line_and_in_json() -> None:
    """Logs consist of lines, and a forwarded command is JSON."""
    secrets = secret_values({"API_KEY": 'ge"heim\u00fc1', "CERT_KEY": "first line\nsecond line"})

    assert mask_text(json.dumps(['ge"heim\u00fc1']), secrets) == '["***"]'
    assert mask_text("x second line", secrets) == "x ***"
