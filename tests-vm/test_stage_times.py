# SPDX-License-Identifier: GPL-2.0
"""Times of messages by stage, ends of a peer's connections, and notices of a device."""

from counters import conns
from nodes import until, up
from test_debugfs import lines
from tracing import times


def settled(*nodes):
    until(lambda: all(c["retired"] == c["wrs"] for n in nodes for c in conns(n)), "all completed")


def test_stages_of_every_operation(nodes):
    """Each message passes each of its stages once, except that only messages that wait are `queued`."""
    a, b = nodes
    up(a, b)
    a.ping(b)
    settled(a, b)
    first = times(a), times(b)
    for op in ("put-ack", "get"):
        a.traffic(b, op=op, size=200, count=40, conc=4)
        a.traffic(b, op=op, size=40000, count=40, conc=4)
    settled(a, b)
    last = times(a), times(b)

    def n(which, stage, op):
        old = first[which].get((stage, op), {"n": 0})
        return last[which].get((stage, op), {"n": 0})["n"] - old["n"]

    # 40 PUTs by RDMA, in each direction.
    assert n(0, "answer", "PUT_REQ") == 40, last
    assert n(1, "lnet", "PUT_REQ") == n(1, "answer", "PUT_ACK") == 40, last
    assert n(0, "wire", "PUT_DONE") == 40, last
    # GETs: LNet decides how many of them go by RDMA.
    gets = n(0, "answer", "GET_REQ")
    assert gets == n(1, "lnet", "GET_REQ") == n(1, "wire", "GET_DONE") >= 40, last
    # PUTs of 200 bytes and the ACKs of all PUTs. Each received message was delivered to LNet.
    assert n(0, "wire", "IMMEDIATE") >= 40 and n(1, "wire", "IMMEDIATE") >= 80, last
    assert n(0, "wire", "IMMEDIATE") == n(1, "lnet", "IMMEDIATE"), last
    assert n(1, "wire", "IMMEDIATE") == n(0, "lnet", "IMMEDIATE"), last
    for which in (0, 1):
        assert n(which, "queued", "IMMEDIATE") <= n(which, "wire", "IMMEDIATE"), last
    # A message ends with its answer, or else with its completion; a LOCAL_INV is no message.
    answered = {"PUT_REQ", "GET_REQ", "PUT_ACK"}
    for which in (0, 1):
        assert not {op for stage, op in last[which] if stage == "wire"} & answered, last
        assert {op for stage, op in last[which] if stage == "answer"} <= answered, last
        assert "LOCAL_INV" not in {op for _stage, op in last[which]}, last


def test_a_slow_peer_is_seen(nodes):
    """The times show a peer whose LNet stalls: `credit` and `queued` grow here, `lnet` there, and `wire` nowhere."""
    a, b = nodes
    up(a, b)
    a.ping(b)
    assert ("credit", "IMMEDIATE") not in times(a)
    b.set(lazy=1)
    run = a.start(b, op="put-ack", size=200, count=20, conc=20, ask=0)
    until(lambda: [c for c in conns(a) if c["oldest_ms"] > 2000 and c["q_main"]], "it has waited")
    b.set(lazy=0)
    run.result()
    here, there = times(a), times(b)
    for row in (here["credit", "IMMEDIATE"], here["queued", "IMMEDIATE"], there["lnet", "IMMEDIATE"]):
        assert row["p99_ns"] > 1_500_000_000, (here, there)
    # The wait for a credit is at most the whole wait.
    assert here["credit", "IMMEDIATE"]["sum_ns"] <= here["queued", "IMMEDIATE"]["sum_ns"], here
    assert here["wire", "IMMEDIATE"]["p99_ns"] < 1_500_000_000, here


def test_numbers_of_connections(nodes):
    """Each connection has its own number, also after its end."""
    a, b = nodes
    up(a, b, conns_per_peer=3)
    a.ping(b)
    until(lambda: len(conns(a)) == 3, "all connections")
    first = {c["number"] for c in conns(a)}
    a.ctl(f"conn close {b.nid}")
    until(lambda: not a.conns(), "closed")
    a.ping(b)
    until(lambda: len(conns(a)) == 3, "all connections")
    second = {c["number"] for c in conns(a)}
    assert len(first | second) == 6 and min(first) >= 1, (first, second)


def test_ends_and_the_next_try(nodes):
    """debugfs shows for a peer the causes of its ends, its failed attempts in a row, and when the next attempt is
    due."""
    a, b = nodes
    up(a, b)

    def peer():
        found = [line for line in lines(a) if line.get("peer") == b.nid]
        return found[0] if found else None

    for _ in range(2):
        a.ping(b)
        a.ctl(f"conn close {b.nid}")
        until(lambda: not a.conns(), "closed")
    a.ping(b)
    told = peer()
    assert (told["ends"], told["failures"], told["retry_ms"]) == ("AdminClose:2", "0", "-1"), told
    # The interface goes down: the driver checks the waiting message every second.
    a.guest.check("ip link set eth0 down")
    job = a.guest.spawn(a.ctl_script(f"ping {b.nid} timeout=60"))
    told = until(lambda: (p := peer()) and 0 <= int(p["retry_ms"]) <= 1000 and p, "a try is due")
    assert told["ends"] == "AdminClose:2,LinkDown:1", told
    a.guest.check("ip link set eth0 up")
    job.wait(120)


class Notices:
    """Uevents that a listener on a node receives. Inside `with`."""

    def __init__(self, node):
        self.node = node

    def __enter__(self):
        self.node.guest.check(
            "rm -f /tmp/told; printf '#!/bin/sh\\n[ -z \"$RO2IBLND_EVENT\" ] || env | grep ^RO2IBLND | xargs >>/tmp/told\\n' "
            ">/tmp/tell; chmod +x /tmp/tell"
        )
        self.job = self.node.guest.spawn("busybox uevent /tmp/tell")
        # The listener is ready: a socket of NETLINK_KOBJECT_UEVENT (15) that is not the kernel's.
        self.node.guest.check("n=0; until awk '$2 == 15 && $3 > 0 { f = 1 } END { exit !f }' /proc/net/netlink || [ $n -gt 300 ]; do sleep 0.1; n=$((n + 1)); done", 60)
        return self

    def __exit__(self, *_exc):
        if self.node.guest.alive():
            self.job.kill()

    def of(self, event):
        """Returns NI and device of each notice of a kind."""
        _status, text = self.node.guest.run("cat /tmp/told")
        blocks = [dict(w.split("=", 1) for w in line.split() if "=" in w) for line in text.splitlines()]
        return [(b["RO2IBLND_NI"], b["RO2IBLND_DEVICE"]) for b in blocks if b.get("RO2IBLND_EVENT") == event]


def test_notices(nodes):
    """A listener for uevents receives a notice when a device goes and when it comes back."""
    a, b = nodes
    up(a, b)
    a.ping(b)
    with Notices(a) as notices:
        a.guest.check("rdma link delete rxe0")
        gone = until(lambda: notices.of("device_gone"), "the notice device_gone")
        assert gone[0] == (a.nid, "rxe0"), gone
        a.guest.check("rdma link add rxe0 type rxe netdev eth0")
        back = until(lambda: notices.of("device_back"), "the notice device_back")
        assert back[0] == (a.nid, "rxe0"), back


def test_a_broken_device_heals(nodes):
    """LNet avoids an NI whose device reported a fatal error. When the device reports an active port, the NI works
    again."""
    a, b = nodes
    up(a, b)
    a.ping(b)
    a.guest.check("insmod /files/ib_event.ko")
    try:
        def says(event):
            a.guest.check(f"echo eth0 {event} >/sys/module/ib_event/parameters/tell")

        def avoided():
            return "fatal=1" in a.ctl_text("ni list")

        def health():
            return lines(a)[0]["health"]

        assert not avoided() and health() == "ok"
        with Notices(a) as notices:
            for _ in range(2):
                says("fatal")
                until(avoided, "LNet avoids the NI")
                # The NI stays broken after other events.
                says("port_err")
                a.guest.check("sleep 0.5")
                assert avoided() and health() == "broken"
                says("port_active")
                until(lambda: not avoided(), "LNet uses the NI again")
                assert health() == "ok"
            until(lambda: len(notices.of("device_back")) == 2, "both notices of device_back")
            assert notices.of("device_fatal") == [(a.nid, a.device)] * 2
        log = a.log()
        assert log.count(f"{a.nid}: the RDMA device reported a fatal error") == 2, log
        assert log.count(f"{a.nid}: the RDMA device works again") == 2, log
        a.traffic(b, op="mix", count=20)
    finally:
        a.guest.run("rmmod ib_event")
