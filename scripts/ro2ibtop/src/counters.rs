// SPDX-License-Identifier: GPL-2.0

//! Counters of RDMA devices, which one that hangs never tells.
//!
//! The kernel asks the device for them, of some by a command of its firmware, and who waits for that cannot even be
//! killed. So a child reads them, `grep`, and nobody waits for it longer than [`PATIENCE`]. As long as it has not come
//! back its device is not asked again, and when this program ends it is left behind.

use std::{
    collections::BTreeMap,
    fs,
    io::{
        self,
        Read, //
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
    time::Duration, //
};

use crate::source::Files;

/// How long a device may take for all of its counters.
const PATIENCE: Duration = Duration::from_secs(2);

/// Who reads the counters of devices.
#[derive(Default)]
pub struct Counters {
    /// Of each device that was asked and has not answered yet.
    asked: BTreeMap<String, Receiver<String>>,
}

impl Counters {
    /// Puts the counters of `device` below `root` into `files`. False: it does not tell them.
    pub fn read(&mut self, root: &Path, device: &str, files: &mut Files) -> bool {
        let (answer, patience) = match self.asked.remove(device) {
            Some(answer) => (answer, Duration::ZERO),
            None => match ask(&paths(root, device)) {
                Ok(answer) => (answer, PATIENCE),
                // Without a child it is not worth the risk.
                Err(_) => return true,
            },
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

/// Begins to read `paths`: who waits gets a line for each, `PATH:CONTENT`.
fn ask(paths: &[PathBuf]) -> io::Result<Receiver<String>> {
    let (tell, answer) = mpsc::sync_channel(1);
    if paths.is_empty() {
        let _ = tell.send(String::new());
        return Ok(answer);
    }
    let mut child = Command::new("grep")
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
