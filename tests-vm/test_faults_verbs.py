# SPDX-License-Identifier: GPL-2.0
"""Calls into verbs and the CM that fail, completions with errors, and failing allocations.

One guest with two links and an NI on each: a fault hits both sides.
"""

import errno
import functools
import re
import time

import pytest
from faults import SLOW, Inject, Ledger, Load, module_range
from nodes import until
from test_close_under_load import CONNS, DEBUGFS, NIDS, both  # noqa: F401
from test_faults_cm import report

# Takes minutes: part of `make test-long`.
pytestmark = pytest.mark.long

A, B = NIDS

# Calls for each message. Some calls succeed between two failures.
HOT = {
    "ro2ib_ib_post_send": (errno.ENOMEM, errno.EINVAL),
    "ro2ib_ib_post_recv": (errno.ENOMEM, errno.EINVAL),
    "ro2ib_map_mr_sg": (errno.EINVAL, errno.ENOMEM),
    "ro2ib_dma_map_sgt": (errno.EIO, errno.ENOMEM),
    "ro2ib_dma_map_buf": (errno.EIO, errno.ENOMEM),
}
# Calls that establish a connection, or end it.
COLD = {
    "ro2ib_create_qp": (errno.ENOMEM, errno.EINVAL, errno.EIO),
    "ro2ib_alloc_mr": (errno.ENOMEM, errno.EINVAL),
    "ro2ib_cq_create": (errno.ENOMEM, errno.EINVAL),
    "ro2ib_cm_resolve_addr_privileged": (errno.EADDRNOTAVAIL, errno.ENODEV),
    "ro2ib_cm_resolve_route": (errno.ENOMEM, errno.EINVAL),
    "ro2ib_cm_connect_locked": (errno.ENOMEM, errno.EINVAL),
    "ro2ib_cm_accept_locked": (errno.ENOMEM, errno.EINVAL),
    # For a connection that ends: nothing is flushed.
    "ro2ib_qp_to_err": (errno.EIO, errno.EINVAL),
}
SITES = [(f, e) for table in (HOT, COLD) for f, errs in table.items() for e in errs]


def answer(node, limit=40 * SLOW, reopened=0):
    """Waits until pings work in both directions. With `reopened` connections per peer, deletes and adds each NI that is
    closed because its device refused the work requests of several connections: the last of these may still be ending.
    """

    def answers(mine, other):
        if reopened:
            reopen(node, reopened)
        return node.ctl(f"ping {other} from={mine} timeout=5", ok=False)["rc"] == 0

    for mine, other in ((A, B), (B, A)):
        until(functools.partial(answers, mine, other), f"answer from {other}", limit)


def clean_traffic(node):
    node.traffic(B, op="mix", size=65536, count=20, from_=A)
    node.traffic(A, op="mix", size=1000, count=20, from_=B)


def reopen(node, conns):
    """Deletes and adds each NI that is closed because its device refused work requests."""
    for nid, device in zip(NIDS, ("veth0", "veth1"), strict=True):
        if "health=refuses" in node.guest.check(f"cat {DEBUGFS}/{nid}"):
            node.ni_del(nid)
            node.ni_add(interface=device, conns_per_peer=conns)


def fail_call(node, function, code, seconds, record_property):
    """Fails every 5th call (a few), then all calls for a while."""
    total = {}
    fired = 0
    with (
        Load(node, B, op="get", from_=A, timeout=5) as one,
        Load(node, A, op="put", from_=B, timeout=5) as two,
    ):
        for probability, times in ((20, 30), (100, 500)):
            with Inject(node, function, -code, times=times, probability=probability) as inject:
                end = time.monotonic() + seconds
                while time.monotonic() < end and inject.left():
                    if function in COLD:
                        node.ctl(f"conn close any from={A}", ok=False)
                    time.sleep(0.2)
                fired += times - inject.left()
            answer(node, reopened=CONNS)
    for load in (one, two):
        for k, v in load.result().items():
            total[k] = total.get(k, 0) + v
    report(record_property, f"{function} {errno.errorcode[code]}", f"{fired} times; load {total}")
    assert fired
    assert total.get("stuck", 0) == 0 and total.get("verify_errors", 0) == 0, total


def test_calls_fail(both, pytestconfig, record_property):  # noqa: F811
    node = both
    ledger = Ledger(node)
    long = pytestconfig.getoption("--long")
    for function, code in SITES:
        if not long and code not in (HOT.get(function) or COLD[function])[:1]:
            continue
        fail_call(node, function, code, 4 if long else 1.5, record_property)
        clean_traffic(node)
        ledger.check()


def no_memory(node):
    """Returns no_memory of all connections of both NIs, closed ones included. The NIs must have counted the same."""
    text = node.guest.check("cat /sys/kernel/debug/ro2iblnd/*@*[0-9b]")
    conns, nis = (sum(map(int, re.findall(rf" {key}=(\d+)", text))) for key in ("no_memory", "NoMemory"))
    assert conns == nis, (conns, nis)
    return conns


def test_shortage_waits(both):  # noqa: F811
    """A PUT that finds no space to map waits, and so does a GET that finds no memory. Both arrive."""
    node = both
    ledger = Ledger(node)
    answer(node)
    for call, code, op in (("ro2ib_dma_map_sgt", errno.EIO, "put-ack"), ("ro2ib_map_mr_sg", errno.ENOMEM, "get")):
        # The first transfers of each connection wait for a memory region, and what they lack afterwards is not counted.
        node.traffic(B, op=op, size=65536, count=4 * CONNS, from_=A)
        before, short = health(node), no_memory(node)
        with Inject(node, call, -code, times=1) as inject:
            node.traffic(B, op=op, size=65536, count=8, conc=1, from_=A)
            assert inject.left() == 0
        assert health(node) == before
        assert no_memory(node) == short + 1
    ledger.check()


# enum ib_wc_status, 1 to 21, and beyond
STATUSES = range(1, 23)
FLUSHED = 5
CLASSES = ("send", "recv", "write", "reg", "inv")


def health(node):
    return {k: v for k, v in node.stats().items() if k.startswith("health_") and k != "health_ok"}


def past(node):
    """Returns the line of the closed connections, which changes with each connection that ends."""
    return node.guest.check("grep -h ^closed_conns= /sys/kernel/debug/ro2iblnd/*@*")


def test_flush_of_broken_device_does_not_blame_peer(both):  # noqa: F811
    """A flush by a broken device lowers the health of the local NI, not the peer's. A device flushes before it reports
    the fault. Here the report comes first, because a message ends at once."""
    node = both
    node.guest.check("insmod /files/ib_event.ko")
    try:
        for event, blamed in (("port_active", "remote_dropped"), ("fatal", "local_aborted")):
            answer(node)
            for device in ("veth0", "veth1"):
                node.guest.check(f"echo {device} {event} >/sys/module/ib_event/parameters/tell")
            before, ended = health(node), past(node)
            with Inject(node, "ro2ib_signal_all", 1), Inject(node, "ro2ib_wc_send", -FLUSHED):
                node.try_traffic(B, op="get", size=65536, count=2, conc=1, from_=A, timeout=4)
                until(lambda p=ended: past(node) != p, "end of a connection", 20 * SLOW)
            moved = {k[7:] for k, v in health(node).items() if v != before.get(k, 0)}
            # Messages that LNet itself drops do not count.
            assert blamed in moved and not moved - {blamed, "local_dropped", "ignored"}, (event, moved)
    finally:
        for device in ("veth0", "veth1"):
            node.guest.run(f"echo {device} port_active >/sys/module/ib_event/parameters/tell")
        node.guest.run("rmmod ib_event")
    clean_traffic(node)


def test_completion_errors(both, pytestconfig, record_property):  # noqa: F811
    """Traffic works after completions with each status on each kind of work request. Each request is signalled."""
    node = both
    ledger = Ledger(node)
    statuses = STATUSES if pytestconfig.getoption("--long") else (1, 5, 12, 21)
    hits = 0
    for kind in CLASSES:
        seen = {}
        for status in statuses:
            answer(node)
            before, ended = health(node), past(node)
            with Inject(node, "ro2ib_signal_all", 1), Inject(node, f"ro2ib_wc_{kind}", -status):
                r = node.try_traffic(B, op="get", size=65536, count=2, conc=1, from_=A, timeout=4)
                until(lambda p=ended: past(node) != p, f"end of a connection: {kind} {status}", 20 * SLOW)
            assert r.get("stuck", 0) == 0 and r["verify_errors"] == 0, r
            after = health(node)
            moved = {k[7:]: v - before.get(k, 0) for k, v in after.items() if v != before.get(k, 0)}
            seen[status] = moved
            # The other three kinds may fail when the data has arrived, and then the operation succeeds.
            assert r["errors"] + r["timeouts"] > 0 or kind not in ("send", "recv"), (kind, status, r)
            hits += 1
        report(record_property, f"completion of {kind}", seen)
        answer(node)
        clean_traffic(node)
        ledger.check()
    report(record_property, "completion errors", f"{hits} of {len(CLASSES) * len(statuses)}")


# Each message is finalized as if in an interrupt, which the driver warns about.
@pytest.mark.splats("WARNING:", "Call Trace:", r"\bRIP:")
def test_message_finalized_in_an_interrupt_is_late_and_not_lost(both):  # noqa: F811
    node = both
    ledger = Ledger(node)
    with Inject(node, "ro2ib_as_interrupt", 1):
        for op in ("put", "put-ack", "get"):
            for size in (100, 65536):
                node.traffic(B, op=op, size=size, count=20, from_=A)
    clean_traffic(node)
    ledger.check()


def test_all_signalled(both):  # noqa: F811
    """Traffic works when each work request has a completion of its own."""
    node = both
    ledger = Ledger(node)
    with Inject(node, "ro2ib_signal_all", 1):
        for op in ("put", "put-ack", "get"):
            for size in (100, 65536, 1048576):
                node.traffic(B, op=op, size=size, shape="unaligned", count=20, from_=A)
    ledger.check()


# The allocator itself warns, with a trace, when vmalloc() fails in the provider.
@pytest.mark.splats("Call Trace:")
def test_no_memory(both, pytestconfig, record_property):  # noqa: F811
    """Traffic works after allocations of the driver fail now and then, in set-up and under load."""
    node = both
    ledger = Ledger(node)
    for probability in (1, 10, 50):
        with module_range(node) as slab:
            with (
                Load(node, B, op="get", from_=A, timeout=5) as one,
                Load(node, A, op="put", from_=B, timeout=5, size=1000) as two,
            ):
                node.guest.check(f"cd {slab}; echo 100000 > times; echo {probability} > probability")
                for _ in range(20 if pytestconfig.getoption("--long") else 4):
                    node.ctl(f"conn close any from={A}", ok=False)
                    time.sleep(0.5)
                fired = 100000 - int(node.guest.check(f"cat {slab}/times"))
                node.guest.check(f"cd {slab}; echo 0 > probability")
                answer(node)
        total = [load.result() for load in (one, two)]
        report(record_property, f"failslab {probability} %", f"{fired} failures; load {total}")
        assert fired
        assert all(t.get("stuck", 0) == 0 and t.get("verify_errors", 0) == 0 for t in total), total
        clean_traffic(node)
        ledger.check()


def test_no_memory_for_an_ni(both, record_property):  # noqa: F811
    """An NI that starts and stops with failing allocations starts or fails, and leaves nothing behind."""
    node = both
    node.ni_del(A)
    started = 0
    with module_range(node) as slab:
        for times in range(1, 25):
            # The times-th allocation fails: `space` lets that many bytes pass, so use interval.
            node.guest.check(f"cd {slab}; echo 1 > times; echo {times} > interval; echo 100 > probability")
            r = node.ctl("ni add o2ib veth0", ok=False)
            node.guest.check(f"cd {slab}; echo 0 > probability; echo 1 > interval")
            if r["rc"] == 0:
                started += 1
                answer(node)
                node.ni_del(A)
    report(record_property, "NI start", f"{started} of 24 started")
    node.ni_add(interface="veth0")
    answer(node)
    clean_traffic(node)
