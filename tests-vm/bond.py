# SPDX-License-Identifier: GPL-2.0
"""Two nodes whose interface is a bond of two slaves, with an RDMA device each.

A stock kernel has a bonding driver. The test kernel has none: its module is built from the kernel's own sources, once
for each kernel. rxe_bond.c has the part that rxe needs to receive below a bond.
"""

import os
import subprocess
import tempfile

import vm
from conftest import BUILT
from nodes import Node

# An RDMA device on each slave, with one hardware address for both, or as with IPoIB, one for each.
TWO = vm.Bond("none", ("eth0", "eth1"))
TWO_ADDRESSES = vm.Bond("active", ("eth0", "eth1"))
# One device on the bond, of which only the hardware address changes.
ONE = vm.Bond("active", ("bond0",))


def _stock():
    """Returns the bonding driver of the kernel's own modules with its dependencies, or nothing."""
    try:
        return vm.initramfs.module_order(vm.build_env()["KERNEL_MODULES"], ["bonding"])
    except FileNotFoundError:
        return []


def bonding():
    """Returns the path of the kernel's bonding.ko."""
    env = vm.build_env()
    out = os.path.join(env["CACHE"], "bonding-" + os.path.basename(env["KDIR"]))
    module = os.path.join(out, "bonding.ko")
    if os.path.exists(module):
        return module
    os.makedirs(out, exist_ok=True)
    stock = _stock()
    if stock:
        # Another process may build the same file.
        part = f"{module}.{os.getpid()}"
        with open(part, "wb") as f:
            f.write(vm.initramfs.module_data(stock[-1]))
        os.replace(part, module)
        return module
    source = os.path.join(env["KSRC"], "drivers", "net", "bonding")
    llvm = [f"LLVM={env['LLVM']}"] if env.get("LLVM") else []
    with tempfile.TemporaryDirectory(dir=out) as part:
        cmd = ["make", "-s", "-C", env["KDIR"], f"M={source}", f"MO={part}", "CONFIG_BONDING=m", *llvm, "modules"]
        subprocess.run(cmd, check=True, stdin=subprocess.DEVNULL, capture_output=True)
        os.replace(os.path.join(part, "bonding.ko"), module)
    return module


def files():
    """Returns the modules that a guest needs for a bond."""
    return [bonding(), os.path.join(BUILT, "tests-vm", "modules", "rxe_bond.ko")]


def modules():
    """Returns the names of the kernel's own modules that have to be loaded first."""
    stock = _stock()
    return vm.initramfs.module_depends(stock[-1]) if stock else []


class Bonded(Node):
    """Node on bond0."""

    def ni_add(self, net="o2ib", interface="bond0", **tunables):
        return super().ni_add(net, interface, **tunables)

    def device_of(self, rail):
        """Returns the RDMA device that serves the address while eth<rail> is active."""
        return vm.link_name(self.guest, rail if len(self.guest.bond.devices) > 1 else 0)

    def active(self):
        """Returns the active slave: 0 for eth0, 1 for eth1."""
        return int(self.guest.check("cat /sys/class/net/bond0/bonding/active_slave").strip()[3:])

    def fail_over(self):
        """Makes the other slave the active one. Returns its number."""
        rail = 1 - self.active()
        vm.fail_over(self.guest, rail)
        return rail
