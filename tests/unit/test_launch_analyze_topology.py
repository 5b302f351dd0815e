"""primus_bootstrap.launch.topology: `analyze topology` of recorded machines, inventories and Slurm's configuration."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from primus_bootstrap.core.errors import UsageError
from primus_bootstrap.launch.checks import nvidia
from primus_bootstrap.launch.checks.model import Node
from primus_bootstrap.launch.commandline.main import main
from primus_bootstrap.launch.detect import sysfs
from primus_bootstrap.launch.detect.gpus import Gpu, GpuFindings
from primus_bootstrap.launch.topology import topology_program
from primus_bootstrap.launch.topology.fabric_tree import inventory_fabric, read_fabric, slurm_fabric
from primus_bootstrap.launch.topology.gpu_links import GpuLinks, read_links
from primus_bootstrap.launch.topology.tree import Item, to_text
from tests.unit.launch_rig import expand

GPU_BUSES = (0x05, 0x26, 0x46, 0x65, 0x85, 0xA6, 0xC6, 0xE5)
SLURM = """# two leaves below a spine
SwitchName=leaf1 Nodes=gpu[01-02]
switchname=leaf2 nodes=gpu03,gpu10 LinkSpeed=400
SwitchName=spine Switches=leaf[1-2]
"""


def write(path: Path, text: str) -> Path:
    """Write a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def machine(folder: Path, *, lost: tuple[int, int] | None = None) -> Path:
    """Return a tree of eight MI300X with CPUs, memory, PCIe links and XGMI links, except a lost one."""
    root = expand("mi300x-roce", folder / "root")
    for number in (0, 1):
        node = root / f"sys/devices/system/node/node{number}"
        write(node / "cpulist", f"{number * 48}-{number * 48 + 47}\n")
        write(node / "meminfo", f"Node {number} MemTotal:       1056964608 kB\n")
    for kind, width, speed in (("current", 8, "32.0"), ("max", 16, "32.0")):
        device = root / "sys/bus/pci/devices/0000:05:00.0"
        write(device / f"{kind}_link_width", f"{width}\n")
        write(device / f"{kind}_link_speed", f"{speed} GT/s PCIe\n")
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    for one, bus in enumerate(GPU_BUSES):
        write(nodes / str(one + 2) / "properties", f"simd_count 1216\nhive_id 7\nlocation_id {bus << 8}\ndomain 0\n")
        (nodes / str(one + 2) / "io_links").mkdir()
        for other in range(8):
            if other != one and lost not in ((one, other), (other, one)):
                write(nodes / str(one + 2) / f"io_links/{other}/properties", f"type 11\nnode_to {other + 2}\n")
    return root


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run `primus-cli analyze topology`; return its output."""
    assert main(["analyze", "topology", "--node", "gpu01", *words]) == 0
    return capsys.readouterr().out


def test_a_node_is_a_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """GPUs and NICs below their PCIe switch, host bridge and NUMA node; the width of a degraded link."""
    text = shown(capsys, "--sysfs", str(machine(tmp_path)))

    assert text.startswith(
        "node gpu01  8 x MI300X\n"
        "├─ NUMA node 0  CPUs 0-47, memory 1008 GiB\n"
        "│  ├─ PCIe host bridge 0000:00\n"
        "│  │  └─ PCIe switch 0000:01:00.0\n"
        "│  │     ├─ GPU 0  MI300X, 0000:05:00.0, PCIe x8 32 GT/s of x16 32 GT/s\n"
        "│  │     └─ NIC bnxt_re0:1  RoCE 400 Gbit/s, ACTIVE, rdma0, 0000:06:00.0, PCIe link unknown\n"
    )
    assert "│     └─ NIC mlx5_0:1  RoCE 400 Gbit/s, ACTIVE, stor0, 0000:f4:00.0, PCIe link unknown\n" in text


def test_a_lost_link_is_missing_in_the_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each GPU names the GPUs that it is linked to."""
    text = shown(capsys, "--sysfs", str(machine(tmp_path, lost=(0, 3))))

    assert "└─ links between GPUs  XGMI\n   ├─ GPU 0  linked to GPU 1, GPU 2, GPU 4, GPU 5, GPU 6, GPU 7\n" in text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cpu", ["node gpu01  no GPU", "└─ links between GPUs  none"]),
        ("broken-details", ["├─ NUMA node unknown  the firmware does not report it", "NIC mlx5_2:1  RoCE rate unknown, ACTIVE"]),
        ("unknown", ["unknown model"]),
        ("h200-ib", ["GPU 0  H200", "InfiniBand 400 Gbit/s", "unknown: nvidia-smi reads NVLinks only on the host itself"]),
        ("mi250x", ["links between GPUs  unknown: "]),
    ],
)
def test_what_cannot_be_read_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, expected: list[str]) -> None:
    """Every recorded machine has a tree."""
    text = shown(capsys, "--sysfs", str(expand(name, tmp_path / "root")))

    assert [part for part in expected if part not in text] == []


def test_a_host_without_sysfs_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not a host without GPUs."""
    assert shown(capsys, "--sysfs", str(tmp_path)).startswith(f"node gpu01  no GPU (unknown: no sysfs below {tmp_path})\n")


def test_an_interface_without_rdma_is_a_nic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its speed is in /sys/class/net; interfaces of RDMA devices and without a device do not count twice."""
    root = machine(tmp_path)
    target = (root / "sys/bus/pci/devices/0000:02:00.0").resolve() / "virtio0"
    target.mkdir()
    (root / "sys/class/net/eno1").mkdir()
    (root / "sys/class/net/eno1/device").symlink_to(target)
    write(root / "sys/class/net/eno1/speed", "25000\n")
    write(root / "sys/class/net/eno1/operstate", "up\n")
    text = shown(capsys, "--sysfs", str(root))

    assert "NIC eno1  Ethernet 25 Gbit/s, up, 0000:02:00.0, PCIe link unknown\n" in text
    assert text.count("rdma0") == 1


def test_nvlinks_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVLink ends in switches, so each GPU has the number of its active links, and there are no pairs."""
    gpus = tuple(
        Gpu(f"0000:0{number}:00.0", "nvidia", "", "", ("H200",), "", 141, "module", virtual=False, numa_node=0) for number in range(2)
    )
    node = Node(sysfs.Host(Path("/")))
    node.__dict__["gpu_findings"] = GpuFindings("ok", "", gpus)
    smi = [nvidia.SmiGpu(gpu.address, "", ET.fromstring(f"<gpu><uuid>GPU-{gpu.address}</uuid></gpu>")) for gpu in gpus]  # noqa: S314
    monkeypatch.setattr(nvidia, "query", lambda _: smi)
    monkeypatch.setattr(nvidia, "nvlinks", lambda *_: {f"GPU-{gpus[0].address}": ["26.562 GB/s", "<inactive>"]})

    assert read_links(node) == GpuLinks("NVLink", (), ("1 of 2 links active, 26.562 GB/s", "unknown"))


def hosts() -> dict[str, dict[str, object]]:
    """Return variables of five hosts in two racks, one of them with two switches."""
    gpus = {"gpu_env_count": 8, "gpu_env_model": "MI300X"}
    return {
        "gpu10": {"rack": "rack1", "slurm_switch": "leaf2", **gpus},
        "gpu2": {"rack": "rack1", "slurm_switch": "leaf1", **gpus},
        "gpu3": {"rack": "rack2", "gpu_env_model": "auto"},
        "gpu4": {"rack": "{{ row }}", "gpu_env_count": 4},
        "ctl1": {},
    }


def test_the_racks_and_switches_of_an_inventory_are_a_tree() -> None:
    """In natural order. A missing rack, and one that is a template, are unknown and come last."""
    assert to_text(inventory_fabric(hosts(), "hosts.yaml")) == (
        "fabric  5 hosts, from hosts.yaml\n"
        "├─ rack rack1  2 hosts\n"
        "│  ├─ switch leaf1  1 host\n"
        "│  │  └─ host gpu2  8 x MI300X\n"
        "│  └─ switch leaf2  1 host\n"
        "│     └─ host gpu10  8 x MI300X\n"
        "├─ rack rack2  1 host\n"
        "│  └─ host gpu3\n"
        "└─ rack unknown  2 hosts\n"
        "   ├─ host ctl1\n"
        "   └─ host gpu4  4 x GPU\n"
    )


def test_the_switches_of_slurm_are_a_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The topology.conf of the node is used without an option."""
    root = machine(tmp_path)
    write(root / "etc/slurm/topology.conf", SLURM)
    text = shown(capsys, "--sysfs", str(root))

    assert text.endswith(
        f"\nfabric  4 hosts, from {root}/etc/slurm/topology.conf\n"
        "└─ switch spine  4 hosts\n"
        "   ├─ switch leaf1  2 hosts\n"
        "   │  ├─ host gpu01\n"
        "   │  └─ host gpu02\n"
        "   └─ switch leaf2  2 hosts\n"
        "      ├─ host gpu03\n"
        "      └─ host gpu10\n"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "SwitchName=top Switches=a\nSwitchName=a Switches=b Nodes=n1\nSwitchName=b Switches=a",
            "x: these switches form a loop: a > b > a",
        ),
        ("SwitchName=s1 Switches=s1", "x: these switches form a loop: s1 > s1"),
        ("SwitchName=s1 Switches=s[2-3]\nSwitchName=s2 Nodes=n1", "x: switch s3 below s1 has no line SwitchName=s3"),
        ("SwitchName=s1 Nodes=n1\nSwitchName=s2 Nodes=n[a-b]", "x:2: 'n[a-b]' is not a node list"),
        ("SwitchName=s1 Nodes=n[1-99999999]", "x:1: n[1-99999999]: more than 65536 nodes"),
    ],
)
def test_a_wrong_topology_conf_is_an_error(text: str, message: str) -> None:
    """It would be drawn without hosts, or never end."""
    with pytest.raises(UsageError) as raised:
        slurm_fabric(text, "x")

    assert raised.value.what == message


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("nosuch.yaml", None, "file not found"),
        ("a.json", "{", "is not JSON"),
        ("a.json", '{"_meta": {}}', "contains no host"),
        ("a.conf", "ClusterName=x\n", "no line SwitchName"),
    ],
)
def test_a_wrong_fabric_file_is_an_error(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    """With what to give instead."""
    if text is not None:
        write(tmp_path / name, text)
    with pytest.raises(
        UsageError, match=rf"{message}(.|\n)*fix: give hosts.yaml, the JSON of `ansible-inventory --list`, or Slurm's topology.conf"
    ):
        read_fabric(tmp_path / name)


def test_a_recorded_topology_gives_the_same_tree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The output of --json, with another fabric or its own."""
    root = machine(tmp_path)
    write(root / "etc/slurm/topology.conf", SLURM)
    text = shown(capsys, "--sysfs", str(root))
    data = shown(capsys, "--sysfs", str(root), "--json")
    record = write(tmp_path / "gpu01.json", data)
    inventory = write(tmp_path / "inventory.json", json.dumps({"_meta": {"hostvars": hosts()}}))

    assert json.loads(data)["schema"] == "primus.topology/1"
    assert shown(capsys, "--recorded", str(record)) == text
    assert "rack rack1  2 hosts" in shown(capsys, "--recorded", str(record), "--fabric", str(inventory))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON: "),
        ("[1, 2]", "does not have the schema primus.topology/1"),
        ('{"node": 3}', "does not have the schema primus.topology/1"),
        ('{"schema": "primus.topology/1", "fabric": null, "node": 3}', "an incomplete topology"),
        ('{"schema": "primus.topology/1"}', "an incomplete topology"),
    ],
)
def test_another_file_is_no_recorded_topology(tmp_path: Path, text: str, message: str) -> None:
    """In words, not in those of Python."""
    path = write(tmp_path / "junk.json", text)
    with pytest.raises(UsageError) as raised:
        topology_program.main(["--recorded", str(path), "--sysfs", str(tmp_path)])

    assert raised.value.what.startswith(f"--recorded {path}: {message}")


def titles(item: Item) -> list[str]:
    """Return the titles of an item and everything in it."""
    return [item.title, *(title for child in item.children for title in titles(child))]


@pytest.mark.parametrize("suffix", [".svg", ".html"])
def test_the_picture_has_every_part_and_link(tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str) -> None:
    """Boxes for the tree, and one line for each pair of linked GPUs. The HTML page has the text as well."""
    root = machine(tmp_path, lost=(0, 3))
    write(root / "etc/slurm/topology.conf", SLURM)
    path = tmp_path / f"picture{suffix}"
    text = shown(capsys, "--sysfs", str(root), "--visualize", str(path))
    written = path.read_text()
    svg = ET.fromstring(written[written.index("<svg") : written.index("</svg>") + 6])  # noqa: S314 - written by the code under test
    found = json.loads(shown(capsys, "--sysfs", str(root), "--json"))
    drawn = {element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")}

    assert text.endswith(f"picture: {path}\n")
    assert set(titles(Item.from_json(found["node"]))) | set(titles(Item.from_json(found["fabric"]))) <= drawn
    assert len(list(svg.iter("{http://www.w3.org/2000/svg}line"))) == 8 * 7 // 2 - 1
    assert (suffix == ".html") == ("<pre>node gpu01" in written)


def test_boxes_do_not_overlap(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two boxes are disjoint, or one contains the other."""
    path = tmp_path / "picture.svg"
    shown(capsys, "--sysfs", str(machine(tmp_path)), "--visualize", str(path))
    shape = r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)" rx'
    boxes = [tuple(map(float, match)) for match in re.findall(shape, path.read_text())]

    def crosses(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
        (x, y, w, h), (a, b, v, k) = one, other
        apart = x + w <= a or a + v <= x or y + h <= b or b + k <= y
        inside = (x <= a and y <= b and a + v <= x + w and b + k <= y + h) or (a <= x and b <= y and x + w <= a + v and y + h <= b + k)
        return not apart and not inside

    assert len(boxes) > 30
    assert [
        pair for number, one in enumerate(boxes) for other in boxes[number + 1 :] if crosses(one, other) for pair in [(one, other)]
    ] == []


def test_texts_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names of an inventory are not markup."""
    inventory = write(tmp_path / "i.json", json.dumps({"_meta": {"hostvars": {"<b>&": {"rack": "<script>"}}}}))
    path = tmp_path / "p.html"
    shown(capsys, "--sysfs", str(machine(tmp_path)), "--fabric", str(inventory), "--visualize", str(path))

    assert "<script>" not in path.read_text()


def test_the_picture_has_a_default_name_and_only_known_formats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each node writes its own file. With --json, stdout has only JSON."""
    monkeypatch.chdir(tmp_path)
    json.loads(shown(capsys, "--sysfs", str(machine(tmp_path)), "--json", "--visualize"))

    assert (tmp_path / "topology-gpu01.svg").is_file()
    assert main(["analyze", "topology", "--sysfs", str(tmp_path), "--visualize", "x.png"]) == 2
    assert "--visualize x.png: unknown format\n  fix: give a name that ends in .svg or .html" in capsys.readouterr().err
