// SPDX-License-Identifier: GPL-2.0

//! Search for a reader of a device's counters, which must not wait for a process that hangs.

use std::{
    env,
    fs,
    path::{
        Path,
        PathBuf, //
    },
    process::Command,
    sync::mpsc,
    thread,
    time::{
        Duration,
        Instant, //
    }, //
};

use ro2ibtop::{
    device_counters::Counters,
    source::{
        self,
        Files, //
    }, //
};

/// Directory with a node's `sys` and `proc`, deleted on drop.
struct Node(PathBuf);

impl Node {
    fn new(name: &str) -> Self {
        let dir = env::temp_dir().join(format!("ro2ibtop-{}-{name}", std::process::id()));
        let node = Self(dir);
        fs::create_dir_all(node.counter().parent().unwrap()).unwrap();
        fs::write(node.counter(), "5\n").unwrap();
        fs::create_dir_all(node.proc().join("self")).unwrap();
        node
    }

    fn proc(&self) -> PathBuf {
        self.0.join("proc")
    }

    fn counter(&self) -> PathBuf {
        self.0
            .join("sys/class/infiniband/mlx5_0/ports/1/hw_counters/out_of_sequence")
    }

    /// Creates a process of that name, and returns the path of its command line.
    fn process(&self, number: &str, comm: &str) -> PathBuf {
        let dir = self.proc().join(number);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("comm"), format!("{comm}\n")).unwrap();
        dir.join("cmdline")
    }

    /// Returns the command line of a process that reads the counters.
    fn reads(&self) -> String {
        format!("grep\0-s\0-H\0\0--\0{}\0", self.counter().display())
    }

    /// Returns whether the device answers, the number of files, and how long the read took.
    fn read(&self, counters: &mut Counters) -> (bool, usize, Duration) {
        let mut files = Files::new();
        let began = Instant::now();
        let told = counters.read(&self.0, "mlx5_0", &mut files);
        (told, files.len(), began.elapsed())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Checks names with blanks, as irdma has them, in a running kernel and in a report.
#[test]
fn names_of_counters_may_have_blanks() {
    let node = Node::new("blanks");
    let name = "sys/class/infiniband/mlx5_0/ports/1/hw_counters/Nak Sequence Error";
    fs::write(node.0.join(name), "3\n").unwrap();
    let mut files = Files::new();
    assert!(Counters::looking_in(node.proc()).read(&node.0, "mlx5_0", &mut files));
    assert_eq!(files[name], "3");
    let ni = "==> /sys/kernel/debug/ro2iblnd/10.0.0.1@o2ib <==\nni=10.0.0.1@o2ib device=mlx5_0\n";
    let samples = source::report(&format!("{ni}==> /{name} <==\n3\n"));
    assert_eq!(samples[0].nis[0].hardware["Nak Sequence Error"], 3);
}

#[test]
fn a_hanging_process_delays_no_reader() {
    let node = Node::new("hangs");
    // The command line cannot be read, as that of a process in a page fault.
    let stuck = node.process("4711", "java");
    pipe(&stuck);
    // This is not a process, in spite of its name.
    let other = node.proc().join("sysvipc/cmdline");
    fs::create_dir_all(other.parent().unwrap()).unwrap();
    fs::write(other.with_file_name("comm"), "grep\n").unwrap();
    pipe(&other);
    let (tell, told) = mpsc::channel();
    let (root, proc) = (node.0.clone(), node.proc());
    thread::spawn(move || {
        let mut files = Files::new();
        let done = Counters::looking_in(proc).read(&root, "mlx5_0", &mut files);
        let _ = tell.send((done, files.len()));
    });
    let told = told.recv_timeout(Duration::from_secs(10));
    let (told, files) = told.expect("it waits for a process that hangs");
    assert!(told && files == 1);
}

#[test]
fn reader_of_an_earlier_process_is_found() {
    let node = Node::new("reads");
    let cmdline = node.process("4711", "grep");
    fs::write(&cmdline, node.reads()).unwrap();
    let mut counters = Counters::looking_in(node.proc());
    let (told, files, waited) = node.read(&mut counters);
    assert!(!told && files == 0 && waited >= Duration::from_secs(1));
    // The process is known now.
    let (told, _, waited) = node.read(&mut counters);
    assert!(!told && waited < Duration::from_secs(1), "{waited:?}");
    // The process has ended, and another process with the same number reads another file.
    fs::write(&cmdline, "grep\0-r\0nothing\0").unwrap();
    let (told, files, _) = node.read(&mut counters);
    assert!(told && files == 1);
    // The process ends during the wait.
    fs::write(&cmdline, node.reads()).unwrap();
    let mut counters = Counters::looking_in(node.proc());
    let (told, files, waited) = thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(300));
            fs::remove_dir_all(node.proc().join("4711")).unwrap();
        });
        node.read(&mut counters)
    });
    assert!(told && files == 1 && waited >= Duration::from_millis(250));
}

/// Checks that only the first sample searches all processes.
#[test]
fn processes_are_searched_once() {
    let node = Node::new("answered");
    let mut counters = Counters::looking_in(node.proc());
    assert!(node.read(&mut counters).0);
    let cmdline = node.process("4711", "grep");
    fs::write(&cmdline, node.reads()).unwrap();
    let (told, files, waited) = node.read(&mut counters);
    assert!(told && files == 1 && waited < Duration::from_secs(1));
}
