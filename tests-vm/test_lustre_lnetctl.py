# SPDX-License-Identifier: GPL-2.0
"""Work of an administrator on a running node with LNet's own tools, compared with ko2iblnd."""

import os
import re
import time

import compare_output
import lustre
import pytest
from lustre import KO, OURS
from nodes import until
from test_lustre import (  # noqa: F401
    FEW_CELLS,
    LUSTRE,
    MIXED,
    assert_ping,
    names,
    nodes,
    ping_until,
    traffic,
    tree,
    up,
)

pytestmark = pytest.mark.skipif(not LUSTRE, reason="no LUSTRE=/path/to/built/tree: real LNet is not at hand")

NO_HOST = f"10.0.0.77@{lustre.NET}"
# Keys of `lnetctl net show` that ko2iblnd does not have.
OF_OURS = {"retry_count", "rnr_retry_count", "keepalive", "queue_depth", "queue_depth_mbps", "older_connections"}
OF_OURS |= {"probe"}
# Patterns of the dump of a peer with a connection, in its order.
DUMP = (
    r"^peer={nid} conns=\d+ usable=[1-9] waiting=0 .* failures=0 .*ends=\S+$",
    r"^conn={nid} role=\w+ state=Established depth=\d+ credits=\d outstanding=\d reserved=\d peer_held=\d noops=\d",
    r" q_main=\d+ q_nocred=\d+ q_unreserved=\d+ with_lnet=\d+ .* recvs=\d+ idle_ms=\d+ .* active_txs=\d+ cause=none ",
    r" late_rx=\d+$",
)


def lctl(node, cmd):
    """Returns exit status and output of an old command of lctl."""
    return node.guest.run(f"lctl --net {lustre.NET} {cmd}")


def own_lines(node):
    """Returns the lines of subsystem LND in the debug log as (mask, place in the source, text). Clears the log."""
    out = node.sh("lctl dk 2>/dev/null")
    found = re.findall(r"^00000800:(\w{8}):[\d.F:]+\((\S+)\) (.*)$", out, re.MULTILINE)
    return [(int(mask, 16), place, text) for mask, place, text in found]


@pytest.mark.parametrize("pairing", MIXED, ids=names)
def test_old_commands(nodes, pairing):
    """lctl's commands return the same status and words from both drivers."""
    a, b = up(pairing, nodes)
    enoent = "No such file or directory"
    for node in (a, b):
        assert "<no connections>" in lctl(node, "conn_list")[1]
        assert "<no peers>" in lctl(node, "peer_list")[1]
        # A wildcard always succeeds for connections, and never without peers.
        assert lctl(node, "disconnect") == (0, "")
        for cmd in (f"disconnect {NO_HOST}", f"del_peer {NO_HOST}", "del_peer"):
            status, out = lctl(node, cmd)
            assert status == 1 and enoent in out, f"{node.lnd}: {cmd}: {out}"
    assert_ping(a, b)
    for one, other in ((a, b), (b, a)):
        assert f"{other.nid} mtu 4096" in lctl(one, "conn_list")[1]
        assert re.search(rf"^{re.escape(other.nid)} +\[2\]$", lctl(one, "peer_list")[1], re.MULTILINE)
        assert lctl(one, f"disconnect {other.nid}")[0] == 0
        until(lambda one=one, other=other: not one.conns() and not other.conns(), "disconnected", 30)
        assert lctl(one, f"disconnect {other.nid}")[0] == 1
        assert_ping(one, other)
        assert lctl(one, f"del_peer {other.nid}")[0] == 0
        until(lambda one=one, other=other: not one.conns() and not other.conns(), "deleted", 30)
        assert_ping(one, other)


@pytest.mark.parametrize("pairing", MIXED, ids=names)
def test_debug_peer(nodes, pairing):
    """`lnetctl debug peer` prints the peer and its connections on the console and in the debug log."""
    a, b = up(pairing, nodes)
    assert_ping(a, b)
    ours, other = (a, b) if a.lnd == OURS else (b, a)
    ours.sh("dmesg -c >/dev/null; lctl clear")
    ours.sh(f"lnetctl debug peer --nid {other.nid}")
    console = re.sub(r"^\[ *[\d.]+\] LNet: ", "", ours.sh("dmesg"), flags=re.MULTILINE)
    logged = "\n".join(text for _mask, _place, text in own_lines(ours))
    for text in (console, logged):
        at = 0
        for line in DUMP:
            found = re.compile(line.replace("{nid}", re.escape(other.nid)), re.MULTILINE).search(text, at)
            assert found, f"no {line} in\n{text}"
            at = found.end()
    status, out = ours.guest.run(f"lnetctl debug peer --nid {NO_HOST}")
    assert status and "errno: -2" in out, out


def lnd_lines(node, cmd):
    """Returns the mask and text of each line that the driver writes into LNet's debug log during a command."""
    node.sh("lctl clear")
    node.guest.run(cmd)
    return 0, "\n".join(f"{mask:08x} {text}" for mask, _place, text in own_lines(node))


def console(node, cmd):
    """Returns the status of a command, and its output with that of the console."""
    node.sh("dmesg -c >/dev/null")
    status, out = node.guest.run(cmd)
    return status, out + re.sub(r"^\[ *[\d.]+\] ", "", node.sh("dmesg"), flags=re.MULTILINE)


def test_commands_beside(nodes, workdir):
    """Each command has the same status on a node with either driver, and ro2iblnd's output lacks no key of ko2iblnd's.
    Writes both outputs into commands.md beside the consoles."""
    a, b = up((OURS, KO), nodes)
    assert_ping(a, b)
    told = []

    def both(command, how, same=True):
        """Runs `command` on both nodes, with the other node for {peer}, each time with a connection."""
        outs = []
        for one, other in ((a, b), (b, a)):
            assert_ping(a, b)
            outs.append(how(one, command.replace("{peer}", other.nid)))
        told.append((command, *outs))
        assert not same or outs[0][0] == outs[1][0], told[-1]
        return [out for _status, out in outs]

    def plain(node, cmd):
        return node.guest.run(cmd)

    show = both("lnetctl net show -v 4", plain)
    ours, theirs = ({line.partition(":")[0].strip(" -") for line in out.splitlines()} for out in show)
    assert theirs - ours == set() and ours - theirs == OF_OURS, (ours ^ theirs, show)
    both("lnetctl net show -v", plain)
    for cmd in ("conn_list", "peer_list"):
        both(f"lctl --net {lustre.NET} {cmd}", plain)
    both("lnetctl debug peer --nid {peer}", console)
    # ko2iblnd logs nothing about a peer that does not exist.
    both(f"lnetctl debug peer --nid {NO_HOST}", console, same=False)
    both("lnetctl debug recovery --local", plain)
    both("lnetctl debug recovery --peer", plain)
    for cmd in ("disconnect", "del_peer"):
        for nid in ("{peer}", NO_HOST, ""):
            both(f"lctl --net {lustre.NET} {cmd} {nid}".rstrip(), plain)
    both(f"lnetctl ping --timeout 5 {NO_HOST}", plain)
    ours, theirs = both(f"lctl dk, after lnetctl ping {NO_HOST}", lambda node, _cmd: lnd_lines(node, f"lnetctl ping --timeout 5 {NO_HOST}"))
    assert f"{NO_HOST}: connecting failed: " in ours and theirs, (ours, theirs)
    for node in (a, b):
        node.sh("lctl set_param debug=+net")
    both(
        "lctl dk with debug=+net, after lnetctl ping {peer}",
        lambda node, cmd: lnd_lines(node, f"lnetctl ping {cmd.rpartition(' ')[2]}"),
    )
    with open(os.path.join(workdir, "commands.md"), "w", encoding="utf-8") as f:
        f.write(compare_output.table(told))


def test_debug_log(nodes):
    """The default debug log has the causes of failures, and with "net" also messages. Without subsystem LND it has
    neither."""
    a, b = up((OURS, KO), nodes)
    assert_ping(a, b)
    neterror, net = 0x100, 0x200
    a.sh("lctl clear")
    assert_ping(a, b)
    assert own_lines(a) == []
    a.ping(NodeStandIn(NO_HOST), 5)
    lines = own_lines(a)
    assert lines and all(mask == neterror for mask, _place, _text in lines), lines
    assert any(f"{NO_HOST}: connecting failed: " in text for _mask, _place, text in lines), lines

    a.sh("lctl set_param debug=+net")
    lctl(a, f"disconnect {b.nid}")
    until(lambda: not a.conns() and not b.conns(), "disconnected", 30)
    assert_ping(a, b)
    lines = [line for line in own_lines(a) if line[0] == net]
    texts = [text for _mask, _place, text in lines]
    for words in (
        "Established to Closing on Fail(AdminClose)",
        f"sending Get of 0 bytes to {b.nid}",
        "Connecting to Established on Established",
        f"{b.nid}: transmit Immediate, tx 0, with 0 credits",
        f"{b.nid}: received Immediate of 168 bytes",
    ):
        assert any(words in text for text in texts), f"{words}\n" + "\n".join(texts)
    assert all(re.fullmatch(r"\w+\.rs:\d+:ro2iblnd(::\w+)+\(\)", place) for _mask, place, _text in lines), lines

    a.sh("lctl set_param subsystem_debug=-lnd; lctl clear")
    assert_ping(a, b)
    a.ping(NodeStandIn(NO_HOST), 5)
    assert own_lines(a) == []


PARAMS = "/sys/module/ro2iblnd/parameters"


def in_force(node):
    """Returns the values that `lnetctl net show -v 4` shows under "lnd tunables"."""
    shown = node.net_show("-v 4").partition("lnd tunables:")[2]
    return {key: int(value) for key, value in re.findall(r"^ +(\w+): (-?\d+)$", shown, re.MULTILINE)}


def with_traffic(a, b, change):
    """Calls `change` while lnet_selftest runs. No test may fail."""
    with lustre.Selftest(a, b) as session:
        batch = session._start("brw write check=full size=64K", 8)
        change()
        time.sleep(1)
        stat = session.lst("stat --delay 1 --count 1 clients")
        result = session._stop(batch, stat)
    assert result.rate and not result.errors, result.text


def conns_to(one, other):
    """Returns the number of connections to `other`. lnet_selftest also connects a node with itself."""
    return sum(line.startswith(f"{other.nid} ") for line in one.conns())


def reconnect(a, b):
    lctl(a, f"disconnect {b.nid}")
    until(lambda: not conns_to(a, b) and not conns_to(b, a), "disconnected", 30)
    assert_ping(a, b)


def test_net_set(nodes):
    """`lnetctl net set --all --conns-per-peer` under traffic is shown at once and applies to new connections."""
    a, b = up((OURS, KO), nodes)
    assert_ping(a, b)
    assert in_force(a)["conns_per_peer"] == 1
    a.sh("dmesg -c >/dev/null")
    with_traffic(a, b, lambda: a.sh("lnetctl net set --all --conns-per-peer 4"))
    assert f"{a.nid}: conns_per_peer is 4 now, was 1; for new connections" in a.sh("dmesg")
    assert in_force(a)["conns_per_peer"] == 4 and conns_to(a, b) == 1
    # lnet_selftest has connected the node with itself.
    assert in_force(a)["older_connections"] == len(a.conns()) >= 1
    lctl(a, "disconnect")
    reconnect(a, b)
    until(lambda: conns_to(a, b) == 4 and conns_to(b, a) == 4, "four connections", 30)
    assert in_force(a)["older_connections"] == 0
    traffic(a, b, [("brw read check=full size=64K", 8)])


def test_tuned_per_ni(nodes):
    """LNet's tool shows the values of the parameter ni_tune, which changes under traffic. Its backup lacks the keys
    that another driver does not know."""
    a, b = up((OURS, KO), nodes, options=["--peer-credits 8", "--peer-credits 32"])
    assert_ping(a, b)
    now = dict(conns_per_peer=2, tos=96, timeout=20, retry_count=2, rnr_retry_count=7, keepalive=30, probe=700, queue_depth=32)
    words = " ".join(f"{'peer_credits' if key == 'queue_depth' else key}={value}" for key, value in now.items())
    with_traffic(a, b, lambda: a.sh(f"echo '{a.nid} {words}' >{PARAMS}/ni_tune"))
    assert {key: in_force(a)[key] for key in now} == now
    depth = f"grep -c 'conn={b.nid} .* depth={{}} ' {lustre.DEBUGFS}/ro2iblnd/{a.nid}"
    assert a.sh(depth.format(8)).strip() == "1"
    assert in_force(a)["older_connections"] == len(a.conns())
    lctl(a, "disconnect")
    reconnect(a, b)
    until(lambda: conns_to(a, b) == 2, "two connections", 30)
    assert a.sh(depth.format(32)).strip() == "2" and in_force(a)["older_connections"] == 0
    traffic(a, b, FEW_CELLS)
    backup = a.sh("lnetctl export --backup")
    assert "tos: 96" in backup
    assert not any(word in backup for word in ("queue_depth", "keepalive", "older_connections", "probe"))
    # A new NI gets the values of the backup, and keys that LNet does not have from the parameter.
    a.sh(f"echo '{backup}' >/tmp/lnet.yaml; echo >{PARAMS}/ni_tune")
    a.net_del()
    a.sh("lnetctl import </tmp/lnet.yaml")
    then = dict(now, timeout=50, retry_count=5, rnr_retry_count=6, keepalive=100, probe=1000, queue_depth=8)
    assert {key: in_force(a)[key] for key in then} == then
    ping_until(a, b, 60)


def test_depth_source(nodes):
    """The depth comes from the link by default, and otherwise from the administrator, also through a backup."""
    a, b = up((OURS, KO), nodes, options=["", "--peer-credits 32"])
    assert in_force(a)["queue_depth_mbps"] == 2500
    assert in_force(a)["queue_depth"] == 8 and in_force(a)["peercredits_hiw"] == 4
    assert a.tunable("peer_credits") == 8 and a.tunable("credits") == 256
    assert f"{a.nid}: peer_credits is 8: 2.5 Gb/s x 40 us / 16 KiB, within 8..32" in a.sh("dmesg")
    assert_ping(a, b)
    a.sh(f"echo '*@o2ib peer_credits=32' >{PARAMS}/ni_tune")
    assert "queue_depth_mbps" not in in_force(a)
    backup = a.sh(f"echo >{PARAMS}/ni_tune; lnetctl export --backup | tee /tmp/lnet.yaml")
    assert "peer_credits: 8" in backup and "queue_depth" not in backup
    a.net_del()
    a.sh("lnetctl import </tmp/lnet.yaml")
    assert "queue_depth_mbps" not in in_force(a) and in_force(a)["queue_depth"] == 8
    ping_until(a, b, 60)


def imported(node, text):
    """Deletes the NI and imports `text`. Returns status and output of lnetctl, and its backup without the NID."""
    node.guest.run(f"lnetctl net del --net {lustre.NET}")
    node.sh(f"cat >/tmp/lnet.yaml <<'END'\n{text}\nEND")
    status, out = node.guest.run("lnetctl import </tmp/lnet.yaml")
    backup = node.sh("lnetctl export --backup")
    return status, *(words.replace(node.nid, "NID") for words in (out, backup))


def test_net_show_output_can_be_imported(nodes):
    """`lnetctl import` takes the output of `net show` at every verbosity, with the same answer and result as
    ko2iblnd's."""
    both = up((OURS, KO), nodes)
    for verbosity in range(5):
        answers = []
        for node in both:
            before = node.sh("lnetctl export --backup").replace(node.nid, "NID")
            answers.append(imported(node, node.net_show(f"-v {verbosity}")))
            if node.lnd == OURS and verbosity:
                assert answers[0][0] == 0 and answers[0][2] == before, (verbosity, before, answers[0])
        assert answers[0] == answers[1], (verbosity, answers)


# NI as lnetctl of 2.12 to 2.14 shows it, with the keys of the driver under "tunables", and Lustre's example.
OLD = {
    "2.12": """net:
    - net type: o2ib
      local NI(s):
        - nid: {nid}
          status: up
          interfaces:
              0: eth0
          statistics:
              send_count: 12
              recv_count: 11
              drop_count: 0
          tunables:
              peer_timeout: 180
              peer_credits: 32
              peer_buffer_credits: 0
              credits: 1024
              peercredits_hiw: 16
              map_on_demand: 256
              concurrent_sends: 64
              fmr_pool_size: 2048
              fmr_flush_trigger: 512
              fmr_cache: 1
              ntx: 2048
              conns_per_peer: 4
          lnd tunables:
          dev cpt: -1
          tcp bonding: 0
          CPT: "[0]"
""",
    "2.14": """net:
    - net type: o2ib
      local NI(s):
        - nid: {nid}
          interfaces:
              0: eth0
          tunables:
              peer_timeout: 180
              peer_credits: 32
              peer_buffer_credits: 0
              credits: 1024
          lnd tunables:
          tcp bonding: 0
          dev cpt: -1
          CPT: "[0]"
""",
    "example": """net:
    - net type: o2ib
      local NI(s):
        - nid: {nid}
          interfaces:
              0: eth0
          tunables:
              peer_timeout: 180
              peer_credits: 128
              peer_buffer_credits: 0
              credits: 1024
          lnd tunables:
              peercredits_hiw: 64
              map_on_demand: 32
              concurrent_sends: 256
              fmr_pool_size: 2048
              fmr_flush_trigger: 512
              fmr_cache: 1
          CPT: "[0]"
""",
    "empty": """net:
    - net type: o2ib
      local NI(s):
        - interfaces:
              0: eth0
          lnd tunables:
""",
}


# lnetctl refuses the empty key with either driver.
OLD |= {f"{name}, whole": OLD[name].replace("          lnd tunables:\n", "") for name in ("2.12", "2.14")}


def test_old_files_are_imported(nodes):
    """`lnetctl import` takes files of old versions, with the same answer and result as ko2iblnd's."""
    both = up((OURS, KO), nodes)
    answers = {}
    for name, text in OLD.items():
        answers[name], theirs = (imported(node, text.replace("{nid}", node.nid)) for node in both)
        assert answers[name] == theirs, (name, answers[name], theirs)
    for name, words in {
        "2.12, whole": ("peer_credits: 32", "credits: 1024", "conns_per_peer: 1"),
        "2.14, whole": ("peer_credits: 32", "credits: 1024", "conns_per_peer: 1"),
        "example": (),
    }.items():
        status, out, backup = answers[name]
        assert status == 0 and all(word in backup for word in words), (name, out, backup)


def test_tools_that_know_ko2iblnd(nodes):
    """lnetctl finds the driver's parameters by the name of the module."""
    a, b = up((OURS, KO), nodes)
    ours, theirs = (node.guest.run("lnetctl service-id") for node in (a, b))
    assert ours == theirs and ours[0] == 0, (ours, theirs)
    for node in (a, b):
        node.sh(f"lnetctl net set --net {lustre.NET} --lnd-timeout 51")
        assert node.tunable("timeout") == 51, node.lnd
    a.sh("cat /sys/module/ko2iblnd/parameters/peer_timeout")


def test_access(nodes):
    """A ko2iblnd node that is denied under traffic gets a reject and is counted. It is served again when it is
    allowed."""
    a, b = up((OURS, KO), nodes)
    assert_ping(b, a)
    a.sh(f"echo 'deny {b.nid}' >{PARAMS}/access")
    until(lambda: not a.conns() and not b.conns(), "cut off", 30)
    assert "Connection refused" in b.ping(a, 5)[1]
    assert "Input/output error" in a.ping(b, 5)[1]
    assert f"{a.nid} rejected: o2iblnd fatal error" in b.sh("dmesg")
    assert f"{b.nid}: rejected its connection request: denied by the parameter access" in a.sh("dmesg")
    refused = a.sh(f"grep of=refused {lustre.DEBUGFS}/ro2iblnd/{a.nid}")
    assert re.search(r" Denied=[1-9]", refused), refused
    assert not a.conns() and not b.conns()
    a.sh(f"echo >{PARAMS}/access")
    ping_until(b, a, 60)
    ping_until(a, b, 60)
    traffic(b, a, FEW_CELLS[:2])


class NodeStandIn:
    """Peer that does not exist, for pings."""

    def __init__(self, nid):
        self.nid = nid
