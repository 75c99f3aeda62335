# SPDX-License-Identifier: GPL-2.0
"""scripts/kernel-probe over made-up headers. Run: pytest scripts"""

import os
import re
import subprocess

import pytest

PROBE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernel-probe")

# As from 5.11 to 6.9: who does not look at what it returns is warned.
SLAB = """
#define GFP_KERNEL 0
__attribute__((warn_unused_result))
static inline void *krealloc_array(void *p, unsigned long n, unsigned long size, int flags) { return p; }
"""


@pytest.mark.parametrize("flags", [[], ["-Werror"], ["-Wall", "-Wextra", "-Werror"]])
def test_a_warning_is_no_answer(tmp_path, flags):
    """A kernel may be built with -Werror: what it has would be defined once more."""
    with open(PROBE) as f:
        names = set(re.findall(r"(?:linux|rdma)/[a-z_]+\.h", f.read()))
    for name in names:
        path = tmp_path / "include" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SLAB if name == "linux/slab.h" else "")
    header = tmp_path / "probes.h"
    subprocess.run([PROBE, header, "gcc", "-nostdinc", f"-I{tmp_path}/include", *flags], check=True, capture_output=True)
    # What is not there is not, either way.
    assert re.findall("RO2IB_HAVE_([A-Z_]+)", header.read_text()) == ["NOTHING", "KREALLOC_ARRAY"]
