# SPDX-License-Identifier: GPL-2.0
"""Tests of the guests themselves, on which every other guest test relies. Run: pytest scripts"""

import contextlib
import os
import sys
import time

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import vm  # noqa: E402


@pytest.mark.parametrize(
    "line",
    [
        "[    1.0] BUG: KASAN: slab-use-after-free in kiblnd_x+0x1/0x2",
        "[    1.0] WARNING: CPU: 0 PID: 1 at lib/refcount.c:28 refcount_warn_saturate",
        "[    1.0] WARNING: possible circular locking dependency detected",
        "[    1.0] INFO: task kworker/0:1:10 blocked for more than 122 seconds.",
        "[    1.0] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
        "[    1.0] Oops: general protection fault, probably for non-canonical address",
        "[    1.0] BUG: unable to handle page fault for address: ffff",
        "[    1.0] rust_kernel: panicked at x.rs:1:2:",
        "[    1.0] Kernel panic - not syncing: Fatal exception",
        "[    1.0] kmemleak: 2 new suspected memory leaks: unreferenced object 0xffff",
    ],
)
def test_splats_finds(line):
    assert vm.splats("quiet\n" + line) == [line]
    assert vm.splats(line, ignore=[r"\[ +1\.0\]"]) == []


def test_races_of_others_are_theirs():
    ours = "[    1.0] BUG: KCSAN: data-race in ro2ib_count [ro2iblnd] / rxe_poll_cq [rdma_rxe]"
    theirs = "[    1.0] BUG: KCSAN: data-race in ib_poll_cq [ib_core] / rxe_poll_cq [rdma_rxe]"
    assert vm.splats(f"{theirs}\n{ours}") == [ours]


WARNING = """[ 1.0] ------------[ cut here ]------------
[ 1.0] WARNING: CPU: 1 PID: 240 at drivers/infiniband/sw/rxe/rxe_verbs.c:1019 rxe_post_recv+0x103/0x1c0 [rdma_rxe]
[ 1.0] Modules linked in: ro2iblnd(OE) rdma_rxe
[ 1.0] Call Trace:
[ 1.0]  {caller}
[ 1.0] ---[ end trace 0000000000000000 ]---
"""


def test_known_warnings_of_other_modules_are_no_splats():
    theirs = WARNING.format(caller="ib_mad_post_receive_mads+0x1bb/0x380 [ib_core]")
    assert vm.splats(theirs) == [] and vm.has_foreign("quiet\n" + theirs)
    for caller in ("ro2ib_ib_post_recv+0x1/0x2 [ro2iblnd]", "nvmet_rdma_post_recv+0x1/0x2 [nvmet_rdma]"):
        other = WARNING.format(caller=caller)
        assert len(vm.splats(other)) == len(vm.splats(theirs + other)) == 2 and not vm.has_foreign(other)


def test_taints_names_forbidden_taints():
    assert vm.taints("0") == vm.taints("12288\n") == []
    assert vm.taints("12800") == ["W"]
    assert vm.taints(str(1 << 40 | 1 << 12)) == ["bit 40"]


@pytest.fixture(scope="module", params=["compiled", "shell"])
def guest(request):
    """Returns a guest with either agent; see init.sh."""
    with vm.Guest(tools=("rping",), compiled=request.param == "compiled") as g:
        assert (g.check("cat /proc/1/comm").strip() == "agent") == (request.param == "compiled")
        yield g


def test_status_and_output(guest):
    assert guest.run("echo out; echo err >&2; exit 3") == (3, "out\nerr\n")
    assert len(guest.check("head -c 1000000 /dev/zero | tr '\\0' x")) == 1000000
    with pytest.raises(vm.CommandFailed):
        guest.check("false")


def test_commands_run_side_by_side_and_hung_ones_are_killed(guest):
    slow = guest.spawn("sleep 1000")
    assert guest.run("echo quick") == (0, "quick\n")
    assert slow.poll() is None
    with pytest.raises(vm.Timeout):
        slow.wait(0.5)
    time.sleep(0.5)
    assert guest.run("ps | grep '[s]leep 1000'")[0] == 1
    with pytest.raises(ValueError, match="100001 characters"):
        guest.run("#" * 100001)


def test_long_answers_at_the_same_time_do_not_mix(guest):
    jobs = [guest.spawn(f"for i in $(seq 20000); do echo {n}; done") for n in "abcd"]
    for job, n in zip(jobs, "abcd"):
        assert job.wait(60) == (0, f"{n}\n" * 20000)
    # The agent had all programs that it needs.
    assert "not found" not in guest.console()


def test_orphans_are_not_waited_for(guest):
    assert guest.run("sleep 1000 & echo $!; kill -9 $$", 10)[0] == 137
    assert guest.run("killall sleep; true # \\ ' \" \t é\n")[0] == 0
    # The agent reaps orphans.
    assert guest.run("sleep 0.2; ps | grep '[s]leep 1000'")[0] == 1


def test_files_go_both_ways(guest, tmp_path):
    path = tmp_path / "file"
    path.write_text("hello\n")
    inside = guest.put(str(path))
    assert guest.check(f"cat {inside}; echo back >/share/answer") == "hello\n"
    with open(os.path.join(guest.share, "answer"), encoding="ascii") as f:
        assert f.read() == "back\n"


def test_plain_reads_and_writes_answer_as_the_shell_does(guest):
    assert guest.run("cat /proc/sys/kernel/ostype") == (0, "Linux\n")
    status, out = guest.run("cat /missing")
    assert status == 1 and "/missing" in out and "No such file" in out
    assert guest.run("cat /proc")[0] == 1
    guest.check("printf 'abcdef\\nrest\\n' >/tmp/file")
    script = "exec 3<>/tmp/file; echo 'x y' >&3 2>/dev/null; cat <&3"
    assert guest.spawn(script, "/tmp/file", "x y").wait() == (0, "ef\nrest\n")
    assert guest.check("cat /tmp/file") == "x y\nef\nrest\n"


def listens(guest):
    """Waits until a program listens there."""
    guest.check(
        "n=0; until rdma resource show cm_id | grep -q LISTEN || [ $n -gt 300 ]; do sleep 0.1; n=$((n + 1)); done", 60
    )


def test_two_links_talk_over_their_veth(guest):
    vm.setup_two_links(guest)
    sent = "cat /sys/class/net/veth0/statistics/tx_bytes"
    before = int(guest.check(sent))
    server = guest.spawn("rping -s -a 10.0.1.2 -C 5 -S 16384")
    listens(guest)
    guest.check("rping -c -I 10.0.1.1 -a 10.0.1.2 -C 5 -S 16384 -V")
    assert server.wait(10)[0] == 0
    assert int(guest.check(sent)) - before > 5 * 16384
    assert vm.splats(guest.dmesg()) == []


def test_pair_talks_and_survives_a_power_cut():
    with vm.pair(tools=("rping",)) as (a, b):
        for _ in range(2):
            server = a.spawn("rping -s -a 10.0.0.1 -C 5 -S 16384")
            listens(a)
            b.check("rping -c -a 10.0.0.1 -C 5 -S 16384 -V")
            assert server.wait(10)[0] == 0
            b.kill()
            with pytest.raises(vm.GuestDead):
                b.run("true")
            b.start()
            vm.setup_link(b)
        assert vm.splats(a.dmesg()) == []


def test_a_panic_is_noticed_and_its_log_is_there():
    with vm.Guest() as g:
        with pytest.raises(vm.GuestDead):
            g.run("echo c >/proc/sysrq-trigger")
        assert any("Kernel panic" in line for line in vm.splats(g.console()))


def test_a_guest_whose_emulator_ends_while_it_boots_boots_again():
    with contextlib.closing(vm.Guest()) as g:
        g.launch()
        g.proc.kill()
        with pytest.warns(UserWarning, match="boots again: guest: QEMU ended with status -9"):
            g.wait_ready()
        assert g.run("true") == (0, "")


def test_a_kernel_that_panics_while_it_boots_does_not_boot_again():
    with contextlib.closing(vm.Guest(append="rdinit=/nowhere init=/nowhere")) as g:
        g.launch()
        with pytest.raises(vm.GuestDead, match="QEMU ended with status 0"):
            g.wait_ready()
        assert "Kernel panic" in g.console()
