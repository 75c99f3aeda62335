# SPDX-License-Identifier: GPL-2.0
"""What an administrator does at a running node, under lnet_lite. The same under real LNet:
test_lustre_operator.py."""

import re

from nodes import up, until


def test_closing_what_is_not_there(nodes):
    """As ko2iblnd: one peer without a connection is an error, nobody having any is none."""
    a, b = nodes
    up(a, b)
    enoent = -2
    assert a.ctl(f"conn close {b.nid}", ok=False)["rc"] == enoent
    assert a.ctl(f"conn close any from={a.nid}", ok=False)["rc"] == 0
    assert a.ctl(f"peer del any from={a.nid}", ok=False)["rc"] == enoent
    a.ping(b)
    assert a.ctl(f"conn close {b.nid}", ok=False)["rc"] == 0
    until(lambda: a.conns() == 0, "closed")
    assert a.ctl(f"conn close any from={a.nid}", ok=False)["rc"] == 0


def test_peers_are_counted_with_the_table(nodes):
    """`lctl peer_list` prints one reference for the table and one for each connection."""
    a, b = nodes
    up(a, b)
    a.ping(b)
    answer = a.ctl(f"peer lnd {a.nid}")
    assert answer["peer0"] == b.nid and answer["refs"] == 2, answer


def test_debug_peer(nodes):
    """Every list of ko2iblnd's dump, with what waits in it."""
    a, b = nodes
    up(a, b)
    a.ping(b)
    a.ctl(f"peer debug {b.nid}")
    text = a.log()
    for line in (
        r"\[last_alive, races, reconnected, error\]: \d+, 0, 0, 0",
        r"Conn 0:",
        rf"conn\[1\] qp \d+->\d+ \[version 12\] -> {re.escape(b.nid)}: active",
        r"   state 3 nposted 0/0 cred \d o_cred \d r_cred 8 \(Established depth 8 ",
        r"   comms_err 0 \(cause none ",
        *(rf"   {name}:$" for name in ("early_rxs", "tx_noops", "tx_queue_nocred", "tx_queue_rsrvd", "tx_queue", "active_txs")),
        r"   rxs: posted \d+ with_lnet 0 early 0",
    ):
        assert re.search(line, text, re.MULTILINE), f"{line}\n{text}"
    # One that nobody knows.
    assert a.ctl("peer debug 10.0.0.77@o2ib", ok=False)["rc"] == -2


def test_debug_peer_shows_what_waits(nodes):
    """The peer's LNet takes nothing: eight PUTs have used all credits, the others wait for one."""
    a, b = nodes
    up(a, b, peer_credits=8)
    a.ping(b)
    b.set(lazy=1)
    load = a.start(b, op="put-ack", size=100000, count=64, conc=64)
    try:
        until(lambda: "oldest=answer" in a.guest.check("cat /sys/kernel/debug/ro2iblnd/*@o2ib"), "PUTs wait for their answer")
        a.mark_log()
        a.ctl(f"peer debug {b.nid}")
        text = a.log()
    finally:
        b.set(lazy=0)
        load.result()
    active = re.findall(r"      tx \d+ snd 0 q 0 w 1 rc 0 dl \d+ cookie 0x\w+ msg !- type d2 cred 0 \(age_ms \d+\)", text)
    assert len(active) >= 1, text
    assert re.search(r"conn\[(\d+)\] qp", text)[1] != "1", text


def test_booting_node_says_early(nodes):
    """A node that listens, and whose NI LNet does not have in service yet, is asked again; it is not
    taken for one without that NI."""
    a, b = nodes
    up(a)
    b.load()
    b.set(start_delay_ms=4000)
    job = b.guest.spawn(b.ctl_script("ni add o2ib eth0"))
    until(lambda: b.guest.run("ls /sys/kernel/debug/ro2iblnd/*@o2ib")[0] == 0, "started")
    # Asked while it boots, answered when it is up.
    a.ping(b)
    assert job.wait(60)[0] == 0
    strangers = b.guest.check("cat /sys/kernel/debug/ro2iblnd/strangers")
    assert re.search(r"of=refused .*NotReady=[1-9]", strangers), strangers
    assert re.search(r"of=refused .*NoSuchNi=0", strangers), strangers
    # One that is up has no other NIs to come.
    assert a.ctl(f"ping {b.nid}7 timeout=5", ok=False)["rc"] != 0
