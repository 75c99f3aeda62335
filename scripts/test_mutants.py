# SPDX-License-Identifier: GPL-2.0
"""The faults of scripts/mutants fit the code. Run: pytest scripts"""

import importlib.machinery
import importlib.util
import os

HERE = os.path.dirname(os.path.abspath(__file__))


def mutants():
    loader = importlib.machinery.SourceFileLoader("mutants", os.path.join(HERE, "mutants"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module.MUTANTS


def places(file, text):
    with open(os.path.join(HERE, "../rust/proto", file + ".rs"), encoding="utf-8") as f:
        return f.read().count(text)


def test_each_fault_has_one_place():
    assert [name for name, file, old, new in mutants() if places(file, old) != 1 or new == old] == []
