"""An argument parser whose errors are UsageErrors, with the nearest option for an unknown one."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, NoReturn

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.core.suggestions import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class OptionParser(argparse.ArgumentParser):
    """Parses the options of a verb or task. `prog` is the command that prints them with --help."""

    def __init__(self, prog: str, description: str, *, absent: Mapping[str, str] | None = None, add_help: bool = True) -> None:
        """Create a parser.

        Args:
            prog: The command without its options.
            description: One sentence for the help.
            absent: Options of AMD Primus that have no counterpart, each with what to do instead.
            add_help: Accept --help.
        """
        super().__init__(prog=prog, description=description, allow_abbrev=False, add_help=add_help)
        self._absent = dict(absent or {})
        self._name = prog.removeprefix("primus-cli ").removeprefix("direct -- ")

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse all arguments.

        Raises:
            UsageError: An argument is unknown, or a value is wrong or missing.
        """
        options, rest = self.parse_known_args(arguments)
        if not rest:
            return options
        name = rest[0].partition("=")[0]
        if name in self._absent:
            raise UsageError(f"{self._name}: {name} of AMD Primus has no counterpart", fix=self._absent[name])
        if not name.startswith("-"):
            self.error(f"unexpected argument: {rest[0]}")
        raise UsageError(f"{self._name}: {name}: unknown option", fix=did_you_mean(name, self._option_string_actions))

    def format_options(self) -> str:
        """Return the lines of the help that describe the options."""
        formatter = self._get_formatter()
        formatter.add_arguments(self._actions)
        return formatter.format_help()

    def error(self, message: str) -> NoReturn:
        """Report a wrong or missing value.

        Raises:
            UsageError: Always.
        """
        raise UsageError(f"{self._name}: {message.removeprefix('argument ')}", fix=f"`{self.prog} --help` prints the options")
