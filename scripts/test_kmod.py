# SPDX-License-Identifier: GPL-2.0
"""Tests of the packages with a built module, kmod-ro2iblnd.spec and packaging/debian-kmod, on made-up kernels.

Run: pytest scripts
"""

import os
import re
import shutil
import subprocess

import pytest
from fake_modules import module

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(HERE)
# Three kernels of RHEL: one that the module is built for, a later one of that minor release, and one of the next.
KERNEL, LATER, NEXT = (f"5.14.0-{n}.x86_64" for n in ("570.32.1.el9_6", "570.62.1.el9_6", "611.5.1.el9_7"))
LUSTRE = "2.17.57"
# Packages of the distribution that the driver's require. A stand-in, which has only a shell, provides them.
BASE = "bash binutils kmod xz zstd make gcc dkms"
BUSYBOX = "busybox"


def read(*parts):
    with open(os.path.join(TOP, *parts), encoding="utf-8") as f:
        return f.read()


VERSION = re.search(r'define RO2IBLND_VERSION "(.*)"', read("include/ro2iblnd_version.h"))[1]


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Returns a folder with the sources in the layout of scripts/package. Its Makefile writes what it was called with,
    copies a made-up module, and installs the tools."""
    top = tmp_path_factory.mktemp("kmod")
    tree = top / f"ro2iblnd-{VERSION}"
    shutil.copytree(os.path.join(HERE, "packaging/man"), tree / "man")
    (tree / "man/ro2ibtop.1").unlink()
    (tree / "doc").mkdir()
    (tree / "doc/README.md").touch()
    shutil.copy(os.path.join(HERE, "packaging/ro2iblnd.conf"), tree / "ro2iblnd.conf")
    scripts = tree / "src/scripts"
    scripts.mkdir(parents=True)
    for name in os.listdir(HERE):
        if os.path.isfile(os.path.join(HERE, name)) and not name.endswith(".py"):
            shutil.copy(os.path.join(HERE, name), scripts)
    ko = module(top / "ro2iblnd.ko", vermagic=f"{KERNEL} SMP mod_unload modversions ")
    tools = re.search(r"^install-tools:\n(\t.*\n)+", read("Makefile"), re.MULTILINE)[0]
    (tree / "src/Makefile").write_text(f"modules:\n\tcp {ko} ro2iblnd.ko\n\techo '$(MAKEOVERRIDES)' >args\n{tools}")
    kdir = top / "kdir"
    (kdir / "include/config").mkdir(parents=True)
    (kdir / "include/config/kernel.release").write_text(KERNEL + "\n")
    (top / "lustre").mkdir()
    (top / "lustre/config.h").write_text(f'#define VERSION "{LUSTRE}"\n')
    # The site's program that signs: `sign key FILE`.
    sign = top / "sign"
    sign.write_text('#!/bin/sh\nprintf "%s signed" "$1" >>"$2"\n')
    sign.chmod(0o755)
    return tree


def rpmbuild(top, spec, *defines):
    """Builds a spec. Returns the folder of the packages."""
    out = top / "rpms"
    path = top / "x.spec"
    path.write_text(spec)
    options = [word for define in (f"_topdir {top}/rpm", f"_rpmdir {out}", *defines) for word in ("--define", define)]
    run("rpmbuild", "-bb", *options, path, env={**os.environ, "HOME": str(top)})
    return out


def made_up(name, provides=(), files="", install="", version="1"):
    """Returns the spec of a package that stands for a package of the distribution."""
    return f"""
%global debug_package %{{nil}}
%global __os_install_post %{{nil}}
Name: {name}
Version: {version}
Release: 1
Summary: x
License: x
AutoReqProv: no
{chr(10).join("Provides: " + p for p in provides)}
%description
x
%install
mkdir -p %{{buildroot}}
{install}
%files
{files}
"""


@pytest.fixture(scope="module")
def repository(tree):
    """Returns a repository with the driver's packages, three kernels, Lustre, and a stand-in for the rest."""
    if not all(shutil.which(tool) for tool in ("rpmbuild", "createrepo_c", "dnf")) or os.geteuid() != 0:
        pytest.skip("needs rpm, createrepo-c, dnf and root: scripts/prepare packages")
    top = tree.parent
    (top / "rpm/SOURCES").mkdir(parents=True)
    run("tar", "-C", top, "-czf", top / f"rpm/SOURCES/ro2iblnd-{VERSION}.tar.gz", tree.name)
    kmod = read("scripts/packaging/kmod-ro2iblnd.spec").replace("@VERSION@", VERSION).replace("@BUILD@", "1")
    common = (f"kdir {top}/kdir", f"lustre {top}/lustre")
    rpmbuild(top, kmod, *common, f"sign {top}/sign key")
    rpmbuild(top, kmod, *common, "ofed /ofed", "ofed_version 25.10")
    rpmbuild(top, read("scripts/packaging/ro2iblnd.spec").replace("@VERSION@", VERSION).replace("@BUILD@", "1"))
    base = f"""
mkdir -p %{{buildroot}}/bin %{{buildroot}}/usr/sbin %{{buildroot}}/lib/modules %{{buildroot}}/var/log %{{buildroot}}/etc
cp {shutil.which(BUSYBOX)} %{{buildroot}}/bin/busybox
for x in sh bash cat echo rm sed ls; do ln -s busybox %{{buildroot}}/bin/$x; done
printf '#!/bin/sh\\nread x; echo "$* $x" >>/var/log/weak\\n' >%{{buildroot}}/usr/sbin/weak-modules
printf '#!/bin/sh\\necho "$*" >>/var/log/depmod\\n' >%{{buildroot}}/usr/sbin/depmod
chmod 755 %{{buildroot}}/usr/sbin/*
"""
    provides = [*BASE.split(), "dkms = 3.1", "/bin/sh", "/bin/bash"]
    rpmbuild(top, made_up("base", provides, "/bin/*\n/usr/sbin/*\n%dir /var/log\n%dir /etc", base))
    for kernel in (KERNEL, LATER, NEXT):
        version = kernel.partition("-")[0]
        modules = f"/lib/modules/{kernel}"
        install = f"mkdir -p %{{buildroot}}{modules}; touch %{{buildroot}}{modules}/modules.order"
        spec = made_up("kernel-core", [f"kernel-uname-r = {kernel}", "kernel"], modules, install, version)
        rpmbuild(top, spec.replace("Release: 1", "Release: " + kernel.partition("-")[2].removesuffix(".x86_64")))
    rpmbuild(top, made_up("kmod-lustre-client", version=LUSTRE))
    for version in ("25.10", "26.04"):
        rpmbuild(top, made_up("kmod-mlnx-ofa_kernel", version=version))
        rpmbuild(top, made_up("mlnx-ofa_kernel-modules", version=version))
    for name, folder in (
        ("mlnx-ofa_kernel-dkms", "/usr/src/mlnx-ofa_kernel-25.10"),
        ("mlnx-ofa_kernel-devel", "/usr/src/ofa_kernel/default"),
        ("kmod-lustre", "/lib/modules/4.18.0/extra/lustre"),
        ("lustre-client-dkms", "/usr/src/lustre-client-2.17.57"),
    ):
        install = f"mkdir -p %{{buildroot}}{folder}; touch %{{buildroot}}{folder}/file"
        rpmbuild(top, made_up(name, (), f"{folder}/file", install))
    run("createrepo_c", "-q", top / "rpms")
    return top / "rpms"


@pytest.fixture
def dnf(repository, tmp_path):
    """Returns a function that calls dnf for a root file system of its own, and returns status and output."""
    root = tmp_path / "root"

    def dnf(*words):
        command = ["dnf", "-y", f"--installroot={root}", f"--repofrompath=t,{repository}", "--repo=t", "--releasever=9"]
        command += ["--nogpgcheck", "--setopt=install_weak_deps=False", f"--setopt=cachedir={tmp_path}/cache"]
        done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    dnf.root = root
    return dnf


def names(dnf):
    """Returns the names of the driver's packages that are installed."""
    query = run("rpm", f"--root={dnf.root}", "-qa", "--qf", "%{NAME}\n")
    return {name for name in query.split() if "ro2iblnd" in name}


def logged(dnf, name):
    path = dnf.root / "var/log" / name
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("kind", ["kmod-rpm", "kmod-deb"])
def test_a_package_of_a_module_needs_a_lustre(tree, tmp_path, kind):
    """Checks that a package with a module for lnet_lite is made only on request."""
    for name in ("rpmbuild", "dpkg-buildpackage", "dh"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    env = {k: v for k, v in os.environ.items() if k not in ("LUSTRE", "OFED")}
    env |= {"PATH": f"{tmp_path}:{env['PATH']}", "KDIR": str(tree.parent / "kdir")}

    def package(**more):
        command = [os.path.join(HERE, "package"), kind, tmp_path / "dist"]
        return subprocess.run(command, env=env | more, capture_output=True, text=True, check=False)

    done = package()
    assert done.returncode == 1 and "package: no LUSTRE=" in done.stderr and done.stderr.count("\n") == 1, done
    # preflight complains about the made-up headers.
    done = package(LUSTRE="lnet_lite")
    assert done.returncode == 1 and "LUSTRE" not in done.stderr and "not configured" in done.stderr, done


def test_a_kmod_is_installed_and_removed(dnf):
    status, out = dnf("install", "base", f"kernel-core-{KERNEL.removesuffix('.x86_64')}", "kmod-ro2iblnd")
    assert status == 0, out
    assert names(dnf) == {"kmod-ro2iblnd", "ro2iblnd-tools"}
    ko = f"/lib/modules/{KERNEL}/extra/ro2iblnd/ro2iblnd.ko"
    assert (dnf.root / ko[1:]).read_bytes().endswith(b"key signed")
    assert logged(dnf, "weak") == [f"--no-initramfs --add-modules {ko}"]
    assert logged(dnf, "depmod") == [f"-a {KERNEL}"]
    for program in ("ro2iblnd-switch", "ro2iblnd-preflight", "ro2ib-report"):
        assert (dnf.root / "usr/sbin" / program).resolve().stat().st_mode & 0o111
    assert (dnf.root / "usr/lib/ro2iblnd/hardware-day").stat().st_mode & 0o111
    status, out = dnf("remove", "kmod-ro2iblnd", "ro2iblnd-tools")
    assert status == 0 and names(dnf) == set(), out
    assert logged(dnf, "weak")[1:] == [f"--no-initramfs --remove-modules {ko}"]
    left = [str(p) for p in dnf.root.rglob("*ro2ib*") if "cache" not in str(p) and "/var/" not in str(p)]
    assert not left


def test_a_kmod_takes_all_kernels_of_its_minor_release(dnf):
    assert dnf("install", "base", f"kernel-core-{LATER.removesuffix('.x86_64')}", "kmod-ro2iblnd")[0] == 0


def test_a_kmod_refuses_the_next_minor_release(dnf):
    kernel = f"kernel-core-{NEXT.removesuffix('.x86_64')}"
    status, out = dnf("install", "base", kernel, "kmod-ro2iblnd", "--exclude=kernel-core-5.14.0-570*")
    assert status != 0 and "kernel-uname-r < 5.14.0-571" in out, out


def test_kmod_and_dkms_replace_each_other(dnf):
    assert dnf("install", "base", "kernel-core", "kmod-ro2iblnd")[0] == 0
    status, out = dnf("install", "ro2iblnd-dkms")
    assert status != 0 and "conflicts" in out, out
    status, out = dnf("install", "--allowerasing", "ro2iblnd-dkms")
    assert status == 0 and names(dnf) == {"ro2iblnd-dkms"}, out
    status, out = dnf("install", "--allowerasing", "kmod-ro2iblnd")
    assert status == 0 and names(dnf) == {"kmod-ro2iblnd", "ro2iblnd-tools"}, out


def test_a_change_of_ofed_or_lustre_builds_again(dnf):
    status, out = dnf("install", "base", "kernel-core", "ro2iblnd-dkms")
    assert status == 0, out
    rebuild = dnf.root / f"usr/src/ro2iblnd-{VERSION}/scripts/dkms-rebuild"
    rebuild.write_text('#!/bin/sh\necho "QUIET=$QUIET" >>/var/log/rebuild\n')
    for package in ("mlnx-ofa_kernel-devel", "mlnx-ofa_kernel-dkms", "kmod-lustre", "lustre-client-dkms"):
        for action in ("install", "remove"):
            assert dnf(action, package)[0] == 0
            # Headers alone, without their OFED, are removed without a build.
            expected = [] if (action, package) == ("remove", "mlnx-ofa_kernel-devel") else ["QUIET=y"]
            assert logged(dnf, "rebuild") == expected, (action, package)
            (dnf.root / "var/log/rebuild").unlink(missing_ok=True)
    assert dnf("install", "kmod-lustre")[0] == 0
    status, out = dnf("remove", "kmod-lustre", "ro2iblnd-dkms")
    assert status == 0 and "No such file" not in out and "scriptlet failed" not in out, out


@pytest.mark.parametrize("ofed", ["kmod-mlnx-ofa_kernel", "mlnx-ofa_kernel-modules"])
def test_a_kmod_for_ofed_requires_that_ofed(dnf, ofed):
    """Checks both packages of OFED: the second is that of an OFED that was built for one kernel (without KMP)."""
    other = ({"kmod-mlnx-ofa_kernel", "mlnx-ofa_kernel-modules"} - {ofed}).pop()
    status, out = dnf("install", f"--exclude={other}", "base", "kernel-core", "kmod-ro2iblnd-ofed")
    assert status == 0, out
    assert run("rpm", f"--root={dnf.root}", "-q", "--qf", "%{VERSION}", ofed) == "25.10"
    status, out = dnf("install", "kmod-ro2iblnd")
    assert status != 0 and "conflicts" in out, out
    assert dnf("update", f"--exclude={other}", ofed)[0] == 0
    assert run("rpm", f"--root={dnf.root}", "-q", "--qf", "%{VERSION}", ofed) == "25.10"


def test_the_last_module_takes_the_switch_with_it(tmp_path):
    """Checks the removal of the Debian packages of two kernels' modules, while ro2iblnd-tools stays."""
    kernels = ["6.1.0-1-amd64", "6.12.95+deb12-amd64"]
    modules = [tmp_path / f"lib/modules/{kernel}/updates/ro2iblnd/ro2iblnd.ko" for kernel in kernels]
    for module in modules:
        module.parent.mkdir(parents=True)
        module.touch()
    called = tmp_path / "called"
    switch = tmp_path / "ro2iblnd-switch"
    switch.write_text(f'#!/bin/sh\necho "$*" >>{called}\n')
    switch.chmod(0o755)
    script = read("scripts/packaging/debian-kmod/prerm").replace("/lib/modules", f"{tmp_path}/lib/modules")

    def prerm(kernel, action):
        env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "DPKG_MAINTSCRIPT_PACKAGE": f"ro2iblnd-modules-{kernel}"}
        subprocess.run(["sh", "-c", script, "prerm", action], env=env, check=True)

    prerm(kernels[1], "remove")
    modules[1].unlink()
    prerm(kernels[0], "upgrade")
    assert not called.exists()
    prerm(kernels[0], "remove")
    assert called.read_text() == "ko2iblnd\n"


def test_the_debian_package_of_a_module(tree, tmp_path):
    """Builds the package for one kernel, as scripts/package does, with a signature."""
    if not shutil.which("dh"):
        pytest.skip("needs debhelper")
    work = tmp_path / tree.name
    shutil.copytree(tree, work)
    shutil.copytree(os.path.join(HERE, "packaging/debian-kmod"), work / "debian")
    kernel = "6.12.95+deb12-amd64"
    control = (work / "debian/control").read_text()
    control = control.replace("@KVER@", kernel).replace("@VERSION@", VERSION).replace("@LUSTRE@", "")
    (work / "debian/control").write_text("".join(x for x in control.splitlines(True) if "@OFED@" not in x))
    (work / "debian/source").mkdir()
    (work / "debian/source/format").write_text("3.0 (native)\n")
    (work / "debian/kver").write_text(kernel + "\n")
    (work / "debian/build.mk").write_text(f"build_args := KDIR=/k LUSTRE=/l\nsign := {tree.parent}/sign key\n")
    (work / "debian/ro2iblnd-tools.manpages").write_text("man/*\n")
    (work / "debian/changelog").write_text(
        f"ro2iblnd ({VERSION}+1) unstable; urgency=medium\n\n  * x\n\n -- x <x@x>  Thu, 01 Jan 2026 00:00:00 +0000\n"
    )
    run("dpkg-buildpackage", "-b", "-us", "-uc", "-d", cwd=work)
    assert {"KDIR=/k", "LUSTRE=/l", "LLVM="} == set((work / "src/args").read_text().split())
    deb = tmp_path / f"ro2iblnd-modules-{kernel}_{VERSION}+1_amd64.deb"
    listed = run("dpkg-deb", "-c", deb)
    assert f"./lib/modules/{kernel}/updates/ro2iblnd/ro2iblnd.ko\n" in listed
    depends = run("dpkg-deb", "-f", deb, "Depends")
    assert f"linux-image-{kernel} | " in depends and f"lustre-client-modules-{kernel}" in depends
    assert "mlnx" not in depends
    run("dpkg-deb", "-e", deb, tmp_path / "scripts")
    assert f"depmod -a -F /boot/System.map-{kernel} {kernel}" in (tmp_path / "scripts/postinst").read_text()
    assert "ro2iblnd-switch ko2iblnd" in (tmp_path / "scripts/prerm").read_text()
    run("dpkg-deb", "-x", deb, tmp_path / "files")
    ko = tmp_path / f"files/lib/modules/{kernel}/updates/ro2iblnd/ro2iblnd.ko"
    assert ko.read_bytes().endswith(b"key signed")
    tools = run("dpkg-deb", "-c", tmp_path / f"ro2iblnd-tools_{VERSION}+1_all.deb")
    assert "./usr/sbin/ro2iblnd-preflight -> ../lib/ro2iblnd/preflight" in tools
    assert "/man8/ro2iblnd-switch.8.gz" in tools
    assert "./usr/lib/ro2iblnd/hardware-day\n" in tools
