"""primus_bootstrap.launch.detect.nics and routes: the sieve's rules one by one."""

from __future__ import annotations

import ipaddress
from dataclasses import replace
from typing import TYPE_CHECKING

from primus_bootstrap.launch.detect import gpus, nics, routes, sysfs
from tests.unit.launch_rig import expand

if TYPE_CHECKING:
    from pathlib import Path

PORT = nics.Port("mlx5_0", 1, "ACTIVE", "LinkUp", "roce", 400.0, ("rdma0",), "0000:06:00.0", 0, 3)


def ports(count: int, **changes: object) -> list[nics.Port]:
    """Return some working ports that differ in their names."""
    return [replace(PORT, device=f"mlx5_{index}", netdevs=(f"rdma{index}",), **changes) for index in range(count)]  # type: ignore[arg-type]


def test_nothing_there_is_said_so() -> None:
    """A host without RDMA has no fabric, and the reason is not that something is broken."""
    fabric = nics.choose_ports([], [])

    assert (fabric.kind, fabric.hca_list, fabric.reason) == ("none", "", "there is no RDMA device")


def test_a_fast_frontend_does_not_displace_the_slower_fabric() -> None:
    """The port with the cluster's route goes first, even where it is the fastest."""
    frontend = replace(PORT, device="mlx5_9", rate_gbit_per_s=800.0, netdevs=("eth0",))
    fabric = nics.choose_ports([*ports(4), frontend], [], route_devices=["eth0"])

    assert fabric.hca_list == "=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1"


def test_the_only_port_is_used_though_it_carries_the_route() -> None:
    """With one RDMA port there is no choice to make."""
    assert nics.choose_ports(ports(1), [], route_devices=["rdma0"]).hca_list == "=mlx5_0:1"


def test_two_equal_fabrics_are_not_told_apart() -> None:
    """As many InfiniBand as Ethernet ports of one rate: nothing is chosen, and the reason says what to do."""
    other = [replace(port, device=f"ib{port.device}", kind="ib") for port in ports(2)]
    fabric = nics.choose_ports([*ports(2), *other], [])

    assert (fabric.kind, fabric.hca_list) == ("none", "")
    assert "deny one" in fabric.reason


def test_denied_ports_stay_excluded_where_nothing_else_works() -> None:
    """A denied storage port must not come in through NCCL's own search when the compute fabric is down."""
    down = ports(1, state="DOWN")[0]
    storage = replace(PORT, device="mlx5_8")
    fabric = nics.choose_ports([down, storage], [], deny=["mlx5_8:*"])

    assert fabric.hca_list == "^=mlx5_8:1"


def test_ports_with_different_gid_indices_get_no_common_one() -> None:
    """One variable cannot hold two values; NCCL chooses for each port then."""
    fabric = nics.choose_ports([ports(1)[0], replace(PORT, device="mlx5_1", gid_index=5)], [])

    assert fabric.gid_index is None


def test_the_gid_is_found_by_type_and_address(tmp_path: Path) -> None:
    """A RoCE v1 entry with the address and a v2 entry without an IPv4 address come first and are passed over."""
    root = expand("mi300x-roce", tmp_path)
    port = root / "sys/class/infiniband/bnxt_re0/ports/1"
    (port / "gids/4").write_text((port / "gids/3").read_text())
    (port / "gid_attrs/types/4").write_text("RoCE v2\n")
    (port / "gid_attrs/types/3").write_text("IB/RoCE v1\n")

    assert nics.read_ports(sysfs.Host(root))[0].gid_index == 4


def test_ports_sort_by_number() -> None:
    """mlx5_2 stands before mlx5_10."""
    assert sorted(["mlx5_10", "mlx5_2", "bnxt_re0"], key=nics.natural) == ["bnxt_re0", "mlx5_2", "mlx5_10"]


def host_with_routes(tmp_path: Path, ipv4: str = "", ipv6: str = "") -> sysfs.Host:
    """Return a host whose routing tables hold these lines."""
    folder = tmp_path / "proc/net"
    folder.mkdir(parents=True)
    (folder / "route").write_text("Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n" + ipv4)
    (folder / "ipv6_route").write_text(ipv6)
    return sysfs.Host(tmp_path)


DEFAULT = "{}\t00000000\t0100000A\t{}\t0\t0\t{}\t00000000\n"


def test_two_default_routes_of_one_metric_name_no_interface(tmp_path: Path) -> None:
    """A coin is not tossed; the reason names both."""
    host = host_with_routes(tmp_path, DEFAULT.format("eth0", "0003", 0) + DEFAULT.format("eth1", "0003", 0))

    assert routes.choose_interface(host) == routes.Interface("", "the default route exists on eth0 and eth1 with the same metric")


def test_a_rejecting_route_carries_nothing(tmp_path: Path) -> None:
    """An unreachable default route (flag RTF_REJECT) is none."""
    host = host_with_routes(tmp_path, DEFAULT.format("eth0", "0203", 0) + DEFAULT.format("eth1", "0003", 50))

    assert routes.choose_interface(host).name == "eth1"


def test_a_host_with_ipv6_only_has_a_route_as_well(tmp_path: Path) -> None:
    """Without an IPv4 default route the IPv6 one decides; the kernel's own entry on lo does not count."""
    zero = "0" * 32
    lo = f"{zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200 lo\n"
    host = host_with_routes(tmp_path, ipv6=f"{lo}{zero} 00 {zero} 00 {zero} 00000400 00000001 00000000 00000003 eth2\n")

    assert routes.choose_interface(host).name == "eth2"


def test_a_peer_is_reached_by_the_longest_prefix(tmp_path: Path) -> None:
    """The route to an address of the cluster's network wins over the default route."""
    near = "storage\t00001E0A\t00000000\t0001\t0\t0\t0\t0000FFFF\n"
    host = host_with_routes(tmp_path, DEFAULT.format("eth0", "0003", 0) + near)

    assert routes.read_routes(host)[1].network == ipaddress.ip_network("10.30.0.0/16")
    assert routes.choose_interface(host, peer="10.30.5.5").name == "storage"
    assert routes.choose_interface(host, peer="10.31.0.1").name == "eth0"


def test_an_interface_that_the_site_names_must_exist(tmp_path: Path) -> None:
    """A name of the site's that this host does not have is not written anywhere."""
    host = host_with_routes(tmp_path, DEFAULT.format("eth0", "0003", 0))

    assert routes.choose_interface(host, wanted="ens9").name == ""


def gpu(*path: str) -> gpus.Gpu:
    """Return a GPU at a place in the PCI tree."""
    return gpus.Gpu(path[-1], "amd", "1002:74a1", "", ("MI300X",), "", 192, "module", virtual=False, numa_node=0, path=path)


def test_ports_at_the_cpu_stay_where_few_gpus_have_one_beside_them() -> None:
    """A host with a port beside half of its GPUs has its compute ports there; with one beside a quarter it has them elsewhere as well."""
    beside = replace(PORT, device="mlx5_1", path=("pci0000:01", "bridge1", "nic1"))
    elsewhere = replace(PORT, device="mlx5_2", path=("pci0000:f0", "bridgef", "nicf"))
    four = [gpu(f"pci0000:0{index}", f"bridge{index}", f"gpu{index}") for index in range(1, 5)]

    assert nics.choose_ports([beside, elsewhere], four[:2]).hca_list == "=mlx5_1:1"
    assert nics.choose_ports([beside, elsewhere], four).hca_list == "=mlx5_1:1,mlx5_2:1"
    assert nics.near_ports(four[0], [beside, elsewhere]) == (("mlx5_1:1",), "pcie")


def test_without_a_common_switch_the_numa_node_decides_what_is_near() -> None:
    """Unknown NUMA nodes are near to nothing."""
    far = replace(PORT, device="mlx5_1", numa_node=1)
    unknown = replace(PORT, device="mlx5_2", numa_node=None)

    assert nics.near_ports(gpu("g"), [PORT, far, unknown]) == (("mlx5_0:1",), "numa")
    assert nics.near_ports(gpu("g"), [far, unknown]) == ((), "none")
