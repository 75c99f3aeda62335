# SPDX-License-Identifier: GPL-2.0
"""ro2ibtop on a terminal in a guest, and the content of its screen."""

import os
import re
import subprocess

from nodes import PATIENCE

ROWS, COLUMNS = 40, 180


class Frame:
    """Frame of the screen."""

    def __init__(self, text):
        self.lines = text.split("\n")
        self.text = text

    @property
    def clock(self):
        """Time at which its numbers were read, by the first line."""
        found = re.match(r" ro2ibtop  this node  (\d\d:\d\d:\d\d) UTC  ", self.lines[0])
        assert found, self.text
        return found[1]

    def table(self, first):
        """Returns the rows below the heading whose first word is `first`, until an empty line: dicts by the heading's
        words. The last column may have any length."""
        found = []
        names = starts = None
        for line in self.lines:
            if names is None:
                if line.split()[:1] == [first]:
                    names = line.split()
                    starts = [m.start() for m in re.finditer(r"\S+", line)]
                continue
            if not line.strip() or line.split()[0] in ("NI", "peer"):
                break
            # The times of an NI are in the line below it.
            if not line.startswith(" "):
                cells = (line[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True))
                found.append(dict(zip(names, cells, strict=True)))
        return found

    def nis(self):
        return self.table("NI")

    def peers(self):
        return self.table("peer")


class Screen:
    """ro2ibtop on a pseudo terminal in a guest, inside `with`. `top` is the place where it was built. The guest has it
    and `script` among its programs."""

    count = 0

    def __init__(self, top, node, *options):
        self.node, self.frames_of = node, os.path.join(os.path.dirname(top), "examples", "typescript_frames")
        Screen.count += 1
        self.keys = f"/tmp/keys{Screen.count}"
        self.name = f"typescript{Screen.count}"
        self.command = f"stty rows {ROWS} cols {COLUMNS}; ro2ibtop {' '.join(options)}; echo status $?"
        self.job = None

    def __enter__(self):
        guest = self.node.guest
        guest.check("mkdir -p /dev/pts; grep -q ^devpts /proc/mounts || mount -t devpts -o ptmxmode=666 devpts /dev/pts")
        guest.check(f"mkfifo {self.keys}")
        self.job = guest.spawn(f"TERM=xterm script -qefc '{self.command}' /dev/null <>{self.keys} >/share/{self.name} 2>&1")
        return self

    def __exit__(self, *_exc):
        if self.node.guest.alive() and self.job.poll() is None:
            self.job.kill()

    def press(self, keys):
        self.node.guest.check(f"printf '{keys}' >{self.keys}")

    def _seen(self):
        path = os.path.join(self.node.guest.share, self.name)
        written = b""
        # The file does not exist before ro2ibtop starts.
        if os.path.exists(path):
            with open(path, "rb") as f:
                written = f.read()
        done = subprocess.run(
            [self.frames_of, str(ROWS), str(COLUMNS)], input=written, capture_output=True, check=True, timeout=60
        )
        return done.stdout.decode().split("\f")

    def frames(self):
        """Returns all complete frames so far."""
        return [Frame(text) for text in self._seen()[:-1]]

    def last(self):
        """Returns the last complete frame, or None."""
        return (self.frames() or [None])[-1]

    def end(self):
        """Waits until ro2ibtop ends. Returns the rest of the screen."""
        status, out = self.job.wait(PATIENCE)
        assert status == 0, out
        return self._seen()[-1]
