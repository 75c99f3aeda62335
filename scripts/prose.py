# SPDX-License-Identifier: GPL-2.0
"""Counts of the places where the prose of the tree does not follow the style rules in CONTRIBUTING.md.

For each room (a folder of the tree) `measure()` counts:

starts   sentences whose subject is a bare relative or indefinite pronoun ("Who asks ...")
phrases  words and turns of phrase that CONTRIBUTING.md replaces ("anew", "but for", "is told")
docs     doc comments of Rust functions that do not start with a verb ("Returns", "Posts")
long     lines of code or comment with more than 120 columns

scripts/audit compares these counts with scripts/prose_budget.json. A count may fall and never rise.
"""

import collections
import os
import re

COLUMNS = 120
STARTS = re.compile(
    r"(?:^|(?<=[.:;!] )|(?<=\| ))(?:Who|What|Whose|Whom|Whoever|Nobody|Somebody|Anybody)\b(?![^.;|]*\?)"
)
PHRASES = re.compile(
    r"\b(?:people|nobody|somebody|anybody|whoever|anew|but for|for want of|to be had|(?:is|are|was|were) (?:said|told|had))\b",
    re.IGNORECASE,
)
# Words that end in "s" like a verb but are not verbs.
NO_VERB = r"This|Its|Whether|As|Is|Has|Was|Less|Always|Perhaps|Does|Bytes|Milliseconds|Nanoseconds|Seconds|Places"
VERB = re.compile(rf"(?!(?:{NO_VERB})\b)[A-Z][a-z]+s\b")
FUNCTION = re.compile(r'^\s*(?:pub(?:\([a-z: ]+\))? )?(?:const )?(?:unsafe )?(?:extern "C" )?fn \w')
C_LIKE = (".rs", ".c", ".h")
# Files with prose: files with these endings, and scripts, whose names have no ending. The style rules apply neither to
# the licence nor to the patterns above.
PROSE = (*C_LIKE, ".py", ".md", ".sh")
EXEMPT = ("COPYING", "scripts/prose.py", "scripts/test_audit.py", "CONTRIBUTING.md")


def has_prose(path):
    name = os.path.basename(path)
    return path not in EXEMPT and "/corpus/" not in path and (name.endswith(PROSE) or "." not in name)


def room_of(path):
    parts = path.split("/")
    if len(parts) == 1:
        return "top"
    return "/".join(parts[:2]) if parts[0] in ("rust", "scripts") and len(parts) > 2 else parts[0]


def _markdown(lines):
    code = False
    for number, line in enumerate(lines, 1):
        fence = line.startswith("```")
        code ^= fence
        yield number, "" if code or fence else line.strip(), ()


def _source(lines, c_like):
    comment = re.compile(r"\s*(?://[/!]?|/\*\*?|\*/?)\s?(.*)$" if c_like else r"\s*#(?!!)\s?(.*)$")
    for number, line in enumerate(lines, 1):
        found = comment.match(line)
        if found:
            yield number, "" if "SPDX" in line else found[1].strip(" */"), ()
        else:
            yield number, "", [s for s in re.findall(r'"((?:[^"\\]|\\.){12,})"', line) if s.count(" ") > 2]


def pieces(path, text):
    """Yields (line, prose) for each paragraph, run of comment lines, and string of several words."""
    lines = [*text.split("\n"), ""]
    piece, first = [], 0
    for number, part, strings in _markdown(lines) if path.endswith(".md") else _source(lines, path.endswith(C_LIKE)):
        for string in strings:
            yield number, string
        if part:
            first = first or number
            piece.append(part)
        elif piece:
            yield first, " ".join(piece)
            piece, first = [], 0


def docs(text):
    """Yields (line, first line) of the doc comment of each function that has one."""
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if not FUNCTION.match(line):
            continue
        at = number - 1
        while at >= 0 and re.match(r"\s*#\[", lines[at]):
            at -= 1
        words = None
        while at >= 0 and (found := re.match(r"\s*/// ?(.*)$", lines[at])):
            words = found[1] or words
            at -= 1
        if words:
            yield number + 1, words


def places(path, text):
    """Yields (kind, line, text) for each place that the style rules do not allow."""
    for number, piece in pieces(path, text):
        for kind, pattern in (("starts", STARTS), ("phrases", PHRASES)):
            for found in pattern.finditer(piece):
                yield kind, number, piece[max(0, found.start() - 30) : found.end() + 50]
    if path.endswith(".rs"):
        for number, words in docs(text):
            if not VERB.match(words):
                yield "docs", number, words[:80]
    for number, line in enumerate(text.split("\n"), 1):
        # A tab has 8 columns, as in the kernel.
        if len(line.expandtabs(8)) > COLUMNS and not (path.endswith(".md") and line.startswith("|")):
            yield "long", number, line.strip()[:80]


def measure(files):
    """Returns {room: {kind: count}} of (path, text) pairs."""
    rooms = collections.defaultdict(lambda: dict.fromkeys(("starts", "phrases", "docs", "long"), 0))
    for path, text in files:
        for kind, _line, _text in places(path, text):
            rooms[room_of(path)][kind] += 1
    return rooms
