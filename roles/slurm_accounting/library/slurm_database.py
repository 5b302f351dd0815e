#!/usr/bin/python
"""Ansible module `slurm_database`: create a database in MariaDB and an account for it.

community.mysql needs PyMySQL on the host, this module only the client of MariaDB. It connects as root through the socket and sends only a
hash of the password, so that the password is in no command line and no log of the server.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.commands import run_command

if TYPE_CHECKING:
    from collections.abc import Callable

    Server = Callable[[str], str]

CALL_S = 60.0
NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")


class RefusedError(Exception):
    """The server rejected a statement, or did not answer."""


def call_server(statements: str) -> str:
    """Run SQL statements; return one line per row, with tabs between columns."""
    command = ["mariadb", "--batch", "--skip-column-names"]
    try:
        done = run_command(command, stdin=statements, timeout_s=CALL_S)
    except OSError as error:
        raise RefusedError(f"mariadb cannot be run: {type(error).__name__}") from error
    if done.code:
        raise RefusedError(f"MariaDB rejected a statement: {done.stderr.strip()}")
    return done.stdout


def hash_password(password: str) -> str:
    """Return the hash of a password in MariaDB: https://mariadb.com/kb/en/authentication-plugin-mysql_native_password/."""
    inner = hashlib.sha1(password.encode()).digest()  # noqa: S324 - the format of the server
    return "*" + hashlib.sha1(inner).hexdigest().upper()  # noqa: S324


def statements(server: Server, database: str, user: str, password: str) -> list[str]:
    """Return the statements to run. The names match NAME, so they need no quoting."""
    account = f"'{user}'@'localhost'"
    needed: list[str] = []
    if not server(f"SELECT SCHEMA_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = '{database}'").strip():  # noqa: S608
        needed.append(f"CREATE DATABASE `{database}`")
    known = server(
        f"SELECT JSON_VALUE(Priv, '$.authentication_string') FROM mysql.global_priv WHERE User = '{user}' AND Host = 'localhost'"  # noqa: S608
    ).strip()
    if not known:
        needed.append(f"CREATE USER {account} IDENTIFIED BY PASSWORD '{hash_password(password)}'")
    elif known != hash_password(password):
        needed.append(f"SET PASSWORD FOR {account} = '{hash_password(password)}'")
    grants = server(f"SHOW GRANTS FOR {account}") if known else ""
    if f"GRANT ALL PRIVILEGES ON `{database}`.* TO" not in grants:
        needed.append(f"GRANT ALL PRIVILEGES ON `{database}`.* TO {account}")
    return needed


def main() -> None:
    """Run as an Ansible module."""
    module = AnsibleModule(
        {
            "database": {"type": "str", "required": True},
            "user": {"type": "str", "required": True},
            "password": {"type": "str", "required": True, "no_log": True},
        },
        supports_check_mode=True,
    )
    given: dict[str, Any] = module.params
    if not NAME.fullmatch(given["database"]) or not NAME.fullmatch(given["user"]):
        module.fail_json(msg="database and user must be lower-case letters, digits and underscores. Fix: rename them")
    try:
        needed = statements(call_server, given["database"], given["user"], given["password"])
        if needed and not module.check_mode:
            call_server(";\n".join(needed) + ";\n")
    except RefusedError as error:
        module.fail_json(msg=f"{error}. Fix: see `journalctl -u mariadb -n 30`")
    module.exit_json(changed=bool(needed))


if __name__ == "__main__":
    main()
