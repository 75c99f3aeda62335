// SPDX-License-Identifier: GPL-2.0

//! Source of the driver's text: the running kernel, or a report of `ro2ib-report`.

use std::{
    collections::{
        BTreeMap,
        BTreeSet, //
    },
    fs,
    io,
    path::{
        Path,
        PathBuf, //
    },
    time::{
        SystemTime,
        UNIX_EPOCH, //
    }, //
};

use crate::{
    device_counters::Counters,
    model::Sample,
    parse, //
};

/// The driver's directory in debugfs.
pub const DEBUGFS: &str = "sys/kernel/debug/ro2iblnd";

/// Suffix of the file with the log of closes.
const CLOSES: &str = ".closes";

/// Suffix of the file with histograms.
const TIMES: &str = ".latency";

/// Largest file that is read.
const LARGEST: u64 = 256 << 20;

/// Files by their path without the first slash, in order.
pub type Files = BTreeMap<String, String>;

/// Makes a sample of files.
pub fn sample(files: &Files, time: Option<f64>) -> Sample {
    let mut sample = Sample::default();
    let mut latest: Option<f64> = None;
    for (path, content) in files {
        let Some(name) = path.strip_prefix(DEBUGFS).and_then(|p| p.strip_prefix('/')) else {
            continue;
        };
        if name == "unknown_ni" {
            parse::unknown_ni(content, &mut sample);
        } else if !name.ends_with(CLOSES) && !name.ends_with(TIMES) {
            let mut unread = 0;
            if let Some(mut ni) = parse::ni(content, &mut unread) {
                if let Some(closes) = files.get(&format!("{path}{CLOSES}")) {
                    let (events, now) = parse::closes(closes, &mut unread);
                    ni.events = events;
                    latest = match (latest, now) {
                        (Some(a), Some(b)) => Some(a.max(b)),
                        (a, b) => a.or(b),
                    };
                }
                if let Some(times) = files.get(&format!("{path}{TIMES}")) {
                    ni.latency = parse::times(times, &mut unread);
                }
                ni.hardware = hardware(files, &ni.device);
                sample.nis.push(ni);
            }
            sample.unread = sample.unread.saturating_add(unread);
        }
    }
    for (path, content) in files {
        let mut parts = path.strip_prefix("sys/module/").unwrap_or("").split('/');
        if let (Some("ro2iblnd" | "ko2iblnd"), Some("parameters"), Some(name)) =
            (parts.next(), parts.next(), parts.next())
        {
            let value = content.trim().to_string();
            sample.parameters.insert(name.to_string(), value);
        }
    }
    sample.time = latest.or(time).unwrap_or(0.0);
    sample
}

fn hardware(files: &Files, device: &str) -> BTreeMap<String, u64> {
    let mut found: BTreeMap<String, u64> = BTreeMap::new();
    if device.is_empty() {
        return found;
    }
    let root = format!("sys/class/infiniband/{device}/ports/");
    for (path, content) in files.range(root.clone()..) {
        let Some(rest) = path.strip_prefix(&root) else {
            break;
        };
        let mut parts = rest.split('/').skip(1);
        if let (Some("hw_counters" | "counters"), Some(name)) = (parts.next(), parts.next()) {
            if let Ok(n) = content.trim().parse::<u64>() {
                let sum = found.entry(name.to_string()).or_default();
                *sum = sum.saturating_add(n);
            }
        }
    }
    found
}

/// Reads the files of the running kernel below `root` (`/`, except in tests), and the counters of devices
/// through `counters`.
///
/// # Errors
///
/// If the driver's directory cannot be read.
pub fn live(root: &Path, counters: &mut Counters) -> io::Result<Sample> {
    let mut files = Files::new();
    let mut devices = BTreeSet::new();
    for entry in fs::read_dir(root.join(DEBUGFS))? {
        let path = entry?.path();
        // The NI may have gone in this moment.
        let Ok(content) = read(&path) else { continue };
        if let Some(device) = content
            .split_ascii_whitespace()
            .find_map(|w| w.strip_prefix("device="))
        {
            devices.insert(device.to_string());
        }
        insert(&mut files, root, &path, content);
    }
    devices.retain(|device| {
        // No name leads out of the directory.
        let is_one = !device.is_empty() && !device.contains(['/', '.']);
        is_one && !counters.read(root, device, &mut files)
    });
    for module in ["ro2iblnd", "ko2iblnd"] {
        for path in children(&root.join("sys/module").join(module).join("parameters")) {
            if let Ok(content) = read(&path) {
                insert(&mut files, root, &path, content);
            }
        }
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0.0, |t| t.as_secs_f64());
    let mut sample = sample(&files, Some(now));
    for ni in &mut sample.nis {
        ni.counters_hang = devices.contains(&ni.device);
    }
    sample.time = now;
    Ok(sample)
}

fn insert(files: &mut Files, root: &Path, path: &Path, content: String) {
    if let Ok(name) = path.strip_prefix(root) {
        files.insert(name.to_string_lossy().into_owned(), content);
    }
}

fn children(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn read(path: &Path) -> io::Result<String> {
    let bytes = fs::read(path)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads a file of `ro2ib-report`: its samples, at least one.
///
/// # Errors
///
/// If it cannot be read, is too large, or has nothing of the driver in it.
pub fn saved(path: &Path) -> io::Result<Vec<Sample>> {
    if fs::metadata(path)?.len() > LARGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "too large"));
    }
    let samples = report(&read(path)?);
    if samples.is_empty() {
        let why = "it is no report of ro2ib-report, or the driver was not loaded";
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(samples)
}

/// Splits a report. It has sections `==> PATH <==`; `==> sample TIME <==` starts another sample.
pub fn report(text: &str) -> Vec<Sample> {
    let mut samples = Vec::new();
    let mut files = Files::new();
    let (mut time, mut path): (Option<f64>, Option<String>) = (None, None);
    let mut round = |files: &mut Files, time: Option<f64>| {
        let made = sample(files, time);
        if !made.nis.is_empty() || !made.unknown_ni.is_empty() {
            samples.push(made);
        }
        // Parameters and the like are in the report once.
        files.retain(|path, _| !path.starts_with(DEBUGFS));
    };
    for line in text.lines() {
        let section = line
            .strip_prefix("==> ")
            .and_then(|rest| rest.strip_suffix(" <=="));
        match section {
            Some(section) => match section.strip_prefix("sample ") {
                Some(at) => {
                    round(&mut files, time);
                    time = at.trim().parse().ok().filter(|t: &f64| t.is_finite());
                    path = None;
                }
                None => {
                    let name = section.trim_start_matches('/').to_string();
                    files.insert(name.clone(), String::new());
                    path = Some(name);
                }
            },
            None => {
                if let Some(content) = path.as_ref().and_then(|path| files.get_mut(path)) {
                    content.push_str(line);
                    content.push('\n');
                }
            }
        }
    }
    round(&mut files, time);
    samples
}
