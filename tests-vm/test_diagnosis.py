# SPDX-License-Identifier: GPL-2.0
"""Thirteen troubles, staged, and how a node reports them: in the log, in debugfs, and in ro2ibtop's verdict on a report
of ro2ib-report. Each source names the cause within a minute, in words that Documentation/reference.md has with a
remedy. troubles.md of the logs lists the words and the times.

--reports DIRECTORY keeps some reports of ro2ib-report for the tests of ro2ibtop, which have no guests: `pytest
tests-vm/test_diagnosis.py --long --reports scripts/ro2ibtop/tests/guest`.
"""

import contextlib
import re

import pytest
from faults import ROCE, Filter, Load, module_range, nft, silence
from counters import conns, failing
from nodes import PATIENCE, until, up
from test_debugfs import lines
from test_runtime_settings import write
from diagnosis import Debugfs, Log, Top, Trouble, keep, pattern, remedy, screen
from diagnosis import write as write_table

READING, BY_TOP, CAUSES = "Reading the log", "Verdicts of ro2ibtop", "Causes and their LNet status"


@pytest.fixture(scope="module")
def table():
    """Collects the rows of the table."""
    lines = []
    yield lines
    write_table(lines)


@pytest.fixture
def pair(nodes):
    """Provides two nodes that are connected."""
    up(*nodes)
    nodes[0].ping(nodes[1])
    for node in nodes:
        node.mark_log()
    return nodes


@pytest.fixture
def stage(top, table, request):
    @contextlib.contextmanager
    def stage(name, how, heading):
        """Stages a trouble inside `with`, and adds its row at the end."""
        nodes = request.getfixturevalue("pair") if request.config.getoption("--long") else ()
        trouble = Trouble(top, name, how, heading, request.config.getoption("--reports"), nodes)
        yield trouble
        line = trouble.row()
        table.append(line)
        print(line)

    return stage


@pytest.fixture
def told(top, tmp_path, request):
    def told(node, *rows, name=None, looks=2):
        """Checks that ro2ibtop's screen of a node has these rows. Returns the screen. The report is kept under
        `name`."""
        for words in rows:
            remedy(words)
        report, seen = screen(top, node, tmp_path, looks)
        keep(request.config.getoption("--reports"), name, report)
        for words in rows:
            assert re.search(pattern(words), seen), f"{words}\n{seen}"
        return seen

    return told


def back(a, b):
    until(lambda: a.ctl(f"ping {b.nid} timeout=5", ok=False)["rc"] == 0, "it is back")


@contextlib.contextmanager
def pinging(one, other):
    """Runs a ping each second, with or without an answer."""
    stop, ping = "/tmp/pinged", one.ctl_script(f"ping {other.nid} timeout=5")
    pings = one.guest.spawn(f"rm -f {stop}; while [ ! -e {stop} ]; do {ping} >/dev/null & sleep 1; done; wait")
    yield
    one.guest.check(f"touch {stop}")
    pings.wait(PATIENCE)


@pytest.mark.long
def test_healthy(nodes, told):
    """ro2ibtop finds nothing wrong with a busy node."""
    a, b = nodes
    up(a, b, conns_per_peer=2)
    with Load(a, b, op="mix", size=16384, conc=3):
        until(lambda: len(conns(a)) == 2, "both connections")
        # On a busy machine a guest may stall long enough for a verdict.
        until(lambda: "2 connections; nothing wrong" in told(a, name="healthy", looks=6), "nothing wrong")


def test_broken_device(nodes, told):
    """ro2ibtop reports a broken device: the link is up, and LNet avoids the NI."""
    a, b = nodes
    up(a, b)
    a.ping(b)
    tell = "echo eth0 {} >/sys/module/ib_event/parameters/tell"
    a.guest.check(f"insmod /files/ib_event.ko; {tell.format('fatal')}")
    try:
        told(a, "rxe0 reported a fatal error, LNet avoids the NI ...", name="broken-device")
    finally:
        a.guest.run(f"{tell.format('port_active')}; rmmod ib_event")


@pytest.mark.long
def test_no_answer(nodes, told):
    """ro2ibtop reports messages that the transport delivered without an answer: the peer's LNet takes none, and credits
    are left."""
    a, b = nodes
    up(a, b, conns_per_peer=2)
    a.ping(b)
    until(lambda: len(conns(a)) == 2, "both connections")
    a.ctl("ping 10.0.0.77@o2ib timeout=30", ok=False)
    b.set(lazy=1)
    run = a.start(b, op="put-ack", size=100000, count=6, conc=6, ask=0)
    until(lambda: [c for c in conns(a) if c["oldest_ms"] > 3000 and c["oldest"] == "answer"], "it has waited")
    told(a, "a PUT or GET has no answer for 6.0 s: the peer's LNet is slow", "connecting failed 6.5 s ago: ...", name="slow-peer")
    b.set(lazy=0)
    run.result()


@pytest.mark.long
def test_booting_peer(nodes, told):
    """ro2ibtop reports a peer that listens and is not in service for a while: messages wait, and the pauses between
    requests grow."""
    a, b = nodes
    up(a)
    b.load()
    b.set(start_delay_ms=40000)
    job = b.guest.spawn(b.ctl_script("ni add o2ib eth0"))
    until(lambda: b.guest.run("ls /sys/kernel/debug/ro2iblnd/*@o2ib")[0] == 0, "started")
    run = a.start(b, op="put", size=200, count=3, conc=3, timeout=60, ask=0)

    def waits():
        peers = [line for line in lines(a) if line.get("peer") == b.nid]
        return peers and int(peers[0]["failures"]) >= 5 and int(peers[0]["retry_ms"]) > 3500

    # Longer than a report takes.
    row = "3 messages wait 7.0 s for a connection; next try in 3.0 s, 5 failures; the peer rejects for now: ..."
    until(waits, "a long pause")
    told(a, row, name="booting")
    run.result()
    assert job.wait(PATIENCE)[0] == 0


@pytest.mark.long
def test_ended_connections(nodes, told):
    """ro2ibtop lists several ends of connections, one after the other."""
    a, b = nodes
    up(a, b, conns_per_peer=2)

    def ended(cause):
        """Waits until all connections are closed. Two seconds later the next end counts as another break."""
        until(lambda: not a.conns(), cause)
        a.guest.check("sleep 2")
        a.ctl(f"ping {b.nid} timeout=5", ok=False)

    def connected():
        until(lambda: a.ctl(f"ping {b.nid} timeout=5", ok=False)["rc"] == 0 and len(conns(a)) == 2, "connected")

    connected()
    b.ctl(f"conn close {a.nid}")
    ended("closed by the peer")
    connected()
    a.ctl(f"conn close {b.nid}")
    ended("closed by the administrator")
    connected()
    a.guest.check("ip link set eth0 down")
    until(lambda: not a.conns(), "no link")
    a.guest.check("sleep 2; ip link set eth0 up")
    connected()
    b.ni_del()
    ended("shut down")
    a.ctl("ping 10.0.0.77@o2ib timeout=30", ok=False)
    b.ni_add(net="o2ib5")
    b.ctl(f"ping {a.address}@o2ib5 timeout=30", ok=False)
    a.ctl(f"ping {b.nid} timeout=30", ok=False)
    b.ni_del(f"{b.address}@o2ib5")
    b.ni_add(conns_per_peer=2)
    connected()
    told(
        a, "broke 4 times in 3 min, last 10 s ago: ...", "connecting failed 6.5 s ago: ...", "requests for unknown NIs ...", name="ended"
    )  # fmt: skip


def test_slow_lnet(pair, stage, pytestconfig):
    """The sender and the peer itself name a peer whose LNet takes nothing. The log names it when messages fail."""
    a, b = pair
    patient = pytestconfig.getoption("--long")
    with stage("slow LNet consumer", "the peer's LNet takes nothing", BY_TOP) as trouble:
        if not patient:
            # Two reports may take longer than the default timeout, after which the connection has ended.
            for node in pair:
                write(node, "ni_tune", "*@o2ib timeout=300")
        b.set(lazy=1)
        run = a.start(b, op="put-ack", size=200, count=40, conc=40, ask=0)
        until(lambda: [c for c in conns(a) if c["oldest_ms"] > 3000 and c["q_main"]], "it has waited")
        trouble.sees(
            Debugfs(a, r"q_main=[1-9]\d* oldest_ms=\d{4,} oldest=(queued|answer)"),
            Debugfs(b, "peer_held=[01] with_lnet=[1-9]"),
            Top(a, "peer keeps all credits for 4.0 s: the peer's LNet is slow", name="starved", looks=4),
            Top(b, "our LNet keeps 7 requests ... this node is slow, the peer has 1 credit left", name="slow-here"),
        )
        if patient:
            # The default of `timeout`.
            trouble.sees(
                Log(a, "<peer>: connection closed: queued too long"),
                Debugfs(a, "event=closed by=local cause=DeadlineQueued", ".closes"),
            )
        b.set(lazy=0)
    run.result()


@pytest.mark.long
def test_dead_peer(pair, stage):
    """A peer is gone: first the transport waits, then connecting fails. The guest is isolated and not killed, because
    the next test needs it. A dead node makes no report."""
    a, b = pair
    with stage("dead peer", "the other guest is cut off", READING) as trouble:
        trouble.nodes = (a,)
        b.guest.carrier(False)
        try:
            run = a.start(b, op="put", size=200, count=8, conc=8, timeout=60, ask=0)
            # debugfs must have the row at the first look: the report after it is slow, and the connection ends soon.
            until(lambda: conns(a) and int(conns(a)[0]["oldest_ms"]) >= 500, "it waits")
            trouble.sees(
                Debugfs(a, r"oldest_ms=([5-9]\d\d|\d{4,}) oldest=sending"),
                Top(a, "not acknowledged for 600 ms: check the fabric ... or the peer is dead", name="dead-peer"),
                Log(a, "<peer>: a send failed: RetryExc (vendor code ...)"),
                Log(a, "<peer>: connection closed: the transport gave up retrying"),
                Debugfs(a, "event=closed by=path cause=TransportRetry", ".closes"),
            )
            with pinging(a, b):
                trouble.sees(
                    # The neighbour entry of the address lives for some seconds.
                    Log(a, "<peer>: connecting failed: unreachable: the address does not answer, or no route"),
                    Debugfs(a, "event=failed by=path cause=Unreachable", ".closes"),
                    Top(a, "connecting failed 6.5 s ago: unreachable: the address does not answer, or no route: ..."),
                )
            run.result()
        finally:
            b.guest.carrier(True)
    back(a, b)


@pytest.mark.long
def test_firewall(pair, stage):
    """RoCE packets do not get through and all others do: `ping` works, and the peer is not reported as dead."""
    a, b = pair
    with silence(a), silence(b), stage("firewall", "all RoCE packets dropped, both ways", CAUSES) as trouble:
        run = a.start(b, op="put", size=200, count=8, conc=8, timeout=60, ask=0)
        trouble.sees(
            Log(a, "<peer>: connection closed: the transport gave up retrying"),
            Debugfs(a, "event=closed by=path cause=TransportRetry", ".closes"),
        )
        ping = a.guest.spawn(a.ctl_script(f"ping {b.nid} timeout=40"))
        trouble.sees(
            # The neighbour entry of the address is old, and the address answers.
            Log(a, "<peer>: connecting failed: the handshake took too long"),
            Debugfs(a, "event=failed by=path cause=ConnectTimeout", ".closes"),
            Top(a, "connecting failed 6.5 s ago: the handshake took too long: ... a connection to it broke 20 s ago: it fell silent", name="no-peer"),
        )
        ping.wait(PATIENCE)
        run.result()
    back(a, b)


@pytest.mark.long
def test_lost_packets(pair, stage):
    """Some packets are always lost: everything works slowly. No connection ends, so the log has nothing."""
    a, b = pair
    with stage("lost packets", "2 of 100 RoCE packets dropped, both ways", BY_TOP) as trouble:
        for node in pair:
            nft(
                node.guest, "table netdev some { chain in { type filter hook ingress device eth0 priority 0;\n"
                f"{ROCE} numgen random mod 1000 < 20 drop\n}}\n}}"
            )  # fmt: skip
        try:
            with Load(a, b, op="put") as load:
                trouble.sees(
                    # 1 s: the transport waits that long before it repeats a packet.
                    Debugfs(a, r"stage=wire p99_ns=\d{10,}", ".latency"),
                    Top(a, "retries: check the fabric (...)"),
                )
            assert load.result()["count"] > 0
        finally:
            for node in pair:
                node.guest.check("nft delete table netdev some")


@pytest.mark.long
def test_mtu(pair, stage):
    """Small packets get through, large ones do not: `ping` works, and bulk transfers fail. The peer is not reported as
    dead."""
    a, b = pair
    with Filter(b.guest, "meta length gt 1500"):
        a.ping(b)
        with stage("MTU mismatch", "packets of more than 1500 bytes dropped", BY_TOP) as trouble, Load(a, b, op="put"):
            with pinging(b, a):
                trouble.sees(
                    Top(a, "not acknowledged for 4.0 s, and the peer was heard 300 ms ago: ... the MTU of the whole path, or a filter"),
                    Log(a, "<peer>: a send failed: RetryExc (vendor code ...)"),
                    Log(a, "<peer>: connection closed: the transport gave up retrying"),
                    Debugfs(a, "event=closed by=path cause=TransportRetry", ".closes"),
                )
                trouble.sees(
                    # The node connected again at once, and failed in the same way.
                    Debugfs(a, "usable=[1-9] failed=0 ends=TransportRetry:[2-9].*"),
                    Top(a, "the transport gave up retrying: it answers again: ... the MTU of the whole path, or a filter"),
                )
    back(a, b)


@pytest.mark.long
def test_no_memory(pair, stage):
    """Every other allocation of the driver fails. No connection closes because of that, and a closed one does not come
    back."""
    a, b = pair
    with module_range(b) as slab, Load(a, b, op="put-ack", timeout=5):
        with stage("no memory", "every other allocation of the driver fails", READING) as trouble:
            b.guest.check(f"cd {slab}; echo -1 >times; echo 50 >probability")
            b.ctl("conn close any", ok=False)
            trouble.sees(
                Log(b, "<peer>: rejected its connection request: no memory for a connection (-12)"),
                Debugfs(b, r"of=refused NoResources=[1-9]\d*"),
                Top(b, "refuses requests (...): no memory, or no device resources, here"),
            )
            # The fault injection that makes them fail.
            assert "/failslab/probability <==\n50\n" in trouble.report(b)
        b.guest.check(f"echo 0 >{slab}/probability")
    a.traffic(b, op="put-ack", size=100000, count=20)


@pytest.mark.long
def test_exhausted_regions(pair, stage):
    """The device has no memory region left."""
    a, b = pair
    with stage("exhausted regions", "the device provides no memory region", READING) as trouble:
        with failing(b, "ro2ib_alloc_mr"), Load(a, b, op="put-ack") as load:
            trouble.sees(
                Log(b, "<peer>: cannot receive a PUT: the device provides no memory region (-12)"),
                Debugfs(b, r"of=other NoRegion=[1-9]\d*"),
                Top(b, "no memory region, the device provides none, for 27 PUTs of peers just now: refused"),
                Top(a, "3 messages failed just now because a peer could not receive or answer them: check the peer"),
            )
            assert re.search(r"/fail_function/inject <==\n(.*\n)*ro2ib_alloc_mr\b", trouble.report(b))
    assert load.result()["verify_errors"] == 0
    a.traffic(b, op="put-ack", size=100000, count=20)


@pytest.mark.long
def test_wrong_address(pair, stage):
    """No node has the address."""
    a, _b = pair
    with stage("wrong address", "a node connects to a NID whose address no host has", CAUSES) as trouble:
        ping = a.guest.spawn(a.ctl_script("ping 10.0.0.77@o2ib timeout=40"))
        trouble.sees(
            Log(a, "<peer>: connecting failed: unreachable"),
            Debugfs(a, "event=failed peer=10.0.0.77@o2ib by=path cause=Unreachable", ".closes"),
            Top(a, "connecting failed 6.5 s ago: unreachable: ... is the NID right, is the node on"),
        )
        ping.wait(PATIENCE)


@pytest.mark.long
def test_wrong_net(pair, stage):
    """A node has the address, and is on another net."""
    a, b = pair
    b.ni_del()
    b.ni_add(net="o2ib5")
    with stage("wrong net", "the peer's NI is of another net", READING) as trouble:
        a.ctl(f"ping {b.nid} timeout=30", ok=False)
        trouble.sees(
            Log(a, "<peer>: rejected our connection request: <why>"),
            Log(b, "<peer>: rejected its connection request: no NI <peer> on this device"),
            Debugfs(a, "event=failed by=peer cause=Refused detail=Fatal", ".closes"),
            Debugfs(b, "event=refused cause=NoSuchNi requested=10.*", "unknown_ni"),
            Top(a, "connecting failed 6.5 s ago: refused by the peer ...", name="refused"),
            Top(b, "requests for unknown NIs ...", name="wrong-net"),
        )


def bad_pkeys(node):
    """Returns how many packets of another partition a device dropped."""
    return int(re.search(r"bad_pkey_cntr:\s+0x(\w+)", node.guest.check(f"ibv_devinfo -v -d {node.device}"))[1], 16)


@pytest.mark.long
def test_wrong_pkey(pair, stage):
    """The peer is in another partition: its device drops all packets. A port of rxe has one fixed P_Key, so the test
    changes the P_Key on the way."""
    a, b = pair
    if a.device != "rxe0":
        pytest.skip("iWARP has no partitions")
    a.ctl(f"conn close {b.nid}")
    until(lambda: a.conns() == 0, "closed")
    before = bad_pkeys(b)
    nft(
        b.guest, "table netdev partition { chain in { type filter hook ingress device eth0 priority 0;\n"
        f"{ROCE} @th,80,16 set 0x8001\n}}\n}}"
    )  # fmt: skip
    try:
        with stage("wrong P_Key", "the P_Key of the packets is changed on the way", CAUSES) as trouble:
            ping = a.guest.spawn(a.ctl_script(f"ping {b.nid} timeout=40"))
            trouble.sees(
                Log(a, "<peer>: connecting failed: the handshake took too long"),
                Debugfs(a, "event=failed by=path cause=ConnectTimeout", ".closes"),
                Top(a, "connecting failed 6.5 s ago: the handshake took too long: ..."),
                # These rows differ from those of a dead peer and of a firewall.
                Debugfs(b, r"bad_pkeys=[1-9]\d*"),
                Top(b, "4 packets of another partition since the NI has this device: compare the P_Keys of both nodes"),
            )
            assert bad_pkeys(b) > before
            ping.wait(PATIENCE)
    finally:
        b.guest.check("nft delete table netdev partition")
    back(a, b)


@pytest.mark.long
def test_denied(pair, stage):
    """The peer's administrator denies this node."""
    a, b = pair
    with stage("deny rule", "the parameter `access` of the peer", READING) as trouble:
        write(b, "access", f"deny {a.address}/32@o2ib; allow *@o2ib")
        until(lambda: a.conns() == 0, "cut off")
        a.ctl(f"ping {b.nid} timeout=5", ok=False)
        trouble.sees(
            Log(a, "<peer>: rejected our connection request: <why>"),
            Log(b, "<peer>: rejected its connection request: denied by the parameter access"),
            Debugfs(a, "event=failed by=peer cause=Refused", ".closes"),
            Debugfs(b, "event=refused cause=Denied", ".closes"),
            Debugfs(b, r"of=refused Denied=[1-9]\d*"),
            Top(b, "refuses requests (...): denied by the parameter access"),
        )
    write(b, "access", "")


def test_unplugged(pair, stage):
    """The device is removed while messages are on their way."""
    a, b = pair
    with Load(a, b, op="put"), stage("unplugged device", "the device is removed under load", READING) as trouble:
        b.unplug()
        trouble.sees(
            Log(b, "<ni>: the RDMA device is gone; waiting for it to come back"),
            Debugfs(b, "ni=.* device=none"),
            Debugfs(b, "event=closed by=device cause=DeviceGone", ".closes"),
            Top(b, "the RDMA device is gone ..."),
        )
        b.plug()
    back(a, b)


@pytest.mark.long
def test_stale_peer(pair, stage):
    """The peer was restarted, and its DREQ was lost."""
    a, b = pair
    with silence(a):
        b.ni_del()
    b.ni_add()
    with stage("stale peer", "the peer is restarted; nothing of its farewell arrives", CAUSES) as trouble:
        b.ping(a)
        trouble.sees(
            Log(a, "<peer>: connection closed: the peer was restarted"),
            Debugfs(a, "event=closed by=local cause=PeerRestarted", ".closes"),
            Top(a, "closed 12 s ago: the peer was restarted"),
        )
