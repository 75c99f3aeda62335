# SPDX-License-Identifier: GPL-2.0
"""Trace points on kernels as Debian ships them: each event matches what happened, and every tool finds the events. 6.12
runs every time, the others with --long. The test kernel has no trace events."""

import collections
import contextlib
import os
import re
import shutil
import time

import pytest
import vm
from conftest import LOGS, ROOT
from counters import conn, conns
from nodes import until, up
from test_stock_kernels import KERNELS, boot_stock
from tracing import EVENTS, TRACEFS, Tracing, mount, times, value

DOCUMENT = os.path.join(ROOT, "Documentation", "tracing.md")


@pytest.fixture(scope="module", params=[k for k in KERNELS if "arm64" not in str(k)])
def pair(request):
    """Provides two nodes on a stock kernel."""
    with boot_stock(request.param, f"trace-{request.param}", accel=vm.patching_accel()) as nodes:
        yield nodes


@pytest.fixture
def nodes(pair):
    """Provides nodes without modules. Unloads everything afterwards: nothing may be left, and no splat may be
    logged."""
    begin = [len(n.guest.console()) for n in pair]
    yield pair
    for node in pair:
        node.unload()
    bad = [f"{n.guest.name}: {line}" for n, at in zip(pair, begin, strict=True) for line in vm.splats(n.guest.console()[at:])]
    if bad:
        pytest.fail("kernel log:\n" + "\n".join(bad), pytrace=False)

# The only sequences of states in the life of a connection.
LIFE = {
    "active": ["Init", "Resolving", "Connecting", "Established", "Closing", "Draining", "Dead"],
    "passive": ["Init", "Accepting", "Established", "Closing", "Draining", "Dead"],
}


def life(trace, number):
    """Returns the states of a connection in their order. Each event starts from the state in which the event before
    ended."""
    steps = trace.of("ro2ib_conn_state", conn=number)
    for before, after in zip(steps, steps[1:], strict=False):
        assert before["to"] == after["from"], steps
    return [steps[0]["from"], *(s["to"] for s in steps)]


def test_events_are_there(nodes):
    """The files by which perf, trace-cmd and bpftrace find the events exist, and no field is an address."""
    a, _b = nodes
    a.load()
    mount(a)
    assert sorted(a.guest.check(f"ls -d {TRACEFS}/events/ro2iblnd/*/ | xargs -n1 basename").split()) == sorted(EVENTS)
    for event in EVENTS:
        text = a.guest.check(f"cat {TRACEFS}/events/ro2iblnd/{event}/format")
        fields = re.findall(r"field:(.*?);", text)
        own = [f for f in fields if " common_" not in f]
        assert own and not any("*" in f for f in own), text
        assert "char peer[32]" in own and "char ni[32]" in own, own
        assert "REC->" in text and "%p" not in text, text


def test_a_connection_from_its_beginning_to_its_end(nodes):
    """States, messages and completions in the trace match the counters of the connection that debugfs shows under that
    number."""
    a, b = nodes
    up(a, b)
    with Tracing(a) as at_a, Tracing(b) as at_b:
        a.traffic(b, op="mix", size=20000, count=60, conc=4)
        until(lambda: all(c["retired"] == c["wrs"] for n in nodes for c in conns(n)), "all completed")
        (here,), (there,) = conns(a), conns(b)
        a.ctl(f"conn close {b.nid}")
        until(lambda: not a.conns() and not b.conns(), "closed")
        until(lambda: at_a.look() and at_a.of("ro2ib_close"), "told")
        until(lambda: at_b.look() and at_b.of("ro2ib_close"), "told")
    for trace, conn, node, other in ((at_a, here, a, b), (at_b, there, b, a)):
        number, qpn = conn["number"], conn["qpn"]
        assert life(trace, number) == LIFE[conn["role"]]
        mine = [e for e in trace.events if e.get("conn") == number and e["name"] != "ro2ib_conn_state"]
        assert {(e["ni"], e["peer"], e["qpn"]) for e in mine} == {(node.nid, other.nid, qpn)}
        sent = [e for e in trace.of("ro2ib_post", conn=number) if e["op"] != "LOCAL_INV"]
        assert len(sent) == conn["tx_msgs"], (len(sent), conn)
        assert len([e for e in sent if e["op"] == "NOOP"]) == conn["tx_noops"]
        assert len(trace.of("ro2ib_receive", conn=number)) == conn["rx_msgs"]
        done = trace.of("ro2ib_complete", conn=number)
        assert len(done) == conn["wrs"] and {e["result"] for e in done} == {"ok"}, (len(done), conn)
        (close,) = trace.of("ro2ib_close", conn=number)
        assert close["up"] == 1 and close["active"] == int(conn["role"] == "active"), close
    # Each message arrives with the posted length and credits, in the posted order.
    for one, other, x, y in ((at_a, at_b, here, there), (at_b, at_a, there, here)):
        posted = [e for e in one.of("ro2ib_post", conn=x["number"]) if e["op"] != "LOCAL_INV"]
        received = other.of("ro2ib_receive", conn=y["number"])
        assert [(e["op"], e["credits"]) for e in posted] == [(e["op"], e["credits"]) for e in received]
        plain = ("IMMEDIATE", "PUT_REQ", "GET_REQ", "PUT_ACK")
        assert [e["bytes"] for e in posted if e["op"] in plain] == [e["bytes"] for e in received if e["op"] in plain]
    (close,) = at_a.of("ro2ib_close")
    assert (close["by"], close["cause"], close["detail"]) == ("operator", "AdminClose", "-"), close
    (close,) = at_b.of("ro2ib_close")
    assert close["by"] == "peer", close


@contextlib.contextmanager
def queueing(nodes, into):
    """Records into `into`, per node, where the LNet halves are queued: (queue, CPU of the caller, target CPU)."""
    event = f"{TRACEFS}/events/workqueue/workqueue_queue_work"
    for node in nodes:
        mount(node)
        node.guest.check(f"cd {TRACEFS}; echo 4096 >buffer_size_kb; echo >trace; echo 'workqueue ~ \"ro2iblnd_*\"' >{event}/filter; echo 1 >{event}/enable")
    yield
    for node in nodes:
        text = node.guest.check(f"echo 0 >{event}/enable; echo 0 >{event}/filter; cat {TRACEFS}/trace; echo >{TRACEFS}/trace")
        into[node] = re.findall(r" \[(\d+)\] .* workqueue_queue_work: .*workqueue=ro2iblnd_(upper|busy) .* cpu=(\d+)", text)


def test_lnet_is_called_where_the_completion_was_handled(nodes):
    """A completion of a software device, which may be handled on any CPU, queues the LNet half on the same CPU."""
    a, b = nodes
    up(a, b)
    a.ping(b)
    queued = {}
    with queueing(nodes, queued):
        a.traffic(b, op="put", size=64, count=300, conc=1)
    for node, calls in queued.items():
        elsewhere = sum(int(here) != int(there) for here, _queue, there in calls)
        # Work that is still running stays on its CPU.
        assert len(calls) >= 100 and elsewhere <= len(calls) // 10, (node.guest.name, len(calls), elsewhere)


def test_flood_loses_priority(nodes):
    """A peer's flood does not take the CPU from all other tasks: LNet gets priority for a part of the messages only. A
    rare message always has priority."""
    a, b = nodes
    up(a, b, peer_credits=64)
    a.ping(b)
    seldom, often = {}, {}
    with queueing(nodes, seldom):
        for _ in range(20):
            a.ping(b)
    with queueing(nodes, often):
        r = a.start(b, op="put", size=64, count=20000, conc=64, timeout=120).result(900)
        assert r["count"] == 20000 and not r["errors"], r
    for node in nodes:
        # In emulation a message may use up the time with priority. The first message after a pause has it.
        first = [queue for _here, queue, _there in seldom[node]].count("upper")
        assert first >= 10, (node.guest.name, seldom[node])
    # Each message of the flood is a job here.
    began = [queue for _here, queue, _there in often[b]]
    assert began.count("busy") >= 20, (len(began), began.count("busy"))
    b.ping(a)


def test_off_says_nothing(nodes):
    """A trace point that is off records no events."""
    a, b = nodes
    up(a, b)
    with Tracing(a, "ro2ib_post") as trace:
        a.ping(b)
    assert trace.events and {e["name"] for e in trace.events} == {"ro2ib_post"}
    a.ping(b)
    assert "ro2ib" not in a.guest.check(f"cat {TRACEFS}/trace")


def test_starving_for_credits(nodes):
    """With a peer whose LNet is slow, the trace shows the messages that wait, their reason, and for how long."""
    a, b = nodes
    up(a, b)
    a.ping(b)
    before = times(a)
    assert ("credit", "IMMEDIATE") not in before
    b.set(lazy=1)
    with Tracing(a, "ro2ib_stall", "ro2ib_stall_over", "ro2ib_stage") as trace:
        run = a.start(b, op="put-ack", size=200, count=20, conc=20, ask=0)
        conn = until(lambda: [c for c in conns(a) if c["oldest_ms"] > 2000 and c["q_main"]], "it has waited")[0]
        b.set(lazy=0)
        run.result()
        until(lambda: trace.look() and trace.of("ro2ib_stall_over"), "it goes on")
    stall = trace.of("ro2ib_stall")[0]
    assert (stall["peer"], stall["want"], stall["credits"], stall["conn"]) == (b.nid, "credit", 0, conn["number"])
    assert stall["queued"] >= 1
    over = trace.of("ro2ib_stall_over")
    assert max(e["ns"] for e in over) > 1_500_000_000, over
    waited = trace.of("ro2ib_stage", stage="credit")
    assert max(e["ns"] for e in waited) > 1_500_000_000, waited
    now = times(a)
    row = now["credit", "IMMEDIATE"]
    assert row["n"] == len(waited) and row["sum_ns"] == sum(e["ns"] for e in waited), (row, waited)
    assert row["p99_ns"] > 1_500_000_000, row
    # No other stage was slow: the transport was quick.
    assert now["wire", "IMMEDIATE"]["p99_ns"] < 1_500_000_000, now
    # The peer shows that its own LNet was slow.
    assert times(b)["lnet", "IMMEDIATE"]["p99_ns"] > 1_500_000_000


def test_refusals_and_attempts(nodes):
    """The trace has a request that is rejected, and an attempt that fails."""
    a, b = nodes
    up(a, peer_credits=32)
    up(b, peer_credits=8)
    with Tracing(b, "ro2ib_refuse") as at_b, Tracing(a, "ro2ib_close") as at_a:
        a.traffic(b, op="mix", count=10)
        b.ni_del()
        b.ni_add(net="o2ib5")
        a.ctl(f"ping {b.nid} timeout=30", ok=False)
    assert [(e["ni"], e["peer"], e["cause"]) for e in at_b.of("ro2ib_refuse", cause="Depth")] == [(b.nid, a.nid, "Depth")]
    unknown_ni = at_b.of("ro2ib_refuse", cause="NoSuchNi")
    assert unknown_ni and {(e["ni"], e["peer"]) for e in unknown_ni} == {("none", a.nid)}
    closes = at_a.of("ro2ib_close")
    assert closes and closes[0]["up"] == 1
    failed = [(e["by"], e["cause"], e["detail"]) for e in closes if not e["up"]]
    assert failed and set(failed) == {("peer", "Refused", "Fatal")}, closes


def there(*tools):
    """Skips the test if this machine lacks one of the programs."""
    missing = [tool for tool in tools if not shutil.which(tool)]
    if missing:
        pytest.skip(f"no {', '.join(missing)}: run scripts/prepare trace")


# Commands that record all events until the file `enough` exists, and commands that print the recording as text.
ENOUGH = "sh -c 'touch {name}.on; until [ -e enough ]; do sleep 0.2; done'"
RECORDERS = {
    "perf": (f"perf record -o perf.data -a -e 'ro2iblnd:*' {ENOUGH}", "perf script -i perf.data"),
    "trace-cmd": (f"trace-cmd record -o trace.dat -e ro2iblnd {ENOUGH}", "trace-cmd report -i trace.dat"),
    "perf-trace": (f"perf trace -o perf.txt -a -e 'ro2iblnd:*' {ENOUGH}", "cat perf.txt"),
}


def recorded(text):
    """Returns the events of a recording as dicts, each with its `name`. `perf trace` has its own format."""
    found = []
    for line in text.splitlines():
        if said := re.search(r" (?:ro2iblnd:)?(ro2ib_\w+): +(.*)$", line):
            words = dict(w.split("=", 1) for w in said[2].split())
        elif said := re.search(r" ro2iblnd:(ro2ib_\w+)\((.*)\)$", line):
            words = {key: text or word for key, text, word in re.findall(r'(\w+): (?:"([^"]*)"|([^",]+))', said[2])}
        else:
            continue
        found.append({"name": said[1], **{k: value(v) for k, v in words.items()}})
    return found


def alike(some, others):
    """Checks that two lists have the same events, in any order."""
    some, others = (collections.Counter(tuple(e.items()) for e in events) for events in (some, others))
    assert some and some == others, (some - others, others - some)


@pytest.mark.long
def test_recordings():
    """perf and trace-cmd record and print each event, with its fields as documented."""
    there("perf", "trace-cmd")
    with boot_stock("6.12", "trace-recordings", accel=vm.patching_accel(), memory=1024, tools=("perf", "trace-cmd")) as (a, b):
        up(a, b)
        mount(a)
        a.ping(b)
        until(lambda: conn(a)["wrs"] == conn(a)["retired"], "all completed")
        # trace-cmd needs one buffer that is large enough for all events.
        a.guest.check(f"echo 8192 >{TRACEFS}/buffer_size_kb")
        before = conn(a)
        jobs = {
            name: a.guest.spawn(f"mkdir -p /tmp/kept && cd /tmp/kept && {command.format(name=name)}") for name, (command, _) in RECORDERS.items()
        }
        until(lambda: a.guest.run(" && ".join(f"[ -e /tmp/kept/{name}.on ]" for name in RECORDERS))[0] == 0, "all of them record")
        a.traffic(b, op="mix", size=20000, count=60, conc=4)
        until(lambda: conn(a)["wrs"] == conn(a)["retired"], "all completed")
        after = conn(a)
        a.ctl(f"conn close {b.nid}")
        until(lambda: not a.conns() and not b.conns(), "closed")
        time.sleep(2)
        a.guest.check("touch /tmp/kept/enough")
        for name, job in jobs.items():
            status, out = job.wait(240)
            assert status == 0 and "lost" not in out.lower(), (name, out)
        seen = {}
        for name, (_, show) in RECORDERS.items():
            text = a.guest.check(f"cd /tmp/kept && {show} 2>/dev/null", 240)
            with open(os.path.join(LOGS, "trace-recordings", f"{name}.txt"), "w", encoding="utf-8") as f:
                f.write(text)
            seen[name] = recorded(text)
        for name, events in seen.items():
            count = collections.Counter(e["name"] for e in events)
            posted = [e for e in events if e["name"] == "ro2ib_post" and e["op"] != "LOCAL_INV"]
            assert len(posted) == after["tx_msgs"] - before["tx_msgs"], (name, count)
            assert count["ro2ib_receive"] == after["rx_msgs"] - before["rx_msgs"], (name, count)
            assert count["ro2ib_complete"] == after["wrs"] - before["wrs"], (name, count)
            assert {(e["ni"], e["peer"], e["conn"], e["qpn"]) for e in events} == {(a.nid, b.nid, after["number"], after["qpn"])}, name
            (close,) = (e for e in events if e["name"] == "ro2ib_close")
            assert (close["by"], close["cause"], close["detail"]) == ("operator", "AdminClose", "-"), (name, close)
            assert {"IMMEDIATE", "PUT_REQ", "GET_REQ"} <= {e["op"] for e in posted} and all(e["bytes"] > 0 for e in posted), name
        # Both have the same events with all fields. `perf trace` omits fields that are 0.
        alike(seen["perf"], seen["trace-cmd"])
        alike([{k: v for k, v in e.items() if v != 0} for e in seen["perf"]], seen["perf-trace"])
        for node in (a, b):
            node.unload()


@pytest.mark.long
def test_tools_and_one_liners():
    """perf, trace-cmd and bpftrace find the events. Each one-liner of the documentation prints output."""
    there("bpftrace", "perf", "trace-cmd")
    with open(DOCUMENT, encoding="utf-8") as f:
        liners = re.findall(r"^bpftrace -e '(.*)'$", f.read(), re.MULTILINE)
    assert len(liners) == 5, liners
    # bpftrace includes a compiler, which needs memory, and half a minute to start here.
    with boot_stock("6.12", "trace-tools", accel=vm.patching_accel(), memory=2048, tools=("bpftrace", "perf", "trace-cmd")) as (a, b):
        up(a, b)
        mount(a)
        names = {f"ro2iblnd:{event}" for event in EVENTS}
        assert set(re.findall(r"ro2iblnd:\w+", a.guest.check("perf list 'ro2iblnd:*' 2>&1", 120))) == names
        assert set(a.guest.check("trace-cmd list -e ro2iblnd", 120).split()) == names
        assert set(re.findall(r"ro2iblnd:\w+", a.guest.check("bpftrace -l 'tracepoint:ro2iblnd:*'", 240))) == names
        jobs = []
        for number, liner in enumerate(liners):
            a.guest.check(f"cat >/tmp/{number}.bt <<'END'\n{liner}\nEND")
            jobs.append(a.guest.spawn(f"bpftrace /tmp/{number}.bt >/tmp/{number}.out 2>&1"))
        started = [f"grep -q Attaching /tmp/{number}.out" for number in range(len(liners))]
        until(lambda: a.guest.run(" && ".join(started))[0] == 0, "all of them look", timeout=480)
        time.sleep(10)
        # Messages, of which some starve, a connection that ends, and one that is rejected.
        a.ping(b)
        b.set(lazy=1)
        run = a.start(b, op="put-ack", size=20000, count=20, conc=20, ask=0)
        until(lambda: [c for c in conns(a) if c["oldest_ms"] > 2000], "it has waited")
        b.set(lazy=0)
        run.result()
        a.traffic(b, op="mix", size=20000, count=60, conc=4)
        a.ctl(f"conn close {b.nid}")
        b.ni_del()
        b.ni_add(net="o2ib5", peer_credits=8)
        b.ctl(f"ping {a.address}@o2ib5 timeout=5", ok=False)
        time.sleep(12)
        a.guest.check("killall -INT bpftrace")
        for job in jobs:
            job.wait(120)
        told = [a.guest.check(f"cat /tmp/{number}.out") for number in range(len(liners))]
        starves, slow, where, closes, receives = told
        assert re.search(rf"@ms\[{b.nid}, (credit|slots)\]: [1-9]\d{{2,}}", starves), starves
        assert f"@us[{b.nid}, answer]" in slow and f"@us[{b.nid}, wire]" in slow, slow
        assert re.search(rf"@ms\[{b.nid}, PUT_REQ, answer\]: count \d+, average \d+, total \d{{3,}}", where), where
        assert re.search(rf"{b.nid} conn \d+ qpn \d+: AdminClose by operator \(-\)", closes), closes
        assert f"{b.address}@o2ib5 refused: NoSuchNi" in closes, closes
        assert re.search(rf"@messages\[{b.nid}, IMMEDIATE\]: \d+", receives), receives
        for node in (a, b):
            node.unload()
