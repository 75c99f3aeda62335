# SPDX-License-Identifier: GPL-2.0
"""Ten troubles, staged, and what a node says of each: the log, ro2ibtop over what ro2ib-report collects, and a row of
Documentation/operators.md that has those very words and says what to do. Who has the words finds the cause."""

import os
import re
import subprocess

import pytest
from conftest import ROOT
from faults import ROCE, Filter, Load, module_range, nft, silence
from flow import conns, failing
from nodes import PATIENCE, until, up
from test_operator import write
from vm import build_env

with open(os.path.join(ROOT, "Documentation", "operators.md"), encoding="utf-8") as f:
    DOCUMENT = f.read()
REPORT = os.path.join(ROOT, "scripts", "ro2ib-report")
NID = r"\d+\.\d+\.\d+\.\d+@o2ib\d*"


def pattern(words):
    """What a text of the document stands for: its numbers are examples, and so are spans of time."""
    text = re.escape(words)
    text = re.sub(r"\d+(\\\.\d+)?(\\ (s|ms|min)\b)?", r"\\d[\\d.]*( (s|ms|min)( \\d+ s)?)?", text)
    text = text.replace(r"\ \.\.\.", ".*").replace(r"\.\.\.", ".*").replace("<peer>", NID).replace("<ni>", NID).replace("messages\\ wait", "messages? waits?")
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


@pytest.fixture
def told(top, tmp_path):
    def told(node, *rows):
        """ro2ibtop says this of what ro2ib-report finds on a node."""
        for words in rows:
            in_document(words)
        script = node.guest.put(REPORT)
        saved = tmp_path / f"{node.guest.name}.txt"
        saved.write_text(node.guest.check(f"sh {script} -s 1 -o -", PATIENCE), encoding="utf-8")
        seen = subprocess.run(
            [top, "--snapshot", saved, "--once", "--width", "240"], capture_output=True, text=True, check=True, timeout=60
        ).stdout
        for words in rows:
            assert re.search(pattern(words), seen), f"{words}\n{seen}"

    return told


@pytest.fixture
def pair(nodes):
    """Two nodes that know each other."""
    up(*nodes)
    nodes[0].ping(nodes[1])
    for node in nodes:
        node.mark_log()
    return nodes


def test_slow_lnet(pair, told):
    """The peer's LNet takes nothing: the sender names the peer, and the peer itself."""
    a, b = pair
    b.set(lazy=1)
    run = a.start(b, op="put-ack", size=200, count=40, conc=40, ask=0)
    until(lambda: [c for c in conns(a) if c["oldest_ms"] > 3000 and c["q_main"]], "it has waited")
    told(a, "peer keeps all credits for 4.0 s: its LNet is slow")
    told(b, "our LNet keeps 7 requests: this node is slow, the peer has 1 credit left")
    b.set(lazy=0)
    run.result()


@pytest.mark.long
def test_dead_peer(pair, told):
    """It is silent: first the transport waits, then nobody can be connected to."""
    a, b = pair
    with silence(a), silence(b):
        run = a.start(b, op="put", size=200, count=8, conc=8, timeout=60, ask=0)
        until(lambda: [c for c in conns(a) if c["oldest_ms"] > 600], "it has waited")
        told(a, "not acknowledged for 600 ms: look at the fabric ...")
        logged(a, "<peer>: a send failed: RetryExc (vendor code ...)", "<peer>: connection closed: <cause>")
        ping = a.guest.spawn(a.ctl_script(f"ping {b.nid} timeout=40"))
        logged(a, "<peer>: connecting failed: <cause>")
        told(a, "connecting failed 6.5 s ago: ...")
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
    told(b, "requests for none of our NIs ...")


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
