# SPDX-License-Identifier: GPL-2.0
"""Defaults that fit the speed of the link: depth, credits, gather elements. A value that the administrator sets counts
at any speed."""

import time

from faults import SLOW, close_all
from counters import DEBUGFS, balanced, depths
from nodes import Node, parse, until, up

PROFILE = "/sys/module/ib_imitate/parameters"
# Codes of speed and width, as PortInfo has them, and Mb/s.
FAST = {"profile": "speed=32 width=2"}
SDR, QDR4, EDR4 = (1, 1, 2500), (4, 2, 40000), (32, 2, 100000)


def runs_at(node, link):
    speed, width, _mbps = link
    node.guest.check(f"echo {speed} >{PROFILE}/speed; echo {width} >{PROFILE}/width")


def shown(node):
    """Returns the NI's line of debugfs, and the tunables in LNet."""
    ni = parse(node.guest.check(f"grep ^ni= {DEBUGFS}/{node.nid}"))
    lnet = node.ctl(f"ni show {node.nid}")
    return {k: ni[k] for k in ("speed_mbps", "depth", "depth_by", "gather")} | {
        k: lnet.get(k) for k in ("peer_credits", "credits", "queue_depth", "queue_depth_mbps", "peercredits_hiw")
    }


def is_(depth, by, mbps, gather, credits):
    return {
        "speed_mbps": mbps, "depth": depth, "depth_by": by, "gather": gather, "peer_credits": depth, "credits": credits,
        "queue_depth": depth, "queue_depth_mbps": mbps if by == "link" else None, "peercredits_hiw": depth // 2,
    }  # fmt: skip


LINKS = (
    (SDR, 8, 30, 256, "2.5 Gb/s x 40 us / 16 KiB, within 8..32; 30 gather elements"),
    (QDR4, 16, 30, 512, "40 Gb/s x 40 us / 16 KiB, within 8..32; 30 gather elements"),
    (EDR4, 32, 30, 1024, "100 Gb/s x 40 us / 16 KiB, within 8..32; 30 gather elements"),
)


def a_link_has_a_depth(pair, link, depth, gather, credits, text):
    """Both ends have the depth of their common speed: no reject, and the log has the reason."""
    a, b = pair
    for node in pair:
        runs_at(node, link)
        node.mark_log()
    a.load()
    a.ni_add()
    b.load()
    # Another tunable is set: the driver still chooses the unset values.
    b.ni_add(peer_timeout=100)
    for node in pair:
        assert shown(node) == is_(depth, "link", link[2], gather, credits)
        assert f"{node.nid}: peer_credits is {depth}: {text}" in node.log()
    for op in ("put-ack", "get"):
        a.traffic(b, op=op, size=1048576, shape="unaligned", count=40, conc=2 * depth)
        b.traffic(a, op=op, size=4096, count=200, conc=4 * depth)
    assert depths(a, b) == [[depth], [depth]]
    balanced(a, b)
    assert "queue depth" not in a.log() + b.log()


def the_smaller_depth_counts(pair):
    """The smaller depth, 8, is used whichever node connects first."""
    a, b = pair
    runs_at(a, EDR4)
    runs_at(b, SDR)
    up(a, b)
    for first, second in ((a, b), (b, a)):
        first.ping(second)
        first.traffic(second, op="mix", size=20000, count=100, conc=32)
        second.traffic(first, op="mix", size=100, count=300, conc=32)
        assert depths(a, b) == [[8], [8]]
        balanced(a, b)
        close_all(a, b)


# Parameters, tunables of the NI, and expected values, at 100 Gb/s.
SAID = (
    ("peer_credits=8", {}, is_(8, "given", 100000, 30, 256)),
    ("peer_credits=64", {}, is_(64, "given", 100000, 30, 256)),
    ("", {"peer_credits": 8}, is_(8, "given", 100000, 30, 256)),
    ("", {"peer_credits": 16, "credits": 300}, is_(16, "given", 100000, 30, 300)),
    ("credits=256", {}, is_(32, "link", 100000, 30, 256)),
    ("credits=128", {}, is_(16, "link", 100000, 30, 128)),
    ("", {"credits": 6}, is_(6, "link", 100000, 30, 6)),
    ("wrq_sge=2", {}, is_(32, "link", 100000, 16, 1024)),
    ("peer_credits_hiw=20", {}, is_(32, "link", 100000, 30, 1024) | {"peercredits_hiw": 20}),
    ("peer_credits_hiw=2", {}, is_(32, "link", 100000, 30, 1024)),
)


def test_given_values_count(boot_pair):
    """A value that is set counts, also if it is the default. Credits follow a depth that the driver chose, and no
    other."""
    a = Node(boot_pair(**FAST)[0])
    for lnd, tunables, seen in SAID:
        a.load(lnd)
        a.ni_add(**tunables)
        assert (lnd, tunables, shown(a)) == (lnd, tunables, seen)
        a.unload()


def another_speed(pair):
    """If a port comes back at another speed, new connections have its depth. LNet's credits stay."""
    a, b = pair
    runs_at(a, SDR)
    runs_at(b, EDR4)
    up(a, b)
    a.ping(b)
    assert depths(a, b) == [[8], [8]]
    a.mark_log()
    # A new NI checks its device for one second: a change in that time is seen without an event.
    time.sleep(2 * SLOW)
    runs_at(a, EDR4)
    a.guest.check("insmod /files/ib_event.ko; echo eth0 port_active >/sys/module/ib_event/parameters/tell; rmmod ib_event")
    until(lambda: "peer_credits is 32 now, was 8; for new connections" in a.log(), "a line in the log")
    assert shown(a) == is_(32, "link", 100000, 30, 256) | {"peer_credits": 8, "peercredits_hiw": 4}
    assert depths(a, b) == [[8], [8]]
    close_all(a, b)
    a.traffic(b, op="mix", count=50, conc=16)
    b.traffic(a, op="mix", count=50, conc=64)
    assert depths(a, b) == [[32], [32]]
    balanced(a, b)
    # The administrator's value wins.
    a.guest.check("echo '*@o2ib peer_credits=12' >/sys/module/ro2iblnd/parameters/ni_tune")
    assert shown(a)["depth_by"] == "ni_tune" and shown(a)["depth"] == 12
    a.guest.check("echo >/sys/module/ro2iblnd/parameters/ni_tune")
    assert shown(a)["depth_by"] == "link" and shown(a)["depth"] == 32


def test_defaults_fit_link_speed(boot_pair):
    """The depth fits the link at several speeds, at two different speeds, and at a speed that changes."""
    pair = [Node(g) for g in boot_pair(**FAST)]
    for link in LINKS:
        a_link_has_a_depth(pair, *link)
        for node in pair:
            node.unload()
    for case in (the_smaller_depth_counts, another_speed):
        case(pair)
        for node in pair:
            node.unload()
