# SPDX-License-Identifier: GPL-2.0
"""Comparison of the documents about module parameters, counters of devices, log lines and verdicts with the code. Run:
pytest scripts
"""

import glob
import os
import re
import subprocess

import pytest

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DOCUMENTS = "Documentation"
LIMITS = {"INT_MIN": None, "INT_MAX": None, "U16_MAX": 65535}
# Values with a current LNet; see test_the_default_timeout.
NAMED = {"RO2IB_TIMEOUT_DEFAULT": "50"}


def read(*parts):
    with open(os.path.join(TOP, *parts), encoding="utf-8") as f:
        return f.read()


def limit(text):
    """Returns the limit, or None if only the type limits the value."""
    return LIMITS[text] if text in LIMITS else int(text)


class Parameter:
    """Parameter of the module, as the code defines it."""

    def __init__(self, kind, default, perm, low=None, high=None, values=(), zero=False):
        self.kind, self.default, self.runs = kind, default, perm == "0644"
        self.low, self.high, self.values, self.zero = low, high, values, zero

    def range(self):
        """Returns the range in the form of the documents, or None."""
        if self.values:
            return ", ".join(self.values)
        if self.low is None:
            return None
        also = "0, " if self.zero else ""
        return f"{self.low}.." if self.high is None else f"{also}{self.low}..{self.high}"


@pytest.fixture(scope="module")
def code():
    """Returns all parameters, by name."""
    text = "\n".join(read(file) for file in sorted(glob.glob(os.path.join(TOP, "rust/shim/*.c"))))
    found = {}
    numbers = r"^RO2IB_PARAM(_OPS)?\((\w+), (\w+),(?: &(\w+),)? (-?\w+), (-?\w+), (-?\w+), (\d+)\);"
    for own, name, kind, ops, default, low, high, perm in re.findall(numbers, text, re.MULTILINE):
        values, zero = (), False
        if own:
            setter = re.search(rf"{ops} = {{\s*\.set = (\w+),", text)[1]
            body = re.search(rf"^static int {setter}\(.*?^}}", text, re.MULTILINE | re.DOTALL)[0]
            values, zero = tuple(re.findall(r"case (\d+):", body)), "if (v && (v <" in body
        default = NAMED.get(default, default)
        found[name] = Parameter(kind, default, perm, limit(low), limit(high), values, zero)
    for name, perm in re.findall(r"^module_param\((\w+), charp, (\d+)\);", text, re.MULTILINE):
        default = re.search(rf'^static char \*{name} = "(.*)";', text, re.MULTILINE)[1]
        found[name] = Parameter("string", default, perm)
    for name, perm in re.findall(r"^module_param_cb\((\w+), &\w+, &\w+, (\d+)\);", text, re.MULTILINE):
        assert f'__MODULE_PARM_TYPE({name}, "charp");' in text
        found[name] = Parameter("string", "empty", perm)
    # Every parameter has a description, however it is defined.
    assert set(found) == set(re.findall(r"^MODULE_PARM_DESC\((\w+),", text, re.MULTILINE))
    assert len(found) > 25
    return found


@pytest.mark.parametrize(("lnet", "default"), [("int (*lnd_get_timeout)(void);", "50"), ("", "0")])
def test_the_default_timeout(tmp_path, lnet, default):
    """Checks the default with an LNet that asks the driver, and with LNet up to 2.16, which has its own deadline for
    messages.
    """
    headers = tmp_path / "include/linux/lnet"
    headers.mkdir(parents=True)
    (headers / "lib-lnet.h").touch()
    (headers / "lib-types.h").write_text(lnet + "\n")
    probe = os.path.join(TOP, "scripts/lnet-probe")
    flags = subprocess.run([probe, tmp_path], capture_output=True, text=True, check=True).stdout.split()
    text = "\n".join(line for line in read("rust/shim/params.c").splitlines() if not line.startswith("#include"))
    command = ["gcc", "-E", "-P", "-x", "c", *flags, "-"]
    # The last line shows the default in RO2IB_PARAM.
    text += "\n#undef RO2IB_PARAM\n#define RO2IB_PARAM(name, kind, value, ...) name = value\n"
    text += re.search(r"^RO2IB_PARAM\(timeout,.*$", text, re.MULTILINE)[0]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == f"timeout = {default};"


def test_every_parameter_is_in_the_man_page(code):
    man = dict(re.findall(r"^\.It Sy (\w+) Pq (.+)$", read("scripts/packaging/man/ro2iblnd.4"), re.MULTILINE))
    assert man == {
        name: ", ".join(filter(None, (p.kind, p.default, p.range(), "run" if p.runs else None)))
        for name, p in code.items()
    }


def test_every_tunable_is_documented():
    """Compares the keys of ni_tune in the C table, the parser, the man page and the document."""
    header = read("include/ro2iblnd_shim.h")
    tables = re.findall(r"#define RO2IB_(?:PARAM|RUNNING)_TUNABLES\(X\)((?:.*\\\n)*.*\n)", header)
    keys = {key for table in tables for key in re.findall(r"\bX\((\w+), ", table)}
    assert {"tos", "probe"} < keys
    parser = read("rust/policy/text_params.rs").partition("macro_rules! tunables")[2].partition("\nmacro_rules!")[0]
    assert keys == set(re.findall(r"^ {12}(\w+): ", parser, re.MULTILINE))
    man = read("scripts/packaging/man/ro2iblnd.4").partition(".It Sy ni_tune")[2].partition(".El")[0]
    assert keys == set(re.search(r"^\.Sy (.*) \.$", man, re.MULTILINE)[1].split(" , "))
    rows = read(DOCUMENTS, "parameters.md").partition("## Tuning an NI that runs")[2].partition("| Key | Range |")
    for part in (rows[0], rows[2].partition("\n\n")[0]):
        assert keys <= set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\|([^|]*)\|", part, re.MULTILINE))))


def test_ro2ibtop_watches_the_counters_of_lost_packets():
    """Compares the watched counters with those that mean lost packets in reference.md."""
    section = read(DOCUMENTS, "reference.md").partition("### Counters of the devices")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("| ")][
        1:
    ]
    lost = [row for row in rows if not row[3].startswith(("nothing did", "compare the P_Keys"))]
    assert len(lost) == 5
    told = {name for row in lost for cell in row[1:3] for name in re.findall(r"`(\w+)`", cell)}
    code = read("scripts/ro2ibtop/src/verdict/of_ni.rs").partition("const RETRIES: ")[2].partition("];")[0]
    others = re.search(r"^Lost packets of other devices: (.*?)(?:\n\n|\Z)", section, re.MULTILINE | re.DOTALL)[1]
    told |= {re.sub(r"\s+", " ", name) for name in re.findall(r"`([\w\s]+)`", others)}
    assert {"RTO", "Nak Sequence Error", "max_retry_exceeded"} < told
    names = re.findall(r'"([\w ]+)"', code)
    assert told == set(names) and int(re.match(r"\[&str; (\d+)\]", code)[1]) == len(names)


STRING = r'"(?:[^"\\]|\\[\s\S])*"'


def strings(text):
    """Returns the strings of a program, as they are printed. Strings beside each other are one."""
    text = re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)
    for found in re.findall(rf"{STRING}(?:[\sA-Z0-9_]*{STRING})*", text):
        found = "".join(re.findall(STRING, found)).replace('\\"', "\0").replace('"', "").replace("\0", '"')
        yield re.sub(r"\\n$", "", re.sub(r"\\\n\s*", "", found))


def sources(*folders):
    for folder in folders:
        for path in sorted(glob.glob(os.path.join(TOP, folder, "**/*.[rc]*"), recursive=True)):
            yield read(path)


def log_lines():
    """Returns the text of each line that the driver logs."""
    for text in (read("rust/ro2iblnd.rs"), *sources("rust/lnd", "rust/lnet", "rust/rdma", "rust/shim")):
        # A call, or a row of a table of lines.
        row = r"\), (?:say pr_[a-z]+|warn_limited|warn_noise),"
        for call in re.finditer(rf"\b(?:warn_limited!|warn_noise!|say!|pr_(?!fmt)[a-z_]+!?)\(|{row}", text):
            yield from list(strings(text[call.end() :][:600]))[:1]


def verdicts():
    for text in sources("scripts/ro2ibtop/src/verdict"):
        yield from strings(text)


@pytest.mark.parametrize(("texts", "least"), [(log_lines, 70), (verdicts, 60)])
def test_each_line_is_in_the_reference(texts, least):
    """Compares the longest constant part of each line with the document, which may shorten it by "..."."""
    document = re.sub(r"\s+", " ", read(DOCUMENTS, "reference.md"))

    def documented(part):
        cuts = [part[: match.start()] for match in re.finditer("[ ,;:/]", part)]
        short = (re.escape(cut) + r"[,;:/]? ?\.\.\." for cut in cuts if " " in cut)
        return part in document or any(re.search(pattern, document) for pattern in short)

    parts = set()
    for text in texts():
        pieces = (piece.strip(" :;,()") for piece in re.split(r"\{[^}]*\}|\w*=?%[-.*\d]*l*[a-z]|\w+=", text))
        part = max(pieces, key=len)
        if " " in part:
            parts.add(part)
    assert len(parts) >= least
    assert not sorted(part for part in parts if not documented(part))
