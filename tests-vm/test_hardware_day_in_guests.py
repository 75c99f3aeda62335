# SPDX-License-Identifier: GPL-2.0
"""scripts/hardware-day on two guests whose devices imitate an adapter. lnet_lite has no lnetctl and no lnet_selftest:
small programs take their place, with traffic of lnet_lite."""

import os
import re

import pytest
from conftest import ROOT
from device_kinds import DEVICES
from nodes import CTL, PATIENCE, Node, until, up

# Of traffic in each step.
SECONDS = 2
CALL = f'call() {{ exec 3<>{CTL}/ctl; echo "$*" >&3; cat <&3; }}\n'
PROGRAMS = {
    "preflight": "echo 'preflight: ok'",
    "lnetctl": CALL
    + """[ "$1" = ping ] || exit 0
for nid; do :; done
call ping "$nid" timeout=5 | grep -q ^rc=0 || echo "    errno: -113"
""",
    "lctl": CALL + 'shift 3; call peer del "$1"',
    # A batch runs for SECONDS, and `stop` waits for its end.
    "lst": CALL
    + f"""case $1 in
add_group) [ "$2" = here ] || echo "$3" >/day/to ;;
add_test)
	set -- $(echo "$*" | sed 's/.*--concurrency //; s/--from here --to there//')
	case "$2 $3" in
	"ping ") op=put-ack size=0 ;;
	"brw write") op=put-ack size=$(echo "$5" | sed 's/size=//; s/K/k/; s/M/m/') ;;
	"brw read") op=get size=$(echo "$5" | sed 's/size=//; s/K/k/; s/M/m/') ;;
	*) exit 1 ;;
	esac
	echo "op=$op size=$size conc=$1 verify=full count=10000000 seconds={SECONDS} timeout=30" >/day/test
	;;
run)
	rm -f /day/result
	(
		call traffic "to=$(cat /day/to)" $(cat /day/test) >/day/result.new
		mv /day/result.new /day/result
	) >/dev/null 2>&1 &
	;;
stat) sleep "$3"; echo "[R] Avg: 1.0 RPC/s Min: 1.0" ;;
stop) until [ -e /day/result ]; do sleep 0.2; done ;;
show_error)
	cat /day/result >>/day/results
	bad=0
	grep -q ^errors=0 /day/result && grep -q ^verify_errors=0 /day/result || bad=1
	echo "Total $bad error nodes in here"
	;;
esac
""",
}


@pytest.mark.long
def test_hardware_day(boot_pair):
    """All steps of the hardware day pass, with faults, and the file that a site sends back has no secrets."""
    a, b = (Node(g) for g in boot_pair(append="secret=hunter2", **DEVICES["mlx5"]))
    up(a, b)
    guest = a.guest
    guest.check("mkdir -p /day/bin && ln -s /sys /proc /day")
    for name, text in PROGRAMS.items():
        guest.check(f"cat >/day/bin/{name} <<'END'\n#!/bin/sh\n{text}\nEND\nchmod +x /day/bin/{name}")
    for name in ("hardware-day", "ro2ib-report"):
        guest.check(f"cp {guest.put(os.path.join(ROOT, 'scripts', name))} /day/bin/{name} && chmod +x /day/bin/{name}")
    guest.check("echo 'LNet: not said: ffff888012345678 0xdeadbeef12' >/dev/kmsg")
    job = guest.spawn(f"sh /day/bin/hardware-day -f -r /day -o /day/out -s {SECONDS} -w {PATIENCE} {b.nid}")
    told = job.wait(10 * PATIENCE)[1]
    steps = {name: how for how, name in re.findall(r"^(ok|FAILED|skipped) +(.*?): .*$", told, re.MULTILINE)}
    assert len([name for name in steps if name.startswith("brw")]) == 12, told
    assert {"interface down for 1 s", "interface down for 5 s", "peer deleted"} < steps.keys(), told
    assert set(steps.values()) == {"ok"}, told
    assert told.splitlines()[-1].endswith(" passed, 0 failed"), told
    # Each batch moved data, and the contents were right.
    runs = guest.check("cat /day/results")
    counts = [int(n) for n in re.findall("^count=([0-9]+)", runs, re.MULTILINE)]
    wrong = set(re.findall("^verify_errors=(.*)", runs, re.MULTILINE))
    assert len(counts) >= 14 + 6 and all(counts[:14]) and wrong == {"0"}, runs
    text = guest.check("cat /day/out")
    assert f"ni={a.nid}" in text and text.count("======== ro2ib-report") == 2, text
    assert "not said: (masked) 0x(masked)" in text
    assert "hunter2" not in text and not re.search(r"0x[0-9a-f]{8}|\bffff[0-9a-f]{12}\b", text), text
    until(lambda: a.ping(b, ok=False)["rc"] == 0, "a ping")
    a.unload()
    b.unload()
