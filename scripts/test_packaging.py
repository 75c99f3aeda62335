# SPDX-License-Identifier: GPL-2.0
"""What scripts/packaging says, and the package of ro2ibtop. Run: pytest scripts"""

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


@pytest.mark.parametrize("page", sorted(os.listdir(os.path.join(PACKAGING, "man"))))
def test_man_pages_are_well_formed(page):
    if not shutil.which("mandoc"):
        pytest.skip("no mandoc here")
    done = subprocess.run(
        ["mandoc", "-T", "lint", "-W", "warning", os.path.join(PACKAGING, "man", page)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_every_option_of_ro2ibtop_is_in_its_man_page():
    code = set(re.findall(r'^ +"--(\w+)"', read("scripts/ro2ibtop/src/main.rs"), re.MULTILINE))
    man = set(re.findall(r"^\.It Fl -(\w+)|, Fl -(\w+)", read("scripts/packaging/man/ro2ibtop.1"), re.MULTILINE))
    assert len(code) > 8
    assert {one or other for one, other in man} == code


def test_all_have_one_version():
    version = re.search(r'define RO2IBLND_VERSION "(.*)"', read("include/ro2iblnd_version.h"))[1]
    assert re.search(r'^version = "(.*)"', read("scripts/ro2ibtop/Cargo.toml"), re.MULTILINE)[1] == version


def test_make_install_has_a_program_for_each_man_page(tmp_path):
    """And those work without this tree."""
    kdir, out, root = (tmp_path / name for name in ("kdir", "out", "root"))
    (kdir / "include/config").mkdir(parents=True)
    (kdir / "include/config/kernel.release").write_text(KERNEL + "\n")
    out.mkdir()
    (out / "ro2iblnd.ko").touch()
    command = ["make", "-C", TOP, "install", f"KDIR={kdir}", f"OUT={out}", f"DESTDIR={root}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (root / f"lib/modules/{KERNEL}/updates/ro2iblnd.ko").exists()
    programs = {path.name for path in root.glob("usr/*bin/*")}
    pages = {path.stem for path in root.glob("usr/share/man/man[18]/*")}
    assert pages == programs and {"ro2iblnd-switch", "ro2iblnd-preflight", "ro2ib-report"} <= pages
    done = subprocess.run([root / "usr/sbin/ro2iblnd-preflight", "-k", KERNEL, kdir], capture_output=True, text=True)
    assert done.returncode == 1 and f"preflight: {kdir}: not configured" in done.stderr
    assert "No such file" not in done.stderr, done.stderr


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """The Debian packages, unpacked, by name."""
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    if not all(shutil.which(tool, path=path) for tool in ("dpkg-buildpackage", "dh_dkms", "cargo")):
        pytest.skip("needs what builds packages, and cargo")
    out = tmp_path_factory.mktemp("packages")
    done = subprocess.run([os.path.join(HERE, "package"), "deb", out], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made = {}
    for deb in done.stdout.split():
        name = os.path.basename(deb).partition("_")[0]
        made[name] = out / name
        subprocess.run(["dpkg-deb", "-x", deb, made[name]], check=True)
    return made


def test_ro2ibtop_is_a_package_of_its_own(packages):
    assert set(packages) == {"ro2iblnd-dkms", "ro2ibtop"}
    files = {name: {str(f.relative_to(root)) for f in root.rglob("*") if f.is_file()} for name, root in packages.items()}
    # They can be installed together.
    assert not files["ro2ibtop"] & files["ro2iblnd-dkms"]
    assert {"usr/bin/ro2ibtop", "usr/share/man/man1/ro2ibtop.1.gz", "usr/share/doc/ro2ibtop/schema.json"} <= files["ro2ibtop"]
    assert "usr/share/man/man4/ro2iblnd.4.gz" in files["ro2iblnd-dkms"]
    # Of each crate that is in it there is the licence.
    copyright = (packages["ro2ibtop"] / "usr/share/doc/ro2ibtop/copyright").read_text()
    crates = set(re.findall(r"crate (\S+ \S+), which", copyright))
    assert "ratatui" in {crate.split()[0] for crate in crates}
    licences = packages["ro2ibtop"] / "usr/share/doc/ro2ibtop/licences"
    without = [crate for crate in crates if not any((licences / crate.replace(" ", "-")).iterdir())]
    assert not without


def test_the_packaged_ro2ibtop_runs_and_tells_nothing_of_its_builder(packages):
    program = packages["ro2ibtop"] / "usr/bin/ro2ibtop"
    report = os.path.join(HERE, "ro2ibtop/tests/guest/dead-peer.txt")
    shown = subprocess.run([program, "--once", "--check", "--snapshot", report], capture_output=True, text=True)
    assert shown.returncode == 2 and "10.0.0.1@o2ib" in shown.stdout, shown
    strings = program.read_bytes()
    for path in (TOP, os.path.expanduser("~/.cargo"), os.path.expanduser("~/.cache")):
        assert path.encode() not in strings, path


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

    def run(self, *args, lustre=""):
        command = ["dkms", *args, "--dkmstree", self.tree, "--sourcetree", self.source.parent]
        command += ["--installtree", self.modules, "--kernelsourcedir", self.kdir]
        env = dict(os.environ, PATH=os.environ["PATH"] + ":/usr/sbin:/sbin", LUSTRE=lustre)
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


LUSTRE = "lustre-client-modules"


def lustre_in_dkms(dkms, conf):
    """Lustre's modules in DKMS's tree, of which nothing is built yet."""
    source = dkms.tree / LUSTRE / "2.17.57/source"
    source.mkdir(parents=True)
    (source / "dkms.conf").write_text(
        f'PACKAGE_NAME={LUSTRE}\nPACKAGE_VERSION=2.17.57\nBUILT_MODULE_NAME=lustre\nDEST_MODULE_LOCATION=/updates\n'
        f'MAKE=false\nAUTOINSTALL=yes\n{conf}\n'
    )


def test_lustre_goes_first_on_a_new_kernel_only(dkms):
    lustre_in_dkms(dkms, "")
    for action in ("autoinstall", "kernel_postinst"):
        (auto, exclusive, depends, _), said = dkms.conf(action)
        assert (auto, exclusive, depends, said) == ("yes", "", LUSTRE, "")
    (_, exclusive, depends, _), said = dkms.conf("build")
    assert depends == "" and exclusive and "skipped" in said


# What keeps DKMS from building Lustre.
NEVER = ("AUTOINSTALL=", "AUTOINSTALL=no", "BUILD_EXCLUSIVE_KERNEL=^4", "BUILD_EXCLUSIVE_ARCH=s390")


@pytest.mark.parametrize("conf", NEVER)
def test_a_lustre_that_is_not_built_is_not_waited_for(dkms, conf):
    lustre_in_dkms(dkms, conf)
    (auto, exclusive, depends, _), said = dkms.conf("autoinstall")
    assert (auto, depends) == ("yes", "") and not re.search(exclusive, KERNEL) and "skipped" in said


@pytest.mark.parametrize("conf", NEVER[:1])
def test_dkms_itself_does_not_wait(dkms, conf):
    """A kernel would not be installed to its end."""
    needs_dkms()
    lustre_in_dkms(dkms, conf)
    assert dkms.run("add", "-m", "ro2iblnd", "-v", "0.1.0").returncode == 0
    done = dkms.run("autoinstall", "-k", KERNEL)
    assert done.returncode == 0, (done.stdout, done.stderr)


@pytest.fixture
def unfit(dkms, monkeypatch):
    """There is an LNet, and what building needs is not there."""
    header = dkms.root / "lustre/include/linux/lnet/lib-lnet.h"
    header.parent.mkdir(parents=True)
    header.touch()
    monkeypatch.setenv("LUSTRE", str(dkms.root / "lustre"))
    preflight = dkms.source / "scripts/preflight"
    preflight.write_text("#!/bin/sh\necho 'preflight: no bindgen' >&2\necho 'preflight: to install: apt install bindgen' >&2\nexit 1\n")
    preflight.chmod(0o755)
    return dkms


def test_a_new_kernel_it_cannot_be_built_for_is_left_out(unfit):
    """As an error it would end the installation of the kernel. Who asks for a build is told by that."""
    for action in ("autoinstall", "kernel_postinst"):
        (auto, exclusive, _, _), said = unfit.conf(action)
        assert auto == "yes" and not re.search(exclusive, KERNEL), said
        assert f"ro2iblnd: skipped: kernel {KERNEL}: no bindgen\n" in said and "apt install bindgen" in said
        assert f"dkms autoinstall -k {KERNEL}" in said
    (_, exclusive, _, _), said = unfit.conf("build")
    assert (exclusive, said) == ("", "")
    unfit.source.joinpath("scripts/preflight").write_text("#!/bin/sh\nexit 0\n")
    assert unfit.conf("autoinstall") == (["yes", "", "", f"scripts/dkms-build {KERNEL} {unfit.kdir}"], "")


def test_dkms_itself_leaves_it_out(unfit):
    needs_dkms()
    assert unfit.run("add", "-m", "ro2iblnd", "-v", "0.1.0").returncode == 0
    done = unfit.run("autoinstall", "-k", KERNEL, lustre=os.environ["LUSTRE"])
    assert done.returncode == 0 and "no bindgen" in done.stderr, (done.stdout, done.stderr)


def needs_dkms():
    if not shutil.which("dkms", path=os.environ["PATH"] + ":/usr/sbin:/sbin") or os.geteuid() != 0:
        pytest.skip("needs dkms, and root")


def test_dkms_itself_leaves_the_kernel_out(dkms):
    needs_dkms()
    assert dkms.run("add", "-m", "ro2iblnd", "-v", "0.1.0").returncode == 0
    done = dkms.run("build", "-m", "ro2iblnd", "-v", "0.1.0", "-k", KERNEL)
    assert done.returncode == 77
    assert f"ro2iblnd: skipped: no LNet for kernel {KERNEL}" in done.stderr
    # what a new kernel runs: no error, or its installation would fail
    done = dkms.run("autoinstall", "-k", KERNEL)
    assert done.returncode == 0, done.stderr
    assert f"ro2iblnd: skipped: no LNet for kernel {KERNEL}" in done.stderr


def test_a_module_stays_that_cannot_be_built_again(tmp_path):
    """Its LNet was replaced, and what building needs is not there: dkms would take it away first."""
    version = re.search(r'define RO2IBLND_VERSION "(.*)"', read("include/ro2iblnd_version.h"))[1]
    for directory in ("source", KERNEL):
        (tmp_path / "dkms/ro2iblnd" / version / directory).mkdir(parents=True)
    header = tmp_path / "lustre/include/linux/lnet/lib-lnet.h"
    header.parent.mkdir(parents=True)
    header.touch()
    dkms = tmp_path / "bin/dkms"
    dkms.parent.mkdir()
    dkms.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/called\n')
    dkms.chmod(0o755)
    env = {
        **os.environ,
        "PATH": f"{dkms.parent}:{os.environ['PATH']}:/usr/sbin",
        "LUSTRE": str(tmp_path / "lustre"),
        "dkms_tree": str(tmp_path / "dkms"),
    }
    done = subprocess.run([os.path.join(HERE, "dkms-rebuild"), KERNEL], env=env, capture_output=True, text=True)
    assert done.returncode == 1
    called = tmp_path / "called"
    assert "remove" not in (called.read_text() if called.exists() else "")
    assert f"no headers of kernel {KERNEL}" in done.stderr
    assert f"the module for kernel {KERNEL} stays as it was" in done.stderr


def test_another_driver_is_built_again(tmp_path):
    """A package of the same version brings other sources; LNet is what it was."""
    version = re.search(r'define RO2IBLND_VERSION "(.*)"', read("include/ro2iblnd_version.h"))[1]
    source = tmp_path / f"src/ro2iblnd-{version}"
    shutil.copytree(os.path.join(TOP, "include"), source / "include")
    (source / "scripts").mkdir()
    for name in ("dkms-rebuild", "lnet-find", "source-id"):
        shutil.copy(os.path.join(HERE, name), source / "scripts")
    (source / "rust").mkdir()
    for name, text in (("preflight", "exit 0"), ("../Kbuild", ""), ("../Makefile", "")):
        (source / "scripts" / name).write_text(f"#!/bin/sh\n{text}\n")
        (source / "scripts" / name).chmod(0o755)
    header = tmp_path / "lustre/include/linux/lnet/lib-lnet.h"
    header.parent.mkdir(parents=True)
    header.touch()
    tree = tmp_path / "dkms/ro2iblnd" / version
    log = tree / KERNEL / os.uname().machine / "log/make.log"
    log.parent.mkdir(parents=True)
    (tree / "source").symlink_to(source)
    dkms = tmp_path / "bin/dkms"
    dkms.parent.mkdir()
    dkms.write_text(f'#!/bin/sh\necho "$1" >>{tmp_path}/called\n[ "$1" != status ] || echo installed\n')
    dkms.chmod(0o755)
    env = {
        **os.environ,
        "PATH": f"{dkms.parent}:{os.environ['PATH']}:/usr/sbin",
        "LUSTRE": str(tmp_path / "lustre"),
        "dkms_tree": str(tmp_path / "dkms"),
    }

    def run(program, *args):
        done = subprocess.run([source / "scripts" / program, *args], env=env, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def called():
        run("dkms-rebuild", KERNEL)
        words = (tmp_path / "called").read_text().split()
        (tmp_path / "called").unlink()
        return words

    fingerprint = re.search("^LNET_FINGERPRINT='?([^'\n]*)", run("lnet-find", "-k", KERNEL), re.M)[1]
    log.write_text(f"ro2iblnd: LNet fingerprint {fingerprint}\nro2iblnd: sources {run('source-id')}\n")
    assert called() == ["status"]
    # Its kernel would not take it: an administrator who asks gets another one, and hears why.
    modinfo = dkms.parent / "modinfo"
    modinfo.write_text("#!/bin/sh\necho /lib/modules/ro2iblnd.ko\n")
    modinfo.chmod(0o755)
    preflight = source / "scripts/preflight"
    says = "preflight: /lib/modules/ro2iblnd.ko is signed by nobody"
    preflight.write_text(f'#!/bin/sh\ncase $* in *-b*) exit 0 ;; esac\necho "{says}" >&2\nexit 1\n')
    done = subprocess.run([source / "scripts/dkms-rebuild", KERNEL], env=env, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.count(says) == 2, done
    assert "install" in (tmp_path / "called").read_text().split()
    (tmp_path / "called").unlink()
    # Not whenever a package comes.
    env["QUIET"] = "y"
    assert called() == ["status"]
    (source / "Kbuild").write_text("other\n")
    assert "install" in called()


def test_the_running_kernel_without_headers_is_not_passed_over(tmp_path):
    version = re.search(r'define RO2IBLND_VERSION "(.*)"', read("include/ro2iblnd_version.h"))[1]
    scripts, modules = tmp_path / "scripts", tmp_path / "modules"
    scripts.mkdir()
    shutil.copytree(os.path.join(TOP, "include"), tmp_path / "include")
    (tmp_path / "dkms/ro2iblnd" / version / "source").mkdir(parents=True)
    (modules / KERNEL).mkdir(parents=True)
    text = read("scripts/dkms-rebuild")
    assert "/lib/modules/*" in text
    (scripts / "dkms-rebuild").write_text(text.replace("/lib/modules/*", f"{modules}/*"))
    for name, does in (
        ("source-id", "echo 1"),
        ("lnet-find", "echo LNET_FINGERPRINT=1 LNET_TEXT=x"),
        ("preflight", f"echo preflight: no headers of kernel {KERNEL} >&2; exit 1"),
        ("bin/uname", f"echo {KERNEL}"),
        ("bin/dkms", "exit 1"),
    ):
        path = scripts / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{does}\n")
        path.chmod(0o755)
    env = {**os.environ, "PATH": f"{scripts}/bin:{os.environ['PATH']}", "dkms_tree": str(tmp_path / "dkms")}
    command = ["bash", scripts / "dkms-rebuild"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 1 and f"no headers of kernel {KERNEL}" in done.stderr, done
    assert f"there is no module for kernel {KERNEL}" in done.stderr, done
    done = subprocess.run(command, env={**env, "QUIET": "y"}, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done
