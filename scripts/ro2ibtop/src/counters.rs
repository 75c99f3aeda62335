// SPDX-License-Identifier: GPL-2.0

//! Counters of RDMA devices, which one that hangs never tells.
//!
//! The kernel asks the device for them, of some by a command of its firmware, and who waits for that cannot even be
//! killed. So a child reads them, `grep`, and nobody waits for it longer than [`PATIENCE`]. As long as it has not come
//! back its device is not asked again, and when this program ends it is left behind. Who is started next, by Prometheus
//! perhaps, looks for such a one first: there is one for a device and user, and not one for each start. Who was answered
//! before does not look again, for a node has thousands of processes: so there may be one for each program that ran when
//! the device began to hang.
//!
//! Where somebody hangs others may, too, and the words that a process was started with cannot be read while it is stuck
//! in a page fault: they are looked at only of those that have the name of a reader.

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

/// Who reads.
const READER: &str = "grep";

/// How long a device may take for all of its counters.
const PATIENCE: Duration = Duration::from_secs(2);

/// Who reads the counters of devices.
pub struct Counters {
    /// Where processes are.
    proc: PathBuf,
    /// Of each device that was asked and has not answered yet.
    asked: BTreeMap<String, Receiver<String>>,
    /// Those that somebody else waits for.
    left: BTreeSet<String>,
    /// Those that answered when they were asked last.
    answered: BTreeSet<String>,
}

impl Default for Counters {
    fn default() -> Self {
        Self::looking_in(PathBuf::from("/proc"))
    }
}

impl Counters {
    /// Who looks for others that read there: `/proc`, but for tests.
    pub fn looking_in(proc: PathBuf) -> Self {
        Self {
            proc,
            asked: BTreeMap::new(),
            left: BTreeSet::new(),
            answered: BTreeSet::new(),
        }
    }

    /// Puts the counters of `device` below `root` into `files`. False: it does not tell them.
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
                    // Without a child it is not worth the risk.
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

    /// Whether somebody else waits for the counters of `device`, which are `paths`, and goes on waiting.
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

/// The files of a device that have counters. To list them does not ask the device.
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

/// Whether somebody began to read `paths` before, and does not come back within `patience`.
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

/// Children as that of [`ask`], of the same user, that have this path to read.
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

/// Whether a process is a reader, and has this path to read. Its name can always be read, whatever it waits for.
fn reads(process: &Path, path: &Path) -> bool {
    let name = fs::read(process.join("comm")).unwrap_or_default();
    if name.trim_ascii_end() != READER.as_bytes() {
        return false;
    }
    let cmdline = fs::read(process.join("cmdline")).unwrap_or_default();
    let mut words = cmdline.split(|byte| *byte == 0);
    words.next() == Some(READER.as_bytes()) && words.any(|word| word == path.as_os_str().as_bytes())
}

/// Begins to read `paths`: who waits gets a line for each, `PATH:CONTENT`.
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
            // What was read is worth having, though it be not all.
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
