# SPDX-License-Identifier: GPL-2.0
"""Tests of scripts/hardware-day in a made-up root with made-up programs. Run: pytest scripts"""

import os
import re
import shutil
import subprocess

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = os.path.join(HERE, "hardware-day")
NI, PEER = "10.0.0.1@o2ib", "10.0.0.2@o2ib"
LST = """case "$1" in
stat) echo "[R] Avg: 12.5 RPC/s Min: 1 Max: 2"; echo "[W] Avg: 3.25 MiB/s Min: 1 Max: 2" ;;
show_error) echo "here"; echo "Total 0 error nodes in here"; echo "there"; echo "Total 0 error nodes in there" ;;
esac
echo "lst $*" >>"$LOG"
"""
# rdma does not know the interface of an InfiniBand port, and of a VLAN or a bond it knows the one below.
RDMA = """case "$*" in
"resource show cm_id") echo "link mlx5_0/1 state CONNECT ps TCP src-addr 10.0.0.1:700 dst-addr 10.0.0.2:987" ;;
esac
echo "rdma $*" >>"$LOG"
"""

# The driver sees that the interface goes down.
IP = """echo "ip $*" >>"$LOG"
case "$*" in
"-o -4 address show to 10.0.0.1") echo "7: ib0    inet 10.0.0.1/24 brd 10.0.0.255 scope global ib0" ;;
"link set dev ib0 "*) sed -i "s/ link=[a-z]*/ link=$5/" "${LOG%/*}/sys/kernel/debug/ro2iblnd/NI" ;;
esac
""".replace("NI", NI)


class Root:
    def __init__(self, path):
        self.path = path
        self.log, self.out = path / "log", path / "out.txt"
        device = self.put("sys/devices/pci0/0000:05:00.0/power", "").parent
        (self.path / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
        (self.path / "sys/class/infiniband/mlx5_0/device").symlink_to(device)
        (device / "driver").symlink_to("/sys/bus/pci/drivers/mlx5_core")
        self.debug(f"ni={NI} incarnation=1 device=mlx5_0 peers=1 link=up", "conn=1 rnr=0 no_memory=0")
        self.put(f"sys/kernel/debug/ro2iblnd/{NI}.closes", f"closes={NI} ends=0\n")
        self.program("lst", LST)
        self.program("rdma", RDMA)
        self.program("lnetctl", 'echo "ping:"; echo "    - primary nid: 10.0.0.2@o2ib"')
        self.program("lctl", 'echo "lctl $*" >>"$LOG"')
        self.program("devlink", 'echo "devlink $*" >>"$LOG"')
        self.program("ip", IP)
        self.program("dmesg", "echo '[ 1.0] LNet: Added LNI'")
        self.program("sleep", "exit 0")
        self.program("preflight", "echo 'preflight: ok'")
        self.program("ro2ib-report", 'while [ "$1" != -o ]; do shift; done; echo "the report" >"$2"')

    def put(self, name, text):
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def debug(self, *lines):
        self.put(f"sys/kernel/debug/ro2iblnd/{NI}", "\n".join(lines) + "\n")

    def program(self, name, text):
        self.put(f"bin/{name}", f"#!/bin/sh\n{text}\n").chmod(0o755)

    def start(self, *options):
        return subprocess.run(
            ["sh", SCRIPT, "-r", str(self.path), "-o", self.out, "-s", "1", "-w", "1", *options, PEER],
            env={**os.environ, "LOG": str(self.log)}, check=False, capture_output=True, text=True, timeout=120,
        )  # fmt: skip

    def run(self, *options):
        """Runs the script. Returns the results by step, the file, and the output."""
        done = self.start(*options)
        found = re.findall(r"^(ok|FAILED|skipped) +(.*?): .*$", done.stdout, re.MULTILINE)
        steps = {name: how for how, name in found}
        last = done.stdout.splitlines()[-1]
        count = list(steps.values()).count
        assert last == f"{count('ok')} passed, {count('FAILED')} failed", done.stdout + done.stderr
        assert (done.returncode == 0) == (count("FAILED") == 0)
        return steps, self.out.read_text(), done.stdout


@pytest.fixture
def root(tmp_path):
    return Root(tmp_path)


def test_two_nodes_that_work(root):
    """Checks that every step passes, that contents are verified, and that no fault happens without -f."""
    steps, text, _ = root.run()
    assert {name for name, how in steps.items() if how == "skipped"} == {"faults"}, steps
    assert "FAILED" not in steps.values()
    log = root.log.read_text()
    assert len(re.findall("brw .* check=full", log)) == 12
    assert "ip link" not in log and "devlink" not in log and "del_peer" not in log
    assert "rdma dev set" not in log
    assert text.count("the report") == 2 and "driver mlx5_core, interface ib0" in text


def test_programs_of_root_are_found_without_roots_path(root, monkeypatch):
    """Checks su without "-"."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    root.program("preflight", 'echo "in $PATH"')
    assert re.search("^ok +preflight: in .*:/usr/sbin(:|$)", root.run()[2], re.MULTILINE)


def test_debugfs_that_cannot_be_read_is_named(root):
    """Checks a user other than root, and a node without debugfs: neither proves that the driver has no NI."""
    shutil.rmtree(root.path / "sys/kernel/debug/ro2iblnd")
    steps, _, said = root.run()
    assert steps["the NI"] == "FAILED" and "you are not root, or debugfs is not mounted" in said, said
    root.put("sys/kernel/debug/other", "")
    assert "ro2iblnd has no NI on o2ib" in root.run()[2]


def test_faults_are_caused_and_undone(root):
    """Checks that the interface comes back up, and that the driver is reloaded only with -d."""
    steps, _, _ = root.run("-f", "-d")
    assert "FAILED" not in steps.values(), steps
    log = root.log.read_text()
    assert log.count("ip link set dev ib0 down") == log.count("ip link set dev ib0 up") == 2
    assert f"lctl --net o2ib del_peer {PEER}" in log and "devlink dev reload pci/0000:05:00.0" in log


FAULTS = ["interface down for 1 s", "interface down for 5 s", "peer deleted", "driver reloaded"]


@pytest.mark.parametrize(
    ("program", "text", "missing"),
    [
        ("lst", f'[ "$*" != "add_batch fault" ] || exit 1\n{LST}', FAULTS),
        ("ip", IP.replace("link set dev ib0 ", "not "), FAULTS[:2]),
        ("ip", f'{IP}[ "$*" != "link set dev ib0 down" ]', FAULTS[:2]),
        ("ip", IP.replace("show to 10.0.0.1", "not"), ["faults"]),
        ("lctl", "exit 1", FAULTS[2:3]),
        ("devlink", "exit 1", FAULTS[3:]),
    ],
)
def test_faults_that_do_not_happen(root, program, text, missing):
    """Checks that a fault is not ok if its command or the traffic failed, or if the driver saw nothing of it."""
    root.program(program, text)
    steps, _, _ = root.run("-f", "-d")
    assert [name for name, how in steps.items() if how == "FAILED"] == missing, steps
    assert set(FAULTS) <= steps.keys() or missing == ["faults"], steps


def test_a_run_that_is_ended_brings_the_interface_up(root):
    """Checks a signal while the interface is down."""
    root.program("sleep", '[ "$1" != 5 ] || kill $PPID')
    done = root.start("-f")
    assert done.returncode == 1 and "peer deleted" not in done.stdout, done
    links = re.findall("ip link set dev ib0 (.*)", root.log.read_text())
    assert links == ["down", "up"] * 2, links


@pytest.mark.parametrize(
    ("program", "text", "step"),
    [
        ("lst", LST.replace("0 error nodes in there", "1 error nodes in there"), "brw read check=full size=1M x16"),
        ("lst", LST.replace("Total 0 error nodes", "cannot ask"), "ping x1"),
        ("lnetctl", 'echo "    errno: -113"', "ping"),
        ("preflight", "echo 'preflight: 1 problem'; exit 1", "preflight"),
        ("dmesg", 'echo x >>"$LOG.dmesg"; sed "s/x/[ 1.0] WARNING: CPU: 1/" "$LOG.dmesg"', "kernel log"),
    ],
)
def test_what_fails_is_reported(root, program, text, step):
    """Checks that a failure of each kind fails its step."""
    root.program(program, text)
    steps, text, _ = root.run()
    assert steps[step] == "FAILED", steps
    assert "FAILED" in text


def test_the_reason_of_preflight_is_kept(root):
    root.program("preflight", "echo 'preflight: kernel 6.1 has no rdma_cm' >&2; exit 1")
    steps, text, said = root.run()
    assert steps["preflight"] == "FAILED" and "preflight: preflight: kernel 6.1 has no rdma_cm\n" in said, said
    assert text.count("kernel 6.1 has no rdma_cm") == 2


def counters(closes, rnr, no_memory):
    """Returns the lines of debugfs, of two connections."""
    conns = f"conn=1 rnr={rnr} no_memory={no_memory}", "conn=2 rnr=1 no_memory=1"
    return f"ni={NI} device=mlx5_0 link=up", f"causes={NI} of=closed Shutdown=1 LinkDown={closes}", *conns


@pytest.mark.parametrize(
    ("later", "says"), [((3, 4, 5), ""), ((4, 4, 5), "closed=5"), ((3, 5, 5), "rnr=6"), ((3, 4, 7), "no_memory=8")]
)
def test_counters_that_rise(root, later, says):
    """Checks that a closed connection, an RNR or a lack of memory fails the step only if it is of this run."""
    root.debug(*counters(3, 4, 5))
    root.put("later", "\n".join(counters(*later)) + "\n")
    root.program("lst", f'[ "$1" != run ] || cp {root.path}/later {root.path}/sys/kernel/debug/ro2iblnd/{NI}\n{LST}')
    steps, text, _ = root.run()
    assert steps["counters"] == ("FAILED" if says else "ok"), steps
    assert says in re.search("^.* counters: .*$", text, re.MULTILINE)[0]


def test_a_node_without_the_driver(root):
    """Checks that no traffic runs without an NI of ro2iblnd."""
    for path in (root.path / "sys/kernel/debug/ro2iblnd").iterdir():
        path.unlink()
    steps, _, _ = root.run()
    assert steps["the NI"] == "FAILED" and "ping" not in steps
