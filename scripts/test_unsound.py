# SPDX-License-Identifier: GPL-2.0
"""Tests that unsound code does not compile: safe code of the driver that gives a message back to LNet while a device
may access its pages. Each body becomes a function of rust/lnd/conn/send.rs in a copy of rust/. Run: pytest
scripts
"""

import fcntl
import re
import subprocess
from pathlib import Path

import pytest
import sim_copy

HEAD = """
#[allow(dead_code, unused)]
fn tried(msg: Message, req: &crate::lnet::SendRequest, device: ARef<Device>) {
"""
MAP = (
    "    let Ok::<Owner, _>(mapped) = msg.map(req, device, Direction::ToDevice) else { return };\n"
)
MAP_PAGES = "    let used = crate::rdma::sg::SgMap::map(device, &req.pages(), Direction::ToDevice);\n"
FINALIZE = "finalize(0, crate::proto::cause::Health::Ok);\n"

BODIES = [
    # The message comes back when the mapping has no users any more.
    ("right", MAP + "    if let Some(msg) = mapped.into_message() {\n        msg." + FINALIZE + "    }\n", None),
    ("finalized-while-mapped", MAP + "    let used = mapped.map().cloned();\n    msg." + FINALIZE, "E0382"),
    ("taken-out", MAP + "    let used = mapped.map().cloned();\n    mapped.keeper.msg." + FINALIZE, "E0616"),
    ("used-after-unmap", MAP + "    let back = mapped.unmap();\n    let used = mapped.map().cloned();\n", "E0382"),
    ("mapped-without-message", MAP_PAGES + "    msg." + FINALIZE, "E0133"),
]


@pytest.fixture(scope="module")
def check():
    cargo, rustc, cache = sim_copy.tools()
    copy = Path(cache) / "unsound"
    copy.mkdir(parents=True, exist_ok=True)
    with open(Path(cache) / "unsound.lock", "w") as lock:
        # Another run uses the same copy.
        fcntl.flock(lock, fcntl.LOCK_EX)
        sim_copy.sync(copy)
        file = copy / "lnd/conn/send.rs"
        text = file.read_text()

        def check(body):
            file.write_text(text + HEAD + body + "}\n")
            done = subprocess.run(
                [cargo, "check", "--locked", "--quiet", "-p", "ro2iblnd"],
                cwd=copy / "sim",
                env=sim_copy.environment(rustc, cache, "unsound-target"),
                capture_output=True,
                text=True,
                check=False,
            )
            return done.returncode, done.stderr

        yield check


@pytest.mark.parametrize(("body", "error"), [pytest.param(body, error, id=name) for name, body, error in BODIES])
def test_unsound_code_does_not_compile(check, body, error):
    status, err = check(body)
    if error is None:
        assert status == 0, err
    else:
        assert status != 0 and set(re.findall(r"error\[(E\d+)\]", err)) == {error}, err
