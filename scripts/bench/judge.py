# SPDX-License-Identifier: GPL-2.0
"""Tables of the counts, and their comparison with the baseline."""

import json
import os
import re
import subprocess

from vm.initramfs import module_info

from .symbols import CALLS, CLASSES, LND

BASELINE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "baseline.json")
# Two runs of one driver differ by less than 1 %, even on a busy host. A compiler other than the baseline's generates
# other code, and a debug kernel is not for measurements.
GROWTH, GROWTH_OTHERWISE = 0.03, 0.25
# Classes whose work depends on the timing of the two guests, or on other parts.
AROUND = ("provider", "network", "LNet")


def toolchain(env, release, built):
    """Returns the tools and settings that counts of a given source depend on."""
    config = os.path.join(env["KDIR"], ".config")
    compiler = "?"
    if os.path.exists(config):
        with open(config, encoding="utf-8") as f:
            found = re.search(r'^CONFIG_CC_VERSION_TEXT="(.*)"', f.read(), re.MULTILINE)
        compiler = found[1] if found else "?"
    rustc = subprocess.run([env["RUSTC"], "--version"], check=True, capture_output=True, text=True).stdout.strip()
    crate = module_info(os.path.join(built, "ro2iblnd.ko"), "kernel_crate")
    return {"kernel": release, "compiler": compiler, "rustc": rustc, "crate": crate}


def has_hooks(module):
    """Returns whether a module was built for tests: with calls for each message and completion that users do not
    have.
    """
    symbols = subprocess.run(["nm", module], check=True, capture_output=True, text=True).stdout
    return re.search(r" ro2ib_wc_send$", symbols, re.MULTILINE) is not None


def limit(base, made_with, kdir):
    """Returns by how much the driver may have grown against the baseline, and why, unless that is the usual limit."""
    if "-debug-" in os.path.basename(kdir):
        return float("inf"), "a debug kernel: nothing is compared"
    if base["made with"] == made_with:
        return GROWTH, ""
    told = f"baseline: {base['made with']}\nhere: {made_with}\nnot the same, so {GROWTH_OTHERWISE:.0%} are allowed"
    return GROWTH_OTHERWISE, told


def load(path=BASELINE):
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def save(results, made_with, path=BASELINE):
    """Saves the results as the new baseline. Cases that were not measured stay if the toolchain is the same."""
    try:
        old = load(path)
    except FileNotFoundError:
        old = {}
    cases = old.get("cases", {}) if old.get("made with") == made_with else {}
    cases.update({name: shrunk(result) for name, result in results.items()})
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"made with": made_with, "cases": cases}, f, indent=1)
        f.write("\n")


def shrunk(result):
    """Returns the part of a result that a baseline keeps."""
    functions = {name: round(n, 1) for name, n in result["functions"].items() if n >= 0.5}
    return {
        "messages": result["messages"],
        "classes": {k: round(result["classes"].get(k, 0), 1) for k in CLASSES},
        "calls": {k: round(n, 2) for k, n in result["calls"].items()},
        "driver": {k: round(n, 3) for k, n in result["driver"].items()},
        "functions": functions,
    }


def best(results):
    """Returns the window with the least LND text: disturbances only add instructions."""
    return min(results, key=lambda r: r["classes"].get(LND, 0))


def growth(base, result):
    """Returns by how much the LND's text has grown, as a fraction."""
    return result["classes"][LND] / base["classes"][LND] - 1


def grown(base, result, most=10):
    """Returns the functions that have grown most: (instructions more, before, now, name)."""
    old, new = base["functions"], result["functions"]
    rows = [(new.get(name, 0) - old.get(name, 0), old.get(name, 0), new.get(name, 0), name) for name in {*old, *new}]
    return sorted((row for row in rows if row[0] >= 1), reverse=True)[:most]


def verdict(name, base, result, limit):
    """Returns (whether the case passes, lines that report it)."""
    more = growth(base, result)
    now, before = result["classes"][LND], base["classes"][LND]
    told = f"{name}: {now:.0f} instructions of LND text per message, {before:.0f} in the baseline ({more:+.1%})"
    if more <= limit:
        note = "; make bench BENCH=--save keeps that" if more < -GROWTH else ""
        return True, [f"ok {told}{note}"]
    rows = [f"  {plus:+8.1f}  {was:8.1f} {is_:8.1f}  {function}" for plus, was, is_, function in grown(base, result)]
    return False, [f"FAILED {told}, {limit:.0%} are allowed. Symbols that grew, per message: more, before, now", *rows]


def without(result, rest):
    """Returns the counts less those of a run without the work."""
    numbers = ("classes", "calls", "functions", "called", "everything")

    def less(key):
        names = dict.fromkeys([*result[key], *rest[key]])
        left = {name: result[key].get(name, 0) - rest[key].get(name, 0) for name in names}
        return dict(sorted(left.items(), key=lambda item: -item[1]))

    return result | {key: less(key) for key in numbers}


def table(results):
    """Returns a table of all cases side by side."""
    names = list(results)
    width = max(len(n) for n in names) + 2
    head = f"{'per message':22}" + "".join(f"{n:>{width}}" for n in names)

    def row(label, value, digits):
        return f"{label:22}" + "".join(f"{value(results[n]):>{width}.{digits}f}" for n in names)

    lines = [head]
    lines += [row(k, lambda r, k=k: r["classes"].get(k, 0), 0) for k in CLASSES]
    lines.append(row("all but around", lambda r: sum(n for k, n in r["classes"].items() if k not in AROUND), 0))
    lines.append(row("all", lambda r: sum(r["classes"].values()), 0))
    lines += [row(k, lambda r, k=k: r["calls"].get(k, 0), 2) for k in CALLS]
    lines += [row(k, lambda r, k=k: r["driver"].get(k, 0), 3) for k in results[names[0]]["driver"]]
    lines.append(row("messages", lambda r: r["messages"], 0))
    return "\n".join(lines)


def top(result, most, everything=False):
    """Returns a table of the most expensive functions."""
    counts = result["everything" if everything else "functions"]
    return "\n".join(
        f"{n:10.1f} {result['called'].get(name, 0):8.2f} calls  {name}" for name, n in list(counts.items())[:most]
    )
