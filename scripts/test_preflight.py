# SPDX-License-Identifier: GPL-2.0
"""Tests of scripts/preflight with made-up systems, each with one fault. Run: pytest scripts"""

import os
import re
import shutil
import stat
import subprocess

import pytest
from fake_modules import KERNEL, depmod, module

HERE = os.path.dirname(os.path.abspath(__file__))
PREFLIGHT = os.path.join(HERE, "preflight")
RUSTC_TEXT = "rustc 1.99.0 (fake)"
CONFIG = f"""CONFIG_64BIT=y
CONFIG_X86_64=y
CONFIG_MODULES=y
CONFIG_INFINIBAND=m
CONFIG_INFINIBAND_ADDR_TRANS=y
CONFIG_OBJTOOL=y
CONFIG_CC_VERSION_TEXT="fake-cc (Fake 14.2.0) 14.2.0"
"""
IN_TREE = f'CONFIG_RUST=y\nCONFIG_RUSTC_VERSION_TEXT="{RUSTC_TEXT}"\n'
LNET_EXPORTS = {"lnet_register_lnd": 0x1111AAAA, "lnet_parse": 0x2222BBBB, "lnet_finalize": 0x3333CCCC}
KERNEL_EXPORTS = {"ib_post_send": 0x4444DDDD, "rdma_lock_handler": 0x5555EEEE}
DEBIAN = 'ID=debian\nVERSION_ID="13"\n'


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def symvers(exports, owner):
    return "".join(f"{crc:#010x}\t{name}\t{owner}\tEXPORT_SYMBOL_GPL\t\n" for name, crc in exports.items())


class System:
    """Root with headers, tools and a Lustre tree, in which preflight finds no fault."""

    def __init__(self, root):
        self.root = root
        self.preflight = PREFLIGHT
        self.bin = root / "bin"
        self.kdir = root / "lib/modules" / KERNEL / "build"
        self.conf = write(self.kdir / "include/config/auto.conf", CONFIG)
        write(self.kdir / "include/config/kernel.release", KERNEL + "\n")
        write(self.kdir / "Module.symvers", symvers(KERNEL_EXPORTS, "ib_core"))
        script(self.kdir / "tools/objtool/objtool", "")
        write(root / "etc/os-release", DEBIAN)
        write(root / "proc/sys/kernel/osrelease", KERNEL + "\n")
        self.sysroot = root / "rust"
        self.core = write(self.sysroot / "lib/rustlib/src/rust/library/core/src/lib.rs", "")
        self.rustc()
        self.bindgen = script(self.bin / "bindgen", 'echo "bindgen 0.73.0"')
        script(self.bin / "fake-cc", 'echo "fake-cc (Fake 14.2.0) 14.2.0"')
        script(self.bin / "mokutil", 'echo "$2 is not enrolled"')
        self.lustre = root / "usr/src/lustre-release"
        write(self.lustre / "include/linux/lnet/lib-lnet.h", "")
        write(self.lustre / "config.h", '#define VERSION "2.17.57"\n')
        self.symvers = write(self.lustre / "Module.symvers", symvers(LNET_EXPORTS, "lnet/lnet/lnet"))
        self.lnet()
        module(self.lustre / "lnet/lnet/lnet.ko", exports=LNET_EXPORTS, srcversion="L1")
        self.env = {"RUSTC": str(self.bin / "rustc"), "BINDGEN": self.bindgen}

    def rustc(self, text=RUSTC_TEXT):
        script(self.bin / "rustc", f'case $* in *sysroot*) echo {self.sysroot} ;; *) echo "{text}" ;; esac')

    def lnet(self, exports=None, **info):
        info.setdefault("srcversion", "L1")
        return module(
            self.root / f"lib/modules/{KERNEL}/extra/lnet.ko",
            exports=LNET_EXPORTS if exports is None else exports,
            **info,
        )

    def secure_boot(self, on=True):
        write(self.root / "sys/firmware/efi/efivars/SecureBoot-8be4", "").write_bytes(bytes([6, 0, 0, 0, on]))

    def built(self, **info):
        imports = {"lnet_parse": LNET_EXPORTS["lnet_parse"], "ib_post_send": KERNEL_EXPORTS["ib_post_send"]}
        info.setdefault("imports", imports)
        return module(self.root / "ro2iblnd.ko", **info)

    def run(self, *args):
        keep = ("PATH", "HOME", "LANG", "LC_ALL")
        env = {k: v for k, v in os.environ.items() if k in keep}
        env["PATH"] = f"{self.bin}:{env['PATH']}:/usr/sbin:/sbin"
        env["RO2IBLND_CACHE"] = str(self.root / "cache")
        done = subprocess.run(
            [self.preflight, "-d", self.root, *args],
            env={**env, **self.env},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def wrong(self, *args):
        """Runs preflight and returns the fault and the last line. Each fault has one line."""
        status, out, err = self.run(*args)
        assert status == 1, out + err
        lines = [line for line in err.splitlines() if not line.startswith("preflight: note:")]
        assert all(line.startswith("preflight: ") for line in lines), err
        assert len(lines) == 2, err
        assert "ok\n" not in out
        return lines


@pytest.fixture
def system(tmp_path):
    return System(tmp_path)


NOTHING = "preflight: not ok: nothing to install, see above"


def test_all_is_well(system):
    status, out, err = system.run()
    assert status == 0, err
    assert err == ""
    assert out.splitlines()[-1] == "preflight: ok"
    assert "kernel crate: own (the kernel was built without Rust)" in out
    assert "LNet: Lustre 2.17.57" in out


def test_a_user_may_ask(system):
    """Checks a user whose PATH does not contain modinfo."""
    system.built()
    keep = {"PATH": f"{system.bin}:/usr/bin:/bin", "RO2IBLND_CACHE": str(system.root / "cache")}
    done = subprocess.run([PREFLIGHT, "-d", system.root], env={**keep, **system.env}, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.endswith("preflight: ok\n"), done


def test_a_locale_that_is_not_there(system):
    """Checks a locale that is not installed, as after ssh from a node that has it: each bash complains of it."""
    system.env["LC_ALL"] = "xx_YY.UTF-8"
    status, out, err = system.run()
    assert status == 0, err
    assert out.endswith("preflight: ok\n")


def test_no_headers(system):
    system.kdir.rename(system.root / "gone")
    line, last = system.wrong()
    assert f"no headers of kernel {KERNEL}" in line
    assert last == f"preflight: to install: apt install linux-headers-{KERNEL}"


def test_make_builds_with_the_found_tools(system):
    """Checks scripts/env without a prepared tree: it finds the same tools, and only the kernel that the caller asked
    for.
    """
    script(system.bin / "bindgen", 'echo "bindgen 0.60.1"')
    newer = script(system.root / "cache/bindgen-0.99.0/bin/bindgen", 'echo "bindgen 0.99.0"')
    env = {
        "PATH": f"{system.bin}:{os.environ['PATH']}", "HOME": str(system.root), "RO2IBLND_CACHE": str(system.root / "cache"),
        "RUSTC": system.env["RUSTC"],
    }  # fmt: skip
    command = [os.path.join(HERE, "env")]
    done = subprocess.run(command, env={**env, "KDIR": str(system.kdir)}, capture_output=True, text=True, check=True)
    found = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert found["KDIR"] == str(system.kdir) and found["RUSTC"] == system.env["RUSTC"]
    if not os.path.exists("/usr/bin/bindgen"):
        assert found["BINDGEN"] == str(newer)
    done = subprocess.run(command, env={**env, "KDIR": "/nowhere"}, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and not done.stdout


def test_an_rdma_core_that_is_too_old(system):
    """Checks an RDMA core without an interface of 5.10. The number of the kernel does not count: RHEL 8.10 has 4.18."""
    old = "4.18.0-553.el8_10.x86_64"
    system.kdir.parent.rename(system.kdir.parent.parent / old)
    kdir = system.kdir.parent.parent / old / "build"
    write(kdir / "include/config/kernel.release", old + "\n")
    assert system.run("-n", "-k", old)[0] == 0
    exports = {name: crc for name, crc in KERNEL_EXPORTS.items() if name != "rdma_lock_handler"}
    write(kdir / "Module.symvers", symvers(exports, "ib_core"))
    line, last = system.wrong("-n", "-k", old)
    assert f"the RDMA core of kernel {old} is too old: it has no rdma_lock_handler; Linux 5.10 and RHEL 8.10" in line
    assert last == NOTHING


def test_headers_that_are_not_configured(system):
    system.conf.unlink()
    assert "not configured" in system.wrong()[0]


@pytest.mark.parametrize(
    ("os_release", "words"),
    [
        ('ID="rhel"\nID_LIKE="fedora"\nVERSION_ID="9.6"\n', f"dnf install kernel-devel-{KERNEL}"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', f"dnf install kernel-devel-{KERNEL}"),
        ('ID="sles"\nID_LIKE="suse"\n', "zypper install kernel-test-devel"),
        ('ID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\n', f"apt install linux-headers-{KERNEL}"),
    ],
)
def test_the_distributions_own_words(system, os_release, words):
    write(system.root / "etc/os-release", os_release)
    system.kdir.rename(system.root / "gone")
    assert system.wrong()[1] == f"preflight: to install: {words}"


def test_too_old_rustc(system):
    system.rustc("rustc 1.63.0 (fake)")
    line, last = system.wrong()
    assert "'rustc 1.63.0 (fake)', too old: 1.84" in line
    assert last == "preflight: to install: apt install rustc"


def test_debian_12_has_another_rustc_and_no_bindgen(system):
    write(system.root / "etc/os-release", 'ID=debian\nVERSION_ID="12"\n')
    script(system.bin / "bindgen", 'echo "bindgen 0.60.1"')
    system.rustc("rustc 1.63.0 (fake)")
    _, _, err = system.run()
    assert "apt install rustc-web cargo-web && cargo install bindgen-cli" in err.splitlines()[-1]


def test_ubuntu_24_04_has_newer_ones_under_other_names(system):
    write(system.root / "etc/os-release", 'ID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\n')
    script(system.bin / "bindgen", 'echo "bindgen 0.66.1"')
    system.rustc("rustc 1.75.0 (fake)")
    _, _, err = system.run()
    assert err.splitlines()[-1] == "preflight: to install: apt install rustc-1.89 bindgen-0.71"


FEDORA = 'ID=fedora\nVERSION_ID=40\n'
SUSE = 'ID="opensuse-leap"\nID_LIKE="suse opensuse"\nVERSION_ID="15.6"\n'
UBUNTU = 'ID=ubuntu\nID_LIKE=debian\nVERSION_ID="22.04"\n'
CARGO_INSTALL = "cargo install bindgen-cli --version 0.71.1 --locked --root /usr/local"


def of_the_distribution(system, os_release):
    """Moves the tools to those of the distribution, in /usr/bin."""
    write(system.root / "etc/os-release", os_release)
    usr = system.root / "usr/bin"
    usr.parent.mkdir(parents=True, exist_ok=True)
    system.bin.rename(usr)
    system.bin = usr
    with open(PREFLIGHT, encoding="utf-8") as f:
        text = f.read()
    system.preflight = script(system.root / "scripts/preflight", "")
    write(system.root / "Kbuild", "")
    write(system.root / "scripts/preflight", re.sub("/usr/(local/)?(bin|lib/rust)", f"{system.root}/usr/\\1\\2", text))
    for name in ("which-kernel-crate", "rust-flags", "lnet-find", "ofed-find", "module-symbols"):
        (system.root / "scripts" / name).symlink_to(os.path.join(HERE, name))
    system.env = {}
    return usr


@pytest.mark.parametrize(
    ("os_release", "words"),
    [(UBUNTU, "apt install cargo"), (FEDORA, "dnf install cargo"), (SUSE, "zypper install cargo")],
)
def test_a_package_that_is_too_old_is_not_the_advice(system, os_release, words):
    usr = of_the_distribution(system, os_release)
    assert system.run()[0] == 0
    script(usr / "bindgen", 'echo "bindgen 0.66.1"')
    line, last = system.wrong()
    assert f"{usr}/bindgen is 0.66.1, too old" in line
    assert last == f"preflight: to install: {words} && {CARGO_INSTALL}"


def test_rhel_has_no_bindgen(system):
    """The advice names no package that the repositories may not have."""
    write(system.root / "etc/os-release", 'ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.6"\n')
    system.env["BINDGEN"] = "/nowhere/bindgen"
    assert system.wrong()[1] == f"preflight: to install: dnf install cargo && {CARGO_INSTALL}"


def test_bindgen_of_epel_8_is_new_enough(system):
    script(system.bin / "bindgen", 'echo "bindgen 0.69.4"')
    assert system.run()[0] == 0
    in_tree(system)
    assert "0.69.4, too old for the kernel's own crate: 0.71.1" in system.wrong()[0]


@pytest.mark.parametrize(
    ("os_release", "words"),
    [(UBUNTU, "apt install rustc"), (FEDORA, "dnf install rust"), (SUSE, "zypper install rust")],
)
def test_a_rustc_that_is_too_old_may_not_get_newer(system, os_release, words):
    usr = of_the_distribution(system, os_release)
    script(usr / "rustc", f'case $* in *sysroot*) echo {system.sysroot} ;; *) echo "rustc 1.75.0 (fake)" ;; esac')
    line, last = system.wrong()
    assert "'rustc 1.75.0 (fake)', too old: 1.84" in line
    assert last.startswith(f"preflight: to install: {words}, and if that brings no 1.84: ")
    assert "rust-src" in last and "RUSTC=" in last
    # If both tools are too old, one line names both.
    script(usr / "bindgen", 'echo "bindgen 0.66.1"')
    last = system.run()[2].splitlines()[-1]
    assert f" cargo && {CARGO_INSTALL}, and if that brings no 1.84: " in last


def test_no_rustc(system):
    system.env["RUSTC"] = "/nowhere/rustc"
    assert "RUSTC=/nowhere/rustc: no such program" in system.wrong()[0]


def test_no_bindgen(system):
    system.env["BINDGEN"] = "/nowhere/bindgen"
    line, last = system.wrong()
    assert "no bindgen" in line
    assert last == "preflight: to install: apt install bindgen"


def test_too_old_bindgen(system):
    script(system.bin / "bindgen", 'echo "bindgen 0.60.1"')
    assert "0.60.1, too old: 0.69.4" in system.wrong()[0]


@pytest.mark.parametrize(("name", "package"), [("rustc", "rustc"), ("bindgen", "bindgen")])
def test_a_tool_that_does_not_run(system, name, package):
    """Checks a program of another machine: preflight gives the program's own words, rather than a number or nothing."""
    said = "echo \"libc.so.6: version \\`GLIBC_2.38' not found\" >&2\necho more >&2"
    program = script(system.bin / name, f"{said}\nexit 1")
    line, last = system.wrong()
    assert line == f"preflight: {program} does not run: libc.so.6: version `GLIBC_2.38' not found"
    assert last == f"preflight: to install: apt install {package}"


def test_no_libclang(system):
    script(
        system.bin / "bindgen",
        'case $* in --version) echo "bindgen 0.73.0" ;; *) echo "Unable to find libclang" >&2; exit 1 ;; esac',
    )
    line, last = system.wrong()
    assert "bindgen finds no libclang" in line
    assert last == "preflight: to install: apt install libclang-dev"


def test_no_rust_src(system):
    system.core.unlink()
    line, last = system.wrong()
    assert "no rust-src" in line
    assert last == "preflight: to install: apt install rust-src"


def test_no_compiler_of_the_kernel(system):
    system.conf.write_text(CONFIG.replace("fake-cc (", "x86_64-linux-gnu-gcc-99 ("))
    line, last = system.wrong()
    assert "compiled with x86_64-linux-gnu-gcc-99" in line
    assert last == "preflight: to install: apt install gcc-99"


def test_another_version_of_the_compiler_is_a_note(system):
    script(system.bin / "fake-cc", 'echo "fake-cc (Fake 14.3.0) 14.3.0"')
    status, _, err = system.run()
    assert status == 0
    assert "note" in err and "14.3.0" in err


@pytest.mark.parametrize(
    ("old", "says"),
    [
        ("CONFIG_INFINIBAND=m\n", "CONFIG_INFINIBAND is off"),
        ("CONFIG_INFINIBAND_ADDR_TRANS=y\n", "rdma_cm"),
        ("CONFIG_MODULES=y\n", "CONFIG_MODULES is off"),
        ("CONFIG_64BIT=y\n", "a 32-bit kernel: not supported"),
    ],
)
def test_wrong_config_is_named(system, old, says):
    system.conf.write_text(CONFIG.replace(old, ""))
    line, last = system.wrong()
    assert says in line
    assert last == NOTHING


def test_code_generation_that_cannot_be_met(system):
    system.conf.write_text(CONFIG + "CONFIG_RANDSTRUCT=y\n")
    line, last = system.wrong()
    assert f"kernel {KERNEL}: CONFIG_RANDSTRUCT" in line
    assert last == NOTHING


@pytest.mark.parametrize("name", ["Module.symvers", "tools/objtool/objtool"])
def test_missing_file_is_named(system, name):
    (system.kdir / name).unlink()
    line, last = system.wrong()
    assert name in line
    assert "linux-headers" in last


def in_tree(system):
    system.conf.write_text(CONFIG + IN_TREE)
    for name in ("core", "kernel", "pin_init"):
        write(system.kdir / f"rust/lib{name}.rmeta", "x")
    for name in ("rust/libmacros.so", "rust/bindgen_parameters", "include/generated/rustc_cfg", "scripts/target.json"):
        write(system.kdir / name, "x")
    write(system.kdir / "rust/kernel/workqueue.rs", "macro_rules! impl_has_delayed_work {}\n")
    write(system.kdir / "rust/kernel/prelude.rs", "pub use super::str::CStrExt as _;\n")


def test_in_tree_crate(system):
    in_tree(system)
    status, out, _ = system.run()
    assert status == 0
    assert "kernel crate: in-tree" in out


def test_in_tree_crate_lacks_metadata(system):
    in_tree(system)
    (system.kdir / "rust/libkernel.rmeta").unlink()
    status, out, _ = system.run()
    assert status == 0
    assert "kernel crate: own (the kernel's headers lack rust/libkernel.rmeta)" in out


@pytest.mark.parametrize("name", ["workqueue.rs", "prelude.rs"])
def test_in_tree_crate_that_is_too_old(system, name):
    """Checks an in-tree crate that lacks a function, as in 6.17 and 6.18."""
    in_tree(system)
    write(system.kdir / "rust/kernel" / name, "x")
    status, out, _ = system.run()
    assert status == 0
    assert "kernel crate: own (the kernel's crate is older than what the driver wants)" in out


def test_kcfi_is_refused(system):
    in_tree(system)
    system.conf.write_text(CONFIG + IN_TREE + "CONFIG_CFI=y\n")
    assert "CFI" in system.wrong()[0]


def test_in_tree_crate_of_another_rustc(system):
    in_tree(system)
    system.conf.write_text(CONFIG + IN_TREE.replace("1.99.0", "1.98.0"))
    status, out, _ = system.run()
    assert status == 0
    assert "kernel crate: own (the kernel was built with rustc 1.98.0 (fake), and" in out


RDMA = ("core/ib_core", "core/rdma_cm", "hw/mlx5/mlx5_ib")


def rdma_modules(system, *names):
    """Installs the kernel's modules, with these of drivers/infiniband among them."""
    for name in ("ext4", *(f"drivers/infiniband/{name}" for name in names)):
        module(system.root / f"lib/modules/{KERNEL}/kernel/{name}.ko")
    depmod(system.root)


def test_rdma_modules_are_there(system):
    rdma_modules(system, *RDMA)
    status, out, err = system.run()
    assert (status, err) == (0, ""), out


@pytest.mark.parametrize(
    ("os_release", "words"),
    [
        (DEBIAN, f"apt install linux-image-{KERNEL}"),
        ('ID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\n', f"apt install linux-modules-extra-{KERNEL}"),
        ('ID=ubuntu\nID_LIKE=debian\nVERSION_ID="22.04"\n', f"apt install linux-modules-extra-{KERNEL}"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', f"dnf install kernel-modules-{KERNEL}"),
        ('ID="sles"\nID_LIKE="suse"\n', "zypper install kernel-test"),
    ],
)
def test_a_kernel_without_its_rdma_modules(system, os_release, words):
    """Checks a kernel whose RDMA modules are in a package of their own, which the headers do not tell."""
    write(system.root / "etc/os-release", os_release)
    rdma_modules(system)
    line, last = system.wrong()
    assert f"kernel {KERNEL} has no ib_core rdma_cm: the kernel's RDMA modules are not installed" in line
    assert last == f"preflight: to install: {words}"
    # The modules can be installed after the build.
    assert system.run("-b")[0] == 0


def test_a_kernel_without_a_driver_of_an_adapter(system):
    rdma_modules(system, *RDMA[:2], "sw/rdmavt/rdmavt")
    line, last = system.wrong()
    assert f"kernel {KERNEL} has no driver of an RDMA adapter" in line
    assert last == f"preflight: to install: apt install linux-image-{KERNEL}"
    # A driver from another source has a device.
    write(system.root / "sys/class/infiniband/vendor_0/node_guid", "")
    assert system.run()[0] == 0


def test_rdma_modules_that_are_built_in(system):
    rdma_modules(system, *RDMA[1:])
    builtin = system.root / f"lib/modules/{KERNEL}/modules.builtin"
    builtin.write_text("kernel/drivers/infiniband/core/ib_core.ko\n")
    assert system.run()[0] == 0


def rdma_device(system, name, driver):
    device = system.root / f"sys/class/infiniband/{name}/device"
    device.mkdir(parents=True)
    (device / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")


@pytest.mark.parametrize(
    ("driver", "why"),
    [
        ("hns3", "its driver refuses LOCAL_INV work requests"),
        ("cxgb4", "its memory regions have 128 pages, and 256 are needed"),
        ("vmw_pvrdma", "its memory regions have 128 pages, and 256 are needed"),
        ("efa", "it cannot register memory by work request"),
        ("mana", "it cannot register memory by work request"),
    ],
)
def test_a_device_that_cannot_be_used(system, driver, why):
    rdma_device(system, "one_0", driver)
    line, last = system.wrong()
    assert line == f"preflight: no NI starts on one_0 ({driver}): {why}: use another device"
    assert last == "preflight: not ok: nothing to install, see above"
    # With another usable device it is only a note.
    rdma_device(system, "mlx5_0", "mlx5_core")
    status, out, err = system.run()
    assert (status, err) == (0, f"preflight: note: no NI starts on one_0 ({driver}): {why}\n"), out
    # Nothing is known of the devices of another kernel.
    write(system.root / "proc/sys/kernel/osrelease", "6.1.0\n")
    assert "no NI starts" not in system.run("-k", KERNEL)[2]


def roce_port(system, *gids, device="mlx5_0", mode=None):
    """Adds a RoCE port. gids: (interface, GID, type)"""
    port = system.root / f"sys/class/infiniband/{device}/ports/1"
    write(port / "link_layer", "Ethernet\n")
    for n, (interface, gid, kind) in enumerate(gids):
        write(port / f"gids/{n}", gid + "\n")
        write(port / f"gid_attrs/types/{n}", kind + "\n")
        write(port / f"gid_attrs/ndevs/{n}", interface + "\n")
    if mode:
        write(system.root / f"sys/kernel/config/rdma_cm/{device}/ports/1/default_roce_mode", mode + "\n")


LINK_LOCAL = ("eth0", "fe80:0000:0000:0000:5054:00ff:fe00:0001", "RoCE v2")
V1 = ("eth0", "0000:0000:0000:0000:0000:ffff:0a00:0001", "IB/RoCE v1")
V2 = ("eth0", "0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2")


@pytest.mark.parametrize(
    ("gids", "mode", "uses", "note"),
    [
        ((LINK_LOCAL, V1, V2), None, "RoCE v2", ""),
        ((LINK_LOCAL, V1, V2), "RoCE v2", "RoCE v2", ""),
        ((V1, V2), "IB/RoCE v1", "RoCE v1", "nodes with RoCE v2, the kernel's default, cannot connect"),
        ((V1,), None, "RoCE v1", "connections use RoCE v1"),
        ((V1,), "RoCE v2", "RoCE v2", "eth0 10.0.0.1 has no GID of RoCE v2 (only RoCE v1)"),
    ],
)
def test_the_version_of_roce(system, gids, mode, uses, note):
    roce_port(system, *gids, mode=mode)
    status, out, err = system.run()
    assert status == 0, err
    assert f"preflight: mlx5_0 port 1: connections use {uses}\n" in out
    assert note in err if note else err == "", err
    # Nothing is known of the ports of another kernel, or of another system.
    write(system.root / "proc/sys/kernel/osrelease", "6.1.0\n")
    status, out, err = system.run("-k", KERNEL)
    assert "connections use" not in out and "GID" not in err


@pytest.mark.parametrize(
    ("thresh", "queue", "notes"), [(1024, 512, 2), (16384, 512, 1), (1024, 8192, 1), (16384, 8192, 0)]
)
def test_a_server_with_many_clients(system, thresh, queue, notes):
    """Checks tables that are too small for the number of clients of a large site."""
    roce_port(system, V1, V2)
    write(system.root / "proc/sys/net/ipv4/neigh/default/gc_thresh3", f"{thresh}\n")
    write(system.root / "sys/module/ib_core/parameters/recv_queue_size", f"{queue}\n")
    rdma_modules(system, *RDMA)
    assert system.run()[2] == ""
    module(system.root / f"lib/modules/{KERNEL}/extra/lustre/ofd.ko")
    depmod(system.root)
    status, _, err = system.run()
    assert status == 0 and len(err.splitlines()) == notes, err
    assert (f"net.ipv4.neigh.default.gc_thresh3 is {thresh}" in err) == (thresh == 1024)
    assert ("options ib_core recv_queue_size=8192" in err) == (queue == 512)


ROUTES = """Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask
eth0	00000000	FE01A8C0	0003	0	0	0	00000000	0	0	0
eth0	0000000A	00000000	0001	0	0	0	00FFFFFF	0	0	0
{second}	0000000A	00000000	0001	0	0	0	00FFFFFF	0	0	0
eth0	0000000A	00000000	0001	0	0	100	00FFFFFF	0	0	0
"""


@pytest.mark.parametrize(
    ("second", "ignore", "arp_filter", "noted"),
    [("eth1", 0, 0, True), ("eth1", 1, 0, False), ("eth1", 0, 1, False), ("eth0", 0, 0, False)],
)
def test_two_interfaces_in_one_subnet(system, second, ignore, arp_filter, noted):
    """Checks two interfaces in one subnet: each answers ARP requests for the address of the other."""
    roce_port(system, V1, V2)
    write(system.root / "proc/net/route", ROUTES.format(second=second))
    for name, of_all in (("arp_ignore", ignore), ("arp_filter", arp_filter)):
        write(system.root / f"proc/sys/net/ipv4/conf/all/{name}", f"{of_all}\n")
        for interface in ("eth0", "eth1"):
            write(system.root / f"proc/sys/net/ipv4/conf/{interface}/{name}", "0\n")
    status, _, err = system.run()
    assert status == 0
    assert ("eth0 eth1 are in one subnet, and arp_ignore is 0" in err) == noted, err
    assert noted or err == "", err


# --- OFED

OFED_EXPORTS = {"ib_post_send": 0x7777AAAA, "rdma_accept": 0x8888BBBB}
MACHINE = os.uname().machine


def ofed(system, where=f"usr/src/ofa_kernel/{MACHINE}/{KERNEL}"):
    """Installs the RDMA core of an OFED, and its headers. Returns the folder of the headers."""
    modules = system.root / f"lib/modules/{KERNEL}/extra/mlnx-ofa_kernel"
    module(modules / "ib_core.ko", exports={"ib_post_send": OFED_EXPORTS["ib_post_send"]}, srcversion="O1")
    module(modules / "rdma_cm.ko", exports={"rdma_accept": OFED_EXPORTS["rdma_accept"]})
    headers = system.root / where
    for name in ("include/rdma/rdma_cm.h", "include/linux/compat-2.6.h", "compat/config.h"):
        write(headers / name, "/* OFED */\n")
    write(headers / "Module.symvers", symvers(OFED_EXPORTS, "ib_core"))
    return headers


@pytest.mark.parametrize("where", [f"/{MACHINE}/{KERNEL}", f"-dkms/{MACHINE}/{KERNEL}", "/default"])
def test_an_rdma_core_of_ofed(system, where):
    headers = ofed(system, "usr/src/ofa_kernel" + where)
    status, out, err = system.run()
    assert status == 0, err
    assert f"preflight: RDMA core: OFED in {headers}" in out.splitlines()
    assert f"OFED_DIR={headers}" in system.run("-b", "-e")[1].splitlines()


def test_an_ofed_without_headers(system):
    (ofed(system) / "compat/config.h").unlink()
    line, last = system.wrong()
    assert "the RDMA core is not the kernel's own (/lib/modules/" in line and "ib_core.ko)" in line
    assert "its headers are not in /usr/src/ofa_kernel: install the headers of that OFED" in line
    assert last == NOTHING


def test_headers_of_another_ofed(system):
    headers = ofed(system)
    write(headers / "Module.symvers", symvers({**OFED_EXPORTS, "rdma_accept": 0x1}, "rdma_cm"))
    assert "has the headers of another OFED: CRC of rdma_accept differs" in system.wrong()[0]
    system.env["OFED"] = str(headers)
    line = system.wrong()[0]
    assert f"OFED= names {headers}, the headers of another RDMA core than the installed /lib/modules/" in line


def test_ofed_of_which_every_module_differs(system):
    """Checks headers of an earlier OFED, whose modules all had other CRCs, alone and beside the right headers."""
    stale = ofed(system)
    write(stale / "Module.symvers", symvers(dict.fromkeys(OFED_EXPORTS, 1), "ib_core"))
    assert "has the headers of another OFED: CRC of ib_post_send differs" in system.wrong()[0]
    right = ofed(system, "usr/src/ofa_kernel/default")
    write(stale / "Module.symvers", symvers(dict.fromkeys(OFED_EXPORTS, 1), "ib_core"))
    status, out, err = system.run()
    assert status == 0 and f"RDMA core: OFED in {right}" in out, err


def test_ofed_in_the_configuration_file(system):
    headers = ofed(system, f"opt/ofed-{KERNEL}")
    assert "its headers are not in /usr/src/ofa_kernel" in system.wrong()[0]
    write(system.root / "etc/ro2iblnd.conf", "OFED=/opt/ofed-%k\n")
    assert f"RDMA core: OFED in {headers}" in system.run()[1]
    write(system.root / "etc/ro2iblnd.conf", "OFED=/missing\n")
    assert "OFED= in /etc/ro2iblnd.conf names" in system.wrong()[0]
    write(system.root / "etc/ro2iblnd.conf", "OFED=/etc\n")
    assert "which has no include/rdma/rdma_cm.h: not the headers of an OFED" in system.wrong()[0]


def test_ofed_headers_beside_the_kernels_own_core(system):
    """Headers of an OFED that is not installed for the kernel do not count. If they are named, that is a fault."""
    headers = ofed(system)
    extra = system.root / f"lib/modules/{KERNEL}/extra/mlnx-ofa_kernel"
    inbox = system.root / f"lib/modules/{KERNEL}/kernel/drivers/infiniband/core/ib_core.ko"
    for path in extra.iterdir():
        path.unlink()
    module(inbox, exports={"ib_post_send": KERNEL_EXPORTS["ib_post_send"]})
    assert "RDMA core" not in system.run("-b")[1]
    system.env["OFED"] = str(headers)
    line = system.wrong("-b")[0]
    assert f"another RDMA core than the installed /{inbox.relative_to(system.root)}: CRC of ib_post_send" in line


def test_a_module_for_the_other_rdma_core(system):
    """Checks a module that was built with the kernel's headers, although OFED is installed."""
    ofed(system)
    assert "CRC of ib_post_send differs: build it again" in system.wrong("-m", system.built())[0]
    system.built(imports={"lnet_parse": LNET_EXPORTS["lnet_parse"], "ib_post_send": OFED_EXPORTS["ib_post_send"]})
    assert system.run("-b", "-m", system.root / "ro2iblnd.ko")[0] == 0


def test_the_running_core_is_not_the_installed_one(system):
    ofed(system)
    write(system.root / "sys/module/ib_core/srcversion", "O1\n")
    assert system.run()[0] == 0
    write(system.root / "sys/module/ib_core/srcversion", "O2\n")
    assert "the running ib_core is another build than /lib/modules/" in system.wrong()[0]


def test_the_running_core_without_srcversion(system):
    """Debian's kernels have none for the modules of OFED."""
    ko = ofed(system).parents[4] / f"lib/modules/{KERNEL}/extra/mlnx-ofa_kernel/ib_core.ko"
    note = system.root / "sys/module/ib_core/notes/.note.gnu.build-id"
    write(note, "GNU 1")
    assert system.run()[0] == 0  # the installed file has none
    section = ".note.gnu.build-id"
    subprocess.run(["objcopy", "--add-section", f"{section}={note}", "--set-section-flags", f"{section}=alloc", ko], check=True)
    assert system.run()[0] == 0
    write(note, "GNU 2")
    assert "the running ib_core is another build than /lib/modules/" in system.wrong()[0]


# --- LNet


def no_lnet(system):
    system.lustre.rename(system.root / "elsewhere")
    (system.root / f"lib/modules/{KERNEL}/extra/lnet.ko").unlink()
    return system.root / "elsewhere"


def test_no_lnet(system):
    no_lnet(system)
    line, last = system.wrong()
    assert f"no LNet for kernel {KERNEL}: no Lustre in DKMS or /usr/src" in line
    assert last == NOTHING


def test_no_lnet_wanted(system):
    no_lnet(system)
    assert system.run("-n")[0] == 0


def test_lnet_without_headers(system):
    system.lustre.rename(system.root / "elsewhere")
    line = system.wrong()[0]
    assert "no headers of it: unpack and configure Lustre's source" in line and "of 2.16 its -devel package" in line


def test_lnet_of_another_kernel(system):
    tree = no_lnet(system)
    module(tree / "lnet/lnet/lnet.ko", vermagic="5.14.0-503.el9.x86_64 SMP ")
    system.env["LUSTRE"] = str(tree)
    assert "which was built for kernel 5.14.0-503.el9.x86_64" in system.wrong()[0]


def test_installed_lnet_of_another_kernel(system):
    system.lnet(vermagic="5.14.0-503.el9.x86_64 SMP ")
    assert "LNet is of another kernel" in system.wrong()[0]


def test_lnet_of_another_kernel_by_a_weak_link(system):
    """Checks a link that weak-modules made: there is no LNet for this kernel, which is not an error of a build."""
    devel_package(system, OLD_LAYOUT)
    ours = system.root / f"lib/modules/{KERNEL}/extra/lnet.ko"
    theirs = module(
        system.root / "lib/modules/5.14.0-503.el9.x86_64/extra/lnet.ko", vermagic="5.14.0-503.el9.x86_64 SMP "
    )
    ours.unlink()
    link = system.root / f"lib/modules/{KERNEL}/weak-updates/lustre/lnet.ko"
    link.parent.mkdir(parents=True)
    link.symlink_to(theirs)
    done = subprocess.run(
        [os.path.join(HERE, "lnet-find"), "-d", system.root, "-k", KERNEL], capture_output=True, text=True
    )
    assert done.returncode == 3 and done.stderr.count("\n") == 1, done
    # Lustre itself works with such a link.
    assert (
        f"{KERNEL}: /lib/modules/{KERNEL}/weak-updates/lustre/lnet.ko is another kernel's: Lustre works here"
        in done.stderr
    ), done
    assert "install Lustre for this kernel, or stay with ko2iblnd there" in done.stderr, done


def test_lustre_in_the_configuration_file(system):
    """Checks the setting, also if the last command of the file fails, and with the line ends of Windows."""
    tree = no_lnet(system)
    (tree.parent / f"else{KERNEL}").symlink_to(tree)
    for text in ("LUSTRE=/else%k\n", "LUSTRE=/else%k\n[ -d /nowhere ] && OFED=/nowhere\n", "\r\nLUSTRE=/else%k\r\n"):
        write(system.root / "etc/ro2iblnd.conf", "").write_bytes(text.encode())
        status, out, err = system.run()
        assert status == 0 and not err, err
        assert "(LUSTRE=)" in out
    write(system.root / "etc/ro2iblnd.conf", "LUSTRE=/missing\n")
    assert "LUSTRE= in /etc/ro2iblnd.conf names" in system.wrong()[0]


def test_tools_in_the_configuration_file(system):
    """Checks tools in the file, because DKMS has no environment in which to name other tools than the distribution's.
    """
    write(system.root / "etc/ro2iblnd.conf", "RUSTC=/nowhere/rustc\nBINDGEN=/nowhere/bindgen\n")
    assert system.run()[0] == 0
    del system.env["RUSTC"]
    assert "RUSTC=/nowhere/rustc: no such program" in system.wrong()[0]
    write(system.root / "etc/ro2iblnd.conf", "").write_bytes(f"RUSTC={system.bin}/rustc\r\nOFED=/nowhere\r\n".encode())
    assert "OFED= in /etc/ro2iblnd.conf names" in system.wrong()[0] and "/nowhere, which" in system.wrong()[0]


@pytest.mark.parametrize("crc_form", ["section", "absolute"])
def test_lnet_with_other_crcs(system, crc_form):
    assert system.lnet(crc_form=crc_form) and system.run()[0] == 0
    system.lnet({**LNET_EXPORTS, "lnet_parse": 0x99999999}, crc_form=crc_form)
    line, last = system.wrong()
    assert "CRC of lnet_parse in" in line
    assert last == NOTHING


def test_lnet_with_other_symbols(system):
    system.lnet({**LNET_EXPORTS, "lnet_new": 1})
    assert "has lnet_new" in system.wrong()[0]


def test_lnet_of_another_build_without_crcs(system):
    plain = dict.fromkeys(LNET_EXPORTS, 0)
    system.symvers.write_text(symvers(plain, "lnet/lnet/lnet"))
    system.lnet(plain, crc_form="none", srcversion="L2")
    assert "the installed LNet is another build" in system.wrong()[0]


@pytest.mark.parametrize("fits", [True, False])
def test_two_installed_lnets(system, fits):
    """Checks that the LNet that modprobe loads counts, which is that in updates."""
    other = {name: crc + 1 for name, crc in LNET_EXPORTS.items()}
    system.lnet(other if fits else LNET_EXPORTS)
    updates = system.root / f"lib/modules/{KERNEL}/updates/lnet.ko"
    module(updates, exports=LNET_EXPORTS if fits else other, srcversion="L1")
    rdma_modules(system, *RDMA)
    if fits:
        assert system.run()[0] == 0
    else:
        assert f"in /{updates.relative_to(system.root)} and in" in system.wrong()[0]


def test_running_lnet_is_another_build(system):
    write(system.root / "sys/module/lnet/srcversion", "L1\n")
    assert "the running lnet is the installed one" in system.run()[1]
    write(system.root / "sys/module/lnet/srcversion", "L0\n")
    assert "the running lnet is another build" in system.wrong()[0]


@pytest.mark.parametrize("name", ["lustre-client", "lustre-client-modules"])
def test_lustres_dkms_tree(system, name):
    """Checks the trees of the packages for RPM, which keep config.h and Module.symvers, and for Debian, which do not.
    """
    tree = no_lnet(system)
    source = system.root / f"usr/src/{name}-2.17.57"
    write(source / "include/linux/lnet/lib-lnet.h", "")
    where = system.root / f"var/lib/dkms/{name}/2.17.57/{KERNEL}/x86_64"
    module(where / "module/lnet.ko", exports=LNET_EXPORTS)
    module(system.root / f"lib/modules/{KERNEL}/updates/lnet.ko", exports=LNET_EXPORTS)
    if name == "lustre-client":
        write(where / "config.h", '#define VERSION "2.17.57"\n')
        (where / "Module.symvers").write_bytes((tree / "Module.symvers").read_bytes())
    (system.root / f"var/lib/dkms/{name}/kernel-{KERNEL}-x86_64").symlink_to(where)
    status, out, err = system.run()
    assert status == 0, err
    # a module that uses libcfs, which is a module of its own
    ko = system.built(imports={"lnet_parse": LNET_EXPORTS["lnet_parse"], "libcfs_debug_msg": 7})
    assert "libcfs_debug_msg" in system.wrong("-m", ko)[0]
    module(system.root / f"lib/modules/{KERNEL}/updates/libcfs.ko", exports={"libcfs_debug_msg": 7})
    if name == "lustre-client":
        with (where / "Module.symvers").open("a") as f:
            f.write(symvers({"libcfs_debug_msg": 7}, "libcfs"))
    assert system.run("-m", ko)[0] == 0
    assert f"of DKMS ({name}/2.17.57)" in out


@pytest.mark.parametrize("works", [True, False])
def test_lustres_own_configure(system, works, tmp_path):
    """Checks Lustre's packages for Debian, which keep no config.h: lnet-find makes it in a temporary copy."""
    no_lnet(system)
    source = system.root / "usr/src/lustre-client-modules-2.17.57"
    write(source / "include/linux/lnet/lib-lnet.h", "")
    write(source / "dkms.conf", 'AUTOGEN="sh ./autogen.sh"\nCONFIGURE="./configure --with-linux=$kernel_source_dir"\n')
    script(source / "autogen.sh", f"touch autogenerated; pwd >{tmp_path}/where")
    (tmp_path / "tmp").mkdir()
    fail = "" if works else "echo cannot find it; exit 1\n"
    script(source / "configure", f"[ -e autogenerated ] || exit 1\n{fail}echo '#define VERSION \"2.17.57\"' >config.h")
    where = system.root / f"var/lib/dkms/lustre-client-modules/2.17.57/{KERNEL}/x86_64"
    module(where / "module/lnet.ko", exports=LNET_EXPORTS)
    module(system.root / f"lib/modules/{KERNEL}/updates/lnet.ko", exports=LNET_EXPORTS)
    (system.root / f"var/lib/dkms/lustre-client-modules/kernel-{KERNEL}-x86_64").symlink_to(where)
    view = tmp_path / "view"
    find = [os.path.join(HERE, "lnet-find"), "-d", system.root, "-k", KERNEL, "-o", view]
    done = subprocess.run(find, env={**os.environ, "TMPDIR": str(tmp_path / "tmp")}, capture_output=True, text=True)
    assert (done.returncode == 0) == works, done.stderr
    # some systems do not allow to run programs there
    assert not (tmp_path / "where").read_text().startswith(f"{tmp_path}/tmp/")
    assert not os.listdir(tmp_path / "tmp")
    kept = sorted(os.listdir(system.root / "var/cache/ro2iblnd/lnet"))
    name = f"lustre-client-modules-2.17.57-{KERNEL}"
    assert kept == [name if works else f"{name}.failed"]
    if works:
        assert (view / "config.h").read_text() == '#define VERSION "2.17.57"\n'
        assert "lnet_parse" in (view / "Module.symvers").read_text()
        done = subprocess.run(find, capture_output=True, text=True)
        assert done.returncode == 0 and "running its configure" not in done.stderr
    else:
        assert "cannot find it" in done.stderr and f"{name}.failed" in done.stderr


def devel_package(system, headers):
    """Makes the tree of kmod-lustre-...-devel: `headers`, and files that the build left."""
    tree = no_lnet(system)
    system.lnet()
    devel = system.root / "usr/src/lustre-2.17.57"
    for name, text in headers.items():
        write(devel / name, text)
    for name in ("config.h", "Module.symvers"):
        write(devel / "x86_64/default" / name, (tree / name).read_text())
    return devel


# Places of the headers by lustre.spec: up to 2.17.0, and since.
OLD_LAYOUT = {
    "lnet/lib-lnet.h": "#include <libcfs/libcfs.h>\n#include <linux/slab.h>\n",
    "libcfs/libcfs.h": "#include <libcfs/linux/linux-mem.h>\n",
    "libcfs/linux/linux-mem.h": "",
    "uapi/linux/lnet/lnet-types.h": "",
}
NEW_LAYOUT = {
    "linux/lnet/lib-lnet.h": "#include <linux/libcfs/libcfs.h>\n",
    "linux/libcfs/libcfs.h": "",
    "uapi/linux/lnet/lnet-types.h": "",
}


@pytest.mark.parametrize(
    "headers, found",
    [(OLD_LAYOUT, "lnet/include/lnet/lib-lnet.h"), (NEW_LAYOUT, "include/linux/lnet/lib-lnet.h")],
    ids=["old", "new"],
)
def test_headers_of_a_devel_package(system, headers, found, tmp_path):
    devel_package(system, headers)
    status, out, err = system.run()
    assert status == 0, err
    assert "LNet: Lustre 2.17.57 in" in out
    view = tmp_path / "view"
    subprocess.run([os.path.join(HERE, "lnet-find"), "-d", system.root, "-k", KERNEL, "-o", view], check=True)
    assert (view / found).exists()
    flags = subprocess.run([os.path.join(HERE, "lnet-probe"), view], check=True, capture_output=True, text=True).stdout
    assert f"-include {view}/config.h" in flags
    for header in headers:
        assert any(
            os.path.exists(os.path.join(flag[2:], header)) for flag in flags.split() if flag.startswith("-I")
        ), header


@pytest.mark.parametrize(
    "headers, missing",
    [
        (NEW_LAYOUT | {"linux/libcfs/libcfs.h": "#include <lustre_compat/linux/workqueue.h>\n"}, "lustre_compat/"),
        (OLD_LAYOUT | {"lnet/lib-lnet.h": "#include <linux/libcfs/libcfs.h>\n"}, "linux/libcfs/"),
    ],
    ids=["2.17.57", "2.17.0"],
)
def test_a_devel_package_that_is_not_whole(system, headers, missing):
    """Checks a package that cannot be built against, such as that of 2.17."""
    devel_package(system, headers)
    line, _ = system.wrong()
    assert f"lustre-2.17.57 are not whole (no {missing}): unpack and configure Lustre's source" in line
    assert "set LUSTRE= in /etc/ro2iblnd.conf" in line


# --- what the kernel will load


def test_secure_boot_without_a_key(system):
    system.secure_boot(on=False)
    assert system.run()[0] == 0
    system.secure_boot()
    line, last = system.wrong()
    assert "secure boot is on, and DKMS has no key yet" in line
    assert last == NOTHING


def test_secure_boot_with_a_key_that_is_not_enrolled(system):
    system.secure_boot()
    write(system.root / "var/lib/dkms/mok.pub", "")
    line, _ = system.wrong()
    assert "not enrolled: mokutil --import /var/lib/dkms/mok.pub" in line


@pytest.mark.parametrize(
    ("says", "enrolled"),
    [
        # mokutil up to 0.7.2 exits with 1 for an enrolled key, later versions with 0.
        ('echo "$2 is already enrolled"; exit 1', True),
        ('echo "$2 is already enrolled"', True),
        ('echo "$2 is already in db"; exit 1', True),
        # An administrator has yet to confirm this key at the console.
        ('echo "$2 is already in the enrollment request"; exit 1', False),
        ('echo "$2 is not enrolled"', False),
    ],
)
def test_secure_boot_with_a_key(system, says, enrolled):
    system.secure_boot()
    write(system.root / "var/lib/dkms/mok.pub", "")
    script(system.bin / "mokutil", says)
    if enrolled:
        status, out, _ = system.run()
        assert status == 0
        assert "the key that DKMS signs with is enrolled" in out
    else:
        assert "not enrolled: mokutil --import /var/lib/dkms/mok.pub" in system.wrong()[0]


def test_lockdown_and_sig_enforce(system):
    where = write(system.root / "sys/kernel/security/lockdown", "[none] integrity confidentiality\n")
    assert system.run()[0] == 0
    where.write_text("none [integrity] confidentiality\n")
    assert "the kernel is locked down" in system.wrong()[0]
    where.unlink()
    write(system.root / "sys/module/module/parameters/sig_enforce", "Y\n")
    assert "module.sig_enforce" in system.wrong()[0]
    (system.root / "sys/module/module/parameters/sig_enforce").unlink()
    system.conf.write_text(CONFIG + "CONFIG_MODULE_SIG_FORCE=y\n")
    assert "CONFIG_MODULE_SIG_FORCE" in system.wrong()[0]


def sign(path, common_name, tmp):
    """Signs as the kernel's sign-file does: PKCS#7, 12 bytes with the length, a marker. Returns the certificate."""
    key, cert, sig = tmp / "k.pem", tmp / "c.pem", tmp / "sig.der"
    quiet = {"check": True, "capture_output": True}
    subprocess.run(
        ["openssl", "req", "-new", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={common_name}"]
        + ["-keyout", key, "-out", cert],
        **quiet,
    )
    subprocess.run(
        ["openssl", "cms", "-sign", "-binary", "-noattr", "-nocerts", "-outform", "DER", "-md", "sha256"]
        + ["-signer", cert, "-inkey", key, "-in", path, "-out", sig],
        **quiet,
    )
    blob = sig.read_bytes()
    with open(path, "ab") as f:
        f.write(blob + bytes([0, 0, 2, 0, 0, 0, 0, 0]) + len(blob).to_bytes(4, "big"))
        f.write(b"~Module signature appended~\n")
    return cert


def test_module_is_well(system):
    ko = system.built()
    status, out, err = system.run("-m", ko)
    assert status == 0, err
    assert "not signed: it loads here" in err


def test_unsigned_module(system):
    system.secure_boot()
    line, _ = system.wrong("-m", system.built())
    assert "not signed, and secure boot is on" in line


def key_id(cert):
    """Returns the key's identifier, as in the kernel's list of keys."""
    said = subprocess.run(
        ["openssl", "x509", "-in", cert, "-noout", "-ext", "subjectKeyIdentifier"],
        capture_output=True,
        text=True,
        check=True,
    )
    return said.stdout.split()[-1].replace(":", "").lower()


def test_signed_module(system, tmp_path):
    """Checks signatures and keys. All keys that DKMS makes have the same name, so the name alone proves little."""
    ko = system.built()
    cert = sign(ko, "DKMS module signing key", tmp_path)
    keys = write(system.root / "proc/keys", "")

    def known(name, number):
        keys.write_text(f"2d I------ 1 perm 1f030000 0 0 asymmetri {name}: {number}: X509.rsa {number[-8:]} []\n")

    system.secure_boot()
    # The available certificate belongs to the signature.
    write(system.root / "var/lib/dkms/mok.pub", "").write_bytes(
        subprocess.run(["openssl", "x509", "-in", cert, "-outform", "DER"], capture_output=True, check=True).stdout
    )
    known("DKMS module signing key", key_id(cert))
    status, out, err = system.run("-m", ko)
    assert status == 0, err
    assert "is signed by DKMS module signing key" in out
    # A key of the same node from before its operating system was installed again.
    known("DKMS module signing key", "12ab" * 10)
    line, _ = system.wrong("-m", ko)
    assert "which this kernel does not know" in line
    # The certificate is not available, so there is only the name.
    (system.root / "var/lib/dkms/mok.pub").unlink()
    status, _, err = system.run("-m", ko)
    assert status == 0, err
    assert "a key of that name is known; whether it is the one: -c CERTIFICATE" in err
    line, _ = system.wrong("-m", ko, "-c", cert)
    assert "which this kernel does not know" in line
    # If another authority issued a certificate, the signature has the issuer's name, and the list the owner's.
    known("Site modules", key_id(cert))
    status, out, err = system.run("-m", ko, "-c", cert)
    assert status == 0, err
    known("Somebody else", "34cd" * 10)
    line, _ = system.wrong("-m", ko)
    assert "which this kernel does not know" in line
    system.secure_boot(on=False)
    status, _, err = system.run("-m", ko)
    assert status == 0
    assert "does not know: it loads here" in err


def test_module_of_another_kernel(system):
    line, last = system.wrong("-m", system.built(vermagic="6.1.0-50-amd64 SMP "))
    assert "was built for kernel 6.1.0-50-amd64, not for" in line
    assert last == NOTHING


@pytest.mark.parametrize(
    ("imports", "says"),
    [
        ({"ib_post_send": 5}, "CRC of ib_post_send differs"),
        ({"lnet_parse": 5}, "CRC of lnet_parse differs"),
        ({"lnet_gone": 5}, "neither kernel nor LNet has: lnet_gone"),
    ],
)
def test_module_with_other_symbols(system, imports, says):
    assert says in system.wrong("-m", system.built(imports=imports))[0]


def test_the_module_that_is_installed(system):
    """Checks that preflight finds the installed module without -m, and that it does not check the module with -b."""
    ko = system.root / f"lib/modules/{KERNEL}/updates/dkms/ro2iblnd.ko"
    ko.parent.mkdir(parents=True)

    def install(**info):
        system.built(**info).rename(ko)
        depmod(system.root)

    install(imports={"lnet_parse": 5})
    line, _ = system.wrong()
    assert f"{ko} was built for another kernel or LNet" in line and "dkms-rebuild builds it again" in line, line
    assert system.run("-b")[0] == 0
    install()
    system.secure_boot()
    line, _ = system.wrong()
    assert f"{ko} is not signed, and secure boot is on" in line and "dkms-rebuild builds it again" in line, line
    system.secure_boot(on=False)
    status, out, _ = system.run()
    assert status == 0 and out.splitlines()[-1] == "preflight: ok"


def test_module_that_is_none(system):
    assert "not a kernel module" in system.wrong("-m", write(system.root / "x.ko", "x"))[0]
    assert "no such file" in system.wrong("-m", system.root / "y.ko")[0]


# --- for other scripts


def test_shell_output(system):
    status, out, _ = system.run("-e")
    assert status == 0
    found = dict(re.findall(r"^(\w+)=(.*)$", out, re.MULTILINE))
    assert len(found) == len(out.splitlines())
    assert found["RUSTC"] == str(system.bin / "rustc")
    assert found["CRATE"] == "own"
    assert found["KERNEL"] == KERNEL
    assert re.fullmatch("[0-9a-f]{16}", found["LNET_FINGERPRINT"])


def test_two_faults_are_two_lines(system):
    system.core.unlink()
    system.env["BINDGEN"] = "/nowhere/bindgen"
    status, _, err = system.run()
    assert status == 1
    assert err.splitlines()[-1] == "preflight: to install: apt install rust-src bindgen"
    assert len(err.splitlines()) == 3


# --- a node that builds nothing


@pytest.fixture
def node(system):
    """Node with a package of the built module and of the tools: no headers, no compilers, no sources of Lustre."""
    for name in ("preflight", "module-symbols"):
        path = system.root / "usr/lib/ro2iblnd" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.join(HERE, name), path)
    system.preflight = str(system.root / "usr/lib/ro2iblnd/preflight")
    system.env = {}
    system.kernel_symvers = (system.kdir / "Module.symvers").rename(system.root / f"lib/modules/{KERNEL}/symvers")
    subprocess.run(["gzip", "-nk", system.kernel_symvers], check=True)
    shutil.rmtree(system.kdir)
    shutil.rmtree(system.lustre)
    imports = {"lnet_parse": LNET_EXPORTS["lnet_parse"], "ib_post_send": KERNEL_EXPORTS["ib_post_send"]}
    system.ko = module(system.root / f"lib/modules/{KERNEL}/extra/ro2iblnd/ro2iblnd.ko", imports=imports)
    depmod(system.root)
    return system


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("gzip", f"lib/modules/{KERNEL}/symvers.gz"),
        ("gzip", f"boot/symvers-{KERNEL}.gz"),
        ("xz", f"lib/modules/{KERNEL}/symvers.xz"),
        ("xz", f"boot/symvers-{KERNEL}.xz"),
        ("zstd", f"boot/symvers-{KERNEL}.zst"),
    ],
)
def test_symbols_of_a_kernel_without_headers(node, program, name):
    """Checks the places where kernels of RHEL have the list of their symbols; RHEL 10 compresses it by xz."""
    if not shutil.which(program):
        pytest.skip(f"no {program} here")
    node.kernel_symvers.with_suffix(".gz").unlink()
    imports = {"lnet_parse": LNET_EXPORTS["lnet_parse"], "ib_post_send": 1, "gone": 1}
    module(node.ko, imports=imports)
    status, out, err = node.run()
    assert status == 0 and f"kernel {KERNEL} has no list of its symbols: not checked" in err, out + err
    write(node.root / name, "").write_bytes(subprocess.check_output([program, "-c", node.kernel_symvers]))
    status, _, err = node.run()
    assert status == 1 and "neither kernel nor LNet has: gone" in err and "CRC of ib_post_send differs" in err, err
    assert "not checked" not in err


def test_a_node_that_builds_nothing(node):
    status, out, err = node.run()
    assert status == 0, err
    assert out.splitlines()[-1] == "preflight: ok"
    node.lnet(exports={**LNET_EXPORTS, "lnet_parse": 1})
    assert "CRC of lnet_parse differs" in node.wrong()[0]
    node.ko.unlink()
    depmod(node.root)
    assert f"no ro2iblnd for kernel {KERNEL}: install the package" in node.wrong()[0]


def test_headers_of_a_node_that_builds_nothing(node):
    """Checks kernel-devel where OFED replaced an RDMA core that is too old, and headers that are not whole."""
    write(node.conf, CONFIG)
    own = {name: crc for name, crc in KERNEL_EXPORTS.items() if name != "rdma_lock_handler"}
    write(node.kdir / "Module.symvers", symvers(own, "ib_core"))
    imports = {"rdma_lock_handler": 5, "lnet_parse": LNET_EXPORTS["lnet_parse"]}
    module(node.ko, imports=imports)
    core = node.root / f"lib/modules/{KERNEL}/extra/mlnx-ofa_kernel/rdma_cm.ko"
    module(core, exports={"rdma_lock_handler": 5})
    depmod(node.root)
    status, out, err = node.run()
    assert status == 0 and out.endswith("preflight: ok\n"), out + err
    core.unlink()
    depmod(node.root)
    assert "wants symbols that neither kernel nor LNet has: rdma_lock_handler" in node.wrong()[0]
    module(core, exports={"rdma_lock_handler": 5})
    depmod(node.root)
    node.conf.unlink()
    status, out, err = node.run()
    assert status == 0 and out.endswith("preflight: ok\n"), out + err
    assert "not configured" in node.run(node.kdir)[2]


def test_shell_output_of_a_node_that_builds_nothing(node):
    status, out, err = node.run("-e")
    assert status == 0 and not err and f"KERNEL={KERNEL}\nCRATE=''\nRUSTC=''\n" in out, out + err


@pytest.mark.parametrize(
    ("program", "package"),
    [
        ("modinfo", "kmod"),
        ("modprobe", "kmod"),
        ("nm", "binutils"),
        ("objdump", "binutils"),
        ("objcopy", "binutils"),
        ("xz", "xz-utils"),
        ("zstd", "zstd"),
    ],
)
def test_a_program_that_reads_modules_is_missing(node, program, package):
    """Checks that preflight names the package, rather than a wrong cause or none."""
    if program in ("xz", "zstd"):
        for ko in (node.ko, node.root / f"lib/modules/{KERNEL}/extra/lnet.ko"):
            if not shutil.which(program):
                pytest.skip(f"no {program} here")
            subprocess.run([program, "-q", "--rm" if program == "zstd" else "-z", ko], check=True)
        depmod(node.root)
    assert node.run()[0] == 0
    programs = node.root / "programs"
    programs.mkdir()
    for path in (f"{folder}/{name}" for folder in ("/usr/sbin", "/usr/bin") for name in os.listdir(folder)):
        name = os.path.basename(path)
        if name != program and not (programs / name).is_symlink():
            (programs / name).symlink_to(path)
    for path in (node.root / "usr/lib/ro2iblnd").iterdir():
        path.write_text(re.sub("^PATH=.*", f"PATH={programs}", path.read_text(), flags=re.M))
    line, last = node.wrong()
    assert f"no {program}: " in line
    assert last == f"preflight: to install: apt install {package}"


def test_modules_that_cannot_be_read(node):
    """Checks a file that objdump cannot read, and that the symbols of an unreadable LNet count as unknown."""
    lnet = node.root / f"lib/modules/{KERNEL}/extra/lnet.ko"
    real = (node.root / "usr/lib/ro2iblnd/module-symbols").rename(node.root / "usr/lib/ro2iblnd/real")
    script(
        node.root / "usr/lib/ro2iblnd/module-symbols",
        f'case $2 in */lnet.ko) echo "objdump: no" >&2; exit 1 ;; esac\nexec {real} "$@"',
    )
    line, last = node.wrong()
    assert f"cannot read the symbols of {lnet}: objdump: no" in line and last == NOTHING
    script(
        node.root / "usr/lib/ro2iblnd/module-symbols",
        f'case $2 in */ro2iblnd.ko) echo "nm: no" >&2; exit 1 ;; esac\nexec {real} "$@"',
    )
    assert f"cannot read the symbols of {node.ko}: nm: no" in node.wrong()[0]


def test_secure_boot_of_a_node_that_builds_nothing(node, tmp_path):
    """Checks that no advice names a key of DKMS, which such a node does not have."""
    node.secure_boot()
    write(node.root / "proc/keys", "2d I------ 1 perm 1f030000 0 0 asymmetri Other: 12ab: X509.rsa 12ab []\n")

    def fault(*args):
        line, _ = node.wrong(*args)
        assert "dkms" not in line.lower(), line
        return line

    assert "is not signed, and secure boot is on: build the package with SIGN=" in fault()
    cert = sign(node.ko, "Site", tmp_path)
    # The key of other modules of the node.
    write(node.root / "var/lib/shim-signed/mok/MOK.der", "")
    enroll = "is signed by Site, which this kernel does not know, and secure boot is on: mokutil --import"
    assert f"{enroll} the certificate that the package was signed with (SIGN=), reboot" in fault()
    assert f"{enroll} /{cert.relative_to(node.root)}, reboot" in fault("-c", cert)
    node.ko.unlink()
    depmod(node.root)
    assert "no ro2iblnd for kernel" in fault()


def test_a_second_module_is_a_note(node):
    """Checks a module that was installed by hand, which hides the module of the package."""
    by_hand = node.root / f"lib/modules/{KERNEL}/updates/ro2iblnd.ko"
    by_hand.parent.mkdir(parents=True)
    shutil.copy(node.ko, by_hand)
    (by_hand.parent / "ro2iblnd_kunit.ko").touch()
    (by_hand.parent / "by-hand-ro2iblnd.ko.aside").touch()
    depmod(node.root)
    status, _, err = node.run()
    assert status == 0 and f"note: two modules: {by_hand} is loaded, {node.ko} is not" in err, err
    by_hand.unlink()
    depmod(node.root)
    assert "two modules" not in node.run()[2]


def test_a_link_of_weak_modules(node):
    """The module of another kernel is right if its symbols are, and only there."""
    other = "6.12.0-test"
    imports = {"lnet_parse": LNET_EXPORTS["lnet_parse"], "ib_post_send": KERNEL_EXPORTS["ib_post_send"]}
    node.ko.unlink()
    there = node.root / f"lib/modules/{other}/extra/ro2iblnd/ro2iblnd.ko"
    module(there, imports=imports, vermagic=f"{other} SMP mod_unload modversions ")
    link = node.root / f"lib/modules/{KERNEL}/weak-updates/ro2iblnd/ro2iblnd.ko"
    link.parent.mkdir(parents=True)
    link.symlink_to(there)
    depmod(node.root)
    status, out, err = node.run()
    assert status == 0 and f"is a link to the module for kernel {other}" in out, out + err
    imports["ib_post_send"] = 1
    module(there, imports=imports, vermagic=f"{other} SMP mod_unload modversions ")
    assert "CRC of ib_post_send differs" in node.wrong()[0]
