# SPDX-License-Identifier: GPL-2.0
"""DMA as with an adapter: addresses that differ from the CPU's, buffers that bounce, mappings that end in time.

ib_dma gives the devices a DMA device of their own (tests-vm/modules/ib_dma.c). The kernel's DMA layer does the rest.
Several devices of `--device` have that, too.
"""

import pytest
from flow import balanced
from nodes import Node, up
from test_devices import traffic

PARAMETERS = "/sys/module/ib_dma/parameters"


def slots(node):
    """Returns how much of the bounce buffer is in use, in slots of 2 KiB."""
    return int(node.guest.check("cat /sys/kernel/debug/swiotlb/io_tlb_used"))


@pytest.mark.parametrize("append", ["", "swiotlb=force"], ids=["direct", "bounced"])
def test_traffic(boot_pair, append):
    a, b = (Node(g) for g in boot_pair(hardware=True, dma="", append=append))
    before = [slots(node) for node in (a, b)] if append else []
    up(a, b)
    traffic(a, b)
    balanced(a, b)
    assert not append or all(slots(node) > was for node, was in zip((a, b), before, strict=True))
    for node in (a, b):
        assert node.guest.check(f"cat {PARAMETERS}/violations").strip() == "0"
        node.unload()
    assert not append or [slots(node) for node in (a, b)] == before


@pytest.mark.splats("ib_dma", "Call Trace")
@pytest.mark.parametrize("skip", ["device 1", "device 2", "cpu 2"])
def test_a_missing_sync_is_noticed(boot_pair, skip):
    """A driver that did not synchronise its buffers would break a rule or transfer wrong data here."""
    a, b = (Node(g) for g in boot_pair(hardware=True, dma="", append="swiotlb=force"))
    up(a, b)
    a.traffic(b, op="mix", size=1000, count=20, conc=4)
    assert int(b.guest.check(f"cat {PARAMETERS}/violations")) == 0
    b.guest.check(f"echo '{skip}' >{PARAMETERS}/skip")
    r = a.try_traffic(b, op="mix", size=1000, count=20, conc=4, timeout=10)
    broken = int(b.guest.check(f"cat {PARAMETERS}/violations"))
    assert broken or r["errors"] or r["verify_errors"], r


def test_a_small_bounce_buffer(boot_pair):
    """Transfers for which the bounce buffer has no room wait for those that use it. None fails."""
    a, b = (Node(g) for g in boot_pair(hardware=True, dma="", append="swiotlb=2048,force"))
    up(a, b)
    a.traffic(b, op="mix", size=1048576, count=60, conc=16, timeout=60)
    for node in (a, b):
        assert "buffer is full" in node.log()
        assert "connection closed" not in node.log()


@pytest.mark.long
def test_memory_that_the_device_cannot_reach(boot_pair):
    """A transfer works if some of its pages bounce and others do not."""
    a, b = (Node(g) for g in boot_pair(hardware=True, dma="mask=32 shift=0", memory=5120))
    up(a, b)
    traffic(a, b)
    balanced(a, b)
    for node in (a, b):
        assert slots(node) > 0 and node.guest.check(f"cat {PARAMETERS}/violations").strip() == "0"
