"""Read a mount of the user, SOURCE[:TARGET[:MODE]], and check it before an engine does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

# z and Z relabel for SELinux: https://docs.docker.com/engine/storage/bind-mounts/#configure-the-selinux-label
_MODES = ("ro", "rw", "z", "Z")
_FORM = "write SOURCE[:TARGET[:ro]]"


def check_mounts(mounts: Sequence[str], cwd: Path, origin: str) -> None:
    """Check the form of the mounts, and that no two have the same target.

    Args:
        mounts: The values of the setting container.volume.
        cwd: The folder to which sources are relative.
        origin: Where the setting was given, for messages.

    Raises:
        UsageError: A mount has another form, or a target that an engine refuses.
    """
    targets: dict[Path, str] = {}
    for mount in mounts:
        where = f"{origin} {mount}"
        source, *rest = mount.split(":")
        if "=" in source and not (cwd / source).exists():
            fix = f"write SOURCE:TARGET; for the engine's own form pass --engine-arg=--mount={mount}"
            raise UsageError(f"{where}: not SOURCE[:TARGET[:ro]]", fix=fix)
        if not source or len(rest) > 2:
            raise UsageError(f"{where}: not SOURCE[:TARGET[:ro]]", fix=_FORM)
        if rest and not rest[0].startswith("/"):
            raise UsageError(f"{where}: the target {rest[0]!r} is not an absolute path", fix=f"{_FORM} with a TARGET that starts with /")
        target = Path(rest[0]) if rest else (cwd / source).absolute()
        _check_target(target, mode=rest[1] if len(rest) == 2 else "rw", where=where, given=mount)
        if targets.setdefault(target, mount) != mount:
            raise UsageError(f"{where}: {targets[target]} has the same target", fix="remove one of the two, or change its target")


def _check_target(target: Path, *, mode: str, where: str, given: str) -> None:
    if target == Path("/"):
        raise UsageError(f"{where}: a mount cannot replace / of the container", fix=f"{_FORM} with a TARGET below /")
    if mode not in _MODES:
        fix = f"choose from: {', '.join(_MODES)}; for another option of the engine pass --engine-arg=--volume={given}"
        raise UsageError(f"{where}: unknown mode {mode!r}", fix=fix)
