# SPDX-License-Identifier: GPL-2.0
"""Messages that wait for a connection with a hostile peer: they end, and so do its requests and answers."""

import threading
import time

import pytest
from hostile_peer import wire
from hostile_peer.peer import ADDRESS, STAMP
from faults import lose, silence
from nodes import until, up
from test_hostile_connect import counted

VICTIM = "10.0.0.1"
HOSTILE = f"{ADDRESS}@o2ib"
# Seconds: LNet's timeout, and the wait of a message for a connection with that timeout: 5 for an attempt, and 10.
TIMEOUT, PATIENCE = 8, 15


def state(node):
    return node.guest.check("cat /sys/kernel/debug/ro2iblnd/*@o2ib")


def test_pending_request_does_not_delay_messages(nodes, hostile):
    """A message ends although a request of the peer, which takes the place of the node's own attempt, is always
    pending.

    No CM makes those requests: a CM that got its answer might continue.
    """
    a, b = nodes
    up(a, b, lnd=f"timeout={TIMEOUT}")
    over = threading.Event()

    def ask():
        while not over.is_set():
            hostile.make_up(VICTIM, ADDRESS, 987, hostile.connreq(VICTIM))
            over.wait(1)

    asker = threading.Thread(target=ask)
    asker.start()
    try:
        until(lambda: "role=passive state=Accepting" in state(a), "it is asked", 60)
        began = time.monotonic()
        assert a.ping(HOSTILE, ok=False)["rc"] != 0
        spent = time.monotonic() - began
        assert "state=Established" not in state(a)
    finally:
        over.set()
        asker.join()
    assert spent < PATIENCE + 30, spent
    assert "DeadlineConnecting=1" in a.guest.check("grep -h of=messages /sys/kernel/debug/ro2iblnd/*@*")
    a.traffic(b, op="mix", size=4096, count=20)


def test_a_refused_answer_is_said_again(nodes, hostile):
    """The node repeats its reject of an answer until the peer has it, also if the reject is lost once: the peer takes
    the connection for established."""
    a, b = nodes
    up(a, b)
    hostile.do("listen", "l", ADDRESS, 987)
    ping = a.guest.spawn(a.ctl_script(f"ping {HOSTILE} timeout=60"))
    name = hostile.name()
    asked = wire.parse(bytes.fromhex(hostile.do("request", "l", name, 60000, timeout=120)["private"]))
    answer = wire.message(wire.CONNACK, hostile.nid, asked["src"], wire.params(depth=0), dststamp=asked["srcstamp"], srcstamp=7)
    with lose(b, "DREQ", first=True) as link:
        hostile.do("accept", name, answer.hex(), 20)
        last = hostile.event(name, 30000)["event"]
        assert link.lost() == 1
    assert last == "RDMA_CM_EVENT_DISCONNECTED"
    hostile.do("close", name)
    assert "rc=0" not in ping.wait(120)[1]


def test_a_keepalive_has_a_deadline(nodes):
    """A keepalive ends at a deadline. The node that requested the connection sets the number and time of its
    repetitions, which can take hours."""
    a, b = nodes
    up(a, b, lnd="timeout=5 keepalive=1 retry_count=7")
    b.ping(a)
    with silence(a), silence(b):
        until(lambda: "connection closed" in a.log(), "closed", 15)
    # Soft-RoCE would give up after 8.6 s at the earliest.
    assert "closed: the send did not complete in time" in a.log()


def asked_by(hostile, run):
    """Returns the run that sends a request to the hostile peer, the name that the listener gives the request, the
    request, and the right answer."""
    hostile.do("listen", "l", ADDRESS, 987)
    job = run()
    name = hostile.name()
    asked = wire.parse(bytes.fromhex(hostile.do("request", "l", name, 60000, timeout=120)["private"]))
    ack = wire.message(wire.CONNACK, hostile.nid, asked["src"], wire.params(), dststamp=asked["srcstamp"], srcstamp=STAMP)
    return job, name, asked, ack


@pytest.mark.parametrize("wrong", [{"srcstamp": 7}, {"src": 7}], ids=["stamp", "nid"])
def test_reconnect_backoff_after_immediate_close(nodes, hostile, wrong):
    """Pauses between attempts grow if the peer accepts each connection and at once sends a message with a wrong stamp
    or NID on it. A message waits all the time.

    The random pauses grow to 1.6 s: some 30 requests in 20 s if other steps took no time.
    """
    a, b = nodes
    up(a, b)
    run, name, asked, ack = asked_by(hostile, lambda: a.start(HOSTILE, op="put", size=200, count=500, conc=4, ask=0, timeout=100))
    noop = wire.message(wire.NOOP, **{"src": hostile.nid, "dst": asked["src"], "srcstamp": STAMP, "dststamp": asked["srcstamp"], **wrong})
    # The node repeats the first request.
    hostile.do("reject", name, wire.reject(wire.EARLY).hex())
    times = int(hostile.do("spoil", "l", ack.hex(), noop.hex(), 20, 20000)["asked"])
    print(f"asked {times} times in 20 s")
    assert run.running()
    hostile.do("close", "l")
    assert 5 <= times <= 38, times
    assert counted(a, "closed", "PeerRestarted") >= times - 1
    run.stop()
    assert run.result()["errors"]


def test_a_connection_that_is_refused_is_over(nodes, hostile):
    """A connection that the peer rejects is closed. The peer gives up before it has the RTU: its CM rejects a
    connection that is established here."""
    a, b = nodes
    up(a, b)
    # The timeout is lnet_lite's: the driver keeps the message.
    ping, name, _, ack = asked_by(hostile, lambda: a.guest.spawn(a.ctl_script(f"ping {HOSTILE} timeout=20")))
    with lose(b, "RTU"):
        hostile.do("answer", name, ack.hex(), 20)
        until(lambda: "state=Established" in state(a), "it is established here", 30)
        hostile.do("close", name)
        until(lambda: "conn=" not in state(a), "it is over", 30)
    assert "rc=0" not in ping.wait(120)[1]
    ends = a.guest.check("cat /sys/kernel/debug/ro2iblnd/*.closes")
    assert ends.count("event=closed") == 1 and "event=failed" not in ends, ends
    assert f"{HOSTILE}: connection closed" in a.log()


WRONG_ACKS = {
    "good": {},
    "nid": {"src": wire.nid("10.0.0.9")},
    "stamp": {"dststamp": 7},
    "depth": {"body": wire.params(depth=0)},
    "short": None,
}


@pytest.mark.parametrize("ack", WRONG_ACKS)
def test_message_with_a_bad_answer_is_dropped(nodes, hostile, ack):
    """H28: a message that arrives with a bad answer, or before it, is dropped. Only the answer identifies its
    sender."""
    a, b = nodes
    up(a, b)
    run, name, asked, good = asked_by(hostile, lambda: a.start(HOSTILE, op="put", size=200, count=500, conc=4, ask=0, timeout=100))
    change = WRONG_ACKS[ack]
    fields = {"src": hostile.nid, "dst": asked["src"], "body": wire.params(), "dststamp": asked["srcstamp"], "srcstamp": STAMP, **(change or {})}
    answer = wire.message(wire.CONNACK, fields.pop("src"), fields.pop("dst"), fields.pop("body"), **fields)
    if change is None:
        answer = good[:20]
    get = wire.lnet_header(wire.GET, hostile.nid, asked["src"], command=wire.get_command(sink=272))
    message = wire.message(wire.IMMEDIATE, hostile.nid, asked["src"], get, srcstamp=STAMP, dststamp=asked["srcstamp"])
    hostile.do("reject", name, wire.reject(wire.EARLY).hex())
    times = int(hostile.do("spoil", "l", answer.hex(), message.hex(), 20, 10000)["asked"])
    hostile.do("close", "l")
    run.stop()
    run.result()
    # LNet gets the message only with the right answer.
    assert times and (a.stats()["recv_get"] > 0) == (ack == "good"), (times, a.stats())
