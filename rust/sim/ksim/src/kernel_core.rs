// SPDX-License-Identifier: GPL-2.0

//! Other parts of the kernel: time, debugfs, printing, random numbers, CPUs.

use std::mem::offset_of;

use crate::{
    decl::{
        k::*,
        r, //
    },
    lock,
    sched::{
        self,
        US, //
    },
    world::{
        self,
        say,
        telling,
        violation,
        w, //
    }, //
};

#[no_mangle]
pub unsafe extern "C" fn ktime_get() -> i64 {
    sched::now() as i64
}
#[no_mangle]
pub unsafe extern "C" fn ro2ibk_ktime_get_real() -> i64 {
    // The clocks of nodes differ, and the nodes did not boot at the same time.
    (1_700_000_000 + sched::node() as i64 * 5) * 1_000_000_000 + sched::now() as i64
}
#[no_mangle]
pub unsafe extern "C" fn ro2ibk_msecs_to_jiffies(ms: u32) -> usize {
    ms as usize
}
#[no_mangle]
pub unsafe extern "C" fn ro2ibk_fsleep(us: usize) {
    lock::might_sleep("fsleep");
    sched::sleep(us as u64 * US);
}

// debugfs

/// File or directory of debugfs.
pub struct Dentry {
    node: usize,
    file: *mut r::ro2ib_debugfs_file,
    readers: usize,
    /// The driver removed it, or its node lost its power.
    pub gone: bool,
}

/// Returns the files of a node.
pub fn files(node: usize) -> Vec<*mut Dentry> {
    w().dentries
        .iter()
        .copied()
        // SAFETY: They stay until the world ends.
        .filter(|d| unsafe { (**d).node == node && !(**d).gone && !(**d).file.is_null() })
        .collect()
}

/// Returns the number of entries of a node that are left.
pub fn entries(node: usize) -> usize {
    w().dentries
        .iter()
        // SAFETY: As above.
        .filter(|d| unsafe { (***d).node == node && !(***d).gone })
        .count()
}

/// Reads a file, as `cat` does.
pub fn cat(d: *mut Dentry) -> String {
    // Most files are shorter.
    let mut text = Vec::<u8>::with_capacity(4096);
    // SAFETY: Entries stay until the world ends; the file stays while it has readers.
    unsafe {
        if (*d).gone {
            return String::new();
        }
        (*d).readers += 1;
        let file = (*d).file;
        if let Some(show) = (*file).show {
            show((&raw mut text).cast(), (*file).data);
        }
        (*d).readers -= 1;
    }
    sched::wake_all(d as usize);
    String::from_utf8(text).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
}

fn dentry(file: *mut r::ro2ib_debugfs_file) -> *mut dentry {
    lock::might_sleep("debugfs");
    let d = Box::into_raw(Box::new(Dentry {
        node: sched::node(),
        file,
        readers: 0,
        gone: false,
    }));
    w().dentries.push(d);
    d.cast()
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_debugfs_dir(_name: *const u8) -> *mut dentry {
    dentry(core::ptr::null_mut())
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_debugfs_create(
    _name: *const u8,
    _parent: *mut dentry,
    file: *mut r::ro2ib_debugfs_file,
) -> *mut dentry {
    dentry(file)
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_debugfs_remove(d: *mut dentry) {
    lock::might_sleep("debugfs_remove");
    if d.is_null() {
        return;
    }
    let d: *mut Dentry = d.cast();
    // SAFETY: Entries stay until the world ends.
    unsafe {
        (*d).gone = true;
        while (*d).readers != 0 {
            sched::sleep_on(d as usize);
        }
    }
    sched::point();
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_debugfs_write(
    seq: *mut seq_file,
    text: *const u8,
    len: usize,
) -> bool {
    // SAFETY: `seq` is what `cat` passed; the caller passes valid bytes.
    unsafe { (*seq.cast::<Vec<u8>>()).extend_from_slice(core::slice::from_raw_parts(text, len)) };
    true
}

// Other functions

#[no_mangle]
pub unsafe extern "C" fn ro2ibk_printk(level: i32, _prefix: *const u8, text: *const u8, len: i32) {
    // A console may be slow.
    lock::takes_long("a line is printed");
    world::printed(level);
    // SAFETY: The caller passes valid bytes.
    let text = unsafe { core::slice::from_raw_parts(text, len as usize) };
    let text = String::from_utf8_lossy(text);
    if telling() {
        say(&format!("<{level}> {}", text.trim_end()));
    }
    if text.contains("connecting failed: the queue pair went into") {
        violation("an attempt ends, and what the CM has to say of it is not told");
    }
    // Messages that the driver only logs on a bug of its own.
    const WRONG: [&str; 6] = [
        "a message was dropped without a cause",
        "completion for a receive that was not posted",
        "completion for a send that was not posted",
        "an object of a reserve comes back from a user that has none",
        "memory is returned to its owner while the device still uses it",
        "internal error: ",
    ];
    // Printed once for each load of the module, so the first world that causes it fails.
    if level <= 4 && WRONG.iter().any(|wrong| text.contains(wrong)) {
        violation(&format!("the driver says: {}", text.trim_end()));
    }
}

/// Word whose address C has.
#[repr(transparent)]
pub struct Address(*const u32);

// SAFETY: The word is a constant.
unsafe impl Sync for Address {}

/// LNet's debug log is off.
static DK_OFF: u32 = 0;
/// Mask of the debug levels.
#[no_mangle]
pub static ro2ib_dk_debug: Address = Address(&raw const DK_OFF);
/// Mask of the subsystems.
#[no_mangle]
pub static ro2ib_dk_subsystems: Address = Address(&raw const DK_OFF);

#[no_mangle]
pub unsafe extern "C" fn ro2ib_dk_line(
    mask: u32,
    _file: *const u8,
    _fn: *const u8,
    _line: u32,
    text: *const u8,
    len: u32,
) {
    if mask & r::ro2ib_dk_mask_RO2IB_DK_CONSOLE == 0 {
        violation("a line is written to a debug log that is off");
    }
    // With the name of LNet in front.
    if len > 970 {
        violation("printk cuts off a line");
    }
    // SAFETY: The caller passes valid bytes.
    unsafe { ro2ibk_printk(6, c"".as_ptr().cast(), text, len as i32) };
}
#[no_mangle]
pub unsafe extern "C" fn ro2ibk_current_pid() -> i32 {
    sched::current() as i32 + 1
}
#[no_mangle]
pub unsafe extern "C" fn ro2ibk_this_module() -> *mut module {
    static MODULE: u64 = 0;
    core::ptr::from_ref(&MODULE).cast_mut().cast()
}
#[no_mangle]
pub unsafe extern "C" fn get_random_u32() -> u32 {
    w().rng.u64() as u32
}
#[no_mangle]
pub unsafe extern "C" fn get_random_u64() -> u64 {
    w().rng.u64()
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_online_cpu(hint: u32) -> u32 {
    hint % w().plan.cpus
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_cpus() -> u32 {
    w().plan.cpus
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_log_allowed() -> bool {
    true
}
#[no_mangle]
pub unsafe extern "C" fn ro2ib_log_untrusted_allowed() -> bool {
    true
}

/// Waits until all callbacks that run now in a softirq have returned, and so have completion
/// handlers in a work item: these do not sleep, which is the condition that
/// `synchronize_rcu_tasks()` waits for.
#[no_mangle]
pub unsafe extern "C" fn ro2ib_synchronize_callbacks() {
    lock::might_sleep("synchronize_rcu");
    let (me, node) = (sched::current(), sched::node());
    for tid in sched::callers(node) {
        if tid != me {
            sched::join(tid);
        }
    }
}

#[no_mangle]
pub unsafe extern "C" fn ro2ib_layout() -> *const r::ro2ib_layout {
    use r::*;
    static LAYOUT: r::ro2ib_layout = r::ro2ib_layout {
        size: [
            size_of::<ib_send_wr>() as u32,
            size_of::<ib_rdma_wr>() as u32,
            size_of::<ib_reg_wr>() as u32,
            size_of::<ib_recv_wr>() as u32,
            size_of::<ib_sge>() as u32,
            size_of::<ib_wc>() as u32,
            size_of::<ib_event>() as u32,
            size_of::<ib_event_handler>() as u32,
            size_of::<work_struct>() as u32,
            size_of::<delayed_work>() as u32,
            size_of::<spinlock_t>() as u32,
            size_of::<mutex>() as u32,
            size_of::<completion>() as u32,
            size_of::<bio_vec>() as u32,
            size_of::<sg_table>() as u32,
            size_of::<ro2ib_sg_list>() as u32,
            size_of::<lock_class_key>() as u32,
            size_of::<ro2ib_ni_cfg>() as u32,
            size_of::<ro2ib_send_req>() as u32,
            size_of::<ro2ib_recv_req>() as u32,
            size_of::<ro2ib_lnd_ops>() as u32,
            size_of::<ro2ib_tuning>() as u32,
        ],
        offset: [
            offset_of!(ib_wc, __bindgen_anon_1) as u32,
            offset_of!(ib_wc, status) as u32,
            offset_of!(ib_wc, opcode) as u32,
            offset_of!(ib_wc, vendor_err) as u32,
            offset_of!(ib_wc, byte_len) as u32,
            offset_of!(ib_wc, wc_flags) as u32,
            offset_of!(ib_send_wr, next) as u32,
            offset_of!(ib_send_wr, __bindgen_anon_1) as u32,
            offset_of!(ib_send_wr, sg_list) as u32,
            offset_of!(ib_send_wr, num_sge) as u32,
            offset_of!(ib_send_wr, opcode) as u32,
            offset_of!(ib_send_wr, send_flags) as u32,
            offset_of!(ib_send_wr, ex) as u32,
            offset_of!(ib_rdma_wr, remote_addr) as u32,
            offset_of!(ib_rdma_wr, rkey) as u32,
            offset_of!(ib_reg_wr, mr) as u32,
            offset_of!(ib_reg_wr, key) as u32,
            offset_of!(ib_reg_wr, access) as u32,
            offset_of!(ib_recv_wr, next) as u32,
            offset_of!(ib_recv_wr, __bindgen_anon_1) as u32,
            offset_of!(ib_recv_wr, sg_list) as u32,
            offset_of!(ib_recv_wr, num_sge) as u32,
            offset_of!(ib_sge, addr) as u32,
            offset_of!(ib_sge, length) as u32,
            offset_of!(ib_sge, lkey) as u32,
            offset_of!(ib_event, event) as u32,
            offset_of!(sg_table, sgl) as u32,
            offset_of!(sg_table, nents) as u32,
            offset_of!(bio_vec, bv_page) as u32,
            offset_of!(bio_vec, bv_len) as u32,
            offset_of!(bio_vec, bv_offset) as u32,
            offset_of!(delayed_work, work) as u32,
        ],
    };
    &LAYOUT
}

/// Drops the files of a node that lost its power.
pub fn forget(d: *mut Dentry, node: usize) {
    // SAFETY: Entries stay until the world ends.
    unsafe {
        if (*d).node == node {
            (*d).gone = true;
        }
    }
}
