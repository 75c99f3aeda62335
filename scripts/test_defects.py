# SPDX-License-Identifier: GPL-2.0
"""Checks that the faults of scripts/proto-defects and scripts/sim-defects fit the code. Run: pytest scripts"""

import importlib.machinery
import importlib.util
import os
import re

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))


def load(script):
    loader = importlib.machinery.SourceFileLoader(script.replace("-", "_"), os.path.join(HERE, script))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def rust(*rooms):
    """Returns the Rust code of some rooms."""
    code = ""
    for room in rooms:
        for where, _, names in os.walk(os.path.join(HERE, "../rust", room)):
            for name in names:
                if name.endswith(".rs") and "/target/" not in where:
                    with open(os.path.join(where, name), encoding="utf-8") as f:
                        code += f.read()
    return code


def places(file, text):
    paths = [os.path.join(HERE, "../rust", room, file + ".rs") for room in ("proto", "policy")]
    (path,) = filter(os.path.exists, paths)
    with open(path, encoding="utf-8") as f:
        return f.read().count(text)


def test_each_fault_has_one_place():
    assert [name for name, file, old, new in load("proto-defects").MUTANTS if places(file, old) != 1 or new == old] == []


def test_each_old_defect_has_its_places():
    """Checks the places only, because scripts/sim-defects takes minutes for each defect and seldom runs."""
    code = rust("lnd", "rdma", "proto", "policy")
    defects = load("sim-defects").DEFECTS
    assert [
        (name, old) for name, _, texts, *_ in defects for old, new in texts if code.count(old) != 1 or new == old
    ] == []


def test_a_skipped_test_of_the_models_exists():
    assert f"fn {load('proto-defects').GOLDEN}(" in rust("proto/model/tests")


@pytest.mark.parametrize("script", ["proto-defects", "sim-defects"])
def test_planted_text_uses_names_that_exist(script):
    """A name that was changed everywhere else would keep the fault from compiling."""
    module = load(script)
    if script == "proto-defects":
        planted = [(name, new) for name, _, _, new in module.MUTANTS]
    else:
        planted = [(name, new) for name, _, texts, *_ in module.DEFECTS for _, new in texts]
    code = rust("lnd", "lnet", "rdma", "proto", "policy", "kernel", "sim/decl")
    known = set(re.findall(r"\w+", code)) | set(re.findall(r"\b[A-Z]\w*::\w+", code))
    unknown = []
    for name, new in planted:
        new = re.sub(r'"[^"]*"|//.*', "", new)
        own = set(re.findall(r"\blet (?:mut )?(\w+)", new))
        words = re.findall(r"\b[A-Za-z_]\w*", new) + re.findall(r"\b[A-Z]\w*::[A-Z]\w*", new)
        unknown += [(name, word) for word in words if word not in known | own]
    assert unknown == []
