"""The task `analyze topology`: print the topology of this node and of its fabric, and draw it.

    primus-cli analyze topology [--visualize [FILE.svg|FILE.html]] [--fabric FILE] [--recorded FILE] [--json]

Exit codes: 0 printed, 2 an option or a file is wrong, 3 the inventory cannot be read on this machine.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from primus_bootstrap.core.atomic_files import write_atomic
from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch.checks.model import Node
from primus_bootstrap.launch.detect import sysfs
from primus_bootstrap.launch.option_parser import OptionParser
from primus_bootstrap.launch.topology import fabric_tree, picture
from primus_bootstrap.launch.topology.gpu_links import GpuLinks, read_links
from primus_bootstrap.launch.topology.node_tree import node_tree
from primus_bootstrap.launch.topology.tree import Item, to_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

SCHEMA = "primus.topology/1"
_SUFFIXES = (".svg", ".html")


@dataclass(frozen=True)
class Topology:
    """The topology of a node and, if it is known, of its fabric."""

    node: Item
    links: GpuLinks
    fabric: Item | None = None

    def to_text(self) -> str:
        """Return the trees as text: the node with the links between its GPUs, and the fabric."""
        return "\n".join(map(to_text, self._trees(self.links.item())))

    def to_picture(self, suffix: str) -> str:
        """Return the picture as SVG, or an HTML page with it. Pairs of linked GPUs are drawn, other links are a box."""
        trees = self._trees(*([] if self.links.pairs else [self.links.item()]))
        if suffix == ".html":
            return picture.to_html(trees, self.links, f"Topology of {self.node.name}", self.to_text())
        return picture.to_svg(trees, self.links)

    def _trees(self, *links: Item) -> tuple[Item, ...]:
        node = replace(self.node, children=(*self.node.children, *links))
        return (node, self.fabric) if self.fabric else (node,)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        fabric = self.fabric.to_json() if self.fabric else None
        return {"schema": SCHEMA, "node": self.node.to_json(), "links": self.links.to_json(), "fabric": fabric}


def main(words: Sequence[str]) -> int:
    """Print the topology; return the exit code.

    Raises:
        PrimusError: A file is wrong, or the picture cannot be written.
    """
    options = check_arguments(words)
    found = _recorded(options.recorded) if options.recorded else _read(options.sysfs, options.node)
    if options.fabric:
        found = Topology(found.node, found.links, fabric_tree.read_fabric(options.fabric))
    written = _draw(found, options.visualize) if options.visualize is not None else None
    if options.json:
        sys.stdout.write(json.dumps(found.to_json(), indent=1) + "\n")
    else:
        sys.stdout.write(found.to_text())
    if written:
        (sys.stderr if options.json else sys.stdout).write(f"picture: {written}\n")
    return 0


def check_arguments(words: Sequence[str]) -> argparse.Namespace:
    """Return the options.

    Raises:
        UsageError: An option is unknown, or the picture has an unknown format.
    """
    options = _parser().parse(words)
    picture_file = options.visualize
    if picture_file is not None and picture_file.name and picture_file.suffix not in _SUFFIXES:
        raise UsageError(f"--visualize {picture_file}: unknown format", fix=f"give a name that ends in {' or '.join(_SUFFIXES)}")
    return options


def help_text() -> str:
    """Return the text of --help."""
    return _parser().format_help()


def _parser() -> OptionParser:
    parser = OptionParser("primus-cli analyze topology", "Print the topology of this node and of its fabric as a tree, and draw it.")
    parser.add_argument(
        "--visualize",
        nargs="?",
        type=Path,
        const=Path(),
        metavar="FILE",
        help="draw it; FILE ends in .svg or .html (default: topology-NODE.svg)",
    )
    parser.add_argument(
        "--fabric", type=Path, metavar="FILE", help="hosts.yaml, JSON of ansible-inventory --list, or Slurm's topology.conf"
    )
    parser.add_argument("--recorded", type=Path, metavar="FILE", help="show the topology that --json has written, instead of this node's")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--sysfs", type=Path, default=Path("/"), metavar="ROOT", help="folder that contains sys/ and etc/ (default: /)")
    parser.add_argument("--node", default=socket.gethostname(), metavar="NAME", help="name of the node (default: the host name)")
    return parser


def _read(root: Path, name: str) -> Topology:
    node = Node(sysfs.Host(root), environment=os.environ)
    return Topology(node_tree(node, name), read_links(node), fabric_tree.local_fabric(root))


def _recorded(path: Path) -> Topology:
    fix = "give a file with the output of `primus-cli analyze topology --json`"
    try:
        data = json.loads(path.read_text("utf-8"))
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise UsageError(f"--recorded {path}: does not have the schema {SCHEMA}", fix=fix)
        fabric = Item.from_json(data["fabric"]) if data["fabric"] else None
        return Topology(Item.from_json(data["node"]), GpuLinks.from_json(data["links"]), fabric)
    except OSError as error:
        raise UsageError(f"--recorded {path}: {error.strerror}", fix=fix) from error
    except ValueError as error:
        raise UsageError(f"--recorded {path}: not JSON: {error}", fix=fix) from error
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"--recorded {path}: an incomplete topology", fix=fix) from error


def _draw(found: Topology, given: Path) -> Path:
    """Write the picture; return its path."""
    path = given if given.name else Path(f"topology-{found.node.name}.svg")
    try:
        write_atomic(path, found.to_picture(path.suffix), durable=False)
    except OSError as error:
        raise UsageError(
            f"--visualize {path}: cannot be written: {error.strerror}", fix="give a file in a folder in which you may write"
        ) from error
    return path
