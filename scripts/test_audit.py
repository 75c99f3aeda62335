# SPDX-License-Identifier: GPL-2.0
"""Tests of scripts/audit on trees with one fault each. Run: pytest scripts"""

import json
import os
import shutil
import subprocess
import sys

import pytest

SCRIPTS = os.path.dirname(os.path.abspath(__file__))
SPDX = "// SPDX-License-Identifier: GPL-2.0\n\n"
GOOD = """\
use core::ptr::NonNull;

use kernel::{
    prelude::*,
    sync::{
        Arc as Counted,
        SpinLock, //
    }, //
};

use super::pd::Pd;
use crate::bindings;

pub(crate) use crate::rdma::wc;

fn f() {
    // SAFETY: Nothing is at stake.
    unsafe { g() }
}
"""


@pytest.fixture
def audit(tmp_path):
    (tmp_path / "scripts").mkdir()
    for name in ("audit", "prose.py", "method_circles.py"):
        shutil.copy(os.path.join(SCRIPTS, name), tmp_path / "scripts" / name)

    def run(text, path="rust/rdma/a.rs", spdx=SPDX, budget=None, options=(), commits=()):
        # The checked programs are not the subject, so their own prose may have places that count.
        budget = {"prose": {"scripts": {"starts": 9, "phrases": 9, "long": 9}}, **(budget or {})}
        (tmp_path / "scripts/prose_budget.json").write_text(json.dumps(budget))
        for name, content in (("rust/rdma/good.rs", SPDX + GOOD), (path, spdx + text)):
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
        calls = [("init", "-q"), ("add", "rust", "scripts")]
        calls += [
            ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", m) for m in commits
        ]
        for git in calls:
            subprocess.run(["git", *git], cwd=tmp_path, check=True)
        done = subprocess.run(
            [sys.executable, "-B", "scripts/audit", *options], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout.splitlines()[:-1]

    return run


def test_nothing_to_find(audit):
    assert audit(GOOD) == (0, [])


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("use super::pd::Pd;\n", "use super::pd::Pd;\nuse super::mr::Mr;\n", 14, "super is used twice"),
        ("use super::pd::Pd;\n", "use super::{mr::Mr, pd::Pd};\n", 13, "not one a line"),
        ("        Arc as Counted,\n        SpinLock, //\n", "        Arc, SpinLock, //\n", 5, "not one a line"),
        ("SpinLock, //", "SpinLock,", 5, "no // behind"),
        ("    }, //\n", "    },\n", 5, "no // behind"),
        ("NonNull;\n\n", "NonNull;\n", 4, "blank line"),
        ("use super::pd::Pd;\n", "use super::pd::Pd;\n\n", 15, "blank line"),
        ("use crate::bindings;\n", "use crate::bindings;\n\nuse core::mem;\n", 16, "out of order"),
        ("    // SAFETY: Nothing is at stake.\n", "", 19, "without SAFETY"),
    ],
)
def test_a_fault_is_found(audit, old, new, line, says):
    assert old in GOOD
    status, faults = audit(GOOD.replace(old, new, 1))
    assert status == 1
    assert len(faults) == 1, faults
    assert faults[0].startswith(f"rust/rdma/a.rs:{line}: ")
    assert says in faults[0]


@pytest.mark.parametrize(
    ("path", "text", "says"),
    [
        ("rust/lnd/a.rs", "fn f() { unsafe { g() } }\n", "unsafe outside"),
        ("rust/lnd/a.rs", "fn f() { crate::bindings::g() }\n", "uses the bindings"),
        ("rust/lnd/conn/a.rs", "struct Inner {\n    pub(crate) life: Life,\n}\n", "others can reach"),
        ("rust/proto/a.rs", "use kernel::prelude::*;\n", "more than core"),
        ("rust/proto/a.rs", "use crate::rdma::Qp;\n", "another room"),
        ("rust/proto/a.rs", "use crate::policy::a::A;\n", "another room"),
        ("rust/policy/a.rs", "use crate::lnd::a::A;\n", "another room"),
        ("rust/proto/a.rs", '#[cfg(feature = "x")]\nfn f() {}\n', "a cfg other"),
        ("rust/rdma/a.rs", "fn f(c: &crate::lnd::Conn) {}\n", "the room above"),
        ("rust/rdma/a.rs", "pub(crate) unsafe fn f() {}\n", "# Safety"),
        ("rust/proto/model/src/a.rs", "use std::{fmt, io};\n", "not one a line"),
    ],
)
def test_a_fault_in_a_room_is_found(audit, path, text, says):
    status, faults = audit(text, path)
    assert status == 1
    assert any(fault.startswith(path) and says in fault for fault in faults), faults


@pytest.mark.parametrize(
    "way_back",
    [
        "use super::b;\n",
        "use super::{\n    c::D,\n    b::{\n        E,\n        F, //\n    }, //\n};\n",
        "use crate::lnd::b::E;\n",
        "fn f() -> super::b::E {}\n",
    ],
)
def test_a_circle_is_found(audit, way_back):
    assert audit("use super::a::A;\n", "rust/lnd/b.rs") == (0, [])
    status, faults = audit(way_back, "rust/lnd/a.rs")
    assert status == 1
    assert [f for f in faults if "circle" in f and "rust/lnd/a.rs" in f and "rust/lnd/b.rs" in f], faults


def test_tests_may_go_in_a_circle(audit):
    audit("use super::a::A;\n", "rust/lnd/b.rs")
    tests = "fn f() {}\n\n#[cfg(any(test, ro2iblnd_kunit))]\nmod tests {\n    use super::super::b;\n}\n"
    assert audit(tests, "rust/lnd/a.rs") == (0, [])


@pytest.mark.parametrize(
    ("path", "text", "kind"),
    [
        ("rust/lnd/a.rs", "// Who asks again waits.\nfn f() {}\n", "starts"),
        ("rust/shim/a.c", "/* The peer waits. What comes then is lost. */\n", "starts"),
        ("rust/lnd/a.rs", "// A connection is made anew.\nfn f() {}\n", "phrases"),
        ("rust/shim/a.c", 'int f(void) { return say("no name is to be had there"); }\n', "phrases"),
        ("rust/lnd/a.rs", "/// The last one of them.\nfn f() {}\n", "docs"),
        ("rust/lnd/a.rs", "/// Whether the peer waits.\n#[inline]\npub(crate) fn f() {}\n", "docs"),
        ("rust/lnd/a.rs", "// " + "a" * 118 + "\n", "long"),
        ("rust/shim/a.c", "\t" * 14 + "/* 120 */;\n", "long"),
    ],
)
def test_prose_is_counted(audit, path, text, kind):
    room = "/".join(path.split("/")[:2])
    status, faults = audit(text, path)
    assert (status, len(faults)) == (1, 1), faults
    assert f"{room}: 1 {kind} of prose, at most 0 allowed" in faults[0]
    assert audit(
        text, path, budget={"prose": {room: {kind: 1}, "scripts": {"starts": 9, "phrases": 9, "long": 9}}}
    ) == (0, [])


@pytest.mark.parametrize(
    "text",
    [
        "// The peer reconnects. Who knows why?\n",
        "/// Returns the last one.\nfn f() {}\n",
        "/// Returns whether the peer waits.\n#[inline]\npub(crate) fn f() {}\n",
        'const A: &str = "anew";\n',
    ],
)
def test_plain_prose_does_not_count(audit, text):
    assert audit(text, "rust/lnd/a.rs") == (0, [])


def test_a_budget_is_lowered_and_never_raised(audit, tmp_path):
    budget = {"prose": {"rust/lnd": {"starts": 5}, "scripts": {"starts": 9, "phrases": 9, "long": 9}}}
    text = "// Who asks waits. Who does not ask does not wait.\n/// It.\nfn f() {}\n"
    status, _faults = audit(text, "rust/lnd/a.rs", budget=budget, options=["--lower"])
    assert status == 1
    assert json.loads((tmp_path / "scripts/prose_budget.json").read_text())["prose"]["rust/lnd"] == {"starts": 2}


def test_a_circle_of_calls_is_found(audit):
    audit("impl Conn {\n    fn a(&self) {\n        self.b();\n    }\n}\n", "rust/lnd/a.rs")
    back = "impl Conn {\n    fn b(&self) {\n        self.c();\n    }\n}\n"
    assert audit(back, "rust/lnd/b.rs") == (0, [])
    status, faults = audit(back.replace("c()", "a()"), "rust/lnd/b.rs")
    assert status == 1
    assert [
        f for f in faults if "methods of Conn call each other in a circle: rust/lnd/a.rs, rust/lnd/b.rs" in f
    ], faults


BODY = "\n\nThe peer waited.\n\nSigned-off-by: A <a@b>\n"


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("lnd: count each refused connection" + BODY, ""),
        ("peer, conn: count each refused connection" + BODY, ""),
        ("lnd: count each refused connection\n\nThe peer waited.\n", "no Signed-off-by"),
        ("lnd: count each refused connection\n\nSigned-off-by: A <a@b>\n", "no body"),
        ("lnd: who is refused is counted" + BODY, "begin with a verb"),
        ("lnd: count one; drop another" + BODY, "begin with a verb"),
        ("count each refused connection" + BODY, "is not `room: verb"),
        ("lnd: count " + "x" * 62 + BODY, "more than 72 columns"),
    ],
)
def test_commits_are_checked(audit, message, says):
    status, faults = audit(GOOD, commits=["scripts: begin", message])
    assert status == bool(says), faults
    assert len(faults) == bool(says), faults
    assert says in "".join(faults)


@pytest.mark.parametrize("path", ["rust/proto/Cargo.toml", "scripts/a", "rust/README.md"])
def test_a_file_without_licence_is_found(audit, path):
    status, faults = audit("# text\n", path, spdx="")
    assert status == 1
    assert faults == [f"{path}:1: no SPDX-License-Identifier in the first three lines"]


@pytest.mark.parametrize("path", ["rust/proto/Cargo.lock", "rust/COPYING", "rust/a.json"])
def test_licence_not_required(audit, path):
    assert audit("{}\n", path, spdx="") == (0, [])
