# SPDX-License-Identifier: GPL-2.0
"""GPU memory under real LNet, which itself asks the provider, and with ko2iblnd.

gpu_fake registers with LNet as nvidia-fs does, see test_gpu.py. Its memory can be used by software devices, with both
drivers.
"""

import pytest
from lustre import DEBUGFS, OURS
from nodes import parse
from test_lustre import LUSTRE, WITH_OURS, assert_ping, names, nodes, tree, up  # noqa: F401

pytestmark = pytest.mark.skipif(not LUSTRE, reason="no LUSTRE=/path/to/built/tree: real LNet is not at hand")

SIZES = (1, 4096, 5001, 65536, 1048576)


def load(node, gpu):
    node.sh(f"insmod /files/gpu_fake.ko && echo register >{DEBUGFS}/gpu_fake/ctl && insmod /files/lnet_gpu.ko gpu={gpu}")


def run(node, command):
    """Returns whether the command succeeded."""
    return node.guest.run(f"echo {command} >{DEBUGFS}/lnet_gpu/run", 120)[0] == 0


def stats(node):
    return parse(node.sh(f"cat {DEBUGFS}/gpu_fake/stats"))


@pytest.mark.parametrize("pairing", WITH_OURS, ids=names)
@pytest.mark.parametrize("where", [(1, 1), (1, 0), (0, 1)], ids=lambda w: "-".join("gpu" if x else "host" for x in w))
def test_put_and_get(nodes, pairing, where):  # noqa: F811
    a, b = up(pairing, nodes)
    assert_ping(a, b)
    for node, gpu in zip((a, b), where):
        load(node, gpu)
    for seed, size in enumerate(SIZES):
        # The data of an IMMEDIATE message cannot be copied to a GPU: ro2iblnd fails the message, ko2iblnd writes to a
        # wrong place.
        if where[1] == 0 or size > 4000:
            assert run(a, f"put {b.nid} {seed} {size}"), size
            assert run(b, f"check {seed} {size}"), size
        assert run(b, f"fill {seed + 100} {size}") and run(a, f"get {b.nid} {seed + 100} {size}"), size
    for node, gpu in zip((a, b), where):
        counts = stats(node)
        assert counts["maps"] == counts["unmaps"] and (counts["maps"] > 0) == bool(gpu), counts
        assert not any(counts[k] for k in ("mapped_pages", "bad_unmaps", "crossing", "failed", "mixed", "foreign")), counts
        if node.lnd == OURS:
            assert f"GpuMapped={counts['maps']} GpuRefused=0" in node.sh(f"cat {DEBUGFS}/ro2iblnd/{node.nid}")
        # The memory comes back, and the pages that stand for it are untouched.
        node.sh("rmmod lnet_gpu")
        counts = stats(node)
        assert not counts["taken"] and not counts["touched"] and not counts["freed_mapped"], counts
