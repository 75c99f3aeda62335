# SPDX-License-Identifier: GPL-2.0
"""Memory leaks, by kmemleak, after closes, failing calls and an unplugged device.

On the debug kernel only: `make test-debug`.
"""

import errno
import re
import time

import pytest
import vm
from faults import SLOW, Inject, objects
from nodes import Node, until
from test_close_under_load import NIDS, run
from test_faults_cm import report
from test_faults_verbs import answer

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(SLOW == 1, reason="wants the debug kernel: KERNEL_FLAVOR=debug"),
]

KMEMLEAK = "/sys/kernel/debug/kmemleak"
OURS = re.compile(r"\[ro2iblnd\]|^ +(\[<\S+>\] )?0x[0-9a-f]+$", re.MULTILINE)
# Each fifth of these calls fails, up to a limit: in each step of a connection's set-up, and of a transfer.
CALLS = {
    "ro2ib_create_qp": errno.ENOMEM,
    "ro2ib_alloc_mr": errno.ENOMEM,
    "ro2ib_cm_connect_locked": errno.ENOMEM,
    "ro2ib_cm_accept_locked": errno.ENOMEM,
    "ro2ib_dma_map_buf": errno.EIO,
    "ro2ib_map_mr_sg": errno.EINVAL,
    "ro2ib_ib_post_send": errno.ENOMEM,
}
FAILURES = 20


def found(guest):
    """Returns kmemleak's findings of memory that the driver has allocated, or the core for it. The stack of an unloaded
    module has addresses only."""
    for _ in range(2):
        # kmemleak checks objects that are five seconds old.
        time.sleep(6)
        guest.check(f"echo scan >{KMEMLEAK}", 300 * SLOW)
    text = guest.check(f"cat {KMEMLEAK}", 300 * SLOW)
    return [one for one in text.split("unreferenced object")[1:] if OURS.search(one)]


def load(node):
    node.load()
    for device in ("veth0", "veth1"):
        node.ni_add(interface=device, conns_per_peer=2)


def test_kmemleak(boot, record_property):
    guest = boot("leaks", tools=("nft",), append="kmemleak=on")
    vm.setup_two_links(guest)
    node = Node(guest, NIDS[0].partition("@")[0])
    load(node)
    guest.check(f"echo scan=off >{KMEMLEAK}; echo clear >{KMEMLEAK}")
    done = []
    for way in ("ni", "remote"):
        answer(node)
        _, closes, *_ = run(node, way, 1, timeout=600 * SLOW)
        done.append(f"{way} {closes}")
    answer(node)
    for call, code in CALLS.items():
        with Inject(node, call, -code, times=FAILURES, interval=5) as inject:
            for _ in range(4):
                for mine, other in (NIDS, NIDS[::-1]):
                    node.ctl(f"traffic to={other} from={mine} op=mix size=65536 count=8 timeout=20", ok=False)
                    node.ctl(f"peer del {other} from={mine}", ok=False)
            done.append(f"{call} {FAILURES - inject.left()}")
        answer(node, reopened=2)
    guest.check("rdma link delete rxe0")
    until(lambda: not objects(node), "device gone", 60 * SLOW)
    guest.check("rdma link add rxe0 type rxe netdev veth0")
    for nid in NIDS:
        node.ni_del(nid)
    leaks = found(guest)
    node.unload()
    leaks += found(guest)
    report(record_property, "kmemleak", f"closes and failures: {', '.join(done)}; {len(leaks)} leaks")
    assert not leaks, "".join(leaks[:5])
