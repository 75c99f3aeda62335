# SPDX-License-Identifier: GPL-2.0
"""Tests of scripts/ro2iblnd-switch in made-up roots, with the real modprobe. Run: pytest scripts"""

import os
import shlex
import shutil
import subprocess

import pytest
from fake_modules import KERNEL, depmod, module

HERE = os.path.dirname(os.path.abspath(__file__))
SWITCH = os.path.join(HERE, "ro2iblnd-switch")
ENV = dict(os.environ, PATH=os.environ["PATH"] + ":/usr/sbin:/sbin", LC_ALL="C")

# /etc/modprobe.d/ko2iblnd.conf, as Lustre installs it.
LUSTRE_CONF = """alias ko2iblnd-opa ko2iblnd
options ko2iblnd-opa peer_credits=32 conns_per_peer=4
install ko2iblnd /usr/sbin/ko2iblnd-probe
"""


class Node:
    """Root with modules and modprobe.d, and the actions of modprobe in it."""

    def __init__(self, root):
        self.root = root
        self.conf = root / "etc/modprobe.d"
        self.conf.mkdir(parents=True)
        self.modules = root / "lib/modules" / KERNEL
        (root / "run").mkdir()
        program = root / "usr/sbin/ro2iblnd-switch"
        program.parent.mkdir(parents=True)
        program.touch(0o755)
        for name in ("ib_core", "rdma_cm"):
            module(self.modules / f"kernel/drivers/infiniband/core/{name}.ko")

    def ours(self, **info):
        info = {"version": "0.1.0", "alias": "ko2iblnd", "srcversion": "AAA", **info}
        module(self.modules / "updates/dkms/ro2iblnd.ko", kernel_crate="own", **info)
        depmod(self.root)

    def other(self, name, **info):
        module(self.modules / f"updates/kernel/net/{name}.ko", **info)
        depmod(self.root)

    def theirs(self, **info):
        info = {"version": "2.17.57", "srcversion": "BBB", **info}
        module(self.modules / "updates/kernel/net/lustre/ko2iblnd.ko", **info)
        depmod(self.root)

    def load(self, name, version="0.1.0", srcversion="AAA"):
        where = self.root / "sys/module" / name
        where.mkdir(parents=True)
        (where / "version").write_text(version + "\n")
        (where / "srcversion").write_text(srcversion + "\n")

    def run(self, *args):
        command = [SWITCH, "-d", self.root, "-k", KERNEL, *args]
        done = subprocess.run(command, env=ENV, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    def modprobe(self, *args):
        command = ["modprobe", "-d", self.root, "-C", self.conf, "-S", KERNEL, "--show-depends", *args]
        done = subprocess.run(command, env=ENV, capture_output=True, text=True)
        return [line.replace(str(self.root), "") for line in done.stdout.splitlines()]

    def files(self):
        return sorted(str(p.relative_to(self.conf)) for p in self.conf.rglob("*"))


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


@pytest.fixture
def both(node):
    node.theirs()
    node.ours()
    return node


THEIRS = f"insmod /lib/modules/{KERNEL}/updates/kernel/net/lustre/ko2iblnd.ko"
OURS = f"insmod /lib/modules/{KERNEL}/updates/dkms/ro2iblnd.ko"
LOAD = "install /usr/sbin/ro2iblnd-switch load"


def test_nothing_is_switched_by_being_installed(both):
    assert both.modprobe("ko2iblnd")[-1].startswith(THEIRS)
    status, out, err = both.run("status")
    assert status == 0, err
    assert "configured: ko2iblnd 2.17.57" in out and "not switched" in out
    assert "installed:  ro2iblnd 0.1.0" in out
    assert "loaded:     none" in out


def test_ours_answers_where_there_is_no_ko2iblnd(node):
    node.ours()
    assert node.modprobe("ko2iblnd")[-1].startswith(OURS)
    status, out, _ = node.run("status")
    assert status == 0
    assert "configured: ro2iblnd 0.1.0" in out and "not switched" in out


def test_lustres_install_line_is_reported_by_status(node):
    node.ours()
    (node.conf / "ko2iblnd.conf").write_text(LUSTRE_CONF)
    status, out, err = node.run("status")
    assert status == 1
    assert "configured: none" in out
    assert "ro2iblnd-switch ro2iblnd" in err
    assert node.run("ro2iblnd")[0] == 0
    assert "configured: ro2iblnd 0.1.0" in node.run("status")[1]


@pytest.mark.parametrize("lustre_conf", ["", LUSTRE_CONF], ids=["bare", "install-line"])
def test_there_and_back_changes_nothing_else(both, lustre_conf):
    (both.conf / "ko2iblnd.conf").write_text(lustre_conf)
    before = both.files(), both.modprobe("ko2iblnd"), both.modprobe("ko2iblnd-opa")
    status, _, err = both.run("ro2iblnd")
    assert status == 0 and err == ""
    assert both.modprobe("ko2iblnd")[-1].startswith(LOAD)
    assert both.modprobe("--ignore-install", "ko2iblnd")[-1].startswith(OURS)
    status, out, err = both.run("status")
    assert status == 0, err
    assert "configured: ro2iblnd 0.1.0" in out and "installed:  ko2iblnd 2.17.57" in out
    assert both.run("ko2iblnd")[0] == 0
    assert (both.files(), both.modprobe("ko2iblnd"), both.modprobe("ko2iblnd-opa")) == before
    assert (both.conf / "ko2iblnd.conf").read_text() == lustre_conf


def test_options_of_both_names_reach_ours(both):
    (both.conf / "ko2iblnd.conf").write_text(LUSTRE_CONF)
    (both.conf / "site.conf").write_text("options ko2iblnd peer_credits=16 service=988\n")
    (both.conf / "new.conf").write_text("options ro2iblnd conns_per_peer=2\n")
    both.run("ro2iblnd")
    # LNet's request; the command of the switch's "install" line, for this request and for "modprobe ro2iblnd"
    for name in ("ko2iblnd", "ro2iblnd"):
        assert both.modprobe(name)[-1].startswith(LOAD)
    line = both.modprobe("--ignore-install", "ko2iblnd")[-1]
    for option in ("peer_credits=16", "service=988", "conns_per_peer=2"):
        assert option in line.split()
    # the options still reach Lustre's driver after the switch back
    both.run("ko2iblnd")
    line = both.modprobe("--ignore-install", "ko2iblnd")[-1]
    assert line.startswith(THEIRS) and "service=988" in line and "conns_per_peer=2" not in line


def test_load_runs_modprobe_by_the_name_whose_options_count(both, tmp_path):
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "modprobe").write_text('#!/bin/sh\necho "$@"\n')
    (fake / "modprobe").chmod(0o755)
    env = dict(ENV, PATH=f"{fake}:{ENV['PATH']}")
    done = subprocess.run([SWITCH, "load", "service=988"], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "--ignore-install ko2iblnd service=988\n"), done


def fake_modprobe(tmp_path):
    """Makes a modprobe that passes on queries and prints other calls. With another configuration, it prints what
    modprobe would load with it.
    """
    fake = tmp_path / "bin"
    fake.mkdir(exist_ok=True)
    real = shutil.which("modprobe", path=ENV["PATH"])
    (fake / "modprobe").write_text(
        f'#!/bin/sh\ncase " $* " in *" -c "*|*" --show-depends "*) exec {real} "$@" ;; esac\n'
        f'[ -z "$MODPROBE_OPTIONS" ] || exec {real} --show-depends "$@"\necho "$@"\n'
    )
    (fake / "modprobe").chmod(0o755)
    return dict(ENV, PATH=f"{fake}:{ENV['PATH']}")


def test_a_kernel_without_ours_gets_lustres(node, tmp_path):
    """Checks a switched node without a module, as after an update of the kernel for which the driver could not be
    built.
    """
    node.theirs()
    node.ours()
    assert node.run("ro2iblnd")[0] == 0
    (node.modules / "updates/dkms/ro2iblnd.ko").unlink()
    depmod(node.root)
    (node.conf / "site.conf").write_text("options ko2iblnd peer_credits=16\n")
    status, out, err = node.run("status")
    assert status == 1
    assert f"but there is none for kernel {KERNEL}" in out
    assert "LNet gets Lustre's ko2iblnd" in err
    # The node is switched again, for a kernel that has a module.
    other = node.modules.parent / "other"
    other.mkdir()
    (other / "ro2iblnd.ko").touch()
    assert "LNet gets Lustre's ko2iblnd there" in node.run("ro2iblnd")[2]
    kmsg = node.root / "dev/kmsg"
    kmsg.parent.mkdir()
    kmsg.touch()
    command = [SWITCH, "-d", node.root, "-k", KERNEL, "load"]
    done = subprocess.run(command, env=fake_modprobe(tmp_path), capture_output=True, text=True)
    assert done.stdout.replace(str(node.root), "").split() == [*THEIRS.split(), "peer_credits=16"], done
    assert kmsg.read_text().startswith(f"<4>ro2iblnd-switch: no ro2iblnd for kernel {KERNEL}"), done
    # To unload Lustre's driver does not help.
    node.load("ko2iblnd", "2.17.57", "BBB")
    status, out, err = node.run("status")
    assert status == 1 and "loaded:     ko2iblnd" in out and "lustre_rmmod" not in err, err
    assert f"no ro2iblnd for kernel {KERNEL}: LNet gets Lustre's ko2iblnd" in err
    # The modules that it needs are loaded before, with their own options.
    (node.conf / "site.conf").write_text("options lnet networks=o2ib\noptions ko2iblnd peer_credits=16\n")
    node.other("lnet", exports={"lnet_parse": 1})
    node.theirs(imports={"lnet_parse": 1})
    done = subprocess.run(command, env=fake_modprobe(tmp_path), capture_output=True, text=True)
    first, last = (line.split() for line in done.stdout.splitlines())
    assert first[-1] == "networks=o2ib" and last[-1] == "peer_credits=16", done
    # Lustre's own probe of adapters runs, as on a node that is not switched.
    (node.conf / "ko2iblnd.conf").write_text(LUSTRE_CONF)
    done = subprocess.run(command, env=fake_modprobe(tmp_path), capture_output=True, text=True)
    assert done.stdout.splitlines()[-1].startswith("install /usr/sbin/ko2iblnd-probe"), done
    assert sorted(p.name for p in (node.root / "run").iterdir()) == ["ro2iblnd-switch.why"]
    # Without either driver, the status reports it.
    (node.modules / "updates/kernel/net/lustre/ko2iblnd.ko").unlink()
    depmod(node.root)
    status, _, err = node.run("status")
    assert status == 1 and "no driver for o2ib" in err


OTHER_VERSION = "[ 7.0] ro2iblnd: disagrees about version of symbol lnet_parse"


@pytest.mark.parametrize(
    ("error", "log", "other"),
    [
        ("Exec format error", "", True),
        ("Required key not available", "", True),
        ("Key was rejected by service", "", True),
        # A kernel in lockdown that does not demand signatures otherwise; SELinux.
        ("Operation not permitted", "", True),
        ("Permission denied", "", True),
        ("Unknown symbol in module, or unknown parameter (see dmesg)", "", True),
        ("Invalid argument", OTHER_VERSION, True),
        # An administrator has to correct a wrong parameter.
        ("Invalid argument", "[ 7.0] ro2iblnd: parameter wrq_sge=0 is out of range 1..256", False),
        ("Numerical result out of range", "", False),
    ],
)
def test_one_that_does_not_fit_gives_way_to_lustres(both, tmp_path, error, log, other):
    """Checks a module that the kernel refuses, as after an update of Lustre for which the driver could not be built."""
    assert both.run("ro2iblnd")[0] == 0
    env = fake_modprobe(tmp_path)
    fake = tmp_path / "bin/modprobe"
    fails = f'case "$*" in "--ignore-install ko2iblnd"*) echo "modprobe: ERROR: could not insert: {error}" >&2; exit 1 ;; esac\n'
    fake.write_text(fake.read_text().replace("\n", "\n" + fails, 1))
    (tmp_path / "bin/dmesg").write_text(f"#!/bin/sh\necho '{log}'\n")
    (tmp_path / "bin/dmesg").chmod(0o755)
    (both.root / "dev").mkdir()
    (both.root / "dev/kmsg").touch()
    command = [SWITCH, "-d", both.root, "-k", KERNEL, "load"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    said = (both.root / "dev/kmsg").read_text()
    assert error in done.stderr, done
    if other:
        assert done.returncode == 0 and done.stdout.replace(str(both.root), "").split() == THEIRS.split(), done
        assert said.startswith("<4>ro2iblnd-switch: ro2iblnd for kernel") and "does not fit" in said, said
    else:
        assert done.returncode == 1 and not done.stdout and not said, (done, said)
        return
    # The status does not advise to unload it in vain.
    both.load("ko2iblnd", "2.17.57", "BBB")
    status, _, err = both.run("status")
    assert status == 1 and "ko2iblnd was loaded in place of ro2iblnd: ro2iblnd for kernel" in err, err
    assert "when ro2iblnd-preflight says ok: unmount" in err and "is configured" not in err, err
    # The reason is gone once ro2iblnd was loaded.
    fake.write_text(fake.read_text().replace(fails, ""))
    assert subprocess.run(command, env=env, capture_output=True, check=False).returncode == 0
    assert "ko2iblnd is loaded, ro2iblnd is configured" in both.run("status")[2]


@pytest.mark.parametrize("closed", [(), (0, 1, 2), (0,), (1,), (2,)], ids=str)
@pytest.mark.parametrize("ours", ["missing", "refused"])
def test_the_kernel_starts_modprobe_without_open_files(both, tmp_path, ours, closed):
    """Checks a request of LNet, which comes from a kernel thread: descriptors 0, 1 and 2 are closed."""
    assert both.run("ro2iblnd")[0] == 0
    env = fake_modprobe(tmp_path)
    calls = tmp_path / "calls"
    fake = tmp_path / "bin/modprobe"
    begins = f'\necho "$@" >>{calls}\n'
    if ours == "refused":
        begins += 'case "$*" in "--ignore-install ko2iblnd"*) echo "ERROR: Exec format error" >&2; exit 1 ;; esac\n'
    fake.write_text(fake.read_text().replace("\n", begins, 1))
    if ours == "missing":
        (both.modules / "updates/dkms/ro2iblnd.ko").unlink()
        depmod(both.root)
    (both.root / "dev").mkdir()
    (both.root / "dev/kmsg").touch()

    def close():
        for n in closed:
            os.close(n)

    done = subprocess.run([SWITCH, "-d", both.root, "-k", KERNEL, "load"], env=env, preexec_fn=close, check=False)
    assert done.returncode == 0
    assert calls.read_text().splitlines()[-1] == "ko2iblnd"
    assert (both.root / "dev/kmsg").read_text().startswith("<4>ro2iblnd-switch: ")


def test_no_administrator_may_ask(both):
    """Checks a user whose PATH does not contain modprobe."""
    assert both.run("ro2iblnd")[0] == 0
    command = [SWITCH, "-d", both.root, "-k", KERNEL, "status"]
    done = subprocess.run(command, env=dict(ENV, PATH="/usr/bin:/bin"), capture_output=True, text=True)
    assert done.returncode == 0 and "configured: ro2iblnd 0.1.0" in done.stdout, done


@pytest.mark.parametrize("form", ["xz", "zst", "gz"])
def test_compressed_modules(both, form):
    tool = {"xz": "xz", "zst": "zstd", "gz": "gzip"}[form]
    kmod = subprocess.run(["modprobe", "--version"], env=ENV, capture_output=True, text=True).stdout
    if {"xz": "-XZ", "zst": "-ZSTD", "gz": "-ZLIB"}[form] in kmod:
        pytest.skip(f"kmod without {form} here")
    for path in list(both.modules.rglob("*.ko")):
        try:
            subprocess.run([tool, "-q", path], check=True)
        except FileNotFoundError:
            pytest.skip(f"no {tool} here")
        path.unlink(missing_ok=True)
    depmod(both.root)
    assert f"/ko2iblnd.ko.{form}" in both.run("status")[1]
    assert both.run("ro2iblnd")[0] == 0
    out = both.run("status")[1]
    assert f"/ro2iblnd.ko.{form}" in out.splitlines()[0]


def test_status_of_another_loaded_driver(both):
    both.load("ko2iblnd", "2.17.57", "BBB")
    assert both.run("status")[0] == 0
    status, _, err = both.run("ro2iblnd")
    assert status == 0 and "ko2iblnd is loaded and stays so" in err
    status, out, err = both.run("status")
    assert status == 1
    assert "loaded:     ko2iblnd 2.17.57" in out
    assert "ko2iblnd is loaded, ro2iblnd is configured" in err


def test_an_updated_module_is_not_the_one_in_memory(both):
    both.run("ro2iblnd")
    both.load("ro2iblnd", srcversion="OLD")
    status, _, err = both.run("status")
    assert status == 1
    assert "another build" in err


def test_switching_to_missing_driver_fails(node):
    node.theirs()
    status, _, err = node.run("ro2iblnd")
    assert status == 1
    assert "nothing changed" in err
    assert node.files() == []


def test_switching_where_the_program_is_not(both):
    """Checks a switch from the sources before an installation: modprobe would not find the program, and would load no
    driver.
    """
    (both.root / "usr/sbin/ro2iblnd-switch").unlink()
    status, _, err = both.run("ro2iblnd")
    assert status == 1 and "make install" in err and "nothing changed" in err, err
    assert both.files() == []


def as_nobody(node, *args):
    """Runs the switch as a user other than root."""
    if os.geteuid():
        pytest.skip("needs root")
    program = node.root / "usr/sbin/ro2iblnd-switch"
    shutil.copy(SWITCH, program)
    # Other users may not enter pytest's own folders.
    for path in [node.root, *node.root.parents]:
        if not path.stat().st_mode & 0o001:
            if "pytest-" not in str(path):
                pytest.skip(f"no other user may enter {path}")
            path.chmod(path.stat().st_mode | 0o055)
    command = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        program,
        "-d",
        node.root,
        "-k",
        KERNEL,
        *args,
    ]
    done = subprocess.run(command, env=ENV, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_status_with_a_strict_umask(both):
    umask = os.umask(0o077)
    try:
        assert both.run("ro2iblnd")[0] == 0
    finally:
        os.umask(umask)
    status, out, err = as_nobody(both, "status")
    assert status == 0 and "configured: ro2iblnd 0.1.0" in out, (out, err)
    (both.conf / "ro2iblnd-switch.conf").chmod(0o600)
    status, out, err = as_nobody(both, "status")
    assert status == 1 and "run as root" in err and not out, (out, err)


def test_switch_needs_root(both):
    for to in ("ro2iblnd", "ko2iblnd"):
        status, _, err = as_nobody(both, to)
        assert status == (1 if to == "ro2iblnd" else 0) and ("not root, or a read-only" in err) == (to == "ro2iblnd"), err
    assert both.files() == []
    both.run("ro2iblnd")
    status, _, err = as_nobody(both, "ko2iblnd")
    assert status == 1 and "cannot write to" in err and "not root, or a read-only file system" in err, err
    assert both.files() == ["ro2iblnd-switch.conf"]


def test_switch_back_to_missing_driver_is_reported(node):
    node.ours()
    node.run("ro2iblnd")
    status, _, err = node.run("ko2iblnd")
    assert status == 0
    assert f"no ko2iblnd for kernel {KERNEL}" in err


def test_this_driver_under_the_other_name(node):
    module(node.modules / "updates/ko2iblnd.ko", kernel_crate="own", version="0.1.0")
    depmod(node.root)
    assert "this driver under that name" in node.run("status")[1]


def test_foreign_alias_is_found(both):
    (both.conf / "z-site.conf").write_text("alias ko2iblnd other\n")
    module(both.modules / "extra/other.ko")
    depmod(both.root)
    status, _, err = both.run("ro2iblnd")
    assert status == 1
    assert "modprobe still answers with other" in err


@pytest.mark.parametrize("switched", [True, False])
def test_a_module_after_ours_is_not_the_answer(both, switched):
    """Checks a softdep that loads another module after the driver, which modprobe then lists last."""
    both.other("afterwards")
    if not switched:
        (both.modules / "updates/kernel/net/lustre/ko2iblnd.ko").unlink()
        depmod(both.root)
    (both.conf / "site.conf").write_text("softdep ro2iblnd post: afterwards\n")
    if switched:
        assert both.run("ro2iblnd") == (0, "", "")
    status, out, err = both.run("status")
    assert status == 0 and out.startswith("configured: ro2iblnd 0.1.0"), (out, err)


def test_usage(node):
    for args in ([], ["maybe"], ["status", "now"]):
        status, _, err = node.run(*args)
        assert status == 2 and err.startswith("usage:")


def site_probe(node, passes):
    """Installs a site's own ko2iblnd-probe, which chooses a set of options that Lustre does not know."""
    probe = node.root / "usr/sbin/site-probe"
    probe.write_text(f"#!/bin/sh\nexec modprobe --ignore-install ko2iblnd-mlx5 {passes}\n")
    probe.chmod(0o755)
    (node.conf / "ko2iblnd.conf").write_text(
        f"alias ko2iblnd-mlx5 ko2iblnd\noptions ko2iblnd-mlx5 peer_credits=63 conns_per_peer=2\n{LUSTRE_CONF}".replace(
            "/usr/sbin/ko2iblnd-probe", str(probe)
        )
    )


def loads(node, tmp_path, *args, wrong=""):
    """Runs `load`. Returns its status, a line for each module that modprobe would insert, and its other output."""
    env = fake_modprobe(tmp_path)
    real = shutil.which("modprobe", path=ENV["PATH"])
    fake = tmp_path / "bin/modprobe"
    text = fake.read_text().replace("[ -z", f"mkdir -p {node.root}/sys/module/ro2iblnd\n{wrong}[ -z")
    plain = f'exec {real} --show-depends -d {node.root} -C {node.conf} -S {KERNEL} "$@"\n'
    fake.write_text(text.replace('echo "$@"\n', plain))
    command = [SWITCH, "-d", node.root, "-k", KERNEL, "load", *args]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = done.stdout.replace(str(node.root), "").splitlines()
    lines = [line for line in said if line.startswith("insmod ")]
    return done.returncode, lines, [line for line in said if line not in lines]


@pytest.mark.parametrize("name", ["ko2iblnd-opa", "ko2iblnd_opa", "ko2iblnd-mlx5"])
@pytest.mark.parametrize("install", ["", "install ko2iblnd /usr/sbin/ko2iblnd-probe\n"], ids=["bare", "install-line"])
def test_every_alias_of_ko2iblnd_leads_to_ours(both, name, install):
    """Checks names by which a start script may load the driver: without these aliases ko2iblnd would be loaded before
    LNet's request, and ro2iblnd never.
    """
    site = "alias ko2iblnd-mlx5 ko2iblnd\noptions ko2iblnd-mlx5 peer_credits=63\n"
    (both.conf / "ko2iblnd.conf").write_text(site + LUSTRE_CONF.replace("install", "# install") + install)
    assert both.run("ro2iblnd") == (0, "", "")
    assert both.modprobe(name)[-1].startswith(LOAD)
    for words in ([name], ["--ignore-install", name]):
        assert not any("/ko2iblnd.ko" in line for line in both.modprobe(*words)), both.modprobe(*words)
    last = both.modprobe("--ignore-install", name)[-1]
    assert last.startswith(OURS) and f"peer_credits={63 if 'mlx5' in name else 32}" in last
    assert both.run("status")[0] == 0


def test_later_alias_is_reported(both):
    assert both.run("ro2iblnd")[0] == 0
    (both.conf / "site.conf").write_text("alias ko2iblnd-mlx5 ko2iblnd\n")
    # Lustre's driver is not loaded in any case.
    assert both.modprobe("ko2iblnd-mlx5") == []
    status, _, err = both.run("status")
    assert status == 1 and "the alias ko2iblnd_mlx5 leads to ko2iblnd" in err, err
    assert both.run("ro2iblnd") == (0, "", "")
    assert both.run("status")[0] == 0 and both.modprobe("ko2iblnd-mlx5")[-1].startswith(LOAD)


@pytest.mark.parametrize("passes", ["$CMDLINE_OPTS", ""])
def test_a_sites_own_probe_chooses_the_options(both, tmp_path, passes):
    """Checks a probe that passes on the options of ko2iblnd, as Lustre's does, and a probe that does not."""
    site_probe(both, passes)
    tune = "ni_tune=*@o2ib tos=96; 10.0.0.1@o2ib tos=0"
    assert both.run("ro2iblnd") == (0, "", "")
    # modprobe passes these to the "install ro2iblnd" line for LNet's request.
    status, lines, err = loads(both, tmp_path, "timeout=60", tune, "peer_credits=31")
    assert status == 0, err
    assert lines[-1].startswith(OURS) and len(lines) == 1, lines
    # If an option is given twice, the kernel takes the last value.
    profile = ["peer_credits=63", "conns_per_peer=2"]
    assert shlex.split(lines[-1])[2:] == [*profile, "timeout=60", tune, "peer_credits=31"], lines
    assert both.run("status")[2] == ""
    assert sorted(p.name for p in (both.root / "run").iterdir()) == []


@pytest.mark.parametrize(
    "command",
    ["/bin/false", "/bin/true", "/nowhere/ko2iblnd-probe", "modprobe ko2iblnd"],
    ids=["false", "true", "gone", "again"],
)
def test_a_command_that_loads_nothing_does_not_keep_ours_out(both, tmp_path, command):
    (both.conf / "ko2iblnd.conf").write_text(f"install ko2iblnd {command}\n")
    assert both.run("ro2iblnd") == (0, "", "")
    wrong = 'case "$*" in --ignore-install*) ;; *) rmdir {0}/sys/module/ro2iblnd; exit 0 ;; esac\n'.format(both.root)
    status, lines, err = loads(both, tmp_path, "timeout=60", wrong=wrong)
    assert status == 0, err
    assert [line.split() for line in lines] == [[*OURS.split(), "timeout=60"]], lines


def test_soft_dependencies_of_ko2iblnd_are_loaded(both, tmp_path):
    """Checks the usual solution for an interface that is missing when LNet starts."""
    for name in ("ib_ipoib", "mlx5_ib", "afterwards"):
        both.other(name)
    (both.conf / "site.conf").write_text("softdep ko2iblnd pre: ib_ipoib mlx5_ib post: afterwards\n")
    assert both.run("ro2iblnd") == (0, "", "")
    status, lines, err = loads(both, tmp_path)
    assert status == 0, err
    names = [line.split()[1].split("/")[-1] for line in lines]
    assert names == ["ib_ipoib.ko", "mlx5_ib.ko", "ro2iblnd.ko", "afterwards.ko"], lines


def test_a_kernel_without_rdma_modules(both, tmp_path):
    """Checks a kernel whose RDMA modules are in a package of their own. Lustre's driver could not be loaded, either."""
    assert both.run("ro2iblnd")[0] == 0
    (both.modules / "kernel/drivers/infiniband/core/rdma_cm.ko").unlink()
    depmod(both.root)
    says = f"ro2iblnd-switch: kernel {KERNEL} has no rdma_cm: without its RDMA modules no driver for o2ib"
    status, _, err = both.run("status")
    assert status == 1 and err.startswith(says) and "ro2iblnd-preflight names the package" in err, err
    (both.root / "dev").mkdir()
    (both.root / "dev/kmsg").touch()
    wrong = 'echo "modprobe: ERROR: could not insert: Unknown symbol in module" >&2; exit 1\n'
    status, lines, err = loads(both, tmp_path, wrong=wrong)
    assert status == 1 and not lines and not any("does not fit" in line for line in err), (lines, err)
    assert (both.root / "dev/kmsg").read_text().startswith(f"<4>{says}")
    assert not (both.root / "run/ro2iblnd-switch.why").exists()


def test_the_headers_of_a_kernel_alone(both):
    """Checks a build host or an image, in which only the modules for the kernel are installed."""
    assert both.run("ro2iblnd")[0] == 0
    shutil.rmtree(both.modules / "kernel")
    depmod(both.root)
    status, _, err = both.run("status")
    assert status == 0 and "RDMA" not in err, err
    # Modules that are built into the kernel need no files.
    (both.modules / "modules.builtin").write_text("kernel/drivers/infiniband/core/rdma_cm.ko\n")
    assert both.run("status")[0] == 0


def test_the_name_that_tools_read_is_no_other_driver(both):
    """Checks that /sys/module/ko2iblnd, which ro2iblnd makes a link to itself, does not count as another driver."""
    both.run("ro2iblnd")
    both.load("ro2iblnd")
    (both.root / "sys/module/ko2iblnd").symlink_to("ro2iblnd")
    status, out, err = both.run("status")
    assert status == 0, err
    assert "loaded:     ro2iblnd" in out and "loaded:     ko2iblnd" not in out, out


# Lines of the configuration of sites, and the options that must reach the module.
FIELD = [
    "options ko2iblnd-opa peer_credits=128 peer_credits_hiw=64 credits=1024 concurrent_sends=256 ntx=2048"
    " map_on_demand=32 fmr_pool_size=2048 fmr_flush_trigger=512 fmr_cache=1 conns_per_peer=4",
    "options ko2iblnd-opa peer_credits=32 peer_credits_hiw=16 credits=1024 concurrent_sends=64 ntx=2048"
    " map_on_demand=256 fmr_pool_size=2048 fmr_flush_trigger=512 fmr_cache=1 conns_per_peer=4",
    "options ko2iblnd peer_credits=128 peer_credits_hiw=64 credits=1024 concurrent_sends=256 ntx=2048"
    " map_on_demand=32 fmr_pool_size=2048 fmr_flush_trigger=512 fmr_cache=1",
    "options ko2iblnd peer_credits=32 peer_credits_hiw=16 concurrent_sends=64",
    "options ko2iblnd credits=256 peer_credits=64 peer_credits_hiw=32 concurrent_sends=64",
    "options ko2iblnd map_on_demand=0",
    "options ko2iblnd timeout=100 peer_timeout=0 retry_count=7 rnr_retry_count=7 keepalive=30",
    "options ko2iblnd conns_per_peer=4 peer_credits=42 concurrent_sends=84 ntx=2048 credits=1024 timeout=10"
    " wrq_sge=1 dev_failover=1",
]


@pytest.mark.parametrize("line", FIELD)
def test_lines_of_the_field(both, tmp_path, line):
    name = line.split()[1]
    (both.conf / "ko2iblnd.conf").write_text("".join(x for x in LUSTRE_CONF.splitlines(True) if "options" not in x))
    (both.conf / "site.conf").write_text(line + "\n")
    before = both.modprobe("--ignore-install", name)[-1]
    assert before.startswith(THEIRS)
    assert both.run("ro2iblnd") == (0, "", "")
    words = line.split()[2:]
    assert both.modprobe("--ignore-install", name)[-1].split() == [*OURS.split(), *words]
    # The options also pass through the "install" line, with either name.
    asked = both.modprobe(name)[-1]
    assert asked.startswith(LOAD) and asked.split()[-len(words) :] == words
    status, lines, err = loads(both, tmp_path, *words)
    assert status == 0 and lines[-1].startswith(OURS) and lines[-1].split()[-len(words) :] == words, (lines, err)
    assert both.run("status")[0] == 0


@pytest.mark.parametrize(
    "line",
    [
        'options lnet networks="o2ib0(ib1,ib2,ib3,ib4,ib6,ib7,ib8,ib9)"',
        "options lnet networks=o2ib1(ibp65s0f0,ibp65s0f1),o2ib0(ibp129s0f0,ibp129s0f1)",
        "options lnet networks=o2ib(ienp175s0f0) config_on_load=1 lnet_peer_discovery_disabled=1",
        'options lnet networks="o2ib(bond0)"',
        'options lnet networks="tcp o2ib" forwarding=enabled',
        'options lnet ip2nets="o2ib0(ib0) 192.168.10.[103-253/2]"',
        'options lnet networks="o2ib0(ib0)" routes="tcp0 10.6.1.[1-8]@o2ib0"',
        'options lnet networks="o2ib0(ib0),o2ib1(ib0:0),o2ib2(ib0:1)"',
        'options libcfs cpu_npartitions=24 cpu_pattern=""',
    ],
)
def test_lines_of_lnet_stay_as_they_are(both, line):
    name = line.split()[1]
    both.other(name)
    (both.conf / "lustre.conf").write_text(line + "\n")
    before = both.modprobe(name)
    assert before[-1].rstrip().endswith(line.split(maxsplit=2)[2])
    assert both.run("ro2iblnd") == (0, "", "")
    assert both.modprobe(name) == before
