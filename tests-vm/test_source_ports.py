# SPDX-License-Identifier: GPL-2.0
"""Paths of RoCE v2 connections: switches and bonds distinguish them by the UDP source port of their packets."""

import contextlib
import os
import subprocess

import pytest
from faults import close_all
from nodes import Node, until, up

CONNS = 4


@pytest.fixture(scope="module")
def count_source_ports(tmp_path_factory):
    """Builds the program that counts packets."""
    out = str(tmp_path_factory.mktemp("count_source_ports") / "count_source_ports")
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "count_source_ports.c")
    subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-static", "-o", out, source], check=True)
    return out


@contextlib.contextmanager
def capture(node):
    """Yields a dictionary that afterwards has the packets of reliable connections that left the node, by UDP source
    port."""
    guest, seen = node.guest, {}
    job = guest.spawn("exec /files/count_source_ports eth0")
    # The socket is bound to the interface, and gets all protocols.
    until(lambda: " 0003 " in guest.check("cat /proc/net/packet"), "the capture runs")
    yield seen
    guest.check("kill $(pidof count_source_ports)")
    status, out = job.wait()
    assert status == 0, out
    seen.update((int(port), int(n)) for port, n in (line.split() for line in out.splitlines()))


def sources(node):
    """Returns the source ports of the connections that the node requested, as the connection manager knows them."""
    lines = [line for line in node.guest.check("rdma resource show cm_id").splitlines() if "state CONNECT " in line]
    ports = [int(line.split("src-addr ")[1].split()[0].rsplit(":", 1)[1]) for line in lines]
    return sorted(port for port in ports if port != 987)


def test_each_connection_to_a_peer_has_a_udp_port_of_its_own(boot_pair, count_source_ports):
    """Each of four connections has its own UDP source port, the same one after a reconnect, and a privileged port."""
    a, b = (Node(g) for g in boot_pair(files=[count_source_ports]))
    up(a, b, conns_per_peer=CONNS)
    rounds = []
    for _ in range(2):
        with capture(a) as seen:
            a.traffic(b, op="mix", size=4096, count=40, conc=16)
            until(lambda: a.conns() == CONNS, "all connections", timeout=60)
            a.traffic(b, op="mix", size=4096, count=200, conc=16)
        ports = sources(a)
        print(f"source ports {ports}, packets {seen}")
        assert len(ports) == CONNS and all(512 <= port < 1024 for port in ports), ports
        assert len(seen) == CONNS, seen
        rounds.append((set(seen), ports))
        close_all(a, b)
    assert rounds[0] == rounds[1]
    a.unload()
    b.unload()
