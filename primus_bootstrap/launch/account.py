"""Change a process from root to an account."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pwd


def become(owner: pwd.struct_passwd) -> None:
    """Change this process permanently from root to an account; do nothing if it already runs as that account."""
    if os.geteuid() == owner.pw_uid:
        return
    os.initgroups(owner.pw_name, owner.pw_gid)
    os.setresgid(owner.pw_gid, owner.pw_gid, owner.pw_gid)
    os.setresuid(owner.pw_uid, owner.pw_uid, owner.pw_uid)
    os.environ.update(HOME=owner.pw_dir, USER=owner.pw_name, LOGNAME=owner.pw_name)
