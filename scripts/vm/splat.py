# SPDX-License-Identifier: GPL-2.0
"""Search for lines that must never be in a kernel log."""

import re

_SPLAT = re.compile(
    r"\bBUG:|\bkernel BUG at|\bWARNING:|\bOops\b|KASAN|KFENCE|UBSAN|"
    r"possible (recursive|circular) locking|possible irq lock inversion|"
    r"inconsistent lock state|INFO: .*(stall|blocked for more than|suspicious RCU|trying to register)|"
    r"rcu: .*stall|bad unlock balance|lock held when returning|held lock freed|refcount_t|"
    r"Kernel panic|unable to handle|general protection fault|scheduling while atomic|"
    r"sleeping function called|rust_kernel: panicked|rust_panic|Call Trace|"
    r"list_(add|del) corruption|ODEBUG|unreferenced object|soft lockup|workqueue lockup|"
    r"leaked|SLUB: .*Objects remaining|Objects remaining"
)


# Data races between functions of other modules are not the driver's.
_FOREIGN_RACE = re.compile(r"BUG: KCSAN: (?!.*\[ro2iblnd)")


# A warning with its trace.
_WARNING = re.compile(r"^[^\n]*\[ cut here \].*?\[ end trace \w+ \]", re.MULTILINE | re.DOTALL)


def is_foreign(warning):
    """Returns whether a warning is a known one of other modules.

    When a device of soft-RoCE goes, the kernel may post a receive for management datagrams to a queue pair that was
    destroyed (Linux 6.12).
    """
    return "rxe_post_recv" in warning and "ib_mad_post_receive_mads" in warning and "[ro2iblnd]" not in warning


def has_foreign(text):
    """Returns whether a kernel log has a known warning of other modules."""
    return any(map(is_foreign, _WARNING.findall(text)))


def splats(text, ignore=()):
    """Returns the lines of a kernel log that report a defect; empty if there is none.

    `ignore` is a list of patterns of lines that a test provokes on purpose.
    """
    text = _WARNING.sub(lambda found: "" if is_foreign(found[0]) else found[0], text)
    skip = [_FOREIGN_RACE, *map(re.compile, ignore)]
    return [line for line in text.splitlines() if _SPLAT.search(line) and not any(s.search(line) for s in skip)]


_TAINTS = "PFSRMBUDAWCIOELKXTNJ"


def taints(value, allowed="OE"):
    """Returns the letters of the bits of /proc/sys/kernel/tainted that are not allowed; empty if there is none.

    Every module from outside the kernel sets O and E: out of tree, unsigned.
    """
    bits = int(value)
    letters = [_TAINTS[i] if i < len(_TAINTS) else f"bit {i}" for i in range(bits.bit_length()) if bits >> i & 1]
    return [letter for letter in letters if letter not in allowed]
