# SPDX-License-Identifier: GPL-2.0
"""Tests of scripts/ro2ib-report in made-up roots with made-up programs, in this machine's shell and in BusyBox without
other programs. Run: pytest scripts
"""

import os
import re
import shutil
import subprocess
import time

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
REPORT = os.path.join(HERE, "ro2ib-report")
NOW = 1795395997.742
NI = "10.0.0.1@o2ib"
# A port as soft-RoCE shows it.
PORT = {
    "hw_counters/completer_retry_err": "7",
    "hw_counters/Nak Sequence Error": "5",
    "counters/symbol_error": "0",
    "state": "4: ACTIVE",
    "link_layer": "Ethernet",
    "pkeys/0": "0xffff",
    "pkeys/1": "0x0000",
    "pkeys/2": "0x8001",
    "gids/0": "fe80:0000:0000:0000:5054:00ff:fe00:0001",
    "gids/1": "0000:0000:0000:0000:0000:0000:0000:0000",
    "gid_attrs/ndevs/0": "eth0",
    "gid_attrs/types/0": "RoCE v2",
}
# Prints its arguments, and whether the address answers.
PING = """case "$1" in -V) echo "ping from iputils 20221126"; exit ;; esac
for last; do :; done
echo "asked: $*"
case $last in *.2) echo "1 received"; exit 0 ;; *) echo "0 received"; exit 1 ;; esac
"""
# As in BusyBox.
OLD_PING = PING.replace('echo "ping from iputils 20221126"; exit', 'echo "ping: invalid option -- V" >&2; exit 1')
IP = """case "$*" in "-o address" | neigh | link | "route get "*) echo "ip said: $*" ;; *) echo "BusyBox v1.35, Usage: ip" >&2; exit 1 ;; esac"""


class Root:
    def __init__(self, path, shell):
        self.path, self.shell = path, shell
        for name, text in PORT.items():
            self.put(f"sys/class/infiniband/rxe0/ports/1/{name}", text)
        self.put("sys/class/infiniband/rxe0/hw_counters/of_the_device", "3")
        self.put("sys/class/net/eth0/mtu", "1500")
        self.put("sys/class/net/ib0/pkey", "0x8001")
        self.put("sys/module/ro2iblnd/parameters/timeout", "50")
        self.put("sys/module/ro2iblnd/parameters/access", "")
        self.put("sys/module/mlx_compat/parameters/compat_version", "dc4e0aa")
        # The link exists while the driver is loaded.
        (self.path / "sys/module/ko2iblnd").symlink_to("ro2iblnd")
        self.put("proc/meminfo", "MemFree: 12 kB")
        self.put("proc/uptime", "81.50 10.00")
        self.put("sys/kernel/debug/sched/debug", "Sched Debug Version: v0.11\ncpu_clk   : 80742.500000\n")
        self.debug("unknown_ni", f"closes=none ends=0 refusals=0 now={NOW}")
        self.debug(NI, f"ni={NI} incarnation=1 device=rxe0 peers=0 conns=0")
        self.debug(f"{NI}.closes", f"closes={NI} ends=0 refusals=0 now={NOW}")

    def put(self, name, text):
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")

    def debug(self, name, *lines):
        self.put(f"sys/kernel/debug/ro2iblnd/{name}", "\n".join(lines))

    def program(self, name, text):
        self.put(f"bin/{name}", "#!/bin/sh\n" + text)
        (self.path / "bin" / name).chmod(0o755)

    def run(self, *args, says=""):
        """Returns the sections of the report, in order: (name, text)."""
        command, env = self.shell
        began = time.monotonic()
        done = subprocess.run(
            [*command, REPORT, "-s", "0.1", "-r", self.path, "-o", "-", *args],
            env=env,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        self.spent = time.monotonic() - began
        assert (done.returncode, done.stderr) == (0, f"ro2ib-report: {says}\n" if says else "")
        # The file contains the message, too.
        assert not says or says in done.stdout.splitlines()[:2]
        parts = re.split("^==> (.*) <==\n", done.stdout, flags=re.MULTILINE)
        return list(zip(parts[1::2], parts[2::2], strict=True))

    def pings(self):
        """Returns the arguments of ping, by address."""
        asked = {}
        for _, text in self.run():
            for line in re.findall("^asked: (.*)$", text, re.MULTILINE):
                asked.setdefault(line.split()[-1], []).append(line)
        return asked


@pytest.fixture(params=["sh", "busybox"])
def root(request, tmp_path):
    shell = ["sh"], dict(os.environ)
    if request.param == "busybox":
        busybox = shutil.which("busybox")
        if not busybox:
            pytest.skip("no BusyBox here")
        (tmp_path / "applets").mkdir()
        for applet in subprocess.check_output([busybox, "--list"], text=True).split():
            (tmp_path / "applets" / applet).symlink_to(busybox)
        shell = [busybox, "sh"], {"PATH": str(tmp_path / "applets")}
    return Root(tmp_path / "root", shell)


@pytest.fixture
def small(tmp_path):
    """Returns a folder with space for a few files of 4 KiB."""
    path = tmp_path / "small"
    path.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32k", "none", path], check=False).returncode:
        pytest.skip("needs mount, and root")
    yield path
    subprocess.run(["umount", path], check=True)


def fill(path):
    with pytest.raises(OSError), open(path / "filler", "wb", buffering=0) as f:
        while True:
            f.write(bytes(512))


def test_a_full_disk_for_temporary_files_is_named(root, small):
    """Checks that a report without contents is not taken for one of a node that hangs, or of a node without faults."""
    command, env = root.shell
    env["TMPDIR"] = str(small)
    # Space for the small parts only.
    root.program("dmesg", "i=0; while [ $i -lt 2000 ]; do echo 'o2ib: a line of the log'; i=$((i + 1)); done")
    root.put("proc/modules", "lnet 1 0 - Live 0x0\n" * 3000)
    out = root.path / "report.txt"
    args = [*command, REPORT, "-s", "0.1", "-r", root.path, "-o", out]

    def run():
        return subprocess.run(args, env=env, capture_output=True, text=True, timeout=100, check=False)

    assert run().returncode == 0
    text = out.read_text()
    for section in ("/proc/modules", "command: dmesg"):
        assert re.search(rf"^==> {section} <==\n[^=]*^\(no space in /", text, re.MULTILINE), text[-2000:]
    assert text.endswith("\n==> end <==\n") and "took too long" not in text
    out.unlink()
    fill(small)
    done = run()
    assert done.returncode == 1 and f"no space in {small}: set TMPDIR=" in done.stderr, done
    assert not out.exists() and os.listdir(small) == ["filler"]


def test_a_file_that_cannot_be_written_is_an_error(root, small):
    """Checks that a file is not given its final name without its end."""
    command, env = root.shell
    root.put("proc/meminfo", "MemFree: 12 kB\n" * 5000)
    for out, left in (("/dev/full", []), (small / "report.txt", ["report.txt.part"])):
        args = [*command, REPORT, "-s", "0.1", "-r", root.path, "-o", out]
        done = subprocess.run(args, env=env, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 1 and done.stdout == "" and os.listdir(small) == left, done
    with open("/dev/full", "w", encoding="utf-8") as full:
        args = [*command, REPORT, "-s", "0.1", "-r", root.path, "-o", "-"]
        assert subprocess.run(args, env=env, stdout=full, stderr=subprocess.PIPE, check=False).returncode == 1


def test_programs_of_root_are_found_without_roots_path(tmp_path):
    """Checks su without "-", and a service: a program that is not found would count as not installed."""
    if not os.path.exists("/usr/sbin/modinfo"):
        pytest.skip("modinfo is elsewhere here")
    command = ["sh", REPORT, "-n", "1", "-o", "-"]
    env = {"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert "==> command: modinfo -n ib_core <==" in done.stdout, done


def named(sections, name):
    return [text for what, text in sections if what == name]


def clock(sections):
    """Returns the clocks, by name."""
    return dict(word.split("=") for word in named(sections, "clock")[0].splitlines()[0].split())


def test_memory_and_partitions_are_reported(root):
    sections = root.run()
    assert named(sections, "/proc/meminfo") == ["MemFree: 12 kB\n"] * 2
    assert named(sections, "/sys/class/infiniband/rxe0/hw_counters/of_the_device") == ["3\n"] * 2
    assert named(sections, "/sys/class/infiniband/rxe0/ports/1/hw_counters/completer_retry_err") == ["7\n"] * 2
    assert named(sections, "/sys/class/infiniband/rxe0/ports/1/hw_counters/Nak Sequence Error") == ["5\n"] * 2
    assert named(sections, "/sys/class/infiniband/rxe0/ports/1/state") == ["4: ACTIVE\n"]
    assert named(sections, "/sys/class/net/ib0/pkey") == ["0x8001\n"]
    assert named(sections, "/sys/module/ro2iblnd/parameters/access") == ["\n"]
    assert not any("/sys/module/ko2iblnd" in what for what, _ in sections)
    assert named(sections, "/sys/module/mlx_compat/parameters/compat_version") == ["dc4e0aa\n"]
    # Only the used entries of the tables are reported.
    assert named(sections, "pkeys") == ["rxe0 port 1 index 0: 0xffff\nrxe0 port 1 index 2: 0x8001\n"]
    assert named(sections, "gids") == ["rxe0 port 1 index 0: fe80:0000:0000:0000:5054:00ff:fe00:0001 RoCE v2 eth0\n"]


def test_load_is_reported(root):
    """Checks that the report has the load and all uninterruptible waits. Names may contain any character."""
    root.put("proc/loadavg", "9.12 3.00 1.00 3/200 999")
    root.put("proc/pressure/io", "some avg10=7.00")
    for pid, (name, state) in enumerate(
        [("ll_ost_io00_001", "D"), ("ll_ost_io00_001", "D"), ("a) D (b", "D"), ("sleeper", "S"), ("odd) D", "R")], 100
    ):
        root.put(f"proc/{pid}/stat", f"{pid} ({name}) {state} 2 0 0 0")
        root.put(f"proc/{pid}/wchan", "io_schedule")
    sections = root.run()
    assert named(sections, "/proc/loadavg") == ["9.12 3.00 1.00 3/200 999\n"] * 2
    assert named(sections, "/proc/pressure/io") == ["some avg10=7.00\n"] * 2
    waits = [" ".join(line.split()) for line in named(sections, "waits in the kernel (state D)")[0].splitlines()]
    assert waits == ["1 a) D (b: io_schedule", "2 ll_ost_io00_001: io_schedule"]


def test_rules_of_firewalls_are_reported(root):
    root.program("nft", 'echo "asked: $*"; echo "udp dport 4791 drop"')
    root.program(
        "iptables-save", 'i=0; while [ $i -lt 1500 ]; do i=$((i + 1)); echo "-A INPUT -p udp --dport $i -j DROP"; done'
    )
    sections = root.run()
    assert named(sections, "command: nft list ruleset")[0].splitlines()[1:] == [
        "asked: list ruleset",
        "udp dport 4791 drop",
    ]
    told = named(sections, "command: iptables-save")[0].splitlines()[1:]
    assert len(told) == 1001 and told[-1] == "(of 1500 lines the first 1000)"
    # The report does not claim that there are no rules.
    assert named(sections, "command: tc -s qdisc show") == ["(not installed)\n"]
    (root.path / "sys/class/net/eth0/device").mkdir()
    root.program("tc", 'echo "asked: $*"')
    asked = [text for what, text in root.run() if what.startswith("command: tc ")]
    assert len(asked) == 2 and "asked: -s filter show dev eth0 ingress\n" in asked[1]
    # A usage text is not a list of rules.
    root.program("tc", 'echo "BusyBox v1.35.0 (Debian) multi-call binary."; echo "Usage: tc OBJECT"; exit 1')
    asked = [text for what, text in root.run() if what.startswith("command: tc ")]
    assert asked == ["(this one cannot show it: there may be some, all the same)\n"] * 2


def test_where_the_past_ends(root):
    """Checks that the report has lines from before the driver was last loaded, and marks them."""
    first, last = (f"[{at}] ro2iblnd: 0.1.0, for Linux 6.12, LNet 2.17" for at in (1, 9))
    log = [first, "[2] ro2iblnd: old", last, "[10] ro2iblnd: new"]
    root.program("dmesg", "\n".join(f"echo '{line}'" for line in log))
    told = named(root.run(), "command: dmesg")[0].splitlines()[1:]
    assert told == [*log[:2], "(here the driver was loaded last)", *log[2:]]


def test_verdicts_come_first(root):
    """Checks that the verdicts of an installed ro2ibtop come first, and are those of the node as it is now."""
    root.program("ro2ibtop", 'echo "asked: $*"')
    sections = root.run()
    names = [what for what, _ in sections]
    assert "asked: --once\n" in named(sections, "command: ro2ibtop --once")[0]
    assert names.index("command: ro2ibtop --once") < min(
        i for i, what in enumerate(names) if what.startswith("sample ")
    )


def test_fault_injection_is_reported(root):
    root.put("proc/vmstat", "nr_free_pages 7\nallocstall_normal 3\noom_kill 1")
    root.put(
        "proc/modules",
        "rdma_rxe 16384 0 - Live 0xffffffffc0a1b000\nro2iblnd 90112 1 lnet, Live 0xffffffffc0b2c000 (OE)",
    )
    for name, value in (
        ("failslab/probability", "50"),
        ("failslab/times", "-1"),
        ("fail_function/inject", "ro2ib_alloc_mr\t-12\n0xffffffffa0064cf0"),
    ):
        root.put(f"sys/kernel/debug/{name}", value)
    sections = root.run()
    assert named(sections, "/proc/vmstat (shortages)") == ["allocstall_normal 3\noom_kill 1\n"]
    assert named(sections, "/sys/kernel/debug/failslab/probability") == ["50\n"]
    assert named(sections, "/sys/kernel/debug/fail_function/inject") == ["ro2ib_alloc_mr\t-12\n0x(masked)\n"]
    # root sees addresses of memory, which the report must not contain.
    assert named(sections, "/proc/modules") == [
        "rdma_rxe 16384 0 - Live 0x(masked)\nro2iblnd 90112 1 lnet, Live 0x(masked) (OE)\n"
    ]


def test_one_clock(root):
    """Checks that the report relates the driver's times, the log's times and those of the sections."""
    root.program("uname", "echo Linux")
    sections = root.run()
    said = clock(sections)
    assert said["epoch"] == "1795395997.742" and said["uptime"] == "81.500" and said["log"] == "80.742"
    assert said["log_zero"] == "1795395917.000"
    stamp = r"at 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC, uptime 81\.50\n"
    assert re.match(stamp, named(sections, "command: uname -srvm")[0])
    samples = [text for what, text in sections if what.startswith("sample ")]
    assert len(samples) == 2 and all(re.fullmatch(stamp, text) for text in samples), samples


@pytest.mark.parametrize("told", [True, False])
def test_clock_that_is_unknown(root, told):
    """Numbers with leading zeros are not octal. If the kernel does not show the log's clock, another clock is used."""
    (root.path / "sys/kernel/debug/sched/debug").unlink()
    root.put("proc/uptime", "9.08 1.00")
    if told:
        root.put("proc/timer_list", "Timer List Version: v0.10\nnow at 8090000000 nsecs")
    said = clock(root.run())
    assert said["uptime"] == "9.080" and said["log"] == ("8.090" if told else "9.080")


def test_failing_peers_are_pinged(root):
    """Checks that each failing peer gets a plain ping, and one with the size of an RDMA packet that must not be
    fragmented. Peers without failures, and peers that this node rejected or that an operator closed, are not pinged.
    """
    root.program("ping", PING)
    root.program("ip", IP)
    peer = "peer=10.0.0.{0}@o2ib conns=1 usable=0 waiting={1} waited_ms=9 closed=0 failed=1 last={3} last_ago_ms=5 failures={2} retry_ms=1 ends=-"
    conn = "conn=10.0.0.{0}@o2ib role=active state=Established mtu={1} oldest_ms={2} oldest={3}"
    event = "event={1} number=1 time={2} peer=10.0.0.{0}@o2ib role=active by={3} cause=TransportRetry detail=- times=1"
    root.debug(
        NI, f"ni={NI} incarnation=1 device=rxe0 peers=0 conns=0", peer.format(2, 3, 0, "none"), conn.format(2, 512, 0, "none"),
        peer.format(3, 0, 2, "ConnectTimeout"), peer.format(4, 0, 0, "none"), conn.format(4, 1024, 400, "sending"),
        peer.format(5, 0, 0, "none"), conn.format(5, 1024, 700, "sending"), conn.format(5, 1024, 0, "none"),
    )  # fmt: skip
    root.debug(
        f"{NI}.closes", f"closes={NI} ends=9 refusals=0 now={NOW}", event.format(6, "closed", NOW - 50, "path"),
        event.format(7, "closed", NOW - 5000, "path"), event.format(8, "refused", NOW - 5, "local"),
        event.format(9, "failed", NOW - 5, "operator"), event.format(10, "failed", NOW - 5, "peer"), event.format(6, "failed", NOW - 5, "path"),
    )  # fmt: skip
    sections = root.run()
    asked = root.pings()
    assert set(asked) == {f"10.0.0.{n}" for n in (2, 3, 5, 6, 10)}
    for address, lines in asked.items():
        assert len(lines) == 2, lines
        plain, full = lines
        assert " -M " not in plain and " -s " not in plain
        assert " -M do " in full and f" -s {544 if address == '10.0.0.2' else 1056} " in full
        for line in lines:
            # Pings come from the NI's own address, and end soon.
            assert " -I 10.0.0.1 " in line and re.search(r"-c \d -w \d -W \d ", line), line
    heads = [what for what, _ in sections if "ping" in what and what.endswith(" 10.0.0.3")]
    assert len(heads) == 2, sections
    # The report has ping's output, its exit status, and the route.
    assert [text for what, text in sections if what == heads[0]][0].endswith("0 received\n(exit status 1)\n")
    assert named(sections, "command: ip route get 10.0.0.3")


def test_a_ping_that_cannot_forbid_pieces(root):
    root.program("ping", OLD_PING)
    root.debug(NI, f"ni={NI} device=rxe0", "peer=10.0.0.3@o2ib waiting=1 failures=1")
    lines = root.pings()["10.0.0.3"]
    assert len(lines) == 2 and " -s 1056 " in lines[1] and "-M" not in "".join(lines)
    # The report notes that the larger ping proves nothing, and only for that ping.
    notes = [what for what, text in root.run() if "says nothing of the MTU" in text]
    assert not notes
    root.program("ping", OLD_PING.replace("exit 1 ;; esac\n", "exit 0 ;; esac\n"))
    notes = [what for what, text in root.run() if "says nothing of the MTU" in text]
    assert len(notes) == 1 and " -s 1056 " in notes[0]


def test_no_more_than_the_interface_takes(root):
    """Checks the size for an interface whose packets have less room than those of the connection."""
    root.program("ping", PING)
    root.put("sys/class/net/eth0/mtu", "2044")
    root.debug(NI, f"ni={NI} device=rxe0", "conn=10.0.0.3@o2ib mtu=4096 oldest_ms=900 oldest=sending")
    assert " -s 2016 " in root.pings()["10.0.0.3"][1]


def test_no_ping_of_full_size_on_infiniband(root):
    """Checks that the MTU of InfiniBand, which IPoIB cannot carry, is not tried by ping."""
    root.program("ping", PING)
    root.put("sys/class/infiniband/rxe0/ports/1/link_layer", "InfiniBand")
    root.debug(NI, f"ni={NI} device=rxe0", "peer=10.0.0.3@o2ib waiting=1 failures=1")
    lines = root.pings()["10.0.0.3"]
    assert len(lines) == 1 and " -s " not in lines[0], lines
    assert "the subnet manager sets" in named(root.run(), "ping of full size to 10.0.0.3")[0]


def test_only_so_many_are_pinged(root):
    root.program("ping", PING)
    root.debug(NI, f"ni={NI} device=rxe0", *(f"peer=10.0.1.{n}@o2ib waiting=1 failures=1" for n in range(200)))
    sections = root.run()
    assert len({what.split()[-1] for what, _ in sections if what.startswith("command: ping")}) == 8
    assert "192" in named(sections, "peers that were not pinged")[0]


def test_nothing_but_addresses_is_asked_for(root):
    """Checks that only valid addresses reach ping, because debugfs may contain any text."""
    root.program("ping", PING)
    root.debug(
        NI,
        f"ni={NI} device=../../x",
        *(f"peer={bad}@o2ib waiting=1 failures=1" for bad in ("$(id)", "-f", "a;b", "fe80::1", "10.0.0.*", "10.0.0.3")),
    )
    assert set(root.pings()) == {"10.0.0.3"}


def test_other_words_for_other_programs(root):
    """Checks BusyBox's ip, which has only some of the commands."""
    root.program("ip", IP)
    sections = root.run()
    assert named(sections, "command: ip -o address") and named(sections, "command: ip neigh")
    assert named(sections, "command: ip link") and not named(sections, "command: ip -stats link")
    assert not any("Usage" in text for _, text in sections)


def test_limits_and_violations_are_reported(root):
    root.program(
        "ibv_devinfo",
        'echo "hca_id: rxe0"; echo "max_mr: 524288"; echo "bad_pkey_cntr: 0x5"; echo "x: 0xffff888012345678"',
    )
    sections = root.run()
    before, after = named(sections, "command: ibv_devinfo -v (violations)"), named(sections, "command: ibv_devinfo -v")
    assert len(before) == len(after) == 1
    assert "bad_pkey_cntr: 0x5" in before[0] and "hca_id: rxe0" in before[0] and "max_mr" not in before[0]
    assert "max_mr: 524288" in after[0] and "0x(masked)" in after[0]
    names = [what for what, _ in sections]
    assert names.index("command: ibv_devinfo -v (violations)") < names.index(f"/sys/kernel/debug/ro2iblnd/{NI}")


def test_relevant_log_lines(root):
    said = [
        "mlx5_core: reset",
        "kworker/0: page allocation failure: order:4",
        "Out of memory: Killed process 7",
        "ro2iblnd: a@o2ib: link is down",
    ]
    root.program("dmesg", f"cat <<END\n{chr(10).join(said)}\nusb 1-1: new device\nEND")
    assert named(root.run(), "command: dmesg")[0].splitlines()[1:] == said


# Lines of the kernel with the causes of trouble: first, what operators.md quotes.
QUOTED = ("neighbour: arp_cache: neighbor table overflow!", "page allocation failure")
CAUSES = (
    "swiotlb buffer is full (sz: 4096 bytes), total 32768 (slots), used 32768 (slots)",
    "DMAR: [DMA Write] Request device [3b:00.0] PASID ffffffff fault addr ffe00000",
    "AMD-Vi: Event logged [IO_PAGE_FAULT device=3b:00.0 domain=0x0012 flags=0x0020]",
    "arm-smmu-v3 arm-smmu-v3.0.auto: event 0x10 received:",
    "ice 0000:3b:00.0 ens1f0: NIC Link is Down",
    "hns3 0000:7d:00.0 enp125s0f0: link down",
    "irdma 0000:3b:00.0: Fatal error",
    "bond0: (slave ens1f0): link status definitely down, disabling slave",
    "pcieport 0000:3a:00.0: AER: Uncorrected (Fatal) error received: 0000:3b:00.0",
    "newnic 0000:3c:00.0: firmware is dead",
    "Loading of module with unavailable key is rejected",
)


def test_causes_in_the_kernel_log(root):
    """Checks the lines that the documents send an operator to look for, and those of the drivers of devices."""
    with open(os.path.join(HERE, "../Documentation/operators.md"), encoding="utf-8") as f:
        document = f.read()
    assert all(f"`{line}`" in document for line in QUOTED)
    driver = root.path / "sys/class/infiniband/new0/device/driver"
    driver.parent.mkdir(parents=True)
    driver.symlink_to("../../bus/pci/drivers/newnic")
    said = ["[ 1.0] " + line for line in (*QUOTED, *CAUSES)]
    noise = ["[ 2.0] usb 1-1: new device", "[ 2.0] systemd: Started a service of the device"]
    root.program("dmesg", "cat <<'END'\n" + "\n".join([*said, *noise]) + "\nEND")
    assert named(root.run(), "command: dmesg")[0].splitlines()[1:] == said


def test_splat_has_its_stack(root):
    """Checks a stack of which only one line, or none, names the module."""
    oops = [
        "[ 9.0] BUG: kernel NULL pointer dereference, address: 0000000000000008",
        "[ 9.0] CPU: 1 PID: 77 Comm: kworker/1:2",
        "[ 9.0] RIP: 0010:ib_post_send+0x12/0x40 [ib_core]",
        "[ 9.0] RAX: ffff888012345678",
        "[ 9.0]  process_one_work+0x1e7/0x3c0",
        "[ 9.0] ---[ end trace 0000000000000000 ]---",
    ]
    hung = ["[ 20.0] INFO: task mount.lustre:99 blocked for more than 120 seconds.", "[ 20.0]  schedule+0x27/0xa0"]
    lustre = ["[ 8.0] LustreError: 5:0:(ldlm_lockd.c:1) this client was evicted"]
    said = [*lustre, *oops, "[ 9.1] usb 1-1: new device", *hung]
    root.program("dmesg", f"cat <<END\n{chr(10).join(said)}\nEND")
    told = named(root.run(), "command: dmesg")[0].splitlines()[1:]
    assert len(told) == len(said) - 1 and "usb" not in "".join(told), told
    assert told[1].endswith("address: 00000008") and "ffff8880" not in "".join(told) and told[-1] == hung[-1], told


def test_command_line_is_left_out(root):
    """Checks that the kernel's command line, which may contain passwords, is left out even if it has a word of the
    search.
    """
    line = "[ 0.0] Kernel command line: rd.driver.pre=mlx5_core netroot=iscsi:user:secret@10.0.0.9"
    other = "[ 0.1] Unknown kernel command line parameters rdma=secret, will be passed to user space."
    root.program("dmesg", f"echo '{line}'; echo '{other}'; echo '[ 1.0] mlx5_core: reset'")
    assert named(root.run(), "command: dmesg")[0].splitlines()[1:] == ["[ 1.0] mlx5_core: reset"]


def test_programs_that_hang_do_not_hold_it(root):
    """Checks programs that hang, including those that ignore SIGTERM."""
    for name in ("ip", "rdma", "modinfo", "lnetctl", "lctl", "ibv_devinfo", "dmesg", "ping", "uname"):
        root.program(name, "trap '' TERM\necho begun\nsleep 60 & wait\nsleep 60")
    root.debug(NI, f"ni={NI} device=rxe0", *(f"peer=10.0.1.{n}@o2ib waiting=1 failures=1" for n in range(5)))
    sections = root.run("-t", "3")
    assert root.spent < 30
    assert any("took too long" in text for _, text in sections)
    assert "left out" in named(sections, "command: dmesg")[0]


@pytest.mark.parametrize("there", [True, False])
def test_hung_program_is_not_waited_for(tmp_path, there):
    """Checks a program that waits in the kernel for ever: `timeout` does not end it, or is not installed. The report
    does not wait for it, and the program does not keep the output open.
    """
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in (
        "sh",
        "cat",
        "date",
        "grep",
        "head",
        "mktemp",
        "mv",
        "rm",
        "sed",
        "sleep",
        "sort",
        "tail",
        "uniq",
        "wc",
    ):
        (tools / name).symlink_to(shutil.which(name))
    if there:
        (tools / "timeout").write_text('#!/bin/sh\n[ "$1" != -k ] || shift 2\nshift\n"$@"\n')
        (tools / "timeout").chmod(0o755)
    root = Root(tmp_path / "root", (["sh"], {"PATH": str(tools)}))
    root.program("uname", "echo Linux")
    root.program("rdma", "sleep 40")
    sections = root.run("-t", "4")
    assert root.spent < 20
    assert "Linux" in named(sections, "command: uname -srvm")[0]
    assert any("took too long" in text for what, text in sections if what.startswith("command: rdma")), sections


def test_an_ended_report_does_not_look_complete(root, tmp_path):
    """Checks a report that a signal ends, a complete one, and one that goes to a device."""
    command, env = root.shell
    out = tmp_path / "report.txt"
    command = [*command, REPORT, "-s", "0.1", "-r", root.path, "-o"]
    done = subprocess.run([*command, out], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == f"{out}\n" and [path.name for path in tmp_path.glob("report*")] == ["report.txt"]
    done = subprocess.run([*command, "/dev/stdout"], env=env, capture_output=True, text=True, check=True)
    assert "==> " in done.stdout
    out.unlink()
    root.program("rdma", "sleep 60")
    running = subprocess.Popen([*command, out], env=env)
    deadline = time.monotonic() + 60
    while not (tmp_path / "report.txt.part").exists() and not out.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    running.terminate()
    assert running.wait(30) != 0
    assert [path.name for path in tmp_path.glob("report*")] == ["report.txt.part"]


def test_a_file_that_hangs_does_not_hold_it(root):
    """Checks a file that hangs: of the driver, or a counter that is read from the device's firmware."""
    os.mkfifo(root.path / "sys/class/infiniband/rxe0/ports/1/hw_counters/waits")
    os.mkfifo(root.path / "sys/kernel/debug/ro2iblnd/waits")
    sections = root.run("-t", "3")
    assert root.spent < 30
    assert named(sections, f"/sys/kernel/debug/ro2iblnd/{NI}")
    assert any("took too long" in text for _, text in sections)


@pytest.mark.parametrize(
    ("module", "mounted", "why"),
    [
        ("ko2iblnd", True, "the driver that is loaded is ko2iblnd"),
        (None, True, "the driver is not loaded"),
        ("ro2iblnd", False, "debugfs is not mounted (mount -t debugfs none /sys/kernel/debug)"),
    ],
)
def test_node_without_ro2iblnd(root, module, mounted, why):
    """Checks that the report has everything else, and one line that names the missing part."""
    shutil.rmtree(root.path / ("sys/kernel/debug/ro2iblnd" if mounted else "sys/kernel/debug"))
    (root.path / "sys/kernel/debug").mkdir(exist_ok=True)
    shutil.rmtree(root.path / "sys/module/ro2iblnd")
    (root.path / "sys/module/ko2iblnd").unlink()
    if module:
        root.put(f"sys/module/{module}/parameters/timeout", "50")
    root.program("ping", PING)
    root.program("ro2ibtop", "exit 3")
    root.program("lnetctl", 'echo "asked: $*"')
    sections = root.run(says=f"left out: the state of ro2iblnd in debugfs: {why}")
    assert named(sections, "/sys/class/infiniband/rxe0/ports/1/hw_counters/completer_retry_err") == ["7\n"] * 2
    assert "asked: net show -v 4\n" in named(sections, "command: lnetctl net show -v 4")[0]
    assert named(sections, f"/sys/module/{module}/parameters/timeout") == (["50\n"] if module else [])
    assert not any("debug/ro2iblnd" in what or "ro2ibtop" in what or "ping" in what for what, _ in sections)
    assert float(clock(sections)["epoch"]) > 0


def test_non_root_is_reported(root):
    if os.geteuid() == 0:
        pytest.skip("is root")
    debug = root.path / "sys/kernel/debug"
    debug.chmod(0o600)
    root.run(says="left out: the state of ro2iblnd in debugfs: you are not root")
    debug.chmod(0o700)


def test_usage(root):
    command, env = root.shell
    for wrong in (["-t", "0"], ["-t", "x"], ["-t", ""], ["more"]):
        assert (
            subprocess.run(
                [*command, REPORT, "-r", root.path, *wrong], env=env, capture_output=True, check=False
            ).returncode
            == 2
        )
    assert (
        subprocess.run(
            [*command, REPORT, "-r", root.path / "nowhere"], env=env, capture_output=True, check=False
        ).returncode
        == 1
    )
