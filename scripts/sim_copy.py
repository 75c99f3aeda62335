# SPDX-License-Identifier: GPL-2.0
"""Copy of rust/ that may be changed, and the tools that build it: for sim-defects and sim-mutants."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def tools():
    """Returns cargo, rustc and the cache, as the other scripts choose them."""
    out = subprocess.run(
        ["bash", "-c", '. scripts/lib.sh; choose_tools; echo "$CARGO"; echo "$RUSTC"; echo "$CACHE"'],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return out.stdout.split()


def sync(to):
    """Makes `to` a copy of rust/. Files that are already the same keep their time, for cargo."""
    wanted = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "rust"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    names = [name for name in wanted.stdout.splitlines() if (ROOT / name).exists()]
    files = {to / Path(name).relative_to("rust") for name in names}
    for old in [p for p in to.rglob("*") if p.is_file() and p not in files]:
        old.unlink()
    for name in names:
        new, old = ROOT / name, to / Path(name).relative_to("rust")
        if not old.exists() or old.read_bytes() != new.read_bytes():
            old.parent.mkdir(parents=True, exist_ok=True)
            old.write_bytes(new.read_bytes())


def environment(rustc, cache, name):
    """Returns an environment in which cargo has its own target directory, and builds a small change fast."""
    return {
        **os.environ,
        "RUSTC": rustc,
        "CARGO_TARGET_DIR": os.path.join(cache, name),
        "CARGO_INCREMENTAL": "1",
        "CARGO_PROFILE_RELEASE_LTO": "off",
        "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16",
        "CARGO_PROFILE_RELEASE_DEBUG": "0",
        "CARGO_PROFILE_RELEASE_OPT_LEVEL": "2",
    }
