# SPDX-License-Identifier: GPL-2.0
"""ro2ibtop in a guest with the driver under load: its screen shows what debugfs of that node has, and names a trouble
as long as it lasts. It runs on Debian's 6.12, because the test kernel has no pseudo terminals."""

import json
import re
import statistics
import time

import pytest
import vm
from faults import SLOW, Load, ping_until
from counters import conn, past
from nodes import until, up
from screen import Screen
from test_debugfs import causes, events
from test_stock_kernels import boot_stock
from diagnosis import limit, pattern, remedy

STARVED = "peer keeps all credits for 4.0 s: the peer's LNet is slow"
SILENT = "not acknowledged for 600 ms: check the fabric ... or the peer is dead"


@pytest.fixture(scope="module")
def pair(top):
    with boot_stock("6.12", "top", tools=(top, "script")) as nodes:
        yield nodes


@pytest.fixture
def nodes(pair):
    """Provides two connected nodes. Unloads everything afterwards: nothing may be left, and no splat may be logged."""
    begin = [len(n.guest.console()) for n in pair]
    up(*pair)
    pair[0].ping(pair[1])
    yield pair
    for node in pair:
        node.unload()
    bad = [f"{n.guest.name}: {line}" for n, at in zip(pair, begin, strict=True) for line in vm.splats(n.guest.console()[at:])]
    if bad:
        pytest.fail("kernel log:\n" + "\n".join(bad), pytrace=False)


def small(a, b, **what):
    """Starts PUTs without ACKs: one message each. A NOOP returns their credits now and then."""
    return Load(a, b, op="put", size=200, verify="off", ask=0, **what)


def clocks(frames):
    """Returns the last frame of each time at which ro2ibtop took a sample."""
    return list({frame.clock: frame for frame in frames}.values())


def says(screen, words, what):
    """Waits for a row with a verdict that the documentation has. Returns the frame."""
    remedy(words)

    def look():
        last = screen.last()
        return last and re.search(pattern(words), last.text) and last

    try:
        return until(look, what, timeout=limit())
    except TimeoutError:
        raise AssertionError(f"{what}: not {words}\n{screen.last().text}") from None


def well(screen):
    until(lambda: "nothing wrong" in screen.last().lines[0] and screen.last().peers()[0]["verdict"] == "ok", "nothing wrong")


def test_screen_matches_debugfs(nodes, top):
    """Frames under load have every column of debugfs, and rates that match the counters."""
    a, b = nodes
    with small(a, b, conc=4), Screen(top, a, "--interval 1") as screen:
        until(lambda: len(clocks(screen.frames())) > 2, "frames")
        before, began, first = conn(a), time.monotonic(), len(clocks(screen.frames()))
        until(lambda: len(clocks(screen.frames())) > first + 7, "more frames")
        after, spent = conn(a), time.monotonic() - began
        # The first and last frame cover more than the measured time.
        frames = clocks(screen.frames())[first + 1 : first + 7]
        for frame in frames:
            (ni,) = frame.nis()
            assert (ni["NI"], ni["device"], ni["peers"], ni["conns"]) == (a.nid, a.device, "1", "1"), ni
            assert re.fullmatch(r"ok, started \d+(\.\d)? (s|min) ago", ni["verdict"]), ni
            for key, of in (("closed", "closed"), ("failed", "failed"), ("refused", "refused")):
                assert int(ni[key]) == sum(causes(a, of).values()), (key, ni)
            (peer,) = frame.peers()
            assert (peer["peer"], peer["state"]) == (b.nid, "up"), peer
            assert peer["by"] == {"active": "local", "passive": "peer"}[after["role"]], (peer, after)
            assert (int(peer["qpn"]), int(peer["peer's"])) == (after["qpn"], after["peer_qpn"]), (peer, after)
            credits, depth = map(int, peer["cred"].split("/"))
            assert 0 <= credits <= depth == after["depth"], (peer, after)
            assert (ni["tx/s"], ni["rx/s"]) == (peer["tx/s"], peer["rx/s"]), frame.text
            assert any(bar in frame.text for bar in "▁▂▃▄▅▆▇█"), frame.text
            told = f"connection {after['number']} of the NI, queue pair {after['qpn']} (peer's {after['peer_qpn']}), MTU {after['mtu']}, "
            assert any(line.startswith(told) for line in frame.lines), (told, frame.text)
        for key, counter in (("tx/s", "tx_msgs"), ("rx/s", "rx_msgs")):
            shown = statistics.mean(int(frame.peers()[0][key]) for frame in frames)
            counted = (after[counter] - before[counter]) / spent
            assert counted > 10 and 0.6 < shown / counted < 1.6, (key, shown, counted)
        # Node `a` sends much more than it receives.
        assert all(int(f.peers()[0]["tx/s"]) > 2 * int(f.peers()[0]["rx/s"]) > 0 for f in frames), frames[-1].text
        screen.press("q")
        left = screen.end()
    # The terminal is in its old state.
    assert left.split("\n")[0] == "status 0", left
    assert "alternate screen false, cursor hidden false" in left, left


@pytest.mark.long
def test_keys(nodes, top):
    """Keys sort the rows, list the ends of connections, freeze the screen, and quit."""
    a, b = nodes
    a.ctl(f"conn close {b.nid}")
    until(lambda: not a.conns(), "closed")
    with small(a, b, conc=4), Screen(top, a, "--interval 0.5") as screen:
        until(lambda: screen.last() and screen.last().nis()[0]["tx/s"] not in ("-", "0"), "a rate")
        for order in ("nid", "rate", "trouble"):
            screen.press("s")
            until(lambda order=order: f"s sort ({order})" in screen.last().text, order)
        screen.press("e")
        until(lambda: "what" in screen.last().peers()[0], "what ended")
        (event,) = events(a)
        (row,) = screen.last().peers()
        assert (row["peer"], row["what"], row["by"]) == (b.nid, "closed", event["by"]), (row, event)
        assert event["cause"] == "AdminClose" and row["cause"] == "closed by lctl disconnect", (row, event)
        assert re.fullmatch(r"[\d.]+ (ms|s) ago", row["ended"]), row
        screen.press("e")
        until(lambda: "state" in screen.last().peers()[0], "connections")
        screen.press("p")
        frame = until(lambda: "(paused)" in screen.last().lines[0] and screen.last(), "it stands still")
        time.sleep(2)
        assert screen.last().clock == frame.clock
        screen.press("p")
        until(lambda: screen.last().clock != frame.clock and "(paused)" not in screen.last().text, "it goes on")
        screen.press("\\003")
        assert screen.end().startswith("status 0\n")


@pytest.mark.long
def test_troubles_come_and_go(nodes, top):
    """The screen names each trouble as long as it lasts: the peer's LNet takes nothing, the peer's cable is pulled, the
    driver is unloaded."""
    a, b = nodes
    with Screen(top, a, "--interval 1") as screen:
        with small(a, b, conc=20, timeout=60):
            until(lambda: screen.last() and screen.last().nis()[0]["tx/s"] not in ("-", "0"), "a rate")
            b.set(lazy=1)
            frame = says(screen, STARVED, "a slow LNet")
            assert re.search(r"wrong: 1 bad|wrong: 0 bad, 1 slow", frame.lines[0]), frame.text
            # Programs get the same verdict.
            until(lambda: a.guest.run("ro2ibtop --once --check")[0] == 2, "a status", timeout=limit())
            told = json.loads(a.guest.check("ro2ibtop --json"))
            (verdict,) = (c["verdict"] for c in told["nis"][0]["conns"])
            assert (told["worst"], verdict["level"], verdict["kind"]) == ("bad", "bad", "starved"), told
            text = a.guest.check("ro2ibtop --prometheus")
            assert f'ro2ib_trouble{{ni="{a.nid}",level="bad",kind="starved"}} 1\n' in text, text
            b.set(lazy=0)
            well(screen)
            assert a.guest.run("ro2ibtop --once --check")[0] == 0

            b.guest.carrier(False)
            says(screen, SILENT, "a silent peer")
            b.guest.carrier(True)
            ping_until(a, b, 60 * SLOW)
            well(screen)
        a.unload()
        until(lambda: "is the module loaded" in screen.last().lines[-2], "the driver is gone")
        up(a)
        a.ping(b)
        until(lambda: [row["NI"] for row in screen.last().nis()] == [a.nid] and screen.last().peers(), "it is back")
        screen.press("q")
        assert screen.end().startswith("status 0\n")


def between(least, value, most, what):
    assert least <= value <= most, (what, least, value, most)


def test_json_and_prometheus_match_debugfs(nodes):
    """`--once`, JSON and Prometheus's text under traffic: each counter is between the values of debugfs before and
    after."""
    a, b = nodes
    schema = json.loads(a.guest.check("ro2ibtop --schema"))
    keys = ("tx_msgs", "rx_msgs", "wrs")
    # One acknowledged message at a time: a moment without credits would cause a note.
    with Load(a, b, op="put", size=200, verify="off", conc=1):
        until(lambda: conn(a)["tx_msgs"] > 100, "messages")
        # If the machine stalls for half a second, ro2ibtop rightly reports that.
        for _ in range(3):
            before, gone = conn(a), past(a)
            once = a.guest.check(f"ro2ibtop --once --width {180}")
            told = json.loads(a.guest.check("ro2ibtop --json"))
            text = a.guest.check("ro2ibtop --prometheus")
            after = conn(a)
            if told["worst"] == "fine" and re.search(" ok$", once, re.MULTILINE):
                break
        parameters = a.guest.check("cd /sys/module/ro2iblnd/parameters && grep -H ^ *")
    (row,) = (line.split() for line in once.splitlines() if line.startswith(a.nid) and a.device in line)
    assert row[1:4] == [a.device, "1", "1"] and int(row[4]) > 0, once
    assert re.search(rf"^{re.escape(b.nid)} .* ok$", once, re.MULTILINE), once

    assert set(told) == set(schema["required"]) and told["unread"] == 0 and told["worst"] == "fine", json.dumps(told)
    assert set(schema["$defs"]["NiDocument"]["required"]) <= set(told["nis"][0]), told
    assert told["parameters"] == dict(line.split(":", 1) for line in parameters.splitlines()), told["parameters"]
    (ni,) = told["nis"]
    (one,) = ni["conns"]
    assert (ni["nid"], ni["device"], one["peer"], ni["peers"][0]["nid"]) == (a.nid, a.device, b.nid, b.nid)
    assert set(schema["$defs"]["ConnDocument"]["required"]) <= set(one), one
    for key in ("number", "qpn", "peer_qpn", "mtu", "depth"):
        assert one[key] == after[key], (key, one, after)
    for key in keys:
        between(before[key], one["counts"][key], after[key], key)
        between(before[key] + gone[key], ni["totals"][key], after[key] + gone[key], key)
    assert one["tx_per_s"] > 0 and ni["hardware"], told

    families = re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE)
    assert ("ro2ib_messages_total", "counter") in families and ("ro2ib_stage_seconds", "histogram") in families, families
    for line in text.splitlines():
        assert re.fullmatch(r'# (HELP|TYPE) .+|\w+(\{\w+="[^"]*"(,\w+="[^"]*")*\})? [\d.e+-]+', line), line
    for direction, key in (("sent", "tx_msgs"), ("received", "rx_msgs")):
        name = f'ro2ib_messages_total{{ni="{a.nid}",direction="{direction}"}} '
        (value,) = (int(line.removeprefix(name)) for line in text.splitlines() if line.startswith(name))
        between(before[key] + gone[key], value, after[key] + gone[key], name)
    assert f'ro2ib_connections{{ni="{a.nid}",state="Established"}} 1\n' in text, text
    assert f'ro2ib_device_up{{ni="{a.nid}",device="{a.device}"}} 1\n' in text, text
