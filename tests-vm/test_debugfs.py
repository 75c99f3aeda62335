# SPDX-License-Identifier: GPL-2.0
"""Files of the driver in debugfs: close log, rejects, paths, queue pairs, oldest message, link state. Other sources
confirm their content."""

import json
import os
import re
import subprocess

from counters import DEBUGFS, conns
from nodes import PATIENCE, up, until


def lines(node, suffix="", nid=None):
    text = node.guest.check(f"cat {DEBUGFS}/{nid or node.nid}{suffix}")
    return [dict(word.split("=", 1) for word in line.split()) for line in text.splitlines()]


def causes(node, of):
    found = [line for line in lines(node) if line.get("of") == of]
    assert len(found) == 1, found
    return {k: int(v) for k, v in found[0].items() if k not in ("causes", "of") and v != "0"}


def events(node):
    return [line for line in lines(node, ".closes") if "event" in line]


def test_open_debugfs_file_pins_module(nodes):
    """An open debugfs file, as `tail -f` keeps it, pins the module until its last close, also after its removal."""
    a, b = nodes
    up(a, b)
    for name in ("unknown_ni", a.nid):
        # The file is open before the shell continues.
        reader = a.guest.check(f"exec 3<{DEBUGFS}/{name}; sleep 1000 >/dev/null 2>&1 & echo $!").strip()
        a.ni_del()
        status, said = a.guest.run("rmmod ro2iblnd")
        a.guest.check(f"kill {reader}")
        assert status != 0 and ("in use" in said or "unavailable" in said), said
        a.unload()
        a.load()
        a.ni_add()
    a.ping(b)


def test_queue_pairs_are_matched(nodes):
    """debugfs shows the queue pair numbers of `rdma resource show qp`, and each side knows the other's number."""
    a, b = nodes
    up(a, b, conns_per_peer=3)
    a.traffic(b, op="mix", size=20000, count=60, conc=12)
    until(lambda: len(conns(a)) == len(conns(b)) == 3, "all connections")
    here = {(c["qpn"], c["peer_qpn"]) for c in conns(a)}
    there = {(c["peer_qpn"], c["qpn"]) for c in conns(b)}
    assert here == there and len(here) == 3, (here, there)
    rdma = a.guest.check("rdma resource show qp")
    assert {(int(x), int(y)) for x, y in re.findall(r"lqpn (\d+) rqpn (\d+) type RC", rdma)} == here, rdma
    assert {c["mtu"] for c in conns(a) + conns(b)} == {4096}


def gids(node):
    """Returns the set of GIDs of the device."""
    return set(node.guest.check("cat /sys/class/infiniband/*/ports/1/gids/* 2>/dev/null | grep -v ^0000:0000:0000:0000:0000:0000:0000:0000").split())


def test_debugfs_shows_paths(nodes):
    """debugfs shows GIDs, type of service and retries of a connection as the devices and settings of both nodes have
    them."""
    a, b = nodes
    up(a, lnd="tos=96 retry_count=3 rnr_retry_count=4 ib_mtu=2048")
    up(b, lnd="retry_count=2 rnr_retry_count=5")
    a.ping(b)
    (here,), (there,) = ([line for line in lines(node) if "conn" in line] for node in (a, b))
    assert here["sgid"] == there["dgid"] and here["dgid"] == there["sgid"], (here, there)
    assert here["sgid"] in gids(a) - gids(b) and here["dgid"] in gids(b) - gids(a), (here, gids(a), gids(b))
    last = [int(x) for x in a.address.split(".")]
    assert here["sgid"].endswith("ffff:{:02x}{:02x}:{:02x}{:02x}".format(*last)), here
    words = ("port", "tos", "sl", "mtu")
    assert [here[w] for w in words] == [there[w] for w in words] == ["1", "96", "0", "2048"], (here, there)
    # The active side sets retry_count for both. Each side tells the peer its rnr_retry_count.
    assert (here["retry_count"], here["rnr_retry_count"]) == ("3", "5"), here
    assert (there["retry_count"], there["rnr_retry_count"]) == ("3", "4"), there


def test_close_log_lists_closes(nodes):
    a, b = nodes
    up(a, b)
    a.traffic(b, op="mix", count=10)
    first = events(a), events(b)
    assert first == ([], []), first
    # The peer closes the connection.
    b.ctl(f"conn close {a.nid}")
    until(lambda: events(a) and events(b), "both have seen it end")
    (at_a,), (at_b,) = events(a), events(b)
    assert (at_b["event"], at_b["by"], at_b["cause"], at_b["role"]) == ("closed", "operator", "AdminClose", "passive"), at_b
    assert (at_a["event"], at_a["by"], at_a["peer"], at_a["role"]) == ("closed", "peer", b.nid, "active"), at_a
    assert causes(a, "closed") == {at_a["cause"]: 1}, at_a
    assert causes(b, "closed") == {"AdminClose": 1}
    # The log of the peer names the cause, too.
    until(lambda: f"{a.nid}: connection closed: closed by lctl disconnect" in b.log(), "said")
    now = float(next(line["now"] for line in lines(a, ".closes") if "now" in line))
    assert 0 <= now - float(at_a["time"]) < 60, (now, at_a)
    # This address has no node.
    a.ctl("ping 10.0.0.77@o2ib timeout=30", ok=False)
    until(lambda: causes(a, "failed"), "an attempt ended")
    assert causes(a, "failed") == {"Unreachable": 1} and causes(a, "messages") == {"Unreachable": 1}
    # The line of the peer has its earlier ends.
    a.ping(b)
    peer = next(line for line in lines(a) if line.get("peer") == b.nid)
    assert (peer["closed"], peer["last"], peer["usable"]) == ("1", at_a["cause"], "1"), peer


def test_close_log_lists_rejects(nodes):
    """debugfs lists a reject at the NI that was requested, or under unknown_ni if there is none."""
    a, b = nodes
    up(a, peer_credits=32)
    up(b, peer_credits=8)
    a.traffic(b, op="mix", count=10)
    assert causes(b, "refused") == {"Depth": 1}
    assert [(e["event"], e["peer"], e["cause"]) for e in events(b)] == [("refused", a.nid, "Depth")]
    b.ni_del()
    b.ni_add(net="o2ib5")
    a.ctl(f"ping {b.nid} timeout=30", ok=False)
    text = b.guest.check(f"cat {DEBUGFS}/unknown_ni")
    assert re.search(r"^causes=none of=refused .* NoSuchNi=[1-9]", text, re.MULTILINE), text
    assert re.search(rf"^event=refused .* peer={a.nid} .* cause=NoSuchNi .* requested={b.nid}$", text, re.MULTILINE), text
    assert f"{a.nid}: rejected its connection request: no NI {b.nid} on this device" in b.log()
    refused = [e for e in events(a) if e["cause"] == "Refused"]
    assert refused and {e["detail"] for e in refused} == {"Fatal"}, events(a)


def test_frequent_closes_leave_room_in_close_log(nodes):
    """The close log keeps the last eight closes and counts all. The kernel log has some of them, and no value looks
    like a memory address."""
    a, b = nodes
    up(a, b)
    a.ctl("ping 10.0.0.77@o2ib timeout=30", ok=False)
    first = until(lambda: events(a), "an attempt ended")
    for _ in range(20):
        a.ping(b)
        b.ctl(f"conn close {a.nid}")
        until(lambda: not a.conns() and not b.conns(), "closed")
    told = events(a)
    assert told[0] == first[0], told
    alike = told[1:]
    total = sum(causes(a, "closed").values())
    assert len(alike) == 8 and {e["event"] for e in alike} == {"closed"} and total == 20, told
    assert [int(e["count"]) for e in alike] == [13] + 7 * [1], alike
    ends = int(next(line["ends"] for line in lines(a, ".closes") if "ends" in line))
    assert ends == 21 and [int(e["number"]) for e in alike] == list(range(13, 21)), (ends, alike)
    said = [line for line in a.log().splitlines() if f"{b.nid}: connection closed" in line]
    assert len(said) == 6 and [line.endswith("(16 times)") for line in said] == 5 * [False] + [True], said
    text = a.guest.check(f"cat {DEBUGFS}/*")
    assert not re.search(r"0x|\bffff[0-9a-f]{12}\b", text), text


def test_debugfs_shows_oldest_message(nodes):
    """debugfs shows the age of the oldest message to a peer whose LNet is slow."""
    a, b = nodes
    up(a, b)
    a.ping(b)
    b.set(lazy=1)
    run = a.start(b, op="put-ack", size=20000, count=20, conc=20, ask=0)
    conn = until(lambda: [c for c in conns(a) if c["oldest_ms"] > 2000], "it has waited")[0]
    assert conn["oldest"] in ("answer", "queued"), conn
    b.set(lazy=0)
    run.result()
    until(lambda: all(c["oldest"] == "none" for c in conns(a)), "none waits")


def test_waits_for_a_reserved_buffer_are_counted(nodes):
    """PUTs that wait for a reserved buffer are counted once each: LNet sends 20 PUTs at once at depth 8."""
    a, b = nodes
    up(a, peer_credits=32)
    up(b, peer_credits=8)
    a.ping(b)
    b.set(lazy=1)
    run = a.start(b, op="put-ack", size=20000, count=20, conc=20, ask=0)
    until(lambda: [c["q_unreserved"] for c in conns(a)] == [12], "twelve wait")
    (conn,) = conns(a)
    assert (conn["depth"], conn["reserved"], conn["no_reserved"], conn["no_memory"]) == (8, 0, 12, 0), conn
    b.set(lazy=0)
    run.result()
    b.ctl(f"conn close {a.nid}")
    until(lambda: not conns(a), "closed")
    past = next(line for line in lines(a) if "closed_conns" in line)
    assert (past["no_reserved"], past["no_memory"]) == ("12", "0"), past


def test_report(nodes, top, tmp_path):
    """ro2ib-report collects two samples, the output of other programs and pings of failing peers, and no memory
    address."""
    a, b = nodes
    up(a, b)
    a.traffic(b, op="mix", count=10)
    a.ctl("ping 10.0.0.77@o2ib timeout=30", ok=False)
    a.guest.check("echo 'LNet: not said: ffff888012345678 0xdeadbeef12' >/dev/kmsg")
    script = a.guest.put(os.path.join(os.path.dirname(__file__), "..", "scripts", "ro2ib-report"))
    text = a.guest.check(f"sh {script} -s 1 -t {PATIENCE} -o -", PATIENCE)
    assert text.count("==> sample ") == 2, text
    for what in (f"{DEBUGFS}/{a.nid}", f"{DEBUGFS}/{a.nid}.closes", f"{DEBUGFS}/unknown_ni"):
        assert text.count(f"==> {what} <==") == 2, what
    for what in ("command: rdma resource show qp", "command: dmesg", "/sys/module/ro2iblnd/parameters/timeout"):
        assert f"==> {what} <==" in text, what
    sections = dict(re.findall("^==> (.*) <==\n((?:(?!==> ).*\n)*)", text, re.MULTILINE))
    port = f"{a.device} port 1 index 0: "
    for what, words in {
        "/proc/meminfo": "MemAvailable:", "pkeys": f"{port}0xffff" if a.device == "rxe0" else "", "gids": port,
        "command: ibv_devinfo -v": "max_mr:", "command: ibv_devinfo -v (violations)": "bad_pkey_cntr:",
        "command: ip neigh": b.address, "command: ip -o address": f"inet {a.address}/", "command: ip route get 10.0.0.77": "dev eth0",
        "command: dmesg": "10.0.0.77@o2ib: connecting failed",
    }.items():  # fmt: skip
        assert words in sections[what], f"{what}: {sections[what]}"
    # The report pings only failing peers. The guest's ping cannot forbid fragments.
    pings = [what for what in sections if what.startswith("command: ping ")]
    assert [what.split()[-3:] for what in pings] == [["-I", a.address, "10.0.0.77"]] * 2, pings
    assert " -s 4128 " in pings[1] and all("100% packet loss" in sections[what] for what in pings), text
    # The times of the log and of the driver's events agree.
    zero = float(re.search("log_zero=(.*)", sections["clock"])[1])
    # The log also has lines from before this test.
    logged = float(re.findall(r"\[ *(\d+\.\d+)\] .* 10\.0\.0\.77@o2ib: connecting failed", sections["command: dmesg"])[-1])
    event = float(re.search(r"event=failed .* time=(\S+) peer=10\.0\.0\.77@", sections[f"{DEBUGFS}/{a.nid}.closes"])[1])
    assert abs(zero + logged - event) < 1, (zero, logged, event)
    saved = tmp_path / "report.txt"
    saved.write_text(text, encoding="utf-8")
    shown = json.loads(subprocess.check_output([top, "--json", "--snapshot", saved], text=True))
    assert shown["unread"] == 0 and len(shown["nis"]) == 1 and shown["parameters"]["timeout"] == "50"
    assert "connecting failed" in text and "cause=Unreachable" in text
    # The report shows network addresses in full.
    assert re.search(rf"^conn={re.escape(b.nid)} .* sgid=(\w{{4}}:){{7}}\w{{4}} dgid=(\w{{4}}:){{7}}\w{{4}} ", text, re.MULTILINE), text
    assert "not said: (masked) 0x(masked)" in text
    assert not re.search(r"0x[0-9a-f]{8}|\bffff[0-9a-f]{12}\b", text), text


def test_debugfs_shows_link_state(nodes):
    """debugfs shows the state of the link. The NI has no connection, so that no message goes out without a path."""
    a, _b = nodes
    up(a)

    def link():
        return lines(a)[0]["link"]

    assert link() == "up"
    a.guest.check("ip link set eth0 down")
    until(lambda: link() == "down", "down")
    a.guest.check("ip link set eth0 up")
    until(lambda: link() == "up", "up again")
