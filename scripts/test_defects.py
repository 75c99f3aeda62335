# SPDX-License-Identifier: GPL-2.0
"""Checks that the faults of scripts/proto-defects and scripts/sim-defects fit the code. Run: pytest scripts"""

import importlib.machinery
import importlib.util
import os

HERE = os.path.dirname(os.path.abspath(__file__))


def load(script):
    loader = importlib.machinery.SourceFileLoader(script.replace("-", "_"), os.path.join(HERE, script))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def places(file, text):
    paths = [os.path.join(HERE, "../rust", room, file + ".rs") for room in ("proto", "policy")]
    (path,) = filter(os.path.exists, paths)
    with open(path, encoding="utf-8") as f:
        return f.read().count(text)


def test_each_fault_has_one_place():
    assert [name for name, file, old, new in load("proto-defects").MUTANTS if places(file, old) != 1 or new == old] == []


def test_each_old_defect_has_its_places():
    """Checks the places only, because scripts/sim-defects takes minutes for each defect and seldom runs."""
    folders = [os.path.join(HERE, "../rust", room) for room in ("lnd", "rdma", "proto", "policy")]
    code = ""
    for folder in folders:
        for where, _, names in os.walk(folder):
            for name in names:
                if name.endswith(".rs") and "/target/" not in where:
                    with open(os.path.join(where, name), encoding="utf-8") as f:
                        code += f.read()
    defects = load("sim-defects").DEFECTS
    assert [
        (name, old) for name, _, texts, *_ in defects for old, new in texts if code.count(old) != 1 or new == old
    ] == []
