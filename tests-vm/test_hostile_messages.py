# SPDX-License-Identifier: GPL-2.0
"""Messages on an established connection that no honest node sends. Each closes its connection (or is answered with an
error, where the protocol has one), and does nothing more: the node lives, and an honest peer is not disturbed."""

import random
import re
import struct

import pytest
from hostile_peer import wire
from hostile_peer.peer import ADDRESS, STAMP, Conn, reject_in
from nodes import parse, until, up
from test_hostile_connect import HONEST, VICTIM, counted, undisturbed


HOSTILE = f"{ADDRESS}@o2ib"
TRAFFIC_PORTAL = 50
# Match bits for memory of lnet_lite's traffic portal: see lnet_lite/internal.h.
MATCH_MAGIC, MATCH_TRUNC, MATCH_LEN_SHIFT = 1 << 62, 1 << 58, 36


def traffic_bits(length):
    return MATCH_MAGIC | MATCH_TRUNC | length << MATCH_LEN_SHIFT


def put_header(conn, length, **change):
    command = wire.put_command(portal=TRAFFIC_PORTAL, bits=traffic_bits(length))
    return wire.lnet_header(change.pop("kind", wire.PUT), conn.me, conn.you, payload=length, command=command, **change)


def get_header(conn, length, **change):
    command = wire.get_command(sink=length, portal=TRAFFIC_PORTAL, bits=traffic_bits(length))
    return wire.lnet_header(change.pop("kind", wire.GET), conn.me, conn.you, command=command, **change)


def cookie(n=0x1234):
    return n.to_bytes(8, "little")


def bad_envelopes(conn):
    """Yields messages that are wrong before their body is parsed."""
    ping = conn.ping_get(sink=272)

    def m(**change):
        return conn.message(change.pop("kind", wire.IMMEDIATE), change.pop("body", ping), **change)

    yield "bad magic", m(magic=0x0BE91B92)
    yield "swapped magic in native order", m(magic=0x911BE90B)
    yield "version 0x11", m(version=0x11)
    yield "version 0", m(version=0)
    yield "nob of 47", m(nob=47)
    yield "nob below the minimum", m(nob=119)
    yield "nob beyond the data", m(nob=4096)
    yield "nob negative", m(nob=0xFFFFFFFF)
    yield "wrong checksum", m(cksum=4711)
    yield "1 byte", b"\x91"
    yield "nothing", b"\0" * 4
    yield "source NID of another", m(src=wire.nid(HONEST))
    yield "source NID any", m(src=2**64 - 1)
    yield "destination NID of another", m(dst=wire.nid(HONEST))
    yield "wrong source stamp", m(srcstamp=conn.stamp + 1)
    yield "wrong destination stamp", m(dststamp=conn.victim_stamp + 1)
    yield "no destination stamp", m(dststamp=0)
    for kind in (0, 0xCF, 0xD8, 0xFF):
        yield f"type {kind:#x}", m(kind=kind)
    yield "CONNREQ", m(kind=wire.CONNREQ, body=wire.params())
    yield "CONNACK", m(kind=wire.CONNACK, body=wire.params())
    yield "more credits than there are", m(kind=wire.NOOP, body=b"", credits=1)
    yield "255 credits", m(credits=255)


def bad_answers(conn):
    """Yields answers to requests that the victim never sent."""
    rd = wire.descriptor(1, [(4096, 0x1000)])
    for c in (0, 1, 0xDEADBEEFDEADBEEF, 2**64 - 1):
        yield f"PUT_NAK {c:#x}", conn.message(wire.PUT_NAK, wire.done(c, -2))
        yield f"PUT_DONE {c:#x}", conn.message(wire.PUT_DONE, wire.done(c, 4096))
        yield f"GET_DONE {c:#x}", conn.message(wire.GET_DONE, wire.done(c, 4096))
        yield f"PUT_ACK {c:#x}", conn.message(wire.PUT_ACK, cookie(c) + cookie(1) + rd)
    yield "short PUT_NAK", conn.message(wire.PUT_NAK, b"\0" * 11)


def bad_requests(conn):
    """Yields requests whose LNet header, descriptor and message type do not match."""
    one = wire.descriptor(7, [(65536, 0x10000)])
    get, put = get_header(conn, 65536), put_header(conn, 65536)

    def get_req(rd, header=get, **change):
        return conn.message(wire.GET_REQ, header + cookie() + rd, **change)

    yield "H15 PUT_REQ with a GET", conn.message(wire.PUT_REQ, get + cookie())
    yield "PUT_REQ with an ACK", conn.message(wire.PUT_REQ, put_header(conn, 0, kind=wire.ACK) + cookie())
    yield "PUT_REQ of 1 MiB + 1", conn.message(wire.PUT_REQ, put_header(conn, (1 << 20) + 1) + cookie())
    yield "PUT_REQ of 4 GiB - 1", conn.message(
        wire.PUT_REQ, wire.lnet_header(wire.PUT, conn.me, conn.you, payload=2**32 - 1) + cookie()
    )
    yield "PUT_REQ without a cookie", conn.message(wire.PUT_REQ, put)
    yield "H16 GET_REQ with a PUT", get_req(one, put)
    yield "H16 GET_REQ with a REPLY", get_req(one, put_header(conn, 65536, kind=wire.REPLY))
    yield "GET_REQ with an ACK", get_req(one, put_header(conn, 0, kind=wire.ACK))
    yield "GET_REQ with a payload", get_req(one, get_header(conn, 65536, payload=5))
    yield "no fragments", get_req(wire.descriptor(7, []))
    yield "258 fragments", get_req(wire.descriptor(7, [(256, 4096)] * 258))
    yield "count beyond the message", get_req(wire.descriptor(7, [(65536, 4096)], count=257))
    yield "count of 4 billion", get_req(wire.descriptor(7, [(65536, 4096)], count=2**32 - 1))
    yield "H18 total above 1 MiB", get_req(wire.descriptor(7, [(1 << 20, 0), (1, 1 << 20)]))
    yield "H17 lengths that wrap", get_req(wire.descriptor(7, [(2**31, 0), (2**31, 0), (65536, 0)]))
    yield "H18 address that wraps", get_req(wire.descriptor(7, [(65536, 2**64 - 4096)]))
    yield "sink smaller than wanted", get_req(wire.descriptor(7, [(65535, 4096)]))
    yield "H24 payload beyond nob", conn.message(wire.IMMEDIATE, put_header(conn, 100) + b"x" * 50)
    yield "GET with a payload", conn.message(wire.IMMEDIATE, get_header(conn, 10, payload=10) + b"x" * 10)
    yield "HELLO", conn.message(wire.IMMEDIATE, wire.lnet_header(wire.HELLO, conn.me, conn.you))
    yield "LNet type 77", conn.message(wire.IMMEDIATE, wire.lnet_header(77, conn.me, conn.you))


def test_a_message_for_another_node_is_dropped(nodes, hostile):
    """A message for another node is dropped, as after a wrong route: LNet accepts no message for another node of its
    net. The connection and the credit stay."""
    a, b = nodes
    up(a, b)
    with undisturbed(a, b):
        conn = hostile.connect(VICTIM, recvs=200)
        before = a.stats()["parse_refused"]
        addr, rkey = conn.region(65536)
        rd = wire.descriptor(rkey, [(65536, addr)])

        def lost(header):
            return struct.pack("<Q", wire.nid(HONEST)) + header[8:]

        depth = conn.params["depth"]
        for n in range(2 * depth):
            conn.send(wire.PUT_REQ, lost(put_header(conn, 65536)) + cookie(n))
            nak = conn.recv_until(wire.PUT_NAK)
            assert nak["body"] == wire.done(n, 0), nak
            conn.send(wire.GET_REQ, lost(get_header(conn, 65536)) + cookie(n) + rd)
            done = conn.recv_until(wire.GET_DONE)
            assert done["body"] == wire.done(n, -61), done
            conn.send(wire.IMMEDIATE, lost(put_header(conn, 100)) + b"x" * 100)
        until(lambda: a.stats()["parse_refused"] == before + 6 * depth, "all have been refused")
        assert counted(a, "other", "NotForLNet") == 6 * depth
        line = f"{HOSTILE}: LNet refused a message for {HONEST}@o2ib: error (-71): dropped; check the routes on the peer"
        assert line in a.log()
        assert conn.is_up()


@pytest.mark.parametrize("cases", [bad_envelopes, bad_answers, bad_requests])
def test_closes_the_connection(nodes, hostile, cases):
    a, b = nodes
    up(a, b)
    wrong = []
    with undisturbed(a, b):
        count, n = 1, 0
        while n < count:
            # One connection for each case: the cases differ only in their message.
            conn = hostile.connect(VICTIM, recvs=20)
            every = list(cases(conn))
            count = len(every)
            what, data = every[n]
            conn.send_raw(data)
            if not conn.is_closed(30000):
                wrong.append(what)
            conn.close()
            n += 1
        assert hostile.connect(VICTIM).is_up()
    assert not wrong, "still open after: " + "; ".join(wrong)


def test_both_byte_orders_and_padding(nodes, hostile):
    """Unusual but valid messages are accepted: both byte orders, and padding."""
    a, b = nodes
    up(a, b)
    conn = hostile.connect(VICTIM, order=">")
    ping = conn.ping_get(sink=272)
    conn.send(wire.IMMEDIATE, ping, order=">")
    assert conn.recv_until(wire.IMMEDIATE)
    conn.send_raw(conn.message(wire.IMMEDIATE, ping, cksum=True) + b"rest")
    assert conn.recv_until(wire.IMMEDIATE)
    conn.send(wire.NOOP, credits=2)
    assert conn.is_up()


def test_over_sending(nodes, hostile):
    """H12: a peer that sends more requests than credits, while LNet is slow, loses its connection."""
    a, b = nodes
    up(a, b)
    with undisturbed(a, b):
        a.set(slow_ms=2000, slow_peer=HOSTILE)
        conn = hostile.connect(VICTIM, recvs=100)
        body = put_header(conn, 0)
        conn.send(wire.IMMEDIATE, body, count=8)
        conn.send(wire.IMMEDIATE, body, count=1)
        assert conn.is_closed()
        a.set(slow_ms=0)
        conn.close()
        assert hostile.connect(VICTIM).is_up()


def test_asks_and_does_not_wait(nodes, hostile):
    """Pending answers are bounded although credits return before the answers are sent. Credits do not bound them, an
    honest peer's buffers do."""
    a, b = nodes
    up(a, b)
    with undisturbed(a, b):
        conn = hostile.connect(VICTIM, recvs=200)
        depth = conn.params["depth"]
        addr, rkey = conn.region(257)
        # So many WRITEs that two answers do not fit into the send queue.
        rd = wire.descriptor(rkey, [(1, addr + i) for i in range(257)])
        body = get_header(conn, 257) + cookie(0x42) + rd
        conn.send(wire.GET_REQ, body, count=depth)
        credits = asked = answered = 0
        while credits < 2:
            m = conn.recv()
            assert m is not None, "closed, though it has asked for no more than it may"
            credits += m["credits"]
            answered += m["kind"] == wire.GET_DONE
            # An honest peer sends one request for each answer.
            while credits and asked < answered:
                conn.send(wire.GET_REQ, body)
                credits, asked = credits - 1, asked + 1
        # The peer now has more requests than may wait, unless the victim has sent answers that were not read yet.
        for _ in range(50):
            conn.send(wire.GET_REQ, body, count=credits)
            credits = 0
            while credits < 2 and (m := conn.recv(3000)) is not None:
                credits += m["credits"]
            if credits < 2:
                break
        assert conn.is_closed(30000)
        conn.close()
        assert hostile.connect(VICTIM).is_up()


def retained(node):
    text = node.guest.check(f"cat /sys/kernel/debug/ro2iblnd/{node.nid}")
    return int(re.search(r" retained=(\d+)", text)[1])


def test_retained_requests_are_bounded(nodes, hostile):
    """Requests that LNet, which stalls, keeps from all earlier connections of a peer are bounded, although a new
    connection has new credits."""
    a, b = nodes
    up(a, b, peer_credits=255)
    a.ping(b)
    a.set(lazy=1)
    for cycle in range(1, 40):
        name, answer = hostile.ask(VICTIM, hostile.connreq(VICTIM, depth=255), recvs=8)
        if answer["event"] != "RDMA_CM_EVENT_ESTABLISHED":
            break
        conn = Conn(hostile, name, VICTIM, bytes.fromhex(answer["private"]), STAMP)
        conn.send(wire.IMMEDIATE, put_header(conn, 0), count=120)
        conn.close()
        until(lambda n=cycle: retained(a) == n * 120, "the connection is over, and its requests are counted")
    assert answer["event"] == "RDMA_CM_EVENT_REJECTED", answer
    assert reject_in(answer)["why"] == wire.NO_RESOURCES, answer
    hostile.do("close", name)
    assert cycle == 36, cycle
    # The victim does not connect to that peer either, because that would give it new credits as well.
    hostile.do("listen", "l", ADDRESS, 987)
    r = a.start(HOSTILE, op="put", size=100, count=1, conc=1, timeout=20).result()
    assert r["count"] == 0, r
    closes = a.guest.check(f"cat /sys/kernel/debug/ro2iblnd/{a.nid}.closes")
    assert re.search(rf"^event=failed .*peer={re.escape(HOSTILE)} .*cause=Backlog", closes, re.M), closes
    # Other peers are not affected.
    a.traffic(b, op="mix", size=1000, count=20)
    a.set(lazy=0)
    until(lambda: retained(a) == 0, "all has come back")
    conn = hostile.connect(VICTIM)
    assert conn.is_up()


def test_noop_flood(nodes, hostile):
    """A peer that sends too many NOOPs, which need no credit, is stopped by the transport, and the node survives."""
    a, b = nodes
    up(a, b)
    with undisturbed(a, b):
        conn = hostile.connect(VICTIM)
        for _ in range(20):
            conn.send(wire.NOOP, count=50)
        conn.close()
        assert hostile.connect(VICTIM).is_up()


def get_req_from(a, b, hostile, size=65536):
    """Makes the victim send a GET_REQ to the hostile peer. Returns (connection, request, the victim's run)."""
    conn = hostile.connect(VICTIM)
    run = a.start(HOSTILE, op="get", size=size, count=1, conc=1, timeout=60)
    return conn, conn.recv_until(wire.GET_REQ), run


def cookie_of(m):
    return int.from_bytes(m["body"][72:80], "little")


@pytest.mark.parametrize("status", [65537, 1 << 20, 2**31 - 1])
def test_get_done_that_says_too_much(nodes, hostile, status):
    """H13: a GET_DONE whose status exceeds the size fails its GET. LNet would crash from that status."""
    a, b = nodes
    up(a, b)
    with undisturbed(a, b):
        conn, m, run = get_req_from(a, b, hostile)
        conn.send(wire.GET_DONE, wire.done(cookie_of(m), status))
        r = run.result()
        assert r["issued"] == 1 and r["count"] == 0 and not r["timeouts"], r
        # Only this GET has failed. The cookie is not valid for another answer.
        conn.send(wire.GET_DONE, wire.done(cookie_of(m), 0))
        assert conn.is_closed()


def test_the_first_answer_is_the_result(nodes, hostile):
    """A second answer closes the connection, and does not change the result of the first one."""
    a, b = nodes
    up(a, b)
    with undisturbed(a, b):
        conn = hostile.connect(VICTIM)
        run = a.start(HOSTILE, op="get", size=65536, count=1, conc=1, timeout=60, verify="off")
        m = conn.recv_until(wire.GET_REQ)
        # The message that ends here waits for LNet, which is busy.
        a.set(slow_ms=3000, slow_peer=HOSTILE)
        conn.send(wire.IMMEDIATE, put_header(conn, 0))
        conn.send(wire.GET_DONE, wire.done(cookie_of(m), 65536))
        conn.send(wire.GET_DONE, wire.done(cookie_of(m), 4096))
        assert conn.is_closed()
        r = run.result()
        a.set(slow_ms=0)
        assert (r["count"], r["errors"], r["bytes"]) == (1, 0, 65536), r


def test_get_done_with_an_error(nodes, hostile):
    a, b = nodes
    up(a, b)
    for status in (-61, -5, -(2**31)):
        conn, m, run = get_req_from(a, b, hostile)
        conn.send(wire.GET_DONE, wire.done(cookie_of(m), status))
        r = run.result()
        assert r["count"] == 0 and not r["timeouts"], r
        assert conn.is_up()
        # The same cookie again is stale.
        conn.send(wire.GET_DONE, wire.done(cookie_of(m), 0))
        assert conn.is_closed()
        conn.close()


def test_key_is_dead_after_the_answer(nodes, hostile):
    """H21: the key of a sink is invalid after the answer."""
    a, b = nodes
    up(a, b)
    with undisturbed(a, b):
        conn, m, run = get_req_from(a, b, hostile)
        rd = m["body"][80:]
        rkey, nob = int.from_bytes(rd[0:4], "little"), int.from_bytes(rd[8:12], "little")
        addr = int.from_bytes(rd[12:20], "little")
        conn.region(nob)
        assert hostile.do("write", conn.name, rkey, addr, nob)["wc"] == "success"
        conn.send(wire.GET_DONE, wire.done(cookie_of(m), -61))
        run.result()
        assert hostile.do("write", conn.name, rkey, addr, nob)["wc"] != "success"
        assert conn.is_closed()


def put_req_from(a, hostile, size=65536):
    conn = hostile.connect(VICTIM)
    run = a.start(HOSTILE, op="put", size=size, count=1, conc=1, ask=0, timeout=60)
    return conn, conn.recv_until(wire.PUT_REQ), run


@pytest.mark.parametrize(
    ("what", "frags"),
    [
        ("more than was offered", [(65537, 4096)]),
        ("258 pieces", [(16, 4096)] * 258),
        ("nothing", []),
        ("wrap", [(65536, 2**64 - 100)]),
    ],
)
def test_put_ack_with_a_bad_sink(nodes, hostile, what, frags):
    a, b = nodes
    up(a, b)
    with undisturbed(a, b):
        conn, m, run = put_req_from(a, hostile)
        conn.send(wire.PUT_ACK, cookie(cookie_of(m)) + cookie(5) + wire.descriptor(9, frags))
        assert conn.is_closed()
        r = run.result()
        assert r["count"] == 0 and not r["timeouts"], r


def test_put_ack_with_a_wrong_key(nodes, hostile):
    """A PUT_ACK with a wrong key closes the connection, because the HCA of the hostile peer refuses the WRITE."""
    a, b = nodes
    up(a, b)
    with undisturbed(a, b):
        conn, m, run = put_req_from(a, hostile)
        rd = wire.descriptor(0x77777, [(65536, 4096)])
        conn.send(wire.PUT_ACK, cookie(cookie_of(m)) + cookie(5) + rd)
        r = run.result()
        assert r["count"] == 0 and not r["timeouts"], r
        assert conn.is_closed()


@pytest.mark.parametrize("pieces", [1, 2, 16, 257])
def test_put_in_many_pieces(nodes, hostile, pieces):
    """H19: old peers offer up to 257 pieces. The data goes to all of them."""
    a, b = nodes
    up(a, b)
    size = 65792  # 257 * 256
    conn, m, run = put_req_from(a, hostile, size)
    addr, rkey = conn.region(2 * size)
    step = size // pieces
    frags = [(step, addr + i * (step + 1)) for i in range(pieces - 1)]
    frags.append((size - step * (pieces - 1), addr + (pieces - 1) * (step + 1)))
    conn.send(wire.PUT_ACK, cookie(cookie_of(m)) + cookie(0x55) + wire.descriptor(rkey, frags))
    done = conn.recv_until(wire.PUT_DONE)
    assert done["body"] == wire.done(0x55, size), done
    # One byte in 256 is 0xee by chance.
    assert size * 0.95 < conn.touched() <= size
    r = run.result()
    assert r["count"] == 1, r
    assert conn.is_up()


@pytest.mark.parametrize("status", [0, 1, 65535, 65537, 2**31 - 1])
def test_put_done_that_says_the_wrong_number(nodes, hostile, status):
    """H14: a PUT_DONE without written data is no success."""
    a, b = nodes
    up(a, b)
    with undisturbed(a, b):
        conn = hostile.connect(VICTIM)
        conn.send(wire.PUT_REQ, put_header(conn, 65536) + cookie(0x99))
        ack = conn.recv_until(wire.PUT_ACK)
        assert ack["body"][:8] == cookie(0x99), ack
        before = a.stats()["finalized_error"]
        conn.send(wire.PUT_DONE, ack["body"][8:16] + status.to_bytes(4, "little"))
        until(lambda: a.stats()["finalized_error"] > before, "the PUT has failed")
        conn.send(wire.PUT_DONE, ack["body"][8:16] + (65536).to_bytes(4, "little"))
        assert conn.is_closed()


@pytest.mark.parametrize("pieces", [1, 257])
def test_get_in_many_pieces(nodes, hostile, pieces):
    a, b = nodes
    up(a, b)
    conn = hostile.connect(VICTIM)
    size = 65792
    addr, rkey = conn.region(size)
    step = size // pieces
    rd = wire.descriptor(rkey, [(step, addr + i * step) for i in range(pieces)])
    conn.send(wire.GET_REQ, get_header(conn, size) + cookie(0x42) + rd)
    done = conn.recv_until(wire.GET_DONE)
    assert done["body"] == wire.done(0x42, size), done
    assert size * 0.95 < conn.touched() <= size
    assert conn.is_up()


@pytest.mark.parametrize("pieces", [2, 31, 256])
def test_lustre_2_10_without_map_on_demand(nodes, hostile, pieces):
    """A PUT to a peer of Lustre 2.10 with map_on_demand=0 works: 256 fragments of up to a page, depth 8. Fragments have
    any length and start anywhere."""
    a, b = nodes
    up(a, b)
    rng = random.Random(pieces)
    conn = hostile.connect(VICTIM, recvs=200, depth=8, frags=256)
    assert conn.params == {"depth": 8, "frags": 256, "size": 4096}
    lengths = [rng.randint(1, 4096) for _ in range(pieces)]
    addr, rkey = conn.region(4097 * pieces)
    frags = [(length, addr + i * 4097 + rng.randint(0, 4096 - length)) for i, length in enumerate(lengths)]
    size = sum(lengths)
    for n in range(2 * conn.params["depth"]):
        conn.send(wire.GET_REQ, get_header(conn, size) + cookie(n) + wire.descriptor(rkey, frags))
        done = conn.recv_until(wire.GET_DONE)
        assert done["body"] == wire.done(n, size), done
    # One byte in 256 is 0xee by chance.
    assert size * 0.95 < conn.touched() <= size
    assert conn.is_up()


def test_get_with_empty_pieces(nodes, hostile):
    """Empty pieces are skipped, or the connection is closed. Nothing worse happens."""
    a, b = nodes
    up(a, b)
    with undisturbed(a, b):
        conn = hostile.connect(VICTIM)
        addr, rkey = conn.region(65536)
        rd = wire.descriptor(rkey, [(0, addr), (4096, addr), (0, 0), (61440, addr + 4096)])
        conn.send(wire.GET_REQ, get_header(conn, 65536) + cookie(0x42) + rd)
        m = conn.recv()
        assert m is None or m["kind"] == wire.GET_DONE


def test_immediate_data(nodes, hostile):
    """H30: a WRITE with immediate data closes the connection. It uses a buffer without a change of its content, which
    is an older message."""
    a, b = nodes
    up(a, b)
    conn = hostile.connect(VICTIM)
    assert conn.is_up()
    gets = a.stats()["recv_get"]
    assert hostile.do("immediate", conn.name)["wc"] == "success"
    assert conn.is_closed()
    assert a.stats()["recv_get"] == gets
    assert f"{HOSTILE}: the peer sent an unexpected RDMA operation; closing" in a.log()


def test_invalidates_a_region(nodes, hostile):
    """H30: an answer that invalidates the key closes the connection, because the protocol does not have it."""
    a, b = nodes
    up(a, b)
    with undisturbed(a, b):
        conn, m, run = get_req_from(a, b, hostile)
        rkey = int.from_bytes(m["body"][80:84], "little")
        hostile.do("invalidate", conn.name, rkey, conn.message(wire.GET_DONE, wire.done(cookie_of(m), 65536)).hex())
        assert conn.is_closed()
        assert run.result()["count"] == 0
    assert f"{HOSTILE}: the peer sent an unexpected RDMA operation; closing" in a.log()


@pytest.mark.parametrize("length", [4097, 65536])
def test_longer_than_a_buffer(nodes, hostile, length):
    """H31: a message longer than a buffer fails in the device and closes the connection. The cause is the peer's
    fault."""
    a, b = nodes
    up(a, b)
    with undisturbed(a, b):
        conn = hostile.connect(VICTIM)
        assert conn.is_up()
        assert hostile.do("long", conn.name, length)["wc"] != "success"
        assert conn.is_closed()
    closes = a.guest.check(f"grep peer={HOSTILE} /sys/kernel/debug/ro2iblnd/*.closes")
    assert "cause=RemoteFault" in closes, closes


def test_dies_in_the_middle(nodes, hostile):
    """A peer that dies during a transfer costs that transfer only."""
    a, b = nodes
    up(a, b)
    with undisturbed(a, b):
        _conn, _m, get = get_req_from(a, b, hostile)
        hostile.stop()
        r = get.result()
        assert r["count"] == 0, r
    assert parse(a.guest.check("cat /sys/kernel/debug/lnet_lite/stats"))["mds"] == 0
