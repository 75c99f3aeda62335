# SPDX-License-Identifier: GPL-2.0
"""Small object files that modprobe, modinfo, depmod and nm treat as kernel modules.

They are for the tests of the scripts only, and contain no code.
"""

import os
import subprocess

KERNEL = "6.12.1-test"


def module(path, *, exports=None, imports=None, crc_form="section", **info):
    """Writes a module. exports and imports: symbol -> CRC; info: fields that modinfo shows."""
    info.setdefault("name", os.path.basename(path).split(".")[0])
    info.setdefault("vermagic", f"{KERNEL} SMP mod_unload modversions ")
    info.setdefault("license", "GPL")
    lines = ['.section .modinfo,"a"']
    for key, values in info.items():
        for value in [values] if isinstance(values, str) else values:
            lines.append(f'.asciz "{key}={value}"')
    for n, (name, crc) in enumerate(sorted((exports or {}).items())):
        lines += [
            f".text\n.globl {name}\n{name}: ret",
            f'.section ___ksymtab_gpl+{name},"a"\n__ksymtab_{name}: .long {n}, 0, 0',
        ]
        if crc_form == "section":  # from Linux 5.19 on
            lines.append(f'.section __kcrctab_gpl,"a"\n__crc_{name}: .long {crc:#x}')
        elif crc_form == "absolute":
            lines.append(f".globl __crc_{name}\n__crc_{name} = {crc:#x}")
    if imports:
        lines.append('.section __versions,"a"')
        for name, crc in imports.items():
            lines.append(f'.quad {crc:#x}\n.ascii "{name}"\n.zero {56 - len(name)}')
        lines.append(".text")
        lines += [f"call {name}" for name in imports]
    lines.append('.section .gnu.linkonce.this_module,"aw"\n.zero 64\n')
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["gcc", "-x", "assembler", "-c", "-o", path, "-"], input="\n".join(lines), text=True, check=True)
    return path


def depmod(root, kernel=KERNEL):
    """Runs depmod, as an installation does."""
    tree = root / "lib/modules" / kernel
    tree.mkdir(parents=True, exist_ok=True)
    for name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
        (tree / name).touch()
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    subprocess.run(["depmod", "-b", root, kernel], check=True, env=dict(os.environ, PATH=path), capture_output=True)
