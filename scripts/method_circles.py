# SPDX-License-Identifier: GPL-2.0
"""Search for files that call each other in a circle through the methods of one type.

Imports do not show that an `impl` is spread over several files whose methods call each other. For each type with
inherent methods in two or more files, `circles()` draws an arrow from the file of a caller to the file of the method
that it calls on `self`, `this`, or a variable named like the type.
"""

import collections
import re

IMPL = re.compile(r"^impl(?:<[^{]*?>)?\s+(?:.*\bfor\s+)?(\w+)(?:<[^{]*>)?\s*(?:where[^{]*)?\{")
METHOD = re.compile(r"^\s+(?:pub(?:\([a-z: ]+\))? )?(?:const )?(?:unsafe )?fn (\w+)")
TESTS = re.compile(r"(?ms)^#\[cfg\((?:test|any\(test[^\n]*)\)\]\nmod \w+ \{.*?^\}")


def _methods_and_calls(texts):
    methods, calls = collections.defaultdict(dict), []
    for path, text in texts.items():
        kind = None
        inherent = False
        for line in TESTS.sub("", text).split("\n"):
            if found := IMPL.match(line):
                kind, inherent = found[1], " for " not in line
            elif line == "}":
                kind = None
            if not kind:
                continue
            if inherent and (found := METHOD.match(line)):
                methods[kind][found[1]] = path
            calls += [
                (kind, path, called) for called in re.findall(rf"\b(?:self|this|{kind.lower()})\s*\.(\w+)\(", line)
            ]
    return methods, calls


def _strongly_connected(graph):
    number, low, stack, found = {}, {}, [], []

    def visit(node):
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in number:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == number[node]:
            at = stack.index(node)
            found.append(stack[at:])
            del stack[at:]

    for node in sorted(graph):
        if node not in number:
            visit(node)
    return [nodes for nodes in found if len(nodes) > 1]


def circles(texts):
    """Returns {type: sorted paths} of the files of each type that are part of a circle of calls."""
    methods, calls = _methods_and_calls(texts)
    found = {}
    for kind, home in methods.items():
        graph = collections.defaultdict(set)
        for of, path, called in calls:
            if of == kind and home.get(called, path) != path:
                graph[path].add(home[called])
        paths = sorted(path for nodes in _strongly_connected(graph) for path in nodes)
        if paths:
            found[kind] = paths
    return found
