# SPDX-License-Identifier: GPL-2.0
"""What scripts/packaging says, without building a package. Run: pytest scripts"""

import os
import re
import shutil
import subprocess

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(HERE)
PACKAGING = os.path.join(HERE, "packaging")
KERNEL = "6.1.0-99-amd64"


def read(*parts):
    with open(os.path.join(TOP, *parts), encoding="utf-8") as f:
        return f.read()


def test_every_parameter_is_in_the_man_page():
    code = re.findall(r"^RO2IB_PARAM(?:_OPS)?\((\w+), (\w+),(?: &\w+,)? (-?\w+),", read("rust/shim/params.c"), re.MULTILINE)
    code = {(name, kind, default) for name, kind, default in code} | {("ipif_name", "string", "ib0")}
    man = set(re.findall(r"^\.It Sy (\w+) Pq (\w+), ([-\w]+)", read("scripts/packaging/man/ro2iblnd.7"), re.MULTILINE))
    assert len(code) > 20
    assert man == code


@pytest.mark.parametrize("page", sorted(os.listdir(os.path.join(PACKAGING, "man"))))
def test_man_pages_are_well_formed(page):
    if not shutil.which("mandoc"):
        pytest.skip("no mandoc here")
    done = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "error", os.path.join(PACKAGING, "man", page)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


class Dkms:
    """A source tree as the package lays it, in trees of its own."""

    def __init__(self, root):
        self.root = root
        self.tree, self.source = root / "tree", root / "src/ro2iblnd-0.1.0"
        self.modules, self.kdir = root / "modules", root / "kdir"
        (self.source / "scripts").mkdir(parents=True)
        for name in ("lnet-find", "dkms-build"):
            shutil.copy(os.path.join(HERE, name), self.source / "scripts")
        conf = read("scripts/packaging/dkms.conf").replace("#MODULE_VERSION#", "0.1.0")
        (self.source / "dkms.conf").write_text(conf)
        (self.kdir / "include").mkdir(parents=True)
        (self.modules / KERNEL).mkdir(parents=True)
        (self.modules / KERNEL / "build").symlink_to(self.kdir)
        self.tree.mkdir()

    def conf(self, action, kernel=KERNEL, shown="1"):
        """What dkms gets from sourcing the file, and what it says."""
        command = f"""action={action} kernelver={kernel} dkms_tree={self.tree} kernel_source_dir={self.kdir}
            unset BUILD_EXCLUSIVE_KERNEL BUILD_DEPENDS
            . {self.source}/dkms.conf
            echo "$AUTOINSTALL|$BUILD_EXCLUSIVE_KERNEL|${{BUILD_DEPENDS[*]}}|$MAKE"
        """
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
        return done.stdout.rstrip("\n").split("|"), done.stderr

    def run(self, *args):
        command = ["dkms", *args, "--dkmstree", self.tree, "--sourcetree", self.source.parent]
        command += ["--installtree", self.modules, "--kernelsourcedir", self.kdir]
        env = dict(os.environ, PATH=os.environ["PATH"] + ":/usr/sbin:/sbin", LUSTRE="")
        return subprocess.run(command, capture_output=True, text=True, env=env)


@pytest.fixture
def dkms(tmp_path):
    return Dkms(tmp_path)


def test_a_kernel_without_lnet_is_excluded_with_one_line(dkms):
    for action in ("build", "install"):
        (auto, exclusive, depends, make), said = dkms.conf(action)
        assert auto == "yes" and depends == ""
        assert not re.search(exclusive, KERNEL)
        assert said.startswith(f"ro2iblnd: skipped: no LNet for kernel {KERNEL}") and said.count("\n") == 1
        assert make == f"scripts/dkms-build {KERNEL} {dkms.kdir}"


def test_nothing_is_looked_for_when_nothing_is_built(dkms):
    for action in ("status", "remove", "add"):
        assert dkms.conf(action) == (["yes", "", "", f"scripts/dkms-build {KERNEL} {dkms.kdir}"], "")


def test_lustre_goes_first_on_a_new_kernel_only(dkms):
    (dkms.tree / "lustre-client-modules/2.17.57").mkdir(parents=True)
    for action in ("autoinstall", "kernel_postinst"):
        (auto, exclusive, depends, _), said = dkms.conf(action)
        assert (auto, exclusive, depends, said) == ("yes", "", "lustre-client-modules", "")
    (_, exclusive, depends, _), said = dkms.conf("build")
    assert depends == "" and exclusive and "skipped" in said


def test_dkms_itself_leaves_the_kernel_out(dkms):
    if not shutil.which("dkms", path=os.environ["PATH"] + ":/usr/sbin:/sbin") or os.geteuid() != 0:
        pytest.skip("needs dkms, and root")
    assert dkms.run("add", "-m", "ro2iblnd", "-v", "0.1.0").returncode == 0
    done = dkms.run("build", "-m", "ro2iblnd", "-v", "0.1.0", "-k", KERNEL)
    assert done.returncode == 77
    assert f"ro2iblnd: skipped: no LNet for kernel {KERNEL}" in done.stderr
    # what a new kernel runs: no error, or its installation would fail
    done = dkms.run("autoinstall", "-k", KERNEL)
    assert done.returncode == 0, done.stderr
    assert f"ro2iblnd: skipped: no LNet for kernel {KERNEL}" in done.stderr
