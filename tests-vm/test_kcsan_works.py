# SPDX-License-Identifier: GPL-2.0
"""The kernel with KCSAN detects data races of Rust code: one race is deliberate. Run by `make test-kcsan`, which builds
the module with it (tests-kunit/deliberate_race.rs)."""

import os
import re

import pytest
import vm
from conftest import BUILT

pytestmark = pytest.mark.skipif(os.environ.get("KERNEL_FLAVOR") != "kcsan", reason="wants KERNEL_FLAVOR=kcsan")

REPORT = re.compile(r"BUG: KCSAN: data-race in .*\[ro2iblnd_kunit\]")


@pytest.mark.splats(REPORT.pattern)
def test_race_in_rust_is_reported(boot):
    guest = boot("races", append="kunit.filter_glob=ro2iblnd_races.*")
    vm.setup_two_links(guest)
    guest.check(f"insmod {guest.put(os.path.join(BUILT, 'ro2iblnd_kunit.ko'))}", 600)
    log = guest.dmesg()
    assert len(re.findall(r"^\S* *.*\bok \d+ (a_race_is_one|atomic_access_is_no_race)", log, re.MULTILINE)) == 2, log
    told = REPORT.findall(log)
    assert told and all("changes_what_another_changes" in line for line in told), told
