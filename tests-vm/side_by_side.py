# SPDX-License-Identifier: GPL-2.0
"""What a command prints on one node beside what it prints on another: rows for a table in Markdown."""

import difflib
import itertools
import re

# More lines in a row that both have, or that are alike, are only counted.
ALIKE = 3


def shape(line):
    """A line without what differs between any two nodes, or two moments."""
    line = re.sub(r"\d+\.\d+\.\d+\.\d+@\w+", "NID", line)
    line = re.sub(r"0x[0-9a-f]+|\b[0-9a-f]{16}\b", "N", line)
    return re.sub(r"-?\d+", "N", re.sub(r"\s+", " ", line)).strip()


def folded(lines):
    """Of a run of lines of the same shape the first, and how many more there are."""
    out = []
    for _shape, run in itertools.groupby(lines, shape):
        run = list(run)
        out += run if len(run) <= ALIKE else [run[0], f"({len(run) - 1} more like it)"]
    return out


def rows(ours, theirs):
    """Pairs of lines: those of the same shape beside each other, "" where the other one has none; None and a number for
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
    """A line as code in a table; dots show its indentation."""
    line = line.rstrip().replace("\t", "    ").replace("|", "\\|")
    bare = line.lstrip()
    return f"`{'.' * (len(line) - len(bare))}{bare}`" if bare else ""


def table(commands):
    """`commands`: (command, (status, output) of ours, (status, output) of ko2iblnd)."""
    out = ["| | ro2iblnd | ko2iblnd |", "|---|---|---|"]
    for command, (status, text), (ko_status, ko_text) in commands:
        out.append(f"| **`{command}`** | status {status} | status {ko_status} |")
        for left, right in rows(text, ko_text):
            out.append(f"| {right} lines alike | | |" if left is None else f"| | {cell(left)} | {cell(right)} |")
    return "\n".join(out) + "\n"
