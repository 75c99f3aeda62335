# SPDX-License-Identifier: GPL-2.0
"""Lustre's own sanity-lnet.sh over o2ib, with either driver. Run by `make test-lustre LUSTRE=...`.

The script runs out of the tree, in a guest whose root directory is that of this machine, because it needs bash, awk,
iproute2 and more. The guest sees the machine through a read-only share, and writes into its own memory. With ro2iblnd
its module is in the place of the tree's ko2iblnd.ko.
"""

import os
import re

import pytest
from lustre import KO, OURS
from test_lustre import LUSTRE, tree  # noqa: F401  # a fixture

pytestmark = [
    pytest.mark.skipif(not LUSTRE, reason="no LUSTRE=/path/to/built/tree: real LNet is not at hand"),
    # The script deletes its network namespaces and loads modules by any name.
    pytest.mark.splats(r"Call Trace"),
]

# Options of QEMU for the share, which the guest mounts below an overlay in memory.
SHARE = ["-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"]
ROOT = """
mkdir -p /host /over /new
mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 host /host
mount -t tmpfs tmpfs /over
mkdir /over/upper /over/work
mount -t overlay -o lowerdir=/host,upperdir=/over/upper,workdir=/over/work overlay /new
for dir in proc sys dev run tmp; do mkdir -p /new/$dir; done
mount -t proc proc /new/proc
mount -t sysfs sysfs /new/sys
mount -t debugfs debugfs /new/sys/kernel/debug
mount -t tmpfs tmpfs /new/run
mount -t tmpfs tmpfs /new/tmp
mount --bind /dev /new/dev
ln -sf /proc/self/fd /dev/fd
echo node >/proc/sys/kernel/hostname
echo 127.0.0.1 localhost node >/new/etc/hosts
"""
RUN = (
    "chroot /new /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root NETTYPE=o2ib LUSTRE={tree}/lustre"
    " MODOPTS_LNET='networks=o2ib(eth0)' SLOW=no FAIL_ON_ERROR=false ONLY='{only}'"
    " bash {tree}/lustre/tests/sanity-lnet.sh"
)
# Tests of the script that use the names of the module.
NARROW = "231 241 266"
HOURS = 3


def results(tree, workdir, driver, only):  # noqa: F811
    """Runs the script on a node with that driver. Returns the status of each test by its number."""
    script = os.path.join(tree.path, "lustre/tests/sanity-lnet.sh")
    if not os.path.exists(os.path.join(tree.path, "lustre/tests/test-framework.sh")) or not os.path.exists(script):
        pytest.skip(f"{tree.path} has no tests of Lustre")
    if not os.path.realpath("/usr/bin/awk").endswith("gawk"):
        pytest.skip("the script wants gawk: another awk does not know \\s")
    options = {"more": lambda _number: SHARE, "memory": 2048}
    with tree.pair(workdir=workdir, modules=("overlay", "veth"), **options) as (guest, _other):
        guest.check(ROOT)
        if driver == OURS:
            guest.check(f"cp /files/{OURS}.ko /new{tree.modules[KO]}")
        command = RUN.format(tree=tree.path, only=only)
        _status, out = guest.run(f"{command} 2>&1 | tee /share/sanity-lnet.txt", HOURS * 3600)
        found = dict(reversed(r) for r in re.findall(r"^(PASS|FAIL|SKIP) (\w+) \(\d+s\)", out, re.MULTILINE))
        assert found, out[-3000:]
        os.replace(os.path.join(guest.share, "sanity-lnet.txt"), os.path.join(workdir, f"sanity-lnet-{driver}.txt"))
    return found


def beside(tree, workdir, only):  # noqa: F811
    ours, theirs = (results(tree, workdir, driver, only) for driver in (OURS, KO))
    differ = {number: (ours.get(number), status) for number, status in theirs.items() if ours.get(number) != status}
    assert not differ, f"{OURS}, {KO}: {differ}; see {workdir}"
    return ours


def test_sanity_lnet_where_it_names_the_module(tree, workdir):  # noqa: F811
    """Tests of parameters below /sys/module/ko2iblnd, of the timeout, and of importing the shown configuration pass."""
    assert beside(tree, workdir, NARROW) == dict.fromkeys(NARROW.split(), "PASS")


@pytest.mark.long
def test_sanity_lnet(tree, workdir):  # noqa: F811
    """The whole script: the same tests pass, fail and are skipped with either driver."""
    found = beside(tree, workdir, "")
    assert list(found.values()).count("PASS") > 50, found
