# SPDX-License-Identifier: GPL-2.0
"""Troubles, staged, and what a node says of each: the log, ro2ibtop over what ro2ib-report collects, and a row of
Documentation/operators.md that has those very words and says what to do. Who has the words finds the cause.

With --reports DIRECTORY some of what ro2ib-report collected is put there, for the tests of ro2ibtop, which have no
guests: `pytest tests-vm/test_troubles.py --long --reports scripts/ro2ibtop/tests/guest`."""

import os
import re
import subprocess

import pytest
from conftest import ROOT
from faults import ROCE, Filter, Load, module_range, nft, silence
from flow import conns, failing
from nodes import PATIENCE, until, up
from test_debugfs import lines
from test_operator import write
from vm import build_env

with open(os.path.join(ROOT, "Documentation", "operators.md"), encoding="utf-8") as f:
    DOCUMENT = f.read()
REPORT = os.path.join(ROOT, "scripts", "ro2ib-report")
# What ro2ibtop reads, and two of the parameters.
READ = re.compile(
    r"sample |/sys/kernel/debug/ro2iblnd/|/sys/class/infiniband/\w+/ports/1/hw_counters/|/sys/module/\w+/parameters/(timeout|peer_credits)$"
)
NID = r"\d+\.\d+\.\d+\.\d+@o2ib\d*"


def pattern(words):
    """What a text of the document stands for: its numbers are examples, and so are spans of time."""
    text = re.escape(words)
    text = re.sub(r"\d+(\\\.\d+)?(\\ (s|ms|min)\b)?", r"\\d[\\d.]*( (s|ms|min)( \\d+ s)?)?", text)
    text = text.replace(r"\ \.\.\.", ".*").replace(r"\.\.\.", ".*").replace("<peer>", NID).replace("<ni>", NID).replace("messages\\ wait", "messages? waits?").replace("failures", "failures?")
    return re.sub(r"<\w+>", ".+", text).replace("credit\\ left", "credits? left")


def in_document(words):
    """A row of a table begins with the words, or has them in its first cell, and its last cell says what to do."""
    rows = [line for line in DOCUMENT.splitlines() if line.startswith("|") and f"`{words}`" in line.split(" | ")[0]]
    assert rows and all(row.rstrip("|").split(" | ")[-1].strip() for row in rows), f"not in operators.md: {words}"


def logged(node, *rows):
    """The kernel log has a line of each of these rows."""
    for words in rows:
        in_document(words)
        until(lambda: re.search(pattern(words), node.log()), f"the log says {words}", timeout=60)  # noqa: B023


@pytest.fixture(scope="module")
def top():
    """ro2ibtop, built."""
    env = build_env()
    target = os.path.join(env["CARGO_CACHE"], "ro2ibtop")
    done = subprocess.run(
        [env["CARGO"], "build", "--locked", "--release"], cwd=os.path.join(ROOT, "scripts", "ro2ibtop"), check=False,
        env={**os.environ, "RUSTC": env["RUSTC"], "CARGO_TARGET_DIR": target}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return os.path.join(target, "release", "ro2ibtop")


def read_of(report):
    """What ro2ibtop reads of a report."""
    kept, wanted = ["SPDX-License-Identifier: GPL-2.0", "ro2ib-report, real text of guests"], False
    for line in report.splitlines():
        if section := re.fullmatch("==> (.*) <==", line):
            wanted = READ.match(section[1])
        if wanted:
            kept.append(line)
    return "".join(f"{line}\n" for line in kept)


@pytest.fixture
def told(top, tmp_path, request):
    directory = request.config.getoption("--reports")

    def told(node, *rows, name=None, looks=2):
        """ro2ibtop says this of what ro2ib-report finds on a node: its screen. Kept under that name, if any are."""
        for words in rows:
            in_document(words)
        script = node.guest.put(REPORT)
        saved = tmp_path / f"{node.guest.name}.txt"
        saved.write_text(node.guest.check(f"sh {script} -s 1 -n {looks} -o -", PATIENCE), encoding="utf-8")
        seen = subprocess.run(
            [top, "--snapshot", saved, "--once", "--width", "240"], capture_output=True, text=True, check=True, timeout=60
        ).stdout
        if directory and name:
            with open(os.path.join(directory, f"{name}.txt"), "w", encoding="utf-8") as f:
                f.write(read_of(saved.read_text(encoding="utf-8")))
        for words in rows:
            assert re.search(pattern(words), seen), f"{words}\n{seen}"
        return seen

    return told


@pytest.fixture
def pair(nodes):
    """Two nodes that know each other."""
    up(*nodes)
    nodes[0].ping(nodes[1])
    for node in nodes:
        node.mark_log()
    return nodes


@pytest.mark.long
def test_healthy(nodes, told):
    """Nothing is wrong with a node that has much to do."""
    a, b = nodes
    up(a, b, conns_per_peer=2)
    with Load(a, b, op="mix", size=16384, conc=3):
        until(lambda: len(conns(a)) == 2, "both connections")
        # On a busy machine a guest may stand still for long enough.
        until(lambda: "2 connections: nothing wrong" in told(a, name="healthy", looks=6), "nothing wrong")


@pytest.mark.long
def test_no_answer(nodes, told):
    """The peer's LNet takes nothing, and there are credits left: what the transport delivered has no answer."""
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
    """It listens, and is not in service for a while: messages wait, and it is asked again, ever more rarely."""
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

    # Longer than the report takes.
    row = "3 messages wait 7.0 s for a connection; next try in 3.0 s, 5 failures; the peer says not now: ..."
    until(waits, "a long pause")
    told(a, row, name="booting")
    run.result()
    assert job.wait(PATIENCE)[0] == 0


@pytest.mark.long
def test_what_ended(nodes, told):
    """One thing after the other."""
    a, b = nodes
    up(a, b, conns_per_peer=2)

    def ended(cause):
        """All connections, and two seconds later it is another break."""
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
        a, "broke 4 times in 3 min, last 10 s ago: ...", "connecting failed 6.5 s ago: ...", "requests for none of our NIs ...", name="ended"
    )  # fmt: skip


def test_slow_lnet(pair, told):
    """The peer's LNet takes nothing: the sender names the peer, and the peer itself."""
    a, b = pair
    b.set(lazy=1)
    run = a.start(b, op="put-ack", size=200, count=40, conc=40, ask=0)
    until(lambda: [c for c in conns(a) if c["oldest_ms"] > 3000 and c["q_main"]], "it has waited")
    told(a, "peer keeps all credits for 4.0 s: its LNet is slow", name="starved", looks=4)
    told(b, "our LNet keeps 7 requests: this node is slow, the peer has 1 credit left", name="slow-here")
    b.set(lazy=0)
    run.result()


@pytest.mark.long
def test_dead_peer(pair, told):
    """It is silent: first the transport waits, then nobody can be connected to."""
    a, b = pair
    with silence(a), silence(b):
        run = a.start(b, op="put", size=200, count=8, conc=8, timeout=60, ask=0)
        until(lambda: [c for c in conns(a) if c["oldest_ms"] > 600], "it has waited")
        told(a, "not acknowledged for 600 ms: look at the fabric ...", name="dead-peer")
        logged(a, "<peer>: a send failed: RetryExc (vendor code ...)", "<peer>: connection closed: <cause>")
        ping = a.guest.spawn(a.ctl_script(f"ping {b.nid} timeout=40"))
        logged(a, "<peer>: connecting failed: <cause>")
        told(a, "connecting failed 6.5 s ago: ...", name="no-peer")
        ping.wait(PATIENCE)
        run.result()
    until(lambda: a.ctl(f"ping {b.nid} timeout=5", ok=False)["rc"] == 0, "it is back")


@pytest.mark.long
def test_lost_packets(pair, told):
    """Some, always: everything works, and is slow."""
    a, b = pair
    for node in pair:
        nft(
            node.guest, "table netdev some { chain in { type filter hook ingress device eth0 priority 0;\n"
            f"{ROCE} numgen random mod 1000 < 20 drop\n}}\n}}"
        )  # fmt: skip
    try:
        with Load(a, b, op="put") as load:
            a.guest.check("sleep 3")
            told(a, "retries: look at the fabric (...)")
        assert load.result()["count"] > 0
    finally:
        for node in pair:
            node.guest.check("nft delete table netdev some")


@pytest.mark.long
def test_mtu(pair, told):
    """Small packets get through, large ones do not: `ping` works, and no bulk."""
    a, b = pair
    with Filter(b.guest, f"{ROCE} meta length gt 1500"):
        a.ping(b)
        run = a.start(b, op="put", size=65536, count=4, conc=4, timeout=60, ask=0)
        until(lambda: [c for c in conns(a) if c["oldest_ms"] > 600], "it has waited")
        told(a, "not acknowledged for 600 ms: look at the fabric ...")
        logged(a, "<peer>: a send failed: RetryExc (vendor code ...)")
        run.result()
    until(lambda: a.ctl(f"ping {b.nid} timeout=5", ok=False)["rc"] == 0, "it is back")


@pytest.mark.long
def test_no_memory(pair, told):
    """Every other allocation of the driver fails."""
    a, b = pair
    with module_range(b) as slab, Load(a, b, op="put-ack", timeout=5):
        b.guest.check(f"cd {slab}; echo -1 >times; echo 50 >probability")
        logged(b, "out of resources")
    assert "connection closed: out of memory" in b.log() and "\n| out of memory or of device resources here |" in DOCUMENT
    told(b, "refuses requests (...)")
    a.traffic(b, op="put-ack", size=100000, count=20)


@pytest.mark.long
def test_exhausted_regions(pair, told):
    """The device has no memory region left."""
    a, b = pair
    with failing(b, "ro2ib_alloc_mr"), Load(a, b, op="put-ack") as load:
        logged(b, "<peer>: cannot receive a PUT: ...")
        told(b, "waiting for memory")
    assert load.result()["verify_errors"] == 0
    a.traffic(b, op="put-ack", size=100000, count=20)


@pytest.mark.long
def test_wrong_address(pair, told):
    """Nobody has it; or somebody, who is on another net."""
    a, b = pair
    a.ctl("ping 10.0.0.77@o2ib timeout=30", ok=False)
    logged(a, "<peer>: connecting failed: <cause>")
    told(a, "connecting failed 6.5 s ago: ...")
    b.ni_del()
    b.ni_add(net="o2ib5")
    a.ctl(f"ping {b.nid} timeout=30", ok=False)
    logged(a, "<peer>: refused our connection request: <why>")
    told(a, "connecting failed 6.5 s ago: ...", name="refused")
    told(b, "requests for none of our NIs ...", name="wrong-net")


@pytest.mark.long
def test_denied(pair, told):
    """The administrator of the other node does not want this one."""
    a, b = pair
    write(b, "access", f"deny {a.address}/32@o2ib; allow *@o2ib")
    until(lambda: a.conns() == 0, "cut off")
    a.ctl(f"ping {b.nid} timeout=5", ok=False)
    logged(a, "<peer>: refused our connection request: <why>")
    logged(b, "denied by the parameter access")
    told(b, "refuses requests (...)")
    write(b, "access", "")


def test_unplugged(pair, told):
    """The device is gone while messages are on their way."""
    a, b = pair
    with Load(a, b, op="put"):
        b.unplug()
        logged(b, "<ni>: the RDMA device is gone; waiting for it to come back")
        told(b, "the RDMA device is gone ...")
        b.plug()
    until(lambda: a.ctl(f"ping {b.nid} timeout=5", ok=False)["rc"] == 0, "it is back")


@pytest.mark.long
def test_stale_peer(pair, told):
    """The peer was restarted, and its farewell got lost."""
    a, b = pair
    with silence(a):
        b.ni_del()
    b.ni_add()
    b.ping(a)
    logged(a, "<peer>: connection closed: <cause>")
    assert "connection closed: the peer was restarted" in a.log() and "\n| the peer was restarted |" in DOCUMENT
    told(a, "closed 12 s ago: ...")
