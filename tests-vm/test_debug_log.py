# SPDX-License-Identifier: GPL-2.0
"""Lines of the driver in LNet's debug log (`lctl dk`). lnet_lite keeps one in the same format. test_lustre_lnetctl.py
checks LNet's own."""

import re

from counters import conn
from nodes import CTL, until, up

NETERROR, NET, LND = 0x100, 0x200, 0x800
NO_HOST = "10.0.0.77@o2ib"


def taken(node):
    """Returns the lines since the last call: (mask, place in the source, text)."""
    out = node.guest.check(f"cat {CTL}/dk; echo >{CTL}/dk")
    found = re.findall(r"^00000800:(\w{8}):\d+\.0:\d+\.\d{6}:0:\d+:0:\((\S+)\) (.*)$", out, re.MULTILINE)
    assert len(found) == len(out.splitlines()), out
    assert all(re.fullmatch(r"\w+\.rs:\d+:ro2iblnd(::\w+)+\(\)", place) for _mask, place, _text in found), found
    return [(int(mask, 16), place, text) for mask, place, text in found]


def quiet(*nodes):
    until(lambda: all(conn(n)["wrs"] == conn(n)["retired"] for n in nodes), "all completed")


def test_only_what_went_wrong(nodes):
    """By default messages leave no line. A warning leaves one, also if the console does not show it."""
    a, b = nodes
    up(a, b)
    a.traffic(b, op="mix", size=20000, count=40)
    assert taken(a) == [] and taken(b) == []
    a.ctl(f"ping {NO_HOST} timeout=20", ok=False)
    lines = taken(a)
    assert lines and {mask for mask, _place, _text in lines} == {NETERROR}, lines
    assert any(f"{NO_HOST}: connecting failed: " in text for _mask, _place, text in lines), lines


def test_the_limit_is_the_consoles(nodes):
    """The debug log has all of 24 connections that end at once. The rate limit of the console drops some."""
    a, b = nodes
    up(a, b, conns_per_peer=24)
    a.ping(b)
    until(lambda: a.conns() == b.conns() == 24, "all connections")
    taken(a)
    a.mark_log()
    b.ctl(f"conn close {a.nid}")
    until(lambda: not a.conns(), "closed")
    words = f"{b.nid}: connection closed: closed by the peer"
    told = until(lambda: len(found := re.findall(words, a.guest.check(f"cat {CTL}/dk"))) >= 24 and found, "all are told")
    assert len(told) == 24 and {mask for mask, _place, text in taken(a) if words in text} == {NETERROR}
    assert 0 < a.log().count(words) < 24


def test_each_message(nodes):
    """With `net` the log has as many lines as the counters say. Without the mask or without the subsystem it has
    none."""
    a, b = nodes
    up(a, b)
    a.ping(b)
    quiet(a, b)
    for node in nodes:
        node.set(debug=NETERROR | NET)
        taken(node)
    before = [conn(n) for n in nodes]
    a.traffic(b, op="mix", size=20000, count=40, conc=4)
    quiet(a, b)
    after = [conn(n) for n in nodes]
    logs = [taken(n) for n in nodes]
    for node, other, was, now, log in ((a, b, before[0], after[0], logs[0]), (b, a, before[1], after[1], logs[1])):
        texts = [text for _mask, _place, text in log]
        assert {mask for mask, _place, _text in log} == {NET}, texts
        assert [t for t in texts if other.nid not in t] == [], texts
        sent = [t for t in texts if t.startswith(f"{other.nid}: transmit ") and "transmit Invalidate, " not in t]
        assert len(sent) == now["tx_msgs"] - was["tx_msgs"], (was, now, sent)
        assert len([t for t in sent if "transmit NOOP with" in t]) == now["tx_noops"] - was["tx_noops"], (was, now, sent)
        received = [t for t in texts if re.match(rf"{re.escape(other.nid)}: received \w+ of \d+ bytes with \d+ credits$", t)]
        assert len(received) == now["rx_msgs"] - was["rx_msgs"], (was, now, received)
        kinds = {t.split()[1] for t in texts if t.startswith("sending ")}
        assert kinds <= {"Put", "Get", "Ack", "Reply"} and (kinds or node is b), texts
    a.set(debug=NETERROR)
    b.set(subsystem_debug=0x7FFFFFFF & ~LND)
    a.traffic(b, op="mix", size=20000, count=40)
    b.ctl(f"ping {NO_HOST} timeout=20", ok=False)
    assert taken(a) == [] and taken(b) == []
    b.set(subsystem_debug=LND)
    a.ping(b)
    assert taken(b)


def test_states(nodes):
    """With `net` the log has each change of a connection's state, and its reason."""
    a, b = nodes
    up(a, b)
    a.set(debug=NETERROR | NET)
    a.ping(b)
    a.ctl(f"conn close {b.nid}")
    until(lambda: not a.conns() and not b.conns(), "closed")
    until(lambda: "to Dead on" in a.guest.check(f"cat {CTL}/dk"), "it is over")
    steps = [text.partition(": ")[2] for _mask, _place, text in taken(a) if re.search(r": \w+ to \w+ on ", text)]
    assert [s.split(" on ")[0] for s in steps] == [
        "Init to Resolving", "Resolving to Connecting", "Connecting to Established", "Established to Closing",
        "Closing to Draining", "Draining to Dead",
    ], steps  # fmt: skip
    assert "Established to Closing on Fail(AdminClose)" in steps, steps
