// SPDX-License-Identifier: GPL-2.0

//! Counters of RDMA devices, which one that hangs never tells.
//!
//! The kernel asks the device for them, of some by a command of its firmware, and who waits for that cannot even be
//! killed. So a child reads them, `grep`, and nobody waits for it longer than [`PATIENCE`]. As long as it has not come
//! back its device is not asked again, and when this program ends it is left behind. Who is started next, by Prometheus
//! perhaps, looks for such a one first: there is one for a device and user, and not one for each start.

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
#[derive(Default)]
pub struct Counters {
    /// Of each device that was asked and has not answered yet.
    asked: BTreeMap<String, Receiver<String>>,
    /// Those that somebody else waits for.
    left: BTreeSet<String>,
}

impl Counters {
    /// Puts the counters of `device` below `root` into `files`. False: it does not tell them.
    pub fn read(&mut self, root: &Path, device: &str, files: &mut Files) -> bool {
        let (answer, patience) = match self.asked.remove(device) {
            Some(answer) => (answer, Duration::ZERO),
            None => {
                let paths = paths(root, device);
                let known = self.left.contains(device);
                if is_asked(&paths, if known { Duration::ZERO } else { PATIENCE }) {
                    self.left.insert(device.to_string());
                    return false;
                }
                self.left.remove(device);
                match ask(&paths) {
                    Ok(answer) => (answer, PATIENCE),
                    // Without a child it is not worth the risk.
                    Err(_) => return true,
                }
            }
        };
        match answer.recv_timeout(patience) {
            Ok(text) => {
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
fn is_asked(paths: &[PathBuf], patience: Duration) -> bool {
    let end = Instant::now() + patience;
    while paths.first().is_some_and(|path| is_being_read(path)) {
        if Instant::now() >= end {
            return true;
        }
        thread::sleep(Duration::from_millis(50));
    }
    false
}

/// Whether a child as that of [`ask`], of the same user, has this path to read.
fn is_being_read(path: &Path) -> bool {
    let Ok(user) = fs::metadata("/proc/self").map(|me| me.uid()) else {
        return false;
    };
    let is_reader = |process: &Path| {
        let cmdline = fs::read(process.join("cmdline")).unwrap_or_default();
        let mut words = cmdline.split(|byte| *byte == 0);
        words.next() == Some(READER.as_bytes())
            && words.any(|word| word == path.as_os_str().as_bytes())
            && fs::metadata(process).is_ok_and(|it| it.uid() == user)
    };
    children(Path::new("/proc")).iter().any(|it| is_reader(it))
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
