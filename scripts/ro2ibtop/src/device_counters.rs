// SPDX-License-Identifier: GPL-2.0

//! Counters of RDMA devices, read so that a device that hangs does not hang this program.
//!
//! The kernel asks the device for its counters, for some of them by a firmware command. A process that waits
//! for that cannot even be killed. So a child (`grep`) reads the counters, and this program waits for it for
//! [`PATIENCE`] at most. While the child has not returned, its device is not asked again; a child that still
//! waits when this program ends stays behind. A later start, by Prometheus for example, looks for such a
//! child first, so that there is one per device and user and not one per start. A program that the device has
//! answered before does not look, because a node has thousands of processes: so each program that ran when
//! the device began to hang may leave one child.
//!
//! The command line of a process that is stuck in a page fault cannot be read. So only the command lines of
//! processes with the name of the reader are read.

use std::{
    collections::{
        BTreeMap,
        BTreeSet, //
    },
    fs,
    io::{
        self,
        Read, //
    },
    os::unix::{
        ffi::OsStrExt,
        fs::MetadataExt, //
    },
    path::{
        Path,
        PathBuf, //
    },
    process::{
        Command,
        Stdio, //
    },
    sync::mpsc::{
        self,
        Receiver,
        RecvTimeoutError, //
    },
    thread,
    time::{
        Duration,
        Instant, //
    }, //
};

use crate::source::Files;

/// Program that reads.
const READER: &str = "grep";

/// Time that a device may take for all of its counters.
const PATIENCE: Duration = Duration::from_secs(2);

/// Reader of the counters of devices.
pub struct Counters {
    /// Where processes are.
    proc: PathBuf,
    /// Children that wait, one for each device that has not answered yet.
    asked: BTreeMap<String, Receiver<String>>,
    /// Devices that a child of another program waits for.
    left: BTreeSet<String>,
    /// Devices that answered the last time.
    answered: BTreeSet<String>,
}

impl Default for Counters {
    fn default() -> Self {
        Self::looking_in(PathBuf::from("/proc"))
    }
}

impl Counters {
    /// Creates a reader that looks for other children in `proc` (`/proc`, except in tests).
    pub fn looking_in(proc: PathBuf) -> Self {
        Self {
            proc,
            asked: BTreeMap::new(),
            left: BTreeSet::new(),
            answered: BTreeSet::new(),
        }
    }

    /// Adds the counters of `device` below `root` to `files`. Returns false if the device does not answer.
    pub fn read(&mut self, root: &Path, device: &str, files: &mut Files) -> bool {
        let (answer, patience) = match self.asked.remove(device) {
            Some(answer) => (answer, Duration::ZERO),
            None => {
                let paths = paths(root, device);
                if !self.answered.remove(device) && self.is_left(device, &paths) {
                    return false;
                }
                match ask(&paths) {
                    Ok(answer) => (answer, PATIENCE),
                    // Reading without a child risks a hang.
                    Err(_) => return true,
                }
            }
        };
        match answer.recv_timeout(patience) {
            Ok(text) => {
                self.answered.insert(device.to_string());
                take(root, &text, files);
                true
            }
            Err(RecvTimeoutError::Timeout) => {
                self.asked.insert(device.to_string(), answer);
                false
            }
            Err(RecvTimeoutError::Disconnected) => true,
        }
    }

    /// Returns whether a child of another program waits for `paths`, the counters of `device`, and goes on
    /// waiting.
    fn is_left(&mut self, device: &str, paths: &[PathBuf]) -> bool {
        let patience = match self.left.contains(device) {
            true => Duration::ZERO,
            false => PATIENCE,
        };
        match is_asked(&self.proc, paths, patience) {
            true => self.left.insert(device.to_string()),
            false => self.left.remove(device),
        };
        self.left.contains(device)
    }
}

/// Lists the files with counters of a device. The device is not asked for that.
fn paths(root: &Path, device: &str) -> Vec<PathBuf> {
    let ports = root.join("sys/class/infiniband").join(device).join("ports");
    let kinds = children(&ports)
        .into_iter()
        .flat_map(|port| ["hw_counters", "counters"].map(|kind| port.join(kind)));
    kinds.flat_map(|dir| children(&dir)).collect()
}

fn children(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// Returns whether a child of another program has begun to read `paths` and does not return within
/// `patience`.
fn is_asked(proc: &Path, paths: &[PathBuf], patience: Duration) -> bool {
    let end = Instant::now() + patience;
    let Some(path) = paths.first() else {
        return false;
    };
    let mut readers = readers(proc, path);
    while !readers.is_empty() && Instant::now() < end {
        thread::sleep(Duration::from_millis(50));
        readers.retain(|process| reads(process, path));
    }
    !readers.is_empty()
}

/// Returns children like that of [`ask`], of the same user, that read this path.
fn readers(proc: &Path, path: &Path) -> Vec<PathBuf> {
    let Ok(user) = fs::metadata(proc.join("self")).map(|me| me.uid()) else {
        return Vec::new();
    };
    let is_process = |it: &Path| {
        let name = it.file_name().unwrap_or_default().as_bytes();
        name.iter().all(u8::is_ascii_digit)
    };
    let mut found = children(proc);
    found.retain(|it| {
        is_process(it) && fs::metadata(it).is_ok_and(|it| it.uid() == user) && reads(it, path)
    });
    found
}

/// Returns whether a process is a reader of this path. The name of a process can always be read.
fn reads(process: &Path, path: &Path) -> bool {
    let name = fs::read(process.join("comm")).unwrap_or_default();
    if name.trim_ascii_end() != READER.as_bytes() {
        return false;
    }
    let cmdline = fs::read(process.join("cmdline")).unwrap_or_default();
    let mut words = cmdline.split(|byte| *byte == 0);
    words.next() == Some(READER.as_bytes()) && words.any(|word| word == path.as_os_str().as_bytes())
}

/// Starts to read `paths`. The receiver gets a line `PATH:CONTENT` for each.
fn ask(paths: &[PathBuf]) -> io::Result<Receiver<String>> {
    let (tell, answer) = mpsc::sync_channel(1);
    if paths.is_empty() {
        let _ = tell.send(String::new());
        return Ok(answer);
    }
    let mut child = Command::new(READER)
        .args(["-s", "-H", "", "--"])
        .args(paths)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    thread::Builder::new().spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut out) = child.stdout.take() {
            // A part of the counters is worth having.
            let _ = out.read_to_end(&mut bytes);
        }
        let _ = child.wait();
        let _ = tell.send(String::from_utf8_lossy(&bytes).into_owned());
    })?;
    Ok(answer)
}

fn take(root: &Path, text: &str, files: &mut Files) {
    for line in text.lines() {
        let Some((path, content)) = line.split_once(':') else {
            continue;
        };
        if let Ok(name) = Path::new(path).strip_prefix(root) {
            files.insert(name.to_string_lossy().into_owned(), content.to_string());
        }
    }
}
