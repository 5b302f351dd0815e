"""Replace secrets by `***` in everything that is printed or written, by the names of variables and the shape of values."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MASK = "***"
# Parts of a name between underscores: matches MASTER_KEY and API_KEY, not MONKEY or HSA_KERNARG_POOL_SIZE.
_SECRET_PARTS = frozenset(
    {"APIKEY", "AUTH", "AUTHORIZATION", "CREDENTIAL", "CREDENTIALS", "COOKIE", "KEY", "PASS", "PASSPHRASE", "PASSWD", "PASSWORD", "PAT"}
    | {"PWD", "SAS", "SECRET", "SECRETS", "TOKEN"}
)
_SECRET_ENDS = ("APIKEY", "PASSWD", "PASSWORD", "SECRET", "TOKEN")  # PGPASSWORD, HFTOKEN
# Names that have such a part but no secret value: counts, paths of key files, the shell's folders, tokens of text.
_HARMLESS = re.compile(
    r"PWD|OLDPWD|SSH_AUTH_SOCK|TOKENIZERS_PARALLELISM|(.*_)?(TOKENIZER|KEY_FILE|KEYS?_PATH|KEY_PATH|PASSWORD_FILE|TOKEN_PATH)(_.*)?"
    r"|(.*_)?TOKEN_IDS?|(.*_)?(BOS|EOS|PAD|UNK|SEP|CLS|MASK)_TOKEN"
)
# Values with a typical prefix: Hugging Face, GitHub, GitLab, OpenAI, Slack, AWS, JSON web tokens, private keys.
_SECRET_SHAPES = re.compile(
    r"hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|sk-[\w-]{16,}|xox[abprs]-[\w-]{8,}|A[KS]IA[A-Z0-9]{16}"
    r"|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]+|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*"
)
_URL_PASSWORD = re.compile(r"(?<=://)([^/\s:@]*):([^/\s@]+)(?=@)")
_ASSIGNMENT = re.compile(r"(-{0,2})([A-Za-z_][\w.-]*)=(.*)", re.DOTALL)
# Switches and counts under a secret's name: HF_HUB_DISABLE_IMPLICIT_TOKEN=true must not mask every `true` in the logs.
_NO_SECRET = re.compile(r"(?i:true|false|none|null|auto|default|enabled?|disabled?|always|never)|\d{1,5}")
_MIN_LENGTH = 4  # shorter values are masked by name only, because they are part of many other words


def is_secret_name(name: str) -> bool:
    """Return whether a variable, option or key of this name holds a secret."""
    upper = re.sub(r"[^A-Za-z0-9]+", "_", re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)).upper().strip("_")
    if _HARMLESS.fullmatch(upper):
        return False
    parts = upper.split("_")
    return not _SECRET_PARTS.isdisjoint(parts) or any(part.endswith(_SECRET_ENDS) for part in parts)


def mask_value(name: str, value: str) -> str:
    """Return the value, or `***` if the name or the value's shape is that of a secret."""
    if value and is_secret_name(name):
        return MASK
    return mask_text(value)


def mask_text(text: str, secrets: Iterable[str] = ()) -> str:
    """Replace the given secrets, and values with the shape of a secret, in a text."""
    for secret in sorted({value for value in secrets if len(value) >= _MIN_LENGTH}, key=len, reverse=True):
        text = text.replace(secret, MASK)
    text = _SECRET_SHAPES.sub(MASK, text)
    return _URL_PASSWORD.sub(rf"\1:{MASK}", text)


def mask_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with all secrets masked."""
    secrets = secret_values(environment)
    return {name: MASK if value and is_secret_name(name) else mask_text(value, secrets) for name, value in environment.items()}


def secret_values(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the secret values of an environment, each of their lines, and their JSON spelling."""
    found: dict[str, None] = {}
    for name, value in environment.items():
        if is_secret_name(name) and not _NO_SECRET.fullmatch(value):
            found.update(dict.fromkeys((value, *value.splitlines(), json.dumps(value)[1:-1])))
    return tuple(value for value in found if len(value) >= _MIN_LENGTH)


def mask_words(words: Sequence[str], secrets: Iterable[str] = ()) -> tuple[str, ...]:
    """Return a command line with secrets masked: `--token x`, `--token=x`, `NAME=x` and URLs with a password."""
    secrets = tuple(secrets)
    masked: list[str] = []
    hide_next = False
    for word in words:
        assignment = _ASSIGNMENT.fullmatch(word)
        if hide_next and not word.startswith("-"):
            masked.append(MASK)
        elif assignment and assignment[3]:
            masked.append(f"{assignment[1]}{assignment[2]}={_mask_assigned(assignment[2], assignment[3], secrets)}")
        else:
            masked.append(mask_text(word, secrets))
        hide_next = word.startswith("--") and "=" not in word and is_secret_name(word)
    return tuple(masked)


def _mask_assigned(name: str, value: str, secrets: Iterable[str]) -> str:
    """Mask the value of `name=value`, which may contain assignments: --env=TOKEN=x, --export=ALL,TOKEN=x."""
    if is_secret_name(name):
        return MASK
    value = mask_text(value, secrets)
    inner = _ASSIGNMENT.fullmatch(value)
    if inner:
        return f"{inner[1]}{inner[2]}={_mask_assigned(inner[2], inner[3], ())}" if inner[3] else value
    return ",".join(mask_words(value.split(","))) if "," in value else value
