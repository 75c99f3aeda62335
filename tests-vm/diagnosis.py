# SPDX-License-Identifier: GPL-2.0
"""Words that the log, debugfs and ro2ibtop use for a trouble, how soon after it was staged, and where
Documentation/reference.md has those words."""

import os
import re
import subprocess
import time

from conftest import LOGS, ROOT
from faults import slow
from counters import DEBUGFS
from nodes import PATIENCE

REPORT = os.path.join(ROOT, "scripts", "ro2ib-report")
# Sections that ro2ibtop reads, and two of the parameters.
READ = re.compile(
    r"sample |/sys/kernel/debug/ro2iblnd/|/sys/class/infiniband/\w+/ports/1/hw_counters/|/sys/module/\w+/parameters/(timeout|peer_credits)$"
)
NID = r"\d+\.\d+\.\d+\.\d+@o2ib\d*"
PATH = os.path.join(LOGS, "troubles.md")
HEAD = (
    "Trouble", "Staged by", "The log", "debugfs", "`ro2ibtop`", "After, s: log", "debugfs", "`ro2ibtop`", "Under, in reference.md",
)  # fmt: skip


def limit():
    """Returns the seconds within which each source has to name the cause."""
    return 60 * slow()


def read(name):
    with open(os.path.join(ROOT, "Documentation", name), encoding="utf-8") as f:
        return f.read()


DOCUMENT = read("operators.md") + read("reference.md")
# The histograms of debugfs are in tracing.md.
KEYS = DOCUMENT + read("tracing.md")


def pattern(words):
    """Returns a pattern for a text of the document: its numbers and times are examples."""
    text = re.escape(words)
    text = re.sub(r"\d+(\\\.\d+)?(\\ (s|ms|min)\b)?", r"\\d[\\d.]*( (s|ms|min)( \\d+ s)?)?", text)
    text = text.replace(r"\ \.\.\.", ".*").replace(r"\.\.\.", ".*").replace("<peer>", NID).replace("<ni>", NID)
    text = text.replace("messages\\ wait", "messages? waits?").replace("credit\\ left", "credits? left").replace("failures", "failures?")
    return re.sub(r"<\w+>", ".+", text)


def rows(heading=None):
    """Yields (heading of the section, cells) of each row of the document's tables, without their heads."""
    where, last = "", ""
    for line in DOCUMENT.splitlines():
        if line.startswith("## "):
            where = line[3:]
        elif line.startswith("|") and last.startswith("|") and not line.startswith("|---") and heading in (None, where):
            yield where, [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        last = line


def remedy(said):
    """Returns (heading, remedy) of the row of the document that has the text. If several rows fit, the one with the
    longest match."""
    found = []
    for where, cells in rows():
        for words in re.findall(r"`([^`]+)`", cells[0]):
            if len(words) > 10 and re.search(pattern(words), said):
                found.append((len(words.replace("<cause>", "")), where, cells[-1]))
    assert found, f"not in reference.md: {said}"
    _, where, todo = max(found)
    if todo.startswith("see the cause"):
        causes = [cells for _, cells in rows("Causes and their LNet status") if cells[0] in said]
        assert causes, f"reference.md has no such cause: {said}"
        where, todo = "Causes and their LNet status", causes[0][-1]
    assert todo, f"reference.md has no action for: {said}"
    return where, todo


def screen(top, node, directory, looks=2):
    """Returns the report of a node and the screen that ro2ibtop makes of it. Both stay in the directory."""
    script = node.guest.put(REPORT)
    saved = os.path.join(directory, f"{node.guest.name}.txt")
    report = node.guest.run(f"sh {script} -s 1 -n {looks} -t {PATIENCE} -o -", PATIENCE)[1]
    with open(saved, "w", encoding="utf-8") as f:
        f.write(report)
    command = [top, "--snapshot", saved, "--once", "--width", "300"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout
    with open(os.path.join(directory, f"{node.guest.name}.screen"), "w", encoding="utf-8") as f:
        f.write(shown)
    return report, shown


def read_of(report):
    """Returns the parts of a report that ro2ibtop reads."""
    kept, wanted = ["SPDX-License-Identifier: GPL-2.0", "ro2ib-report, real text of guests"], False
    for line in report.splitlines():
        if section := re.fullmatch("==> (.*) <==", line):
            wanted = READ.match(section[1])
        if wanted:
            kept.append(line)
    return "".join(f"{line}\n" for line in kept)


def keep(directory, name, report):
    """Writes those parts of a report into a file for ro2ibtop's tests without guests, if a directory and a name are
    given."""
    if directory and name:
        with open(os.path.join(directory, f"{name}.txt"), "w", encoding="utf-8") as f:
            f.write(read_of(report))


class Log:
    """Line of the kernel log."""

    column = 0

    def __init__(self, node, words):
        self.node, self.words = node, words

    def look(self, _trouble):
        found = re.search(pattern(self.words) + ".*", self.node.log())
        return found and found[0]

    def headings(self, said):
        return {remedy(said)[0]}


class Debugfs:
    """Line of debugfs that has all these words. A value may be a regular expression."""

    column = 1

    def __init__(self, node, words, file=None):
        self.node, self.words, self.file = node, words.split(), file
        # Each key and each cause has its row in the documentation.
        for name in re.findall(r"(?:^| )(\w+)=|([A-Z][a-z]+[A-Z]\w+)", words):
            name = name[0] or name[1]
            assert re.search(rf"`{name}`|\b{name}[=:]", KEYS), f"not in the documentation: {name}"

    def look(self, _trouble):
        name = self.file or ""
        path = f"{DEBUGFS}/{name if name == 'unknown_ni' else self.node.nid + name}"
        # The file may be unreadable without memory.
        for line in self.node.guest.run(f"cat {path}", PATIENCE)[1].splitlines():
            have = line.split()
            found = [next((word for word in have if re.fullmatch(wanted, word)), None) for wanted in self.words]
            if all(found):
                return " ".join(found)
        return None

    def headings(self, _said):
        return {"Looking at a running node"}


class Top:
    """Verdict of ro2ibtop on a report with a number of samples. Kept under a name if --reports is given."""

    column = 2

    def __init__(self, node, words, name=None, looks=2):
        self.node, self.words, self.name, self.looks = node, words, name, looks

    def look(self, trouble):
        report, shown = screen(trouble.top, self.node, trouble.dir, self.looks)
        found = re.search(pattern(self.words) + ".*", shown)
        if found:
            keep(trouble.reports, self.name, report)
        return found and found[0].strip()

    def headings(self, said):
        return {remedy(said)[0]}


class Trouble:
    """Trouble that a test stages. Its time counts from its creation. Reports of `nodes` that no look covered are kept,
    too."""

    def __init__(self, top, name, how, heading, reports, nodes=()):
        assert any(where == heading for where, _ in rows()), f"reference.md has no such heading: {heading}"
        self.top, self.name, self.how, self.heading, self.reports = top, name, how, heading, reports
        self.cells, self.after, self.headings = [[], [], []], [None, None, None], set()
        self.nodes = nodes
        self.dir = os.path.join(LOGS, "troubles", re.sub(r"\W+", "-", name))
        os.makedirs(self.dir, exist_ok=True)
        self.began = time.monotonic()

    def sees(self, *looks):
        """Waits until each look has found its words."""
        waiting = list(looks)
        while waiting:
            for look in list(waiting):
                said = look.look(self)
                spent = time.monotonic() - self.began
                if said:
                    waiting.remove(look)
                    self.take(look, said, spent)
            missing = [f"{type(look).__name__} of {look.node.guest.name}: {look.words}" for look in waiting]
            assert not waiting or spent < limit(), f"{self.name}: after {spent:.0f} s there is no line {missing}"
            time.sleep(0.2 if waiting else 0)
        for node in self.nodes:
            if not any(isinstance(look, Top) and look.node is node for look in looks):
                screen(self.top, node, self.dir)

    def report(self, node):
        """Returns the last report of a node."""
        with open(os.path.join(self.dir, f"{node.guest.name}.txt"), encoding="utf-8") as f:
            return f.read()

    def take(self, look, said, spent):
        """Records a look. The first one of each column gives the time until the cause is named."""
        column = look.column
        if self.after[column] is None:
            self.after[column] = spent
        self.cells[column].append(f"{look.node.guest.name}: `{said}`")
        self.headings |= look.headings(said)
        assert spent < limit(), f"{self.name}: {said}: after {spent:.0f} s"

    def row(self):
        """Returns the row of the table."""
        assert self.heading in self.headings, f"the lines about {self.name} are not under {self.heading}, but under {self.headings}"
        after = ["" if spent is None else f"{spent:.1f}" for spent in self.after]
        cells = [self.name, self.how, *("<br>".join(dict.fromkeys(cell)) or "nothing" for cell in self.cells), *after, self.heading]
        return f"| {' | '.join(cells)} |"


def write(lines):
    """Writes the table of the staged troubles."""
    os.makedirs(os.path.dirname(PATH), exist_ok=True)
    with open(PATH, "w", encoding="utf-8") as f:
        f.write(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}\n")
        f.writelines(f"{line}\n" for line in lines)
