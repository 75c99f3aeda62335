# SPDX-License-Identifier: GPL-2.0
"""Software RDMA links in a guest."""


def link_name(guest, rail=0):
    """Returns the name of the RDMA device on eth<rail>: rxe0, siw0..."""
    return f"{guest.provider}{rail}"


def load_once(guest, module, parameters):
    guest.check(f"grep -q '^{module} ' /proc/modules || insmod /files/{module}.ko {parameters}")


def plug(guest, rail=0):
    """Adds the RDMA device on eth<rail>, or on the bond."""
    interface = guest.bond.devices[rail] if guest.bond else f"eth{rail}"
    # The module that is loaded first is the nearest to the driver.
    if guest.profile:
        load_once(guest, "ib_imitate", guest.profile)
    if guest.dma is not None:
        load_once(guest, "ib_imitate_dma", guest.dma)
    if guest.timing is not None:
        load_once(guest, "ib_imitate_timing", guest.timing)
    guest.check(f"rdma link add {link_name(guest, rail)} type {guest.provider} netdev {interface}")


def unplug(guest, rail=0, timeout=240):
    """Removes the RDMA device on eth<rail>, and waits for its users."""
    guest.check(f"rdma link delete {link_name(guest, rail)}", timeout)


# Packets reach rxe in a thread, not in a softirq. rxe's completer frees packets for a queue pair in error while it
# holds the queue pair's state_lock with interrupts off. If the NIC's pages come from a pool (recent virtio_net), that
# ends in spin_unlock_bh(), which runs softirqs: the next packet for the same queue pair then waits for the lock for
# ever.
THREADED = "[ ! -w /sys/class/net/eth{rail}/threaded ] || echo 1 >/sys/class/net/eth{rail}/threaded"


def setup_link(guest, rail=0):
    """Adds the RDMA device on eth<rail> with address 10.0.<rail>.<number of the guest>."""
    guest.check(f"ip addr add 10.0.{rail}.{guest.number}/24 dev eth{rail} && ip link set eth{rail} up")
    guest.check(THREADED.format(rail=rail))
    plug(guest, rail)


def setup_bond(guest):
    """Makes bond0 with address 10.0.0.<number of the guest>, and its RDMA devices, rxe0 and perhaps rxe1.

    The bond checks its carrier every 100 ms. Of the slaves' devices, the active slave's has the GID of the address.
    """
    mac = guest.bond.mac
    guest.check(
        f"insmod /files/bonding.ko max_bonds=0 && ip link add bond0 mtu 4200 type bond mode active-backup miimon 100 fail_over_mac {mac}"
    )
    if "bond0" not in guest.bond.devices:
        guest.check("insmod /files/rxe_bond.ko")
    for rail in range(2):
        enslave(guest, rail)
        guest.check(THREADED.format(rail=rail))
    guest.check(f"ip addr add 10.0.0.{guest.number}/24 dev bond0 && ip link set bond0 up")
    if "bond0" in guest.bond.devices:
        plug(guest)


def enslave(guest, rail):
    """Makes eth<rail> a slave of bond0, with its RDMA device if it has one.

    The device is made first because rxe takes its GUID from the current hardware address, and all slaves may have the
    bond's. The connection manager mistakes two devices with one GUID for one device, and their queue pairs, too.
    """
    if f"eth{rail}" in guest.bond.devices:
        plug(guest, rail)
    guest.check(f"ip link set eth{rail} down master bond0")


def fail_over(guest, rail):
    """Makes eth<rail> the active slave of bond0."""
    guest.check(f"ip link set bond0 type bond active_slave eth{rail}")


def setup_two_links(guest, mtu=4200):
    """Sets up rxe0 (10.0.1.1 on veth0) and rxe1 (10.0.1.2 on veth1) in one name space.

    They are the two ends of a veth pair, so that the traffic crosses a real net device where netem and nft can act on
    it. By default, the kernel would see that both addresses are its own and use lo; the rules below, ahead of the local
    table, send each direction through its veth. Each rule is bound to an input interface: locally made packets have
    `lo`, and rdma_cm asks with the veth when it checks that a connection request arrived where the answer would leave.
    Packets that really arrive match neither rule and reach the local table. The source address distinguishes the
    directions, so connections must be bound to an address (LNDs do this; rping needs -I).
    """
    script = ["ip link add veth0 type veth peer name veth1"]
    script += ["ip rule add pref 100 lookup local", "ip rule del pref 0"]
    addresses = ("10.0.1.1", "10.0.1.2")
    for i, own in enumerate(addresses):
        peer, dev, table = addresses[1 - i], f"veth{i}", 1000 + i
        script += [
            f"ip link set {dev} address 52:54:00:00:01:0{i + 1} mtu {mtu}",
            f"ip addr add {own}/24 dev {dev}",
            f"ip link set {dev} up",
            # Both addresses are local: without this setting the packets are martians.
            f"echo 1 >/proc/sys/net/ipv4/conf/{dev}/accept_local",
            f"ip neigh replace {peer} lladdr 52:54:00:00:01:0{2 - i} dev {dev} nud permanent",
            f"ip route add {peer} dev {dev} src {own} table {table}",
            f"ip rule add pref 10 iif lo from {own} to {peer} lookup {table}",
            f"ip rule add pref 10 iif {dev} from {own} to {peer} lookup {table}",
        ]
    script += [f"rdma link add rxe{i} type rxe netdev veth{i}" for i in (0, 1)]
    guest.check(" && ".join(script))
