# SPDX-License-Identifier: GPL-2.0
"""Tunables and module parameters: combinations that work, and values that are refused."""

import errno

import pytest
from nodes import up

# Takes minutes: part of `make test-long`.
pytestmark = pytest.mark.long

DEPTHS = (8, 32, 128, 255)


@pytest.mark.parametrize("left", DEPTHS)
def test_peer_credits_crosswise(nodes, left):
    """The side with the larger depth reduces it to the peer's, whichever side connects."""
    a, b = nodes
    for right in DEPTHS:
        up(a, peer_credits=left)
        up(b, peer_credits=right)
        # The side with the larger depth asks first, and gets a reject.
        one, other = (a, b) if left >= right else (b, a)
        one.traffic(other, op="mix", size=4096, count=3 * max(left, right), conc=max(left, right))
        other.traffic(one, op="mix", size=20000, count=60, conc=64)
        text = one.guest.check("cat /sys/kernel/debug/ro2iblnd/*@*")
        assert f"depth={min(left, right)} " in text, text
        a.unload()
        b.unload()


def test_few_peer_credits_are_eight(nodes):
    """Too few peer_credits are clamped, not refused, as in ko2iblnd."""
    a, b = nodes
    up(a, peer_credits=1)
    up(b, peer_credits=3)
    a.traffic(b, op="mix", count=100, conc=32)
    assert "depth=8 " in a.guest.check("cat /sys/kernel/debug/ro2iblnd/*@*")


@pytest.mark.parametrize(("left", "right"), [(1, 4), (4, 1), (4, 4)])
def test_conns_per_peer(nodes, left, right):
    a, b = nodes
    up(a, conns_per_peer=left)
    up(b, conns_per_peer=right)
    a.traffic(b, op="mix", size=20000, count=200, conc=32)
    b.traffic(a, op="mix", size=20000, count=200, conc=32)
    a.traffic(b, op="mix", size=1048576, count=24, conc=8)
    assert max(left, right) >= a.conns() >= 1
    assert a.conns() == b.conns() == left


def test_checksum_on_one_side_only(nodes):
    a, b = nodes
    up(a, lnd="cksum=1")
    up(b)
    for one, other in ((a, b), (b, a)):
        for size in (0, 1, 3976, 65536):
            one.traffic(other, op="mix", size=size, count=8)


@pytest.mark.parametrize("lnd", ["wrq_sge=1", "wrq_sge=256", "ib_mtu=1024", "use_privileged_port=0", "tos=96", "ntx=64"])
def test_parameter(nodes, lnd):
    a, b = nodes
    up(a, lnd=lnd)
    up(b)
    for op in ("put-ack", "get"):
        a.traffic(b, op=op, size=1048576, shape="unaligned", count=8, conc=4)
        b.traffic(a, op=op, size=65536, shape="vmalloc", count=16, conc=8)


OUT_OF_RANGE = (
    "service=0", "service=65536", "timeout=-1", "conns_per_peer=128", "wrq_sge=0", "tos=256", "ib_mtu=1000",
    "peer_credits=-1", "credits=0", "ntx=65536", "peer_credits=x", "fmr_pool_size=0", "probe=249",
)  # fmt: skip


def test_parameter_out_of_range(nodes):
    """The module does not load with a value out of range, and one line has the reason."""
    a, _b = nodes
    a.load()
    a.guest.check("rmmod ro2iblnd")
    wrong = []
    for setting in OUT_OF_RANGE:
        a.guest.check("dmesg -c >/dev/null")
        status, _out = a.guest.run(f"insmod /files/ro2iblnd.ko {setting}")
        # The kernel adds a line of its own, and insmod may try twice.
        lines = {x.split("] ", 1)[-1] for x in a.log().splitlines() if "ro2iblnd" in x and "invalid for" not in x}
        name = setting.split("=")[0]
        if status == 0:
            wrong.append(f"{setting} was taken")
            a.guest.check("rmmod ro2iblnd")
        elif len(lines) != 1 or not all(name in x and ("range" in x or "not an integer" in x) for x in lines):
            wrong.append(f"{setting}: {lines}")
    a.guest.check("insmod /files/ro2iblnd.ko")
    assert not wrong, "\n".join(wrong)


def test_no_tos_as_lnetctl_of_2_16_writes_it(nodes):
    """The parameter counts if lnetctl of 2.16 writes an unset tos, which is then -1 as an unsigned number."""
    a, b = nodes
    up(a, lnd="tos=96", peer_credits=8, tos=0xFFFFFFFF)
    up(b)
    a.ping(b)
    assert " tos=96 " in a.guest.check("cat /sys/kernel/debug/ro2iblnd/*@*")


@pytest.mark.parametrize("tunable", ["conns_per_peer=128", "conns_per_peer=-1", "nonsense=1", "tos=256", "tos=4294967294"])
def test_tunable_out_of_range(nodes, tunable):
    a, _b = nodes
    a.load()
    r = a.ctl(f"ni add o2ib eth0 {tunable}", ok=False)
    assert r["rc"] < 0, r
    a.ni_add()


def test_interface_that_is_none(nodes):
    """LNet's tools have texts of their own for ENOENT and ENODEV of a start, which name other faults."""
    a, _b = nodes
    a.load()
    for interface, code in (("lo", errno.ENETDOWN), ("eth7", errno.ENETDOWN), ("a-name-longer-than-any", errno.E2BIG)):
        a.mark_log()
        assert a.ctl(f"ni add o2ib {interface}", ok=False)["rc"] == -code
        assert "ro2iblnd: interface " in a.log()


def test_a_nid_has_one_ni(nodes):
    """A second NI with the NID of the first does not start: LNet would refuse it afterwards, and free it twice."""
    a, b = nodes
    up(a, b)
    a.mark_log()
    assert a.ctl("ni add o2ib eth0", ok=False)["rc"] == -errno.EADDRINUSE
    assert f"{a.nid}: LNet has an NI with this NID already" in a.log()
    a.traffic(b, op="mix", count=20)
    b.traffic(a, op="mix", count=20)


def test_two_nets_on_one_interface(nodes):
    a, b = nodes
    for node in nodes:
        node.load()
        node.ni_add()
        node.ni_add(net="o2ib7")
    a.traffic(b, op="mix", count=16)
    a.traffic(f"{b.address}@o2ib7", op="mix", count=16)
    b.traffic(f"{a.address}@o2ib7", op="mix", size=65536, count=16)
