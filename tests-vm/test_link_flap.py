# SPDX-License-Identifier: GPL-2.0
"""Links that go down and come back under load: an interface is set down, a cable pulled, an address or a route removed.
Traffic must be back each time when the link is, and nothing may be left behind.

A message of the connection manager without a route does the harm: it puts rxe's queue pair for such messages into the
error state, which lasts until the device is created again.
"""

import contextlib
import re
import time

import pytest
from device_kinds import DEVICES
from faults import SLOW, Ledger, Load, answered, ping_until, silence, slow
from link_flap import LONG, SHORT, Address, Carrier, Cell, Interface, Route, assert_can_connect, cells, gsi, rounds
from counters import DEBUGFS, conns
from nodes import Node, until, up
from test_debugfs import lines
from test_stage_times import Notices


def flap(nodes, cell, rails, kind, seconds, count):
    """Takes rail 0 down and brings it back. Rail 1, if there is one, has traffic of its own, of which nothing may
    fail."""
    a, b = nodes
    up(a, b)
    for node in nodes if rails == 2 else ():
        node.ni_add(net="o2ib1", interface="eth1")
    ledger = Ledger(a, b)
    a.ping(b)
    with contextlib.ExitStack() as stack:
        # Both nodes have requests of their own: the node that first sees the link come back connects.
        hit = [stack.enter_context(Load(a, b)), stack.enter_context(Load(b, a, op="put"))]
        spared = [stack.enter_context(Load(a, "10.0.1.2@o2ib1", conc=1))] if rails == 2 else []
        for i in range(count):
            victim = nodes[i % 2]
            time.sleep(1)
            kind.away(victim)
            time.sleep(seconds)
            kind.back(victim)
            cell.round(answered(a, b, 20 * slow()))
            for node in nodes:
                for rail in range(rails):
                    assert_can_connect(node, rail, f"round {i}")
    for load in (*hit, *spared):
        total = load.result()
        assert total["count"] > 0 and total["verify_errors"] == 0 and total["stuck"] == 0, total
        assert load in hit or total["errors"] == 0 and total["timeouts"] == 0, total
    a.traffic(b, op="mix", size=65536, count=50)
    b.traffic(a, op="mix", size=65536, count=50)
    ledger.check()


def is_down(node):
    """Returns whether LNet takes the NI for unusable."""
    told = node.ctl_text("ni list")
    return re.search(rf"{re.escape(node.nid)} .*\bfatal=(\d)", told)[1] == "1"


@pytest.mark.parametrize("kind", (Interface, Carrier, Address))
def test_the_ni_in_lnet_follows_its_link(nodes, kind, record_property):
    """LNet learns within a second that the link of an NI goes down or comes up, without a message that would find it
    out."""
    a, b = nodes
    up(a, b)
    a.ping(b)
    took = {"down": [], "up": []}
    for _ in range(3):
        for change, down in ((kind.away, True), (kind.back, False)):
            change(a)
            began = time.monotonic()
            until(lambda down=down: is_down(a) == down, f"down: {down}", timeout=15 * slow(), pause=0.05)
            took["down" if down else "up"].append(round(time.monotonic() - began, 2))
            time.sleep(1)
    record_property("took", took)
    print(f"{kind.__name__}: seconds until the NI is down {took['down']}, up {took['up']}")
    assert all(sorted(times)[1] <= slow() for times in took.values()), took
    b.ping(a)


# Without --long only the pairs that differ most.
FEW = [(1, Interface, LONG), (1, Carrier, LONG), (1, Address, SHORT), (1, Route, SHORT)]


@pytest.mark.parametrize(("rails", "kind", "seconds"), cells(FEW))
def test_flap(request, rails, kind, seconds, pytestconfig, record_property):
    if rails == 1:
        nodes = request.getfixturevalue("nodes")
    else:
        nodes = [Node(guest) for guest in request.getfixturevalue("boot_pair")(rails=rails, tools=("nft",))]
    count = rounds(pytestconfig, 2, 100)
    with Cell("ours, ours", nodes[0].guest.provider, rails, kind, seconds, count) as cell:
        flap(nodes, cell, rails, kind, seconds, count)
    record_property("flaps", cell.line(failed=False))
    cell.judge()
    if rails == 2:
        for node in nodes:
            node.unload()


@pytest.mark.parametrize("net", ["o2ib", "o2ib1"])
def test_a_net_of_its_own_is_no_other_way(boot_pair, net):
    """A cable is out for a second, and no message is sent. If another NI is on the same net, LNet has another path, and
    the connections of this NI end at once. An NI of another net may lead to other nodes: the connections stay."""
    a, b = (Node(guest) for guest in boot_pair(rails=2))
    up(a, b)
    for node in (a, b):
        node.ni_add(net=net, interface="eth1")
    for _ in range(10):
        ping_until(a, b, 20 * slow())
        before = {c["number"] for c in conns(a, a.nid)}
        a.mark_log()
        begun = time.monotonic()
        a.guest.carrier(False)
        until(lambda: "link is down" in a.log(), "it is noticed")
        time.sleep(1)
        a.guest.carrier(True)
        away = time.monotonic() - begun
        ping_until(a, b, 20 * slow())
        after = {c["number"] for c in conns(a, a.nid)}
        # After three seconds the connections end in any case: on a busy machine the round may take that long.
        if (before == after) == (net == "o2ib1") or away < 2.5:
            break
    assert (before == after) == (net == "o2ib1"), (before, after, away)
    a.unload()
    b.unload()


@pytest.mark.parametrize("op", ["get", "put-ack"])
def test_an_answer_is_not_lost_with_its_connection(nodes, op):
    """An answer that is on its way when its connection ends goes over the next connection. The peer has the request,
    which the requester cannot know, and LNet resends on neither side."""
    a, b = nodes
    up(a, b)
    a.ping(b)
    # The message was acknowledged before the peer's LNet answers it.
    if op == "get":
        b.ctl("set slow_ms=3000")
    else:
        b.ctl("set lazy=1")
    before, answers = a.stats()["finalized"], b.stats()["sent_reply"] + b.stats()["sent_ack"]
    run = a.start(b, op=op, size=100, count=1, conc=1, timeout=60, ask=0)
    until(lambda: a.stats()["finalized"] > before, "it is sent")
    with silence(a):
        b.ctl("set lazy=0")
        until(lambda: b.stats()["sent_reply"] + b.stats()["sent_ack"] > answers, "the answer")
        time.sleep(0.5)
        Interface.away(b)
        time.sleep(1)
    b.ctl("set slow_ms=0")
    Interface.back(b)
    r = run.result()
    assert r["count"] == 1 and r["errors"] == 0 and r["timeouts"] == 0 and r["stuck"] == 0, r
    for node in nodes:
        node.judge()


@pytest.mark.parametrize("op", ["get", "put-ack"])
def test_transfers_finish_before_link_down(nodes, op):
    """A node whose interface is set down under its own load first gets the answers to its requests. Other messages wait
    until it is up. No message fails, on either side."""
    a, b = nodes
    up(a, b)
    a.ping(b)
    # An exchange that takes longer than a quarter of a second is aborted, and on a busy machine that is soon: the load
    # is small, and three of ten rounds have to pass. Without the wait no round passes.
    right, totals = 0, []
    for i in range(10):
        with Load(a, b, op=op, size=4096, conc=2) as load:
            time.sleep(1)
            Interface.away(a)
            time.sleep(1)
            Interface.back(a)
            ping_until(a, b, 20 * slow())
            assert_can_connect(a, 0, f"round {i}")
        total = load.result()
        assert total.pop("count") > 0 and not total["verify_errors"] and not total["stuck"], total
        totals.append(total)
        right += not any(total.values())
        if right == 3:
            break
    assert right == 3, totals


def test_a_peer_is_not_blamed_for_our_link(nodes):
    """A message that expires while it waits for the local link does not lower the health of the peer's NI: with more
    NIs LNet would avoid it."""
    a, b = nodes
    up(a, b, timeout=10)
    a.ping(b)
    a.set(retries=0)
    Carrier.away(a)
    until(lambda: "link=down" in a.guest.check(f"cat {DEBUGFS}/{a.nid}"), "the link is seen to be down")
    # The message waits for the link only without a connection.
    until(lambda: not a.conns(), "the connection is closed")
    r = a.try_traffic(b, op="put", count=1, ask=0, timeout=120)
    Carrier.back(a)
    assert r["errors"] == 1 and not r["timeouts"], r
    of = a.guest.check(f"grep of=messages {DEBUGFS}/{a.nid}")
    assert "DeadlineConnecting=0" in of and "LinkDown=0" not in of, of
    ping_until(a, b, 20 * slow())


def test_the_address_is_elsewhere_too(nodes):
    """An NI stays on its own interface while lo has its address as well for a while, as load balancers do."""
    a, b = nodes
    up(a, b)
    a.ping(b)
    a.mark_log()
    a.guest.check(f"ip addr add {a.address}/32 dev lo")
    a.ping(b)
    # The carrier of eth0 still counts.
    a.guest.carrier(False)
    until(lambda: "link is down" in a.log(), "it is noticed")
    a.guest.carrier(True)
    until(lambda: "link is up" in a.log(), "it is noticed")
    ping_until(a, b, 20 * slow())
    a.mark_log()
    a.guest.check(f"ip addr del {a.address}/32 dev lo")
    time.sleep(4)
    a.traffic(b, op="mix", size=65536, count=20)
    assert "link is" not in a.log() and a.conns() > 0, a.log()


def path_mtus(node):
    """Returns the path MTU of each of the node's connections."""
    return {c["mtu"] for c in conns(node, node.nid)}


def test_a_smaller_mtu(nodes):
    """An interface gets a smaller MTU under load in both directions. Connections whose packets do not fit any more end,
    the log of the node names the MTU, and new connections have the smaller path MTU, whichever node requests them."""
    a, b = nodes
    if a.device != "rxe0":
        pytest.skip("iWARP has no path MTU")
    up(a, b)
    a.ping(b)
    assert path_mtus(a) == {4096}
    with Load(a, b) as ours, Load(b, a, op="put") as theirs:
        time.sleep(1)
        b.guest.check("ip link set eth0 mtu 1500")
        until(lambda: path_mtus(a) == path_mtus(b) == {1024}, "the connections have the smaller MTU")
        for one, other in ((a, b), (b, a)):
            ping_until(one, other, 20 * slow())
    for load in (ours, theirs):
        total = load.result()
        assert total["count"] > 0 and total["verify_errors"] == 0 and total["stuck"] == 0, total
    assert "the path MTU is larger than the MTU of the interface here allows" in b.log(), b.log()
    a.traffic(b, op="mix", size=65536, count=50)
    b.traffic(a, op="mix", size=65536, count=50)
    assert path_mtus(a) == path_mtus(b) == {1024}
    b.guest.check("ip link set eth0 mtu 4200")


def test_mtus_that_differ(nodes):
    """If one node has a smaller MTU from the beginning and the other requests a connection, the node with the smaller
    MTU connects."""
    a, b = nodes
    if a.device != "rxe0":
        pytest.skip("iWARP has no path MTU")
    b.guest.check("ip link set eth0 mtu 1500")
    up(a, b)
    a.ping(b)
    a.traffic(b, op="mix", size=65536, count=50)
    assert path_mtus(a) == path_mtus(b) == {1024}
    b.guest.check("ip link set eth0 mtu 4200")


def health(node):
    """Returns the device of the NI, and its health."""
    ni = lines(node)[0]
    return ni["device"], ni["health"]


def other_prefix(node):
    """Changes the prefix length as administrators do: adds the address with the new length before that with the old one
    is removed."""
    node.guest.check(f"ip addr add {node.address}/16 dev eth0 && ip addr del {node.address}/24 dev eth0")


def test_another_prefix_length(boot_pair):
    """An NI keeps its connections when only the prefix length of its address changes, because it has the address all
    the time."""
    a, b = (Node(guest) for guest in boot_pair(**DEVICES["siw"]))
    up(a, b)
    a.ping(b)
    a.mark_log()
    b.mark_log()
    before = conns(a, a.nid)
    assert before
    other_prefix(a)
    a.traffic(b, op="mix", size=65536, count=20)
    after = conns(a, a.nid)
    assert [c["number"] for c in before] == [c["qpn"] for c in after], (before, after)
    assert "link is" not in a.log() and "closed" not in a.log() + b.log(), a.log() + b.log()
    # Removes the last address.
    a.guest.check(f"ip addr del {a.address}/16 dev eth0")
    until(lambda: "link is down" in a.log() and not a.conns(), "it is noticed")
    Address.back(a)
    ping_until(a, b, 20 * slow())
    a.unload()
    b.unload()


def test_another_prefix_length_over_roce(nodes):
    """The RDMA core removes the GID of the address, although the address stays: all connections end, and the peer is
    informed. A new GID and connection follow at once without an administrator."""
    a, b = nodes
    if a.device != "rxe0":
        pytest.skip("it has no GID for an address")
    up(a, b)
    a.ping(b)
    before = {c["number"] for c in conns(b, b.nid)}
    assert before
    other_prefix(a)
    until(lambda: {c["number"] for c in conns(b, b.nid)}.isdisjoint(before), "the peer is told")
    ping_until(a, b, 20 * slow())
    a.traffic(b, op="mix", size=65536, count=20)
    assert f"{a.nid}: rxe0 has no GID for the interface address; asking the RDMA core to rescan" in a.log(), a.log()
    # Removes the last address. The driver does not ask the core for an address that no interface has.
    a.mark_log()
    a.guest.check(f"ip addr del {a.address}/16 dev eth0")
    until(lambda: "link is down" in a.log() and not a.conns(), "it is noticed")
    time.sleep(3)
    assert "lost the address" not in a.log(), a.log()
    Address.back(a)
    ping_until(a, b, 20 * slow())


def test_the_device_is_mute(nodes):
    """The driver cannot prevent a fault on rxe: another user of the CM has a request on its way when the link goes. The
    driver then logs what is wrong and what helps, and LNet avoids the NI."""
    a, b = nodes
    if a.device != "rxe0" or a.guest.hardware:
        pytest.skip("it has no such queue pair")
    up(a, b)
    with Notices(a) as notices:
        with silence(b):
            other = a.guest.spawn(f"rping -c -C 1 -a {b.address}")
            until(lambda: "state CONNECT" in a.guest.check("rdma resource show cm_id"), "a request is on its way")
            Interface.away(a)
            # The connection manager repeats its request, and finds no route.
            until(lambda: gsi(a) == "ERR", "the CM's queue pair fails", timeout=20 * SLOW)
            Interface.back(a)
        other.kill()
        a.ping(b, ok=False)
        line = "no connection is possible: queue pair 1 of rxe0 is in the error state"
        until(lambda: line in a.log(), "it is said", timeout=20 * SLOW)
        until(lambda: notices.of("device_gsi_dead"), "it is told", timeout=20 * SLOW)
    assert health(a) == ("rxe0", "gsi_dead")
    a.guest.check("rdma link delete rxe0")
    until(lambda: health(a) == ("none", "ok"), "without a device there is none that ails")
    a.guest.check("rdma link add rxe0 type rxe netdev eth0")
    ping_until(a, b, 20 * slow())
    assert health(a) == ("rxe0", "ok")
    assert a.log().count(line) == 1 and notices.of("device_gsi_dead") == [(a.nid, "rxe0")]
