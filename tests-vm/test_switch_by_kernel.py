# SPDX-License-Identifier: GPL-2.0
"""ro2iblnd-switch in a guest, where the kernel starts modprobe as for LNet's request: without open files.

scripts/test_switch.py has all other tests of the program.
"""

import os

import pytest
import vm
from conftest import BUILT, ROOT

SWITCH = (os.path.join(ROOT, "scripts", "ro2iblnd-switch"), "/usr/sbin/ro2iblnd-switch")
# Stands in for Lustre's driver.
OTHER = "gpu_fake"


@pytest.fixture(scope="module")
def switched():
    """Provides a switched guest with both drivers."""
    files = [os.path.join(BUILT, path) for path in ("ro2iblnd.ko", "lnet_lite/lnet_lite.ko")]
    files += [SWITCH, (os.path.join(BUILT, f"tests-vm/modules/{OTHER}.ko"), "ko2iblnd.ko")]
    with vm.Guest(name="switched", files=files, tools=("modprobe", "modinfo", "depmod")) as guest:
        guest.check(
            "modules=/lib/modules/$(uname -r) && mkdir -p $modules /etc/modprobe.d && mv /files/*.ko $modules && depmod &&"
            "echo 'alias rtnl-link-lnet ko2iblnd' >/etc/modprobe.d/site.conf && /usr/sbin/ro2iblnd-switch ro2iblnd"
        )
        yield guest


def request(guest):
    """Makes the kernel request a module by an alias of ko2iblnd. Returns which driver is loaded then."""
    guest.run("ip link add type lnet")
    names = guest.check("cut -d ' ' -f 1 /proc/modules").split()
    return [name for name in names if name in ("ro2iblnd", OTHER)]


def test_lustres_probe_chooses_the_options(switched):
    """The command of Lustre's "install ko2iblnd" line loads the driver by a name that has options of its own."""
    switched.check(
        "printf '#!/bin/sh\\nexec modprobe --ignore-install ko2iblnd-opa\\n' >/usr/sbin/ko2iblnd-probe &&"
        "chmod 755 /usr/sbin/ko2iblnd-probe && printf '%s\\n' 'alias ko2iblnd-opa ko2iblnd'"
        " 'options ko2iblnd-opa peer_credits=17' 'install ko2iblnd /usr/sbin/ko2iblnd-probe' >/etc/modprobe.d/ko2iblnd.conf &&"
        "/usr/sbin/ro2iblnd-switch ro2iblnd"
    )
    assert request(switched) == ["ro2iblnd"], switched.dmesg()
    assert switched.check("cat /sys/module/ro2iblnd/parameters/peer_credits") == "17\n"
    switched.check("rmmod ro2iblnd && rm /etc/modprobe.d/ko2iblnd.conf && /usr/sbin/ro2iblnd-switch ro2iblnd")


def test_the_kernels_request_loads_ours_or_else_lustres(switched):
    assert request(switched) == ["ro2iblnd"], switched.dmesg()
    switched.check("rmmod ro2iblnd && rm /lib/modules/*/ro2iblnd.ko && depmod")
    assert request(switched) == [OTHER], switched.dmesg()
    assert "ro2iblnd-switch: no ro2iblnd for kernel" in switched.dmesg()
