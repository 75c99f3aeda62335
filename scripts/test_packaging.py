# SPDX-License-Identifier: GPL-2.0
"""Tests of scripts/packaging, and of the package of ro2ibtop. Run: pytest scripts"""

import os
import re
import shutil
import subprocess

import pytest
from fake_modules import module

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


def test_every_variable_of_the_configuration_is_in_the_man_page():
    page = read("scripts/packaging/man/ro2iblnd-preflight.8").partition(".Sh FILES")[2].partition(".Sh ")[0]
    variables = set(re.findall(r"^#?([A-Z]+)=", read("scripts/packaging/ro2iblnd.conf"), re.MULTILINE))
    assert set(re.findall(r"^\.Ql ([A-Z]+)=", page, re.MULTILINE)) == variables and len(variables) > 3
    page = read("scripts/packaging/man/ro2iblnd-preflight.8").partition(".Sh ENVIRONMENT")[2].partition(".Sh ")[0]
    assert variables <= set(re.findall(r"[A-Z]+", page))


def test_all_have_one_version():
    version = re.search(r'define RO2IBLND_VERSION "(.*)"', read("include/ro2iblnd_version.h"))[1]
    assert re.search(r'^version = "(.*)"', read("scripts/ro2ibtop/Cargo.toml"), re.MULTILINE)[1] == version


def test_make_install_has_a_program_for_each_man_page(tmp_path):
    """Checks that each man page has a program, and that the installed programs work without this tree."""
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
    assert (root / "usr/lib/ro2iblnd/hardware-day").exists()
    done = subprocess.run([root / "usr/sbin/ro2iblnd-preflight", "-k", KERNEL, kdir], capture_output=True, text=True)
    assert done.returncode == 1 and f"preflight: {kdir}: not configured" in done.stderr
    assert "No such file" not in done.stderr, done.stderr


def test_make_install_refuses_a_module_for_tests_and_an_unknown_kernel(tmp_path):
    """Checks that neither a module for lnet_lite, nor a module without a kernel, gets into the running system."""
    (tmp_path / "bin").mkdir()
    for name in ("install", "ln", "depmod"):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\necho {name} >>{tmp_path}/called\n")
        (tmp_path / "bin" / name).chmod(0o755)
    kdir = tmp_path / "kdir"
    (kdir / "include/config").mkdir(parents=True)
    (kdir / "include/config/kernel.release").write_text(KERNEL + "\n")
    called = tmp_path / "called"

    def install(*args):
        command = ["make", "-C", TOP, "install", f"OUT={tmp_path}", *args]
        env = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        return done.returncode, done.stderr

    module(tmp_path / "ro2iblnd.ko", lnet="lnet_lite 0.1.0")
    status, err = install(f"KDIR={kdir}")
    assert status != 0 and "ro2iblnd.ko was built for lnet_lite, for tests: make LUSTRE=" in err, err
    assert not called.exists()
    assert install(f"KDIR={kdir}", f"DESTDIR={tmp_path}/root")[0] == 0
    module(tmp_path / "ro2iblnd.ko", lnet="LNet 2.17.57")
    assert install(f"KDIR={kdir}")[0] == 0
    called.unlink()
    status, err = install("KDIR=/nonexistent")
    assert status != 0 and "KDIR=/nonexistent: not the headers of a kernel" in err, err
    assert not called.exists()


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """Returns the unpacked Debian packages, by name."""
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
        if name == "ro2iblnd-dkms":
            subprocess.run(["dpkg-deb", "-e", deb, out / "control"], check=True)
    return made


def test_ro2ibtop_is_a_package_of_its_own(packages):
    assert set(packages) == {"ro2iblnd-dkms", "ro2ibtop"}
    files = {
        name: {str(f.relative_to(root)) for f in root.rglob("*") if f.is_file()} for name, root in packages.items()
    }
    # The packages can be installed together.
    assert not files["ro2ibtop"] & files["ro2iblnd-dkms"]
    assert {"usr/bin/ro2ibtop", "usr/share/man/man1/ro2ibtop.1.gz"} <= files[
        "ro2ibtop"
    ]
    assert "usr/share/man/man4/ro2iblnd.4.gz" in files["ro2iblnd-dkms"]
    # The package has the licence of each crate that the program contains.
    copyright = (packages["ro2ibtop"] / "usr/share/doc/ro2ibtop/copyright").read_text()
    crates = set(re.findall(r"crate (\S+ \S+), which", copyright))
    assert "ratatui" in {crate.split()[0] for crate in crates}
    licences = packages["ro2ibtop"] / "usr/share/doc/ro2ibtop/licences"
    without = [crate for crate in crates if not any((licences / crate.replace(" ", "-")).iterdir())]
    assert not without


def test_packaged_ro2ibtop_runs_without_paths_of_its_builder(packages):
    program = packages["ro2ibtop"] / "usr/bin/ro2ibtop"
    report = os.path.join(HERE, "ro2ibtop/tests/guest/dead-peer.txt")
    shown = subprocess.run([program, "--once", "--check", "--snapshot", report], capture_output=True, text=True)
    assert shown.returncode == 2 and "10.0.0.1@o2ib" in shown.stdout, shown
    strings = program.read_bytes()
    for path in (TOP, os.path.expanduser("~/.cargo"), os.path.expanduser("~/.cache")):
        assert path.encode() not in strings, path


class Dkms:
    """Source tree in the package's layout, with trees of dkms and modules of its own."""

    def __init__(self, root):
        self.root = root
        self.tree, self.source = root / "tree", root / "src/ro2iblnd-0.1.0"
        self.modules, self.kdir = root / "modules", root / "kdir"
        (self.source / "scripts").mkdir(parents=True)
        for name in ("lnet-find", "dkms-build"):
            shutil.copy(os.path.join(HERE, name), self.source / "scripts")
        conf = read("scripts/packaging/dkms.conf").replace("#MODULE_VERSION#", "0.1.0")
        conf = conf.replace("/etc/dkms/", f"{root}/etc/dkms/")
        (self.source / "dkms.conf").write_text(conf)
        preflight = self.source / "scripts/preflight"
        preflight.write_text("#!/bin/sh\nexit 0\n")
        preflight.chmod(0o755)
        (self.kdir / "include").mkdir(parents=True)
        (self.modules / KERNEL).mkdir(parents=True)
        (self.modules / KERNEL / "build").symlink_to(self.kdir)
        self.tree.mkdir()

    def conf(self, action, kernel=KERNEL, shown="1"):
        """Returns the settings that dkms gets from sourcing the file, and the output."""
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


def lustre_in_dkms(dkms, conf, name=LUSTRE):
    """Adds Lustre's modules to DKMS's tree; none of them is built yet."""
    source = dkms.tree / name / "2.17.57/source"
    source.mkdir(parents=True)
    (source / "dkms.conf").write_text(
        f'PACKAGE_NAME={name}\nPACKAGE_VERSION=2.17.57\nBUILT_MODULE_NAME=lustre\nDEST_MODULE_LOCATION=/updates\n'
        f'MAKE=false\nAUTOINSTALL=yes\n{conf}\n'
    )


def test_lustre_goes_first_on_a_new_kernel_only(dkms):
    lustre_in_dkms(dkms, "")
    for action in ("autoinstall", "kernel_postinst"):
        (auto, exclusive, depends, _), said = dkms.conf(action)
        assert (auto, exclusive, depends, said) == ("yes", "", LUSTRE, "")
    (_, exclusive, depends, _), said = dkms.conf("build")
    assert depends == "" and exclusive and "skipped" in said


@pytest.mark.parametrize("ofed", ["mlnx-ofed-kernel", "mlnx-ofa_kernel"])
def test_ofed_goes_first_on_a_new_kernel(dkms, ofed):
    lustre_in_dkms(dkms, "")
    lustre_in_dkms(dkms, "", ofed)
    assert dkms.conf("autoinstall")[0][2] == f"{LUSTRE} {ofed}"


# Settings with which DKMS does not build Lustre.
NEVER = (
    "AUTOINSTALL=",
    "AUTOINSTALL=no",
    "BUILD_EXCLUSIVE_KERNEL=^4",
    "BUILD_EXCLUSIVE_ARCH=s390",
    # These may depend on the kernel's version.
    "BUILD_EXCLUSIVE_KERNEL_MIN=7.0",
    "BUILD_EXCLUSIVE_KERNEL_MAX=5.99",
    "BUILD_EXCLUSIVE_CONFIG[0]=CONFIG_NOSUCH",
    "OBSOLETE_BY=5.99",
)


@pytest.mark.parametrize("conf", NEVER)
def test_a_lustre_that_is_not_built_is_not_waited_for(dkms, conf):
    lustre_in_dkms(dkms, conf)
    (auto, exclusive, depends, _), said = dkms.conf("autoinstall")
    assert (auto, depends) == ("yes", "") and not re.search(exclusive, KERNEL) and "skipped" in said


@pytest.mark.parametrize(
    "name", ["", "-2.17.57", f"-2.17.57-{KERNEL}", f"--{KERNEL}", f"--{KERNEL}-{os.uname().machine}"]
)
def test_a_lustre_that_the_administrator_turned_off_is_not_waited_for(dkms, name):
    lustre_in_dkms(dkms, "")
    file = dkms.root / f"etc/dkms/{LUSTRE}{name}.conf"
    file.parent.mkdir(parents=True)
    file.write_text("AUTOINSTALL=\n")
    (_, exclusive, depends, _), said = dkms.conf("autoinstall")
    assert depends == "" and not re.search(exclusive, KERNEL) and "skipped" in said


@pytest.mark.parametrize("conf", NEVER[:1])
def test_dkms_itself_does_not_wait(dkms, conf):
    """Checks that dkms does not wait for Lustre, which would prevent the kernel's installation from completing."""
    needs_dkms()
    lustre_in_dkms(dkms, conf)
    assert dkms.run("add", "-m", "ro2iblnd", "-v", "0.1.0").returncode == 0
    done = dkms.run("autoinstall", "-k", KERNEL)
    assert done.returncode == 0, (done.stdout, done.stderr)


@pytest.fixture
def unfit(dkms, monkeypatch):
    """Returns a DKMS tree for a kernel with an LNet and without the build dependencies."""
    header = dkms.root / "lustre/include/linux/lnet/lib-lnet.h"
    header.parent.mkdir(parents=True)
    header.touch()
    monkeypatch.setenv("LUSTRE", str(dkms.root / "lustre"))
    preflight = dkms.source / "scripts/preflight"
    preflight.write_text(
        "#!/bin/sh\necho 'preflight: no bindgen' >&2\necho 'preflight: to install: apt install bindgen' >&2\nexit 1\n"
    )
    return dkms


def test_a_new_kernel_it_cannot_be_built_for_is_left_out(unfit):
    """Checks that a failed check is not an error, which would end the installation of the kernel. The caller of an
    explicit build gets the error.
    """
    for action in ("autoinstall", "kernel_postinst"):
        (auto, exclusive, _, _), said = unfit.conf(action)
        assert auto == "yes" and not re.search(exclusive, KERNEL), said
        assert f"ro2iblnd: skipped: kernel {KERNEL}: no bindgen\n" in said and "apt install bindgen" in said
        assert f"dkms autoinstall -k {KERNEL}" in said
    (_, exclusive, _, _), said = unfit.conf("build")
    assert (exclusive, said) == ("", "")
    unfit.source.joinpath("scripts/preflight").write_text("#!/bin/sh\nexit 0\n")
    assert unfit.conf("autoinstall") == (["yes", "", "", f"scripts/dkms-build {KERNEL} {unfit.kdir}"], "")


def test_a_new_kernel_is_left_out_though_lustre_is_to_come(unfit):
    """Checks a missing build dependency other than LNet, which is still missing when Lustre has been built."""
    lustre_in_dkms(unfit, "")
    for action in ("autoinstall", "kernel_postinst"):
        (_, exclusive, _, _), said = unfit.conf(action)
        assert not re.search(exclusive, KERNEL) and "no bindgen" in said, said
    # preflight does not ask for LNet.
    preflight = unfit.source / "scripts/preflight"
    preflight.write_text('#!/bin/sh\nfor o; do [ "$o" != -n ] || exit 0; done\nexit 1\n')
    assert unfit.conf("autoinstall")[1] == ""


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
    # A new kernel runs this command: an error would make its installation fail.
    done = dkms.run("autoinstall", "-k", KERNEL)
    assert done.returncode == 0, done.stderr
    assert f"ro2iblnd: skipped: no LNet for kernel {KERNEL}" in done.stderr


def test_a_module_stays_that_cannot_be_built_again(tmp_path):
    """Checks a module whose LNet was replaced while the build dependencies are missing: dkms would remove the module
    first.
    """
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
    """Checks a package of the same version with other sources, and the same LNet."""
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
    dkms.write_text(f"""#!/bin/sh
echo "$1" >>{tmp_path}/called
case $1 in status) echo installed ;; build) mkdir -p {log.parent} && cp {tmp_path}/log {log} ;; esac
""")
    dkms.chmod(0o755)
    env = {
        **os.environ,
        "PATH": f"{dkms.parent}:{os.environ['PATH']}:/usr/sbin",
        "LUSTRE": str(tmp_path / "lustre"),
        "dkms_tree": str(tmp_path / "dkms"),
    }

    def run(program, *args):
        done = subprocess.run(
            [source / "scripts" / program, *args], env=env, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def called():
        run("dkms-rebuild", KERNEL)
        words = (tmp_path / "called").read_text().split()
        (tmp_path / "called").unlink()
        return words

    fingerprint = re.search("^LNET_FINGERPRINT='?([^'\n]*)", run("lnet-find", "-k", KERNEL), re.M)[1]
    log.write_text(f"ro2iblnd: LNet fingerprint {fingerprint}\nro2iblnd: sources {run('source-id')}\n")
    shutil.copy(log, tmp_path / "log")
    assert called() == ["status"]
    # The kernel would not load the module: an administrator who asks gets another module, and the reason.
    modinfo = dkms.parent / "modinfo"
    modinfo.write_text("#!/bin/sh\necho /lib/modules/ro2iblnd.ko\n")
    modinfo.chmod(0o755)
    preflight = source / "scripts/preflight"
    says = "preflight: /lib/modules/ro2iblnd.ko is not signed"
    preflight.write_text(f'#!/bin/sh\ncase $* in *-b*) exit 0 ;; esac\necho "{says}" >&2\nexit 1\n')
    done = subprocess.run([source / "scripts/dkms-rebuild", KERNEL], env=env, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.count(says) == 2, done
    assert "install" in (tmp_path / "called").read_text().split()
    (tmp_path / "called").unlink()
    # Not after every installation of a package.
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


# Code that dh_dkms adds to the maintainer scripts, and the program that it calls: as in Debian 12, which builds for the
# running kernel alone.
DH_DKMS = {
    "prerm": """
case "$1" in
    remove|upgrade|deconfigure)
      if [  "$(dkms status -m ro2iblnd -v @VERSION@)" ]; then
         dkms remove -m ro2iblnd -v @VERSION@ --all
      fi
    ;;
esac
""",
    "postinst": """
case "$1" in
    configure) /usr/lib/dkms/common.postinst ro2iblnd @VERSION@ /usr/share/ro2iblnd-dkms "" $2 ;;
esac
""",
    "postrm": "",
}
COMMON_POSTINST = f"""
set -e
[ ! -f /etc/dkms/no-autoinstall ] || exit 0
if [ -e "/var/lib/dkms/$1/$2" ]; then dkms remove -m $1 -v $2 --all; fi
dkms add -m $1 -v $2
dkms build -m $1 -v $2 -k {KERNEL}
dkms install -m $1 -v $2 -k {KERNEL}
"""
# The part of dkms that the tests need: modules that are built, modules that are installed, and no action on a version
# that lost its sources.
FAKE_DKMS = r"""#!/bin/bash
set -e
action=$1 all= kernel=
shift
while [ $# -gt 0 ]; do
	case $1 in -v) version=$2; shift 2 ;; -k) kernel=$2; shift 2 ;; --all) all=y; shift ;; *) shift 2 ;; esac
done
echo "$action $version $kernel" >>/var/lib/dkms/called
all=/var/lib/dkms/ro2iblnd tree=/var/lib/dkms/ro2iblnd/$version
arch=$(uname -m)
[ ! -L "$tree/source" ] || [ -d "$tree/source" ] || { echo "$version is broken!" >&2; exit 4; }
uninstall() {
	[ "$(readlink "$all/kernel-$1-$arch")" = "$version/$1/$arch" ] || return 0
	# its own file only
	! cmp -s "$tree/$1/$arch/module/ro2iblnd.ko" "/lib/modules/$1/updates/dkms/ro2iblnd.ko" ||
		rm "/lib/modules/$1/updates/dkms/ro2iblnd.ko"
	rm "$all/kernel-$1-$arch"
}
build() {
	[ ! -e "$tree/$1" ] || { echo "already built" >&2; exit 3; }
	rm -rf "$tree/build"
	cp -a "$tree/source/" "$tree/build"
	[ ! -e "/fails-$1" ] || exit 10
	mkdir -p "$tree/$1/$arch/module" "$tree/$1/$arch/log"
	. "$tree/build/lnet"
	sources=$(cat "$tree/build/sources")
	echo "$version $sources" >"$tree/$1/$arch/module/ro2iblnd.ko"
	printf 'ro2iblnd: %s
' "LNet fingerprint $LNET_FINGERPRINT" "sources $sources" >"$tree/$1/$arch/log/make.log"
}
case $action in
add)
	[ ! -e "$tree/source" ] || exit 3
	mkdir -p "$tree"
	ln -s "/usr/src/ro2iblnd-$version" "$tree/source"
	;;
status)
	[ -z "$(ls "$tree" 2>/dev/null)" ] || echo "ro2iblnd/$version: added"
	for dir in "$tree"/[0-9]*; do
		[ -d "$dir" ] || continue
		[ -z "$kernel" ] || [ "$kernel" = "${dir##*/}" ] || continue
		state=built
		[ "$(readlink "$all/kernel-${dir##*/}-$arch")" != "$version/${dir##*/}/$arch" ] || state=installed
		echo "ro2iblnd/$version, ${dir##*/}, $arch: $state"
	done
	;;
build) build "$kernel" ;;
install)
	[ -d "$tree/$kernel" ] || build "$kernel"
	[ ! -e "/no-install-$kernel" ] || [ "$(cat "/no-install-$kernel")" != "$(cut -d' ' -f2 "$tree/$kernel/$arch/module/ro2iblnd.ko")" ] || exit 6
	[ ! -e "$all/kernel-$kernel-$arch" ] || exit 5
	# as Ctrl-C or a kill of the caller
	[ ! -e "/interrupt-$kernel" ] || { rm "/interrupt-$kernel"; kill $PPID; exit 1; }
	for file in "/lib/modules/$kernel/updates/ro2iblnd.ko"*; do
		[ ! -e "$file" ] || { echo "Module version matches what is there already" >&2; exit 6; }
	done
	mkdir -p "/lib/modules/$kernel/updates/dkms"
	cp "$tree/$kernel/$arch/module/ro2iblnd.ko" "/lib/modules/$kernel/updates/dkms/"
	ln -s "$version/$kernel/$arch" "$all/kernel-$kernel-$arch"
	;;
uninstall) uninstall "$kernel" ;;
remove)
	for dir in "$tree"/[0-9]*; do
		[ -d "$dir" ] || continue
		[ -z "$kernel" ] || [ "$kernel" = "${dir##*/}" ] || continue
		uninstall "${dir##*/}"
		rm -rf "$dir"
	done
	# with the last kernel all of it goes
	compgen -G "$tree/[0-9]*" >/dev/null || rm -rf "$tree"
	[ -n "$(ls "$all")" ] || rm -rf "$all"
	;;
esac
"""
FALLBACK = "6.1.0-98-amd64"
ALL = (KERNEL, FALLBACK, "6.1.0-97-amd64")


class Debian:
    """Node with three kernels, on which dpkg runs the package's maintainer scripts."""

    def __init__(self, root):
        self.root = root
        self.dkms = root / "var/lib/dkms"
        self.dkms.mkdir(parents=True)
        (root / "etc/dkms").mkdir(parents=True)
        for kernel in ALL:
            (root / "lib/modules" / kernel / "build/include").mkdir(parents=True)
        self.script(root / "bin/dkms", FAKE_DKMS)
        self.script(root / "bin/uname", f"#!/bin/sh\ncase $1 in -r) echo {KERNEL} ;; *) echo x86_64 ;; esac\n")
        self.script(root / "bin/depmod", "#!/bin/sh\n")
        self.script(root / "bin/ro2iblnd-switch", "#!/bin/sh\n")
        self.script(root / "usr/lib/dkms/common.postinst", "#!/bin/sh\n" + COMMON_POSTINST)

    def here(self, text):
        """Returns the text with its paths moved into this root."""
        return re.sub(
            r"(?<![\w.}])/(?=var/lib/dkms|var/cache|usr/src|usr/sbin/ro2iblnd|usr/lib/dkms|lib/modules|etc/|fails-|"
            r"no-install-|interrupt-)",
            f"{self.root}/",
            text,
        )

    def script(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.here(text))
        path.chmod(0o755)

    def sources(self, version):
        return self.root / f"usr/src/ro2iblnd-{version}"

    def package(self, version, sources):
        """Unpacks the package: its files, and its maintainer scripts."""
        source = self.sources(version)
        shutil.rmtree(source, ignore_errors=True)
        (source / "include").mkdir(parents=True)
        (source / "include/ro2iblnd_version.h").write_text(f'#define RO2IBLND_VERSION "{version}"\n')
        (source / "sources").write_text(sources + "\n")
        (source / "lnet").write_text("LNET_FINGERPRINT=1 LNET_TEXT=x\n")
        self.script(source / "scripts/dkms-rebuild", read("scripts/dkms-rebuild"))
        self.script(source / "scripts/source-id", f"#!/bin/sh\ncat {source}/sources\n")
        lnet_find = f"""#!/bin/sh
            [ ! -e {self.root}/no-lnet-$2 ] || {{ echo "lnet-find: no LNet for kernel $2" >&2; exit 3; }}
            cat {source}/lnet"""
        self.script(source / "scripts/lnet-find", lnet_find)
        preflight = f"""#!/bin/sh
            [ ! -e {self.root}/unfit-$3 ] || {{ echo "preflight: $3: no bindgen" >&2; exit 1; }}"""
        self.script(source / "scripts/preflight", preflight)

    def maintainer(self, name, version, *args, theirs=False):
        """Runs a maintainer script as debhelper makes it: with `theirs`, without the package's own part, as in old
        packages.
        """
        text = "#!/bin/sh\nset -e\n#DEBHELPER#\n" if theirs else read(f"scripts/packaging/debian/ro2iblnd-dkms.{name}")
        script = self.root / name
        self.script(script, text.replace("#DEBHELPER#", DH_DKMS[name]).replace("@VERSION@", version))
        env = {**os.environ, "PATH": f"{self.root}/bin:{os.environ['PATH']}", "dkms_tree": str(self.dkms)}
        return subprocess.run(["sh", script, *args], env=env, capture_output=True, text=True)

    def modules(self):
        """Returns the version and sources of each kernel's module."""
        found = {
            path.parts[-4]: path.read_text().strip()
            for path in self.root.glob("lib/modules/*/updates/dkms/ro2iblnd.ko")
        }
        links = {link.name.removeprefix("kernel-").rpartition("-")[0] for link in self.dkms.glob("ro2iblnd/kernel-*")}
        assert links == set(found), "dkms and the kernels do not agree"
        for link in self.dkms.glob("ro2iblnd/kernel-*"):
            assert (link / "module/ro2iblnd.ko").exists()
        assert not list(self.dkms.glob("ro2iblnd/*/.[a-z]*"))
        return found

    def installed(self, version="0.1.0", sources="one"):
        self.package(version, sources)
        done = self.maintainer("postinst", version, "configure", "")
        assert done.returncode == 0, done
        self.called()
        return self

    def update(self, version="0.1.0", sources="two", old="0.1.0", theirs=False):
        """Updates the package as dpkg does, and returns the result of postinst."""
        done = self.maintainer("prerm", old, "upgrade", f"{version}+20261127", theirs=theirs)
        assert done.returncode == 0, done
        if version != old:
            shutil.rmtree(self.sources(old))
        self.package(version, sources)
        return self.maintainer("postinst", version, "configure", f"{old}+20261126")

    def called(self):
        said = (self.dkms / "called").read_text()
        (self.dkms / "called").unlink()
        return said


@pytest.fixture
def debian(tmp_path):
    return Debian(tmp_path)


def of_all(text):
    return dict.fromkeys(ALL, text)


def test_the_package_builds_for_each_kernel(debian):
    """Checks that the package builds for each kernel, although dkms's own script builds for one kernel only."""
    assert debian.installed().modules() == of_all("0.1.0 one")


def test_a_module_installed_by_hand_makes_way(debian):
    """Checks a module installed by hand, beside which dkms does not install its own. It stays if there is no better
    module.
    """
    by_hand = [debian.root / "lib/modules" / kernel / "updates/ro2iblnd.ko" for kernel in ALL[:2]]
    for file in by_hand:
        file.parent.mkdir()
        file.write_text("by hand")
    debian.root.joinpath(f"fails-{FALLBACK}").touch()
    debian.package("0.1.0", "one")
    done = debian.maintainer("postinst", "0.1.0", "configure", "")
    assert done.returncode == 0 and "installed by hand, and is removed" in done.stderr, done
    assert debian.modules() == {kernel: "0.1.0 one" for kernel in ALL if kernel != FALLBACK}
    assert not by_hand[0].exists() and by_hand[1].read_text() == "by hand"
    # The old module also stays if dkms fails to install.
    debian.root.joinpath(f"fails-{FALLBACK}").unlink()
    debian.root.joinpath(f"no-install-{FALLBACK}").write_text("one")
    assert debian.maintainer("postinst", "0.1.0", "triggered", "x").returncode == 0
    assert by_hand[1].read_text() == "by hand"
    assert debian.maintainer("postinst", "0.1.0", "configure", "").returncode == 0


def test_no_module_at_all_is_an_error_of_the_installation(debian):
    debian.package("0.1.0", "one")
    debian.root.joinpath(f"fails-{KERNEL}").touch()
    assert debian.maintainer("postinst", "0.1.0", "configure", "").returncode != 0
    assert debian.modules() == {}
    debian.root.joinpath(f"fails-{KERNEL}").unlink()
    assert debian.maintainer("postinst", "0.1.0", "configure", "").returncode == 0
    assert debian.modules() == of_all("0.1.0 one")


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0", "0.1.0.1"])
def test_an_update_replaces_the_modules_of_all_kernels(debian, version):
    done = debian.installed().update(version)
    assert done.returncode == 0 and not done.stderr, done
    assert debian.modules() == of_all(f"{version} two")
    assert {path.name for path in debian.dkms.glob("ro2iblnd/[0-9]*")} == {version}
    assert (debian.dkms / "ro2iblnd" / version / "source").resolve() == debian.sources(version)


@pytest.mark.parametrize("version", ["0.2.0", "0.1.0"])
def test_a_downgrade_is_an_update(debian, version):
    debian.installed("0.2.0", "new")
    done = debian.update(version, "old", old="0.2.0")
    assert done.returncode == 0 and not done.stderr, done
    assert debian.modules() == of_all(f"{version} old")


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
@pytest.mark.parametrize("lacks", ["unfit", "fails", "no-lnet", "headers", "no-install"])
def test_an_update_that_cannot_be_built_leaves_the_module(debian, version, lacks):
    """Checks an update where one kernel of three has no suitable toolchain, a failing build, or an LNet without its
    tree.
    """
    debian.installed()
    if lacks == "headers":
        shutil.rmtree(debian.root / "lib/modules" / FALLBACK / "build")
    else:
        debian.root.joinpath(f"{lacks}-{FALLBACK}").write_text("two\n")
    done = debian.update(version)
    assert done.returncode == 0, done
    assert f"ro2iblnd: the module for kernel {FALLBACK} stays as it was" in done.stderr, done
    assert debian.modules() == {**of_all(f"{version} two"), FALLBACK: "0.1.0 one"}
    assert "dkms-rebuild" in done.stderr or lacks in ("headers", "no-lnet")
    # When the fault is repaired, the next trigger does the rest.
    if lacks == "headers":
        (debian.root / "lib/modules" / FALLBACK / "build/include").mkdir(parents=True)
    else:
        debian.root.joinpath(f"{lacks}-{FALLBACK}").unlink()
    assert debian.maintainer("postinst", version, "triggered", "/usr/src").returncode == 0
    assert debian.modules() == of_all(f"{version} two")
    assert {path.name for path in debian.dkms.glob("ro2iblnd/[0-9]*")} == {version}


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_an_interrupted_update_leaves_the_module(debian, version):
    """Checks a dkms-rebuild that is killed when the old module was uninstalled and the new one is not installed."""
    debian.installed()
    debian.root.joinpath(f"interrupt-{FALLBACK}").touch()
    done = debian.update(version)
    assert f"ro2iblnd: the module for kernel {FALLBACK} stays as it was" in done.stderr, done
    assert debian.modules()[FALLBACK] == "0.1.0 one"
    assert debian.maintainer("postinst", version, "triggered", "/usr/src").returncode == 0
    assert debian.modules() == of_all(f"{version} two")


def test_an_interrupted_installation_leaves_the_module_installed_by_hand(debian):
    by_hand = debian.root / "lib/modules" / FALLBACK / "updates/ro2iblnd.ko"
    by_hand.parent.mkdir()
    by_hand.write_text("by hand")
    debian.package("0.1.0", "one")
    debian.root.joinpath(f"interrupt-{FALLBACK}").touch()
    debian.maintainer("postinst", "0.1.0", "configure", "")
    assert by_hand.read_text() == "by hand"


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_no_module_is_lost_where_none_can_be_built(debian, version):
    debian.installed()
    for kernel in ALL:
        debian.root.joinpath(f"unfit-{kernel}").touch()
    done = debian.update(version)
    assert done.returncode == 0 and debian.modules() == of_all("0.1.0 one"), done
    assert done.stderr.count("no bindgen") == done.stderr.count("stays as it was") == 3
    # A second update on top of the first.
    done = debian.update(version, "three", old=version)
    assert done.returncode == 0 and debian.modules() == of_all("0.1.0 one"), done
    # Removes all modules, of every version.
    assert debian.maintainer("prerm", version, "remove").returncode == 0
    assert not (debian.dkms / "ro2iblnd").exists()
    assert debian.modules() == {}


def test_version_replaced_by_dkms_is_forgotten(debian):
    """Checks an earlier version that dkms itself replaced, for example for a kernel that is installed meanwhile."""
    debian.installed()
    for kernel in ALL:
        debian.root.joinpath(f"unfit-{kernel}").touch()
    assert debian.update("0.2.0").returncode == 0
    for kernel in ALL:
        debian.root.joinpath(f"unfit-{kernel}").unlink()
        (debian.dkms / f"ro2iblnd/kernel-{kernel}-x86_64").unlink()
    env = {**os.environ, "PATH": f"{debian.root}/bin:{os.environ['PATH']}"}
    for kernel in ALL:
        subprocess.run(["dkms", "install", "-m", "ro2iblnd", "-v", "0.2.0", "-k", kernel], env=env, check=True)
    assert (debian.dkms / "ro2iblnd/0.1.0/kept-source").exists()
    assert debian.maintainer("postinst", "0.2.0", "triggered", "/usr/src").returncode == 0
    assert debian.modules() == of_all("0.2.0 two")
    assert not (debian.dkms / "ro2iblnd/0.1.0").exists()


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_an_update_that_dpkg_takes_back(debian, version):
    debian.installed()
    assert debian.maintainer("prerm", "0.1.0", "upgrade", f"{version}+1").returncode == 0
    done = debian.maintainer("postinst", "0.1.0", "abort-upgrade", f"{version}+1")
    assert done.returncode == 0, done
    assert debian.modules() == of_all("0.1.0 one")
    source = debian.dkms / "ro2iblnd/0.1.0/source"
    assert source.resolve() == debian.sources("0.1.0") and not (source.parent / "kept-source").exists()


def test_an_update_from_a_package_that_takes_all_away(debian):
    """Checks an update from a package whose scripts have only the code of dh_dkms."""
    done = debian.installed().update(theirs=True)
    assert done.returncode == 0, done
    assert debian.modules() == of_all("0.1.0 two")


def test_an_update_where_nothing_is_to_be_built_by_itself(debian):
    debian.installed()
    (debian.root / "etc/dkms/no-autoinstall").touch()
    done = debian.update("0.2.0")
    assert done.returncode == 0 and "stay as they were" in done.stderr, done
    assert debian.modules() == of_all("0.1.0 one")
    rebuild = debian.sources("0.2.0") / "scripts/dkms-rebuild"
    env = {**os.environ, "PATH": f"{debian.root}/bin:{os.environ['PATH']}", "dkms_tree": str(debian.dkms)}
    subprocess.run([rebuild], env=env, check=True, capture_output=True)
    assert debian.modules() == of_all("0.2.0 two")


def test_a_module_stays_while_the_next_is_built(debian):
    """Checks a machine that stops during the update: it boots with its old driver, and the next run does the whole
    update.
    """
    debian.installed()
    fake = debian.root / "bin/dkms"
    text = fake.read_text()
    fake.write_text(text.replace('\t. "$tree/build/lnet"', '\tkill -9 $PPID; exit 1'))
    debian.update()
    # The kernel finds this file, whatever is in dkms's tree.
    ko = debian.root / "lib/modules" / FALLBACK / "updates/dkms/ro2iblnd.ko"
    assert ko.read_text() == "0.1.0 one\n"
    fake.write_text(text)
    assert debian.maintainer("postinst", "0.1.0", "triggered", "/usr/src").returncode == 0
    assert debian.modules() == of_all("0.1.0 two")


def test_unpacked_package_is_removed(debian):
    """Checks the removal of a package that was only unpacked, for which dpkg does not call prerm."""
    debian.installed()
    assert debian.maintainer("prerm", "0.1.0", "upgrade", "0.2.0+1").returncode == 0
    shutil.rmtree(debian.sources("0.1.0"))
    switch = debian.root / "etc/modprobe.d/ro2iblnd-switch.conf"
    switch.parent.mkdir()
    switch.touch()
    done = debian.maintainer("postrm", "0.2.0", "remove")
    assert done.returncode == 0, done
    assert debian.modules() == {} and not (debian.dkms / "ro2iblnd").exists() and not switch.exists()


@pytest.mark.parametrize("action", ["remove", "purge"])
def test_the_switch_of_another_package_stays(debian, action):
    """Checks the removal and the purge of a package whose place ro2iblnd-tools has taken, switched again."""
    debian.installed()
    switch = debian.root / "etc/modprobe.d/ro2iblnd-switch.conf"
    switch.parent.mkdir()
    switch.touch()
    debian.script(debian.root / "usr/sbin/ro2iblnd-switch", "#!/bin/sh\n")
    assert debian.maintainer("postrm", "0.1.0", action).returncode == 0
    assert switch.exists()
    (debian.root / "usr/sbin/ro2iblnd-switch").unlink()
    assert debian.maintainer("postrm", "0.1.0", "purge").returncode == 0
    assert not switch.exists()


def test_skipped_code_is_debhelpers_only(packages):
    """Checks that the code after the package's own part is only dh_dkms's, because some cases end before it."""
    for name in ("prerm", "postinst"):
        text = (packages["ro2iblnd-dkms"].parent / "control" / name).read_text()
        assert set(re.findall(r"Automatically added by (\S+?)(?:/\S+)?$", text, re.M)) == {"dh_dkms"}, text
        assert "@VERSION@" not in text and "DEBHELPER" not in text
