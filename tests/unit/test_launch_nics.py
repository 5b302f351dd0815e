"""primus_bootstrap.launch.detect.nics and routes: each rule of the choice."""

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
    """Return working ports that differ in their names."""
    return [replace(PORT, device=f"mlx5_{index}", netdevs=(f"rdma{index}",), **changes) for index in range(count)]  # type: ignore[arg-type]


def test_a_host_without_rdma_has_no_fabric() -> None:
    """The reason states that there is no device."""
    fabric = nics.choose_ports([], [])

    assert (fabric.kind, fabric.hca_list, fabric.reason) == ("none", "", "no RDMA device")


def test_a_port_with_the_clusters_route_is_rejected_even_if_it_is_the_fastest() -> None:
    """The slower ports are the fabric."""
    frontend = replace(PORT, device="mlx5_9", rate_gbit_per_s=800.0, netdevs=("eth0",))
    fabric = nics.choose_ports([*ports(4), frontend], [], route_devices=["eth0"])

    assert fabric.hca_list == "=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1"


def test_the_only_port_is_chosen_although_it_carries_the_route() -> None:
    """There is no other port."""
    assert nics.choose_ports(ports(1), [], route_devices=["rdma0"]).hca_list == "=mlx5_0:1"


def test_of_two_equal_fabrics_none_is_chosen() -> None:
    """The same number of InfiniBand and Ethernet ports of the same rate: the reason contains the fix."""
    other = [replace(port, device=f"ib{port.device}", kind="ib") for port in ports(2)]
    fabric = nics.choose_ports([*ports(2), *other], [])

    assert (fabric.kind, fabric.hca_list) == ("none", "")
    assert "deny one" in fabric.reason


def test_denied_ports_stay_excluded_if_no_other_port_works() -> None:
    """NCCL's own search must not choose a denied storage port while the compute fabric is down."""
    down = ports(1, state="DOWN")[0]
    storage = replace(PORT, device="mlx5_8")
    fabric = nics.choose_ports([down, storage], [], deny=["mlx5_8:*"])

    assert fabric.hca_list == "^=mlx5_8:1"


def test_ports_with_different_gid_indices_have_no_common_index() -> None:
    """NCCL then chooses the index of each port."""
    fabric = nics.choose_ports([ports(1)[0], replace(PORT, device="mlx5_1", gid_index=5)], [])

    assert fabric.gid_index is None


def test_the_gid_is_found_by_type_and_address(tmp_path: Path) -> None:
    """A RoCE v1 entry and a v2 entry without an IPv4 address are skipped."""
    root = expand("mi300x-roce", tmp_path)
    port = root / "sys/class/infiniband/bnxt_re0/ports/1"
    (port / "gids/4").write_text((port / "gids/3").read_text())
    (port / "gid_attrs/types/4").write_text("RoCE v2\n")
    (port / "gid_attrs/types/3").write_text("IB/RoCE v1\n")

    assert nics.read_ports(sysfs.Host(root))[0].gid_index == 4


def test_link_local_addresses_are_not_used(tmp_path: Path) -> None:
    """The GID is the first with a routable IPv4 address; a port with link-local addresses only is not chosen beside others."""
    root = expand("mi300x-roce", tmp_path)
    gids = [root / f"sys/class/infiniband/bnxt_re{index}/ports/1" for index in (0, 1)]
    for port in gids:
        for path in (port / "gids").iterdir():
            path.write_text("0000:0000:0000:0000:0000:0000:0000:0000\n")
        (port / "gids/3").write_text("::ffff:169.254.9.9\n")
        (port / "gids/1").write_text("fe80::1\n")
        (port / "gid_attrs/types/1").write_text("RoCE v2\n")
        (port / "gid_attrs/types/5").write_text("RoCE v2\n")
    (gids[0] / "gids/5").write_text("::ffff:10.100.0.13\n")
    found = {port.device: port for port in nics.read_ports(sysfs.Host(root))}
    chosen = nics.choose_ports(list(found.values()), [])

    assert (found["bnxt_re0"].gid_index, found["bnxt_re0"].link_local) == (5, False)
    assert (found["bnxt_re1"].gid_index, found["bnxt_re1"].link_local) == (None, True)
    assert "bnxt_re0:1" in chosen.hca_list
    assert "bnxt_re1:1" not in chosen.hca_list


def test_ports_with_link_local_addresses_are_used_if_no_port_has_another() -> None:
    """Some fabrics have no other addresses."""
    assert nics.choose_ports(ports(2, link_local=True), []).hca_list == "=mlx5_0:1,mlx5_1:1"


def test_virtual_functions_of_this_host_are_not_chosen() -> None:
    """Eight physical functions with four virtual ones each: only the eight are listed, although the others are as fast."""
    virtual = [replace(port, device=f"mlx5_{number + 8}", physical_function=port.pci_address) for number, port in enumerate(ports(8) * 4)]
    fabric = nics.choose_ports([*ports(8), *virtual], [])

    assert [port.device for port in fabric.chosen] == [f"mlx5_{index}" for index in range(8)]
    assert "a virtual function of 0000:06:00.0" in fabric.ports[-1].reason


def test_ports_sort_by_number() -> None:
    """mlx5_2 sorts before mlx5_10."""
    assert sorted(["mlx5_10", "mlx5_2", "bnxt_re0"], key=nics.natural) == ["bnxt_re0", "mlx5_2", "mlx5_10"]


def host_with_routes(tmp_path: Path, ipv4: str = "", ipv6: str = "") -> sysfs.Host:
    """Return a host with these lines in its routing tables."""
    folder = tmp_path / "proc/net"
    folder.mkdir(parents=True)
    (folder / "route").write_text("Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n" + ipv4)
    (folder / "ipv6_route").write_text(ipv6)
    return sysfs.Host(tmp_path)


DEFAULT = "{}\t00000000\t0100000A\t{}\t0\t0\t{}\t00000000\n"


def test_two_default_routes_with_the_same_metric_give_no_interface(tmp_path: Path) -> None:
    """The reason names both interfaces."""
    host = host_with_routes(tmp_path, DEFAULT.format("eth0", "0003", 0) + DEFAULT.format("eth1", "0003", 0))

    assert routes.choose_interface(host) == routes.Interface("", "the default route exists on eth0 and eth1 with the same metric")


def test_a_reject_route_is_ignored(tmp_path: Path) -> None:
    """An unreachable default route has the flag RTF_REJECT."""
    host = host_with_routes(tmp_path, DEFAULT.format("eth0", "0203", 0) + DEFAULT.format("eth1", "0003", 50))

    assert routes.choose_interface(host).name == "eth1"


def test_without_an_ipv4_default_route_the_ipv6_route_is_used(tmp_path: Path) -> None:
    """The kernel's entry on lo is ignored."""
    zero = "0" * 32
    lo = f"{zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200 lo\n"
    host = host_with_routes(tmp_path, ipv6=f"{lo}{zero} 00 {zero} 00 {zero} 00000400 00000001 00000000 00000003 eth2\n")

    assert routes.choose_interface(host).name == "eth2"


def test_the_route_to_a_peer_has_the_longest_prefix(tmp_path: Path) -> None:
    """It overrides the default route."""
    near = "storage\t00001E0A\t00000000\t0001\t0\t0\t0\t0000FFFF\n"
    host = host_with_routes(tmp_path, DEFAULT.format("eth0", "0003", 0) + near)

    assert routes.read_routes(host)[1].network == ipaddress.ip_network("10.30.0.0/16")
    assert routes.choose_interface(host, peer="10.30.5.5").name == "storage"
    assert routes.choose_interface(host, peer="10.31.0.1").name == "eth0"


def test_an_interface_that_the_site_names_must_exist(tmp_path: Path) -> None:
    """Otherwise no interface is chosen."""
    host = host_with_routes(tmp_path, DEFAULT.format("eth0", "0003", 0))

    assert routes.choose_interface(host, name="ens9").name == ""


def gpu(*path: str) -> gpus.Gpu:
    """Return a GPU with this path in the PCI tree."""
    return gpus.Gpu(path[-1], "amd", "1002:74a1", "", ("MI300X",), "", 192, "module", virtual=False, numa_node=0, path=path)


def test_ports_far_from_gpus_are_rejected_only_if_half_of_the_gpus_have_a_near_port() -> None:
    """With a near port for a quarter of the GPUs, all ports are chosen."""
    near = replace(PORT, device="mlx5_1", path=("pci0000:01", "bridge1", "nic1"))
    far = replace(PORT, device="mlx5_2", path=("pci0000:f0", "bridgef", "nicf"))
    four = [gpu(f"pci0000:0{index}", f"bridge{index}", f"gpu{index}") for index in range(1, 5)]

    assert nics.choose_ports([near, far], four[:2]).hca_list == "=mlx5_1:1"
    assert nics.choose_ports([near, far], four).hca_list == "=mlx5_1:1,mlx5_2:1"
    assert nics.near_ports(four[0], [near, far]) == (("mlx5_1:1",), "pcie")


def test_without_a_common_switch_the_nearest_port_is_on_the_same_numa_node() -> None:
    """A port with an unknown NUMA node is not near."""
    far = replace(PORT, device="mlx5_1", numa_node=1)
    unknown = replace(PORT, device="mlx5_2", numa_node=None)

    assert nics.near_ports(gpu("g"), [PORT, far, unknown]) == (("mlx5_0:1",), "numa")
    assert nics.near_ports(gpu("g"), [far, unknown]) == ((), "none")
