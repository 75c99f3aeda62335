# SPDX-License-Identifier: GPL-2.0
"""Output of a command on two nodes side by side: rows for a table in Markdown."""

import difflib
import itertools
import re

# Longer runs of lines that both have, or that are alike, are only counted.
ALIKE = 3


def shape(line):
    """Returns a line without the parts that differ between any two nodes or moments."""
    line = re.sub(r"\d+\.\d+\.\d+\.\d+@\w+", "NID", line)
    line = re.sub(r"0x[0-9a-f]+|\b[0-9a-f]{16}\b", "N", line)
    return re.sub(r"-?\d+", "N", re.sub(r"\s+", " ", line)).strip()


def folded(lines):
    """Returns of each run of lines with the same shape the first line, and the number of the others."""
    out = []
    for _shape, run in itertools.groupby(lines, shape):
        run = list(run)
        out += run if len(run) <= ALIKE else [run[0], f"({len(run) - 1} more like it)"]
    return out


def rows(ours, theirs):
    """Returns pairs of lines: lines of the same shape side by side, "" if one node has none, and None and a number for
    a run of lines that both have."""
    mine, others = folded(ours.splitlines()), folded(theirs.splitlines())
    matcher = difflib.SequenceMatcher(None, [shape(line) for line in mine], [shape(line) for line in others], autojunk=False)
    out = []
    for tag, i, j, k, n in matcher.get_opcodes():
        left, right = mine[i:j], others[k:n]
        if tag == "equal" and len(left) > ALIKE:
            out.append((None, len(left)))
            continue
        for at in range(max(len(left), len(right))):
            out.append((left[at] if at < len(left) else "", right[at] if at < len(right) else ""))
    return out


def cell(line):
    """Returns a line as code in a table. Dots show its indentation."""
    line = line.rstrip().replace("\t", "    ").replace("|", "\\|")
    bare = line.lstrip()
    return f"`{'.' * (len(line) - len(bare))}{bare}`" if bare else ""


def table(commands):
    """Returns a table of `commands`: (command, (status, output) of ro2iblnd, (status, output) of ko2iblnd)."""
    out = ["| | ro2iblnd | ko2iblnd |", "|---|---|---|"]
    for command, (status, text), (ko_status, ko_text) in commands:
        out.append(f"| **`{command}`** | status {status} | status {ko_status} |")
        for left, right in rows(text, ko_text):
            out.append(f"| {right} lines alike | | |" if left is None else f"| | {cell(left)} | {cell(right)} |")
    return "\n".join(out) + "\n"
