# SPDX-License-Identifier: GPL-2.0
"""DMA as with an adapter: addresses that differ from the CPU's, buffers that bounce, mappings that end in time.

ib_imitate_dma gives the devices a DMA device of their own, and the kernel's DMA layer does the rest. Several devices
of `--device` have that, too.
"""

import pytest
from faults import close_all
from counters import balanced
from nodes import Node, until, up
from test_device_kinds import traffic

PARAMETERS = "/sys/module/ib_imitate_dma/parameters"
# Reports of broken rules. Connections end under load, where a debug kernel reports a defect of soft-RoCE (testing.md).
broken = pytest.mark.splats("ib_imitate_dma", "Call Trace", "WARNING: .*(page_pool|softirq|lock|dma/debug)")


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
    # Messages of the connection manager may still be under way.
    until(lambda: not append or [slots(node) for node in (a, b)] == before, "the bounce buffer is as before")


@broken
@pytest.mark.parametrize("skip", ["device 1", "device 2", "cpu 2"])
def test_a_missing_sync_is_noticed(boot_pair, skip):
    """A driver that did not synchronise its buffers would break a rule or transfer wrong data here."""
    a, b = (Node(g) for g in boot_pair(hardware=True, dma="", append="swiotlb=force"))
    up(a, b)
    a.traffic(b, op="mix", size=1000, count=20, conc=4)
    assert int(b.guest.check(f"cat {PARAMETERS}/violations")) == 0
    b.guest.check(f"echo '{skip}' >{PARAMETERS}/skip")
    r = a.try_traffic(b, op="mix", size=1000, count=20, conc=20, timeout=10)
    broken = int(b.guest.check(f"cat {PARAMETERS}/violations"))
    assert broken or r["errors"] or r["verify_errors"], r


# Rule that ib_imitate_dma breaks, and part of the line that reports it.
BROKEN = {
    "unmap": "is unmapped, and a work request of queue pair",
    "flush": "is unmapped, and a work request of queue pair",
    "key": "is unmapped, and a region of queue pair",
    "direction": "is not mapped in the direction",
    "length": "is not mapped in the direction",
}


@broken
def test_a_broken_rule_is_noticed(boot_pair):
    """A driver that unmapped memory in use or of a flushed work request, or mapped it in the wrong direction or too
    short, would be noticed here."""
    a, b = (Node(g) for g in boot_pair(hardware=True, dma="", timing="early_ms=20"))
    up(a, b)
    a.traffic(b, op="mix", size=65536, count=8, conc=2)
    for fault, words in BROKEN.items():
        # The next connection maps its message buffers.
        close_all(a, b)
        before = int(b.guest.check(f"cat {PARAMETERS}/violations"))
        assert words not in b.log()
        b.guest.check(f"echo {fault} >{PARAMETERS}/fault")
        a.try_traffic(b, op="mix", size=65536, count=4, conc=2, timeout=10)
        # A close flushes.
        close_all(a, b)
        b.guest.check(f"echo none >{PARAMETERS}/fault")
        assert int(b.guest.check(f"cat {PARAMETERS}/violations")) > before
        assert words in b.log(), fault
        b.mark_log()


def test_a_full_bounce_buffer(boot_pair):
    """Transfers for which the bounce buffer has no room wait until there is some. None fails."""
    a, b = (Node(g) for g in boot_pair(hardware=True, dma="", append="swiotlb=force"))
    up(a, b)
    # A new connection would need room for its message buffers.
    a.ping(b)
    for full in (a, b):
        full.guest.check(f"echo 1 >{PARAMETERS}/occupied")
        run = a.start(b, op="mix", size=1048576, count=60, conc=16, timeout=120)
        until(lambda node=full: "buffer is full" in node.log(), "a transfer that does not fit")
        assert run.running(), run.result()
        full.guest.check(f"echo 0 >{PARAMETERS}/occupied")
        r = run.result()
        assert r["count"] == 60 and not r["errors"] and not r["verify_errors"] and not r["stuck"], r
    for node in (a, b):
        assert "connection closed" not in node.log()
        assert node.guest.check(f"cat {PARAMETERS}/violations").strip() == "0"


@pytest.mark.long
def test_memory_that_the_device_cannot_reach(boot_pair):
    """A transfer works if some of its pages bounce and others do not."""
    a, b = (Node(g) for g in boot_pair(hardware=True, dma="mask=32 shift=0", memory=5120))
    up(a, b)
    traffic(a, b)
    balanced(a, b)
    for node in (a, b):
        assert slots(node) > 0 and node.guest.check(f"cat {PARAMETERS}/violations").strip() == "0"
