"""Build the image of a node and the archives of the images that run on it, from Debian's packages and the programs of `binaries`."""

from __future__ import annotations

import hashlib
import io
import json
import shlex
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from primus_bootstrap.lab.apt_settings import read_apt_settings
from primus_bootstrap.lab.commands import run
from tests.kubernetes.binaries import PROGRAMS, VERSION, kubernetes_programs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from primus_bootstrap.lab.machine import Machine

TEST_IMAGE = "localhost/busybox:1"
# Python with what torch is linked with; torch itself comes by a mount.
PYTHON_IMAGE = "localhost/python:1"
_HERE = Path(__file__).parent
_SCRIPT = _HERE / "customize_node.sh"
_REGISTRY = "k8s.gcr.io"
# What 1.20's kubelet and kubeadm call, then what the images are gathered from, then what makes a host of it that Ansible reaches.
_PACKAGES = (
    "ca-certificates", "conntrack", "containerd", "containernetworking-plugins", "curl", "dbus", "ebtables", "ethtool", "iproute2", "ipset",
    "iptables", "kmod", "mount", "procps", "runc", "socat", "systemd", "systemd-sysv", "util-linux",
    "bash", "busybox", "etcd-client", "etcd-server", "libstdc++6",
    "openssh-client", "openssh-server", "python3", "sudo",
)  # fmt: skip
_SUITE = "bookworm"


@dataclass(frozen=True, slots=True)
class NodeImage:
    """`reference` is the node's image in the engine, `images` the folder of archives for the nodes, `programs` their programs."""

    reference: str
    images: Path
    programs: Path


def node_image(machine: Machine) -> NodeImage:
    """Return the image of a node and the archives, built if they are missing (about a minute)."""
    programs = kubernetes_programs(PROGRAMS)
    parts = [
        file
        for folder in (_HERE / "node", _SCRIPT, Path(__file__))
        for file in (sorted(folder.rglob("*")) if folder.is_dir() else [folder])
    ]
    recipe = b"\0".join(part.read_bytes() for part in parts if part.is_file()) + programs.name.encode()
    key = hashlib.sha256(recipe).hexdigest()[:12]
    reference, images = f"localhost/primus-kubernetes-node:{key}", machine.cache / f"kubernetes-images-{key}"
    archive = images / "node.tar"
    if not images.is_dir():
        with tempfile.TemporaryDirectory(dir=machine.cache, prefix="kubernetes-images-") as folder:
            part = Path(folder) / "images"
            part.mkdir()
            _build_node(machine, part / "node.tar")
            _write_images(programs, part)
            part.rename(images)
    if run([*machine.engine_argv, "image", "inspect", reference], timeout_s=60, check=False).code:
        change = 'CMD ["/sbin/node-init"]'
        run([*machine.engine_argv, "import", "--change", change, str(archive), reference], timeout_s=600)
    return NodeImage(reference, images, programs)


def _build_node(machine: Machine, archive: Path) -> None:
    settings = read_apt_settings(machine.codename, sudo=machine.sudo)
    with tempfile.TemporaryDirectory() as folder:
        sources, options = Path(folder) / "machine.sources", Path(folder) / "apt.conf"
        sources.write_text(settings.sources_text(_SUITE))
        options.write_text(settings.options_text() or "// nothing of its own\n")
        argv = ["mmdebstrap", "--quiet", "--variant=minbase", "--format=tar", f"--include={','.join(_PACKAGES)}", f"--aptopt={options}"]
        hook = f'--customize-hook=sh {shlex.quote(str(_SCRIPT))} "$1"'
        run([*machine.sudo, *argv, hook, _SUITE, str(archive), str(sources)], timeout_s=1200)


def _write_images(programs: Path, folder: Path) -> None:
    """Write one archive per image in docker's format, which ctr imports."""
    for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler"):
        _write(folder, f"{_REGISTRY}/{name}:v{VERSION}", [f"/usr/local/bin/{name}"], _program(programs / name))
    _write(folder, f"{_REGISTRY}/pause:3.2", ["/pause"], _program(programs / "pause", "pause"))
    node = folder / "node.tar"
    # The names that kubeadm 1.20.2 gives them.
    _write(folder, f"{_REGISTRY}/etcd:3.4.13-0", [], _gathered(node, "etcd"))
    proxy = [*_gathered(node, "kube-proxy"), *_program(programs / "kube-proxy")]
    _write(folder, f"{_REGISTRY}/kube-proxy:v{VERSION}", [], proxy)
    _write(folder, TEST_IMAGE, [], _gathered(node, "busybox"))
    _write(folder, PYTHON_IMAGE, [], [*_gathered(node, "busybox"), *_gathered(node, "python")])


def _program(path: Path, target: str = "") -> list[tuple[tarfile.TarInfo, bytes]]:
    entry = tarfile.TarInfo(target or f"usr/local/bin/{path.name}")
    content = path.read_bytes()
    entry.mode, entry.size = 0o755, len(content)
    return [(entry, content)]


def _gathered(node: Path, name: str) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """Yield the files of an image that customize_node.sh collected in the node's archive."""
    root = f"./opt/roots/{name}/"
    with tarfile.open(node) as archive:
        for entry in archive:
            if entry.name.startswith(root):
                content = archive.extractfile(entry) if entry.isreg() else None
                entry.name = entry.name.removeprefix(root)
                # A hard link names its target in the node.
                entry.linkname = entry.linkname.removeprefix(root) if entry.islnk() else entry.linkname
                yield entry, content.read() if content else b""


def _write(
    folder: Path,
    reference: str,
    entrypoint: list[str],
    files: Iterator[tuple[tarfile.TarInfo, bytes]] | list[tuple[tarfile.TarInfo, bytes]],
) -> None:
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for entry, content in files:
            tar.addfile(entry, io.BytesIO(content))
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    settings = {"Entrypoint": entrypoint, "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]}
    config = json.dumps(
        {"architecture": "amd64", "os": "linux", "config": settings, "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]}},
    ).encode()
    manifest = [{"Config": "config.json", "RepoTags": [reference], "Layers": ["layer.tar"]}]
    with tarfile.open(folder / f"{reference.rpartition('/')[2].partition(':')[0]}.tar", "w") as tar:
        for name, content in (("manifest.json", json.dumps(manifest).encode()), ("config.json", config), ("layer.tar", layer.getvalue())):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
