# SPDX-License-Identifier: GPL-2.0
"""Work of an administrator on a running node, under lnet_lite. test_lustre_lnetctl.py has the tests under real
LNet."""

import re

import pytest
from counters import conns
from nodes import up, until

PARAMS = "/sys/module/ro2iblnd/parameters"
DEBUGFS = "/sys/kernel/debug/ro2iblnd"


def write(node, parameter, text, ok=True):
    """Sets a parameter at run time. With ok=False the write must fail."""
    status, out = node.guest.run(f"echo '{text}' >{PARAMS}/{parameter}")
    assert (status == 0) == ok, f"{parameter}={text}: {out}"


def debugfs(node):
    return node.guest.check(f"cat {DEBUGFS}/{node.nid}")


def words(line):
    return dict(word.split("=", 1) for word in line.split())


def debug_peer(node, other):
    """Returns the words of each line that `lnetctl debug peer` prints."""
    node.mark_log()
    node.ctl(f"peer debug {other.nid}")
    return [words(line) for line in re.findall(r"LNet: ((?:peer|conn)=.*)", node.log())]


def assert_has(line, **expected):
    assert line.items() >= expected.items(), (line, expected)


def refused(node, cause):
    """Returns how many requests an NI has rejected for a cause."""
    return int(re.search(rf"of=refused .*\b{cause}=(\d+)", debugfs(node))[1])


def test_closing_missing_connection_fails(nodes):
    """Closing the connection of a peer without one is an error, closing those of all peers is none, as with
    ko2iblnd."""
    a, b = nodes
    up(a, b)
    enoent = -2
    assert a.ctl(f"conn close {b.nid}", ok=False)["rc"] == enoent
    assert a.ctl(f"conn close any from={a.nid}", ok=False)["rc"] == 0
    assert a.ctl(f"peer del any from={a.nid}", ok=False)["rc"] == enoent
    a.ping(b)
    assert a.ctl(f"conn close {b.nid}", ok=False)["rc"] == 0
    until(lambda: a.conns() == 0, "closed")
    assert a.ctl(f"conn close any from={a.nid}", ok=False)["rc"] == 0
    a.ping(b)
    a.ctl(f"peer del {b.nid}")
    until(lambda: f"{b.nid}: connection closed: the peer was deleted (lctl del_peer)" in a.log(), "said by what")
    assert "cause=PeerDeleted" in a.guest.check(f"cat {DEBUGFS}/{a.nid}.closes")


def test_peers_are_counted_with_the_table(nodes):
    """`lctl peer_list` prints one reference for the table and one for each connection."""
    a, b = nodes
    up(a, b)
    a.ping(b)
    answer = a.ctl(f"peer lnd {a.nid}")
    assert answer["peer0"] == b.nid and answer["refs"] == 2, answer


def test_debug_peer(nodes):
    """The dump of a peer is the lines that debugfs has of it and its connections."""
    a, b = nodes
    up(a, b)
    a.ping(b)
    peer, conn = debug_peer(a, b)
    assert_has(peer, peer=b.nid, conns="1", usable="1", waiting="0", failures="0")
    assert_has(conn, conn=b.nid, role="active", state="Established", cause="none", depth="8", reserved="8", noops="0")
    assert_has(conn, q_main="0", q_nocred="0", q_unreserved="0", active_txs="0", with_lnet="0")
    assert re.fullmatch(r"\d \d", f"{conn['credits']} {conn['outstanding']}"), conn
    assert int(conn["qpn"]) > 0 and int(conn["peer_qpn"]) > 0 and int(conn["recvs"]) > 0, conn
    shown = [list(words(line)) for line in debugfs(a).splitlines() if re.match("peer=|conn=", line)]
    assert shown == [list(peer), list(conn)], (shown, peer, conn)
    # A peer that the NI does not know.
    assert a.ctl("peer debug 10.0.0.77@o2ib", ok=False)["rc"] == -2


def test_debug_peer_shows_waiting_messages(nodes):
    """The dump shows waiting messages: the peer's LNet takes none, eight PUTs have used all credits, and the others
    wait for one."""
    a, b = nodes
    up(a, b, peer_credits=8)
    a.ping(b)
    b.set(lazy=1)
    load = a.start(b, op="put-ack", size=100000, count=64, conc=64)
    try:
        until(lambda: "oldest=answer" in debugfs(a), "PUTs wait for their answer")
        _peer, conn = debug_peer(a, b)
    finally:
        b.set(lazy=0)
        load.result()
    assert_has(conn, oldest="answer", cause="none")
    assert int(conn["active_txs"]) >= 1, conn


def test_booting_node_says_early(nodes):
    """A node that boots rejects requests for an NI that LNet does not have in service yet as not ready, not as unknown.
    The requester retries."""
    a, b = nodes
    up(a)
    b.load()
    b.set(start_delay_ms=12000)
    job = b.guest.spawn(b.ctl_script("ni add o2ib eth0"))
    until(lambda: b.guest.run("ls /sys/kernel/debug/ro2iblnd/*@o2ib")[0] == 0, "started")
    # The ping starts while the node boots, and is answered when the node is up.
    a.ping(b)
    assert job.wait(60)[0] == 0
    unknown_ni = b.guest.check("cat /sys/kernel/debug/ro2iblnd/unknown_ni")
    assert re.search(r"of=refused .*NotReady=[1-9]", unknown_ni), unknown_ni
    assert re.search(r"of=refused .*NoSuchNi=0", unknown_ni), unknown_ni
    # A node that is up expects no other NIs.
    assert a.ctl(f"ping {b.nid}7 timeout=5", ok=False)["rc"] != 0


def test_denied_and_allowed_again(nodes):
    """A peer that is denied loses its connection, gets rejects, and is counted. When it is allowed again it is
    served."""
    a, b = nodes
    up(a, b)
    a.ping(b)
    write(b, "access", f"allow 10.0.0.[100-200]@o2ib; deny {a.address}/32@o2ib; allow *@o2ib")
    until(lambda: a.conns() == 0 and b.conns() == 0, "cut off")
    assert "deny" in b.guest.check(f"cat {PARAMS}/access")
    # The close is logged at the release of the connection, which is a little later.
    closed = re.compile("^event=closed .* by=operator cause=Denied", re.MULTILINE)
    until(lambda: closed.search(b.guest.check(f"cat {DEBUGFS}/{b.nid}.closes")), "it is told")
    until(lambda: f"{a.nid}: connection closed: denied by the parameter access" in b.log(), "it is said")
    assert a.ctl(f"ping {b.nid} timeout=5", ok=False)["rc"] != 0
    assert refused(b, "Denied") >= 1
    assert f"{a.nid}: rejected its connection request: denied by the parameter access" in b.log()
    assert "rejected our connection request: the request is invalid or not permitted; see the log of the peer" in a.log()
    assert re.search(rf"^event=refused .*peer={re.escape(a.nid)} .*cause=Denied", b.guest.check(f"cat {DEBUGFS}/{b.nid}.closes"), re.M)
    # The node does not connect to the denied peer either.
    assert b.ctl(f"ping {a.nid} timeout=5", ok=False)["rc"] != 0
    assert f"{a.nid}: connection not attempted: denied by the parameter access" in b.log()
    assert a.conns() == 0 and b.conns() == 0
    write(b, "access", "")
    a.ping(b)
    b.ping(a)


def test_many_denied_while_the_network_changes(nodes):
    """A change of the network, which holds rtnl, does not wait until LNet has all messages to many peers that are
    denied at once. LNet is slow with each message."""
    a, _b = nodes
    up(a)
    peers, delay_ms = 60, 400
    ping = a.ctl_script("ping 10.0.0.$i@o2ib timeout=50").replace("'", '"')
    a.guest.check(f"for i in $(seq 100 {99 + peers}); do ({ping}) >/dev/null 2>&1 & done")
    until(lambda: len(re.findall(r"^peer=", debugfs(a), re.M)) >= peers, "they wait")
    a.set(finalize_delay_ms=delay_ms)
    a.guest.check(f"echo 'deny *@o2ib' >{PARAMS}/access & sleep 0.3")
    uptime = "cut -d' ' -f1 /proc/uptime"
    began, ended = a.guest.check(f"{uptime}; ip addr add 10.7.7.7/32 dev lo; {uptime}").split()
    # All messages together take 24 s.
    assert float(ended) - float(began) < peers * delay_ms / 1000 / 4, (began, ended)
    a.set(finalize_delay_ms=0)
    until(lambda: " waiting=0 " in debugfs(a), "they have gone back")
    a.guest.check("ip addr del 10.7.7.7/32 dev lo")


def test_denied_on_one_ni(nodes):
    """A peer that is denied on one NI is served on another network."""
    a, b = nodes
    for node in nodes:
        node.load()
        node.ni_add()
        node.ni_add(net="o2ib7")
    write(b, "access", f"on {b.address}@o2ib7 deny *@o2ib*")
    a.ping(b)
    assert a.ctl(f"ping {b.address}@o2ib7 timeout=5", ok=False)["rc"] != 0


def test_denied_under_traffic(nodes):
    """A peer is denied and allowed repeatedly under traffic: no message is lost, except those that fail with an
    error."""
    a, b = nodes
    up(a, b)
    load = a.start(b, op="mix", size=20000, count=1000000, conc=16, seconds=8, timeout=12)
    rounds = 0
    while load.running():
        write(b, "access", "deny *@o2ib" if rounds % 2 == 0 else "")
        rounds += 1
        a.guest.run("sleep 0.3")
    write(b, "access", "")
    r = load.result()
    assert rounds > 4 and r["errors"] > 0 and r["stuck"] == 0 and r["verify_errors"] == 0, r
    until(lambda: a.ctl(f"ping {b.nid} timeout=5", ok=False)["rc"] == 0, "served again", pause=1)


@pytest.mark.parametrize("text", ["deny", "refuse *@o2ib", "deny *@tcp", "deny 10.0.0.[9-1]@o2ib", "on *@o2ib"])
def test_access_that_is_none(nodes, text):
    """A wrong rule is refused with one line in the log, and the rules in force stay."""
    a, _b = nodes
    a.load()
    write(a, "access", "allow *@o2ib")
    a.guest.check("dmesg -c >/dev/null")
    write(a, "access", text, ok=False)
    lines = [line for line in a.log().splitlines() if "ro2iblnd" in line]
    assert len(lines) == 1 and "parameter access is wrong at" in lines[0], lines
    assert a.guest.check(f"cat {PARAMS}/access").strip() == "allow *@o2ib"


def test_access_at_load_time(nodes):
    """The rules of `access` work in an options line of modprobe."""
    a, b = nodes
    a.load()
    b.load(lnd="'access=\"deny 10.0.0.[0-9]@o2ib\"' 'ni_tune=\"*@o2ib timeout=21\"'")
    for node in nodes:
        node.ni_add()
    assert a.ctl(f"ping {b.nid} timeout=5", ok=False)["rc"] != 0
    assert b.ctl(f"ni show {b.nid}")["timeout"] == 21
    assert refused(b, "Denied") >= 1
    # The module does not load with a faulty text.
    b.unload()
    b.guest.check("insmod /files/lnet_lite.ko")
    assert b.guest.run("insmod /files/ro2iblnd.ko access=deny")[0] != 0
    assert "parameter access is wrong at" in b.log()
    b.guest.check("rmmod lnet_lite")


def reconnect(a, b):
    a.ctl(f"conn close any from={a.nid}")
    until(lambda: a.conns() == 0 and b.conns() == 0, "closed")
    a.ping(b)


def older(node):
    """Returns the number of connections with values that were in force before."""
    return node.ctl(f"ni show {node.nid}")["older_connections"]


@pytest.mark.parametrize("key,value,was", [
    ("conns_per_peer", 2, 3), ("tos", 8, -1), ("peer_credits", 32, 8), ("retry_count", 2, 5), ("rnr_retry_count", 2, 6),
    ("timeout", 9, 50), ("keepalive", 9, 100),
])  # fmt: skip
def test_settings_for_new_connections_are_logged(nodes, key, value, was):
    """The log has the number of connections with older values, and none if the values are unchanged or apply at
    once."""
    a, b = nodes
    up(a, lnd="conns_per_peer=3")
    up(b, peer_credits=32)
    a.ping(b)
    until(lambda: len(conns(a)) == 3, "three connections")
    late = 0 if key in ("timeout", "keepalive") else 3
    for now, n in ((value, late), (was, 0), (value, late)):
        write(a, "ni_tune", f"*@o2ib {key}={now}")
        assert older(a) == n and older(b) == 0
    reconnect(a, b)
    until(lambda: len(conns(a)) == a.conns() == (2 if key == "conns_per_peer" else 3), "connected again")
    assert older(a) == 0
    b.ctl(f"conn close any from={b.nid}")
    until(lambda: a.conns() == 0, "closed")
    write(a, "ni_tune", "*@o2ib tos=1")
    assert older(a) == 0


def test_tuned_from_the_start(nodes):
    """`ni_tune` applies to an NI that starts later, and 0 is a value, not "unset"."""
    a, _b = nodes
    a.load("tos=96 retry_count=3")
    write(a, "ni_tune", "*@o2ib tos=0 retry_count=0")
    a.ni_add()
    shown = a.ctl(f"ni show {a.nid}")
    assert (shown["tos"], shown["retry_count"]) == (0, 0), shown


def test_tuned_while_it_runs(nodes):
    """Each tunable can be changed by `ni_tune` and as `lnetctl net set` does it. The new value is shown at once, logged
    in one line, and in force on the next connection. Traffic continues over the old one."""
    a, b = nodes
    up(a, peer_credits=16)
    up(b, peer_credits=64)
    a.ping(b)
    load = a.start(b, op="mix", size=20000, count=1000000, conc=8, seconds=3)
    a.guest.check("dmesg -c >/dev/null")
    write(
        a, "ni_tune",
        f"*@o2ib tos=96 timeout=40; {a.nid} conns_per_peer=3 peer_credits=32 retry_count=2 rnr_retry_count=7 timeout=20 keepalive=33 probe=700",
    )  # fmt: skip
    shown = a.ctl(f"ni show {a.nid}")
    now = dict(conns_per_peer=3, tos=96, queue_depth=32, retry_count=2, rnr_retry_count=7, timeout=20, keepalive=33, probe=700)
    assert {key: shown[key] for key in now} == now
    # The existing connection has the values that were in force before.
    assert older(a) == 1 and older(b) == 0
    log = a.log()
    before = dict(conns_per_peer=1, tos=-1, peer_credits=16, retry_count=5, rnr_retry_count=6, timeout=50, keepalive=100, probe=1000)
    for key, was in before.items():
        value = now["queue_depth" if key == "peer_credits" else key]
        later = "" if key in ("timeout", "keepalive", "probe") else "; for new connections"
        assert f"{a.nid}: {key} is {value} now, was {was}{later}\n" in log + "\n", f"{key}\n{log}"
    r = load.result()
    assert r["errors"] == 0 and r["verify_errors"] == 0, r
    # The existing connection was not closed, and has its old depth.
    assert a.conns() == 1 and "depth=16 " in debugfs(a)
    reconnect(a, b)
    until(lambda: len(conns(a)) == 3, "three connections")
    assert "depth=32 " in debugfs(a) and older(a) == 0
    a.traffic(b, op="mix", size=20000, count=200, conc=32)
    # As with lnetctl, the last setting wins.
    a.ctl(f"ni set {a.nid} conns_per_peer=2")
    assert a.ctl(f"ni show {a.nid}")["conns_per_peer"] == 2
    assert f"{a.nid}: conns_per_peer is 2 now, was 3; for new connections" in a.log()
    assert a.ctl(f"ni set {a.nid} conns_per_peer=128", ok=False)["rc"] == -34
    assert older(a) == 3
    reconnect(a, b)
    until(lambda: len(conns(a)) == 2, "two connections")
    assert older(a) == 0
    # With an empty text the parameters are in force again. Values that LNet keeps stay.
    write(a, "ni_tune", "")
    shown = a.ctl(f"ni show {a.nid}")
    then = dict(now, conns_per_peer=2, queue_depth=16, retry_count=5, rnr_retry_count=6, timeout=50, keepalive=100, probe=1000)
    assert {key: shown[key] for key in then} == then
    assert older(a) == 2
    write(a, "retry_count", "3")
    assert a.ctl(f"ni show {a.nid}")["retry_count"] == 3


def test_parameter_changes_are_logged(nodes):
    """Each change of a parameter is logged in one line. Values at load time, unchanged values and refused values are
    not logged."""
    a, _b = nodes
    a.mark_log()
    a.load("timeout=40 probe=500 'access=\"deny 10.0.0.77@o2ib\"'")

    def told():
        lines = [line.split("] ", 1)[-1] for line in a.log().splitlines() if "ro2iblnd: parameter" in line]
        a.mark_log()
        return lines

    assert told() == []
    a.ni_add()
    late = "; for new connections"
    for key, was, now, counts in (
        ("timeout", 40, 20, ""), ("keepalive", 100, -1, ""), ("probe", 500, 0, ""), ("cksum", 0, 1, ""), ("retry_count", 5, 3, late),
        ("rnr_retry_count", 6, 9, late), ("require_privileged_port", 0, 1, late), ("use_privileged_port", 1, 0, late),
    ):  # fmt: skip
        for _ in range(2):
            write(a, key, now)
        assert told() == [f"ro2iblnd: parameter {key} is {now} now, was {was}{counts}"]
    for key, text, clauses in (
        ("access", "deny 10.0.0.77@o2ib", None), ("access", "deny 10.0.0.77@o2ib; ; deny 10.0.0.78@o2ib;", "2 clauses"),
        ("access", "", "0 clauses"), ("ni_tune", "*@o2ib timeout=20", "1 clause"), ("ni_tune", "*@o2ib timeout=21", "1 clause"),
    ):  # fmt: skip
        for _ in range(2):
            write(a, key, text)
        assert told() == ([f"ro2iblnd: parameter {key} has {clauses} now"] if clauses else [])
    # Several lines in one write.
    a.guest.check(f"printf 'deny 10.0.0.77@o2ib\ndeny 10.0.0.78@o2ib\nallow *@o2ib\n' >/tmp/rules; cat /tmp/rules >{PARAMS}/access")
    assert told() == ["ro2iblnd: parameter access has 3 clauses now"]
    for key, text in (("timeout", "-1"), ("probe", "1"), ("access", "deny"), ("ni_tune", "*@o2ib nonsense=1")):
        write(a, key, text, ok=False)
        assert all(" now" not in line for line in told()), key


def test_shorter_timeout_acts_on_waiting_messages(nodes):
    """A PUT that the peer's LNet does not take ends after a shorter timeout that is set while it waits."""
    a, b = nodes
    up(a, b)
    a.ping(b)
    b.set(lazy=1)
    try:
        load = a.start(b, op="put-ack", size=100000, count=1, conc=1, timeout=200)
        until(lambda: "oldest=answer" in debugfs(a), "a PUT waits")
        write(a, "ni_tune", "*@o2ib timeout=4")
        r = load.result()
    finally:
        b.set(lazy=0)
    # The default is 50 s.
    assert r["errors"] == 1 and r["usec"] < 30_000_000, r
    assert "the peer did not answer in time" in a.log()


def test_keepalive_turned_on(nodes):
    """An idle connection sends NOOPs as soon as keepalive is on."""
    a, b = nodes
    up(a, lnd="keepalive=0")
    up(b, lnd="keepalive=0")
    a.ping(b)

    def noops():
        return sum(map(int, re.findall(r"^conn=.* tx_noops=(\d+)", debugfs(a), re.M)))

    before = noops()
    write(a, "ni_tune", "*@o2ib keepalive=1 timeout=4")
    until(lambda: noops() > before, "NOOPs", timeout=60)
    assert a.conns() == 1


@pytest.mark.parametrize("text", ["*@o2ib", "*@o2ib tos=256", "tos=1", "*@o2ib nonsense=1", "*@o2ib timeout=0", "*@o2ib probe=100"])
def test_tuning_that_is_none(nodes, text):
    a, _b = nodes
    a.load()
    a.guest.check("dmesg -c >/dev/null")
    write(a, "ni_tune", text, ok=False)
    lines = [line for line in a.log().splitlines() if "ro2iblnd" in line]
    assert len(lines) == 1 and "parameter ni_tune is wrong at" in lines[0], lines


@pytest.mark.splats("Call Trace")  # the kernel warns about a name that is taken
def test_tools_find_the_parameters_of_ko2iblnd(boot, modules, tmp_path):
    """lnetctl finds the driver's parameters under the name of ko2iblnd. A module of that name does not load until the
    driver is unloaded."""
    other = tmp_path / "ko2iblnd.ko"
    with open(modules[1], "rb") as f:
        other.write_bytes(f.read().replace(b"ro2iblnd\0", b"ko2iblnd\0"))
    guest = boot(files=[str(other)])
    guest.check("insmod /files/lnet_lite.ko; insmod /files/ro2iblnd.ko")
    link = "/sys/module/ko2iblnd"
    assert guest.check(f"readlink {link}").strip() == "ro2iblnd"
    assert guest.check(f"cat {link}/parameters/service").strip() == "987"
    assert guest.check(f"echo 20 >{link}/parameters/timeout; cat {PARAMS}/timeout").strip() == "20"
    status, out = guest.run("insmod /files/ko2iblnd.ko")
    assert status != 0 and "File exists" in out, out
    assert guest.check(f"cat {link}/parameters/timeout").strip() == "20"
    guest.check("rmmod ro2iblnd")
    assert guest.run(f"ls {link}")[0] != 0
    # A module that is built under that name needs no link.
    guest.check("insmod /files/ko2iblnd.ko")
    assert guest.run(f"readlink {link}")[0] != 0
    assert guest.check(f"cat {link}/parameters/timeout").strip() == "50"
    status, out = guest.run("insmod /files/ro2iblnd.ko")
    assert status != 0 and "busy" in out, out
    guest.check("rmmod ko2iblnd")
