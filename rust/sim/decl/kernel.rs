// SPDX-License-Identifier: GPL-2.0
// Declarations for the simulated kernel crate, in place of the bindings of `rust/kernel/bindings.h`
// in `kernel::bindings`. Included twice, by the kernel crate and by the simulated C, which
// therefore agree about every type.

pub use core::ffi::c_void;

pub const EPERM: u32 = 1;
pub const ENOENT: u32 = 2;
pub const ESRCH: u32 = 3;
pub const EINTR: u32 = 4;
pub const EIO: u32 = 5;
pub const ENXIO: u32 = 6;
pub const E2BIG: u32 = 7;
pub const ENOEXEC: u32 = 8;
pub const EBADF: u32 = 9;
pub const ECHILD: u32 = 10;
pub const EAGAIN: u32 = 11;
pub const ENOMEM: u32 = 12;
pub const EACCES: u32 = 13;
pub const EFAULT: u32 = 14;
pub const ENOTBLK: u32 = 15;
pub const EBUSY: u32 = 16;
pub const EEXIST: u32 = 17;
pub const EXDEV: u32 = 18;
pub const ENODEV: u32 = 19;
pub const ENOTDIR: u32 = 20;
pub const EISDIR: u32 = 21;
pub const EINVAL: u32 = 22;
pub const ENFILE: u32 = 23;
pub const EMFILE: u32 = 24;
pub const ENOTTY: u32 = 25;
pub const ETXTBSY: u32 = 26;
pub const EFBIG: u32 = 27;
pub const ENOSPC: u32 = 28;
pub const ESPIPE: u32 = 29;
pub const EROFS: u32 = 30;
pub const EMLINK: u32 = 31;
pub const EPIPE: u32 = 32;
pub const EDOM: u32 = 33;
pub const ERANGE: u32 = 34;
pub const EDEADLK: u32 = 35;
pub const ENAMETOOLONG: u32 = 36;
pub const ENOLCK: u32 = 37;
pub const ENOSYS: u32 = 38;
pub const ENOTEMPTY: u32 = 39;
pub const ELOOP: u32 = 40;
pub const ENOMSG: u32 = 42;
pub const ENODATA: u32 = 61;
pub const ETIME: u32 = 62;
pub const ENOLINK: u32 = 67;
pub const EPROTO: u32 = 71;
pub const EBADMSG: u32 = 74;
pub const EOVERFLOW: u32 = 75;
pub const ENOTUNIQ: u32 = 76;
pub const EILSEQ: u32 = 84;
pub const EUSERS: u32 = 87;
pub const ENOTSOCK: u32 = 88;
pub const EDESTADDRREQ: u32 = 89;
pub const EMSGSIZE: u32 = 90;
pub const EPROTOTYPE: u32 = 91;
pub const ENOPROTOOPT: u32 = 92;
pub const EPROTONOSUPPORT: u32 = 93;
pub const EOPNOTSUPP: u32 = 95;
pub const EAFNOSUPPORT: u32 = 97;
pub const EADDRINUSE: u32 = 98;
pub const EADDRNOTAVAIL: u32 = 99;
pub const ENETDOWN: u32 = 100;
pub const ENETUNREACH: u32 = 101;
pub const ENETRESET: u32 = 102;
pub const ECONNABORTED: u32 = 103;
pub const ECONNRESET: u32 = 104;
pub const ENOBUFS: u32 = 105;
pub const EISCONN: u32 = 106;
pub const ENOTCONN: u32 = 107;
pub const ESHUTDOWN: u32 = 108;
pub const ETIMEDOUT: u32 = 110;
pub const ECONNREFUSED: u32 = 111;
pub const EHOSTDOWN: u32 = 112;
pub const EHOSTUNREACH: u32 = 113;
pub const EALREADY: u32 = 114;
pub const EINPROGRESS: u32 = 115;
pub const ESTALE: u32 = 116;
pub const EREMOTEIO: u32 = 121;
pub const ECANCELED: u32 = 125;

pub const ro2ibk_const_RO2IBK_PAGE_SIZE: u32 = 4096;
pub const ro2ibk_const_RO2IBK_GFP_KERNEL: u32 = 0xcc0;
pub const ro2ibk_const_RO2IBK_GFP_ATOMIC: u32 = 0x820;
pub const ro2ibk_const_RO2IBK_GFP_NOWAIT: u32 = 0x2800;
pub const ro2ibk_const_RO2IBK_GFP_ZERO: u32 = 0x100;
pub const ro2ibk_const_RO2IBK_GFP_NOWARN: u32 = 0x2000;
pub const ro2ibk_const_RO2IBK_KMALLOC_MINALIGN: u32 = 16;
pub const ro2ibk_const_RO2IBK_WORK_CPU_UNBOUND: u32 = 8;

/// Structures that are only used through pointers.
macro_rules! pointed_at {
    ($($name:ident)*) => {$(
        #[repr(C)]
        pub struct $name {
            _address_only: [u8; 0],
        }
    )*};
}

pointed_at! { net module device dentry seq_file page workqueue_struct scatterlist }

/// Not empty: each static has an address of its own, which is the class.
#[repr(C)]
#[derive(Default, Copy, Clone, MaybeZeroable)]
pub struct lock_class_key {
    pub id: u64,
}

#[repr(C)]
#[derive(Copy, Clone, MaybeZeroable)]
pub struct list_head {
    pub next: *mut list_head,
    pub prev: *mut list_head,
}

/// Lock of either kind: its owner (0: none), the key and the name of its class, the number of the
/// class plus 1 (0: not known yet), and whether a task may sleep until the lock is released.
#[repr(C)]
#[derive(Copy, Clone, MaybeZeroable)]
pub struct spinlock_t {
    pub owner: usize,
    pub class: usize,
    pub name: *const u8,
    pub number: u32,
    pub wanted: u32,
}

#[repr(C)]
#[derive(Copy, Clone, MaybeZeroable)]
pub struct mutex {
    pub lock: spinlock_t,
}

#[repr(C)]
#[derive(Default, Copy, Clone, MaybeZeroable)]
pub struct completion {
    pub done: usize,
}

pub type work_func_t = ::core::option::Option<unsafe extern "C" fn(work: *mut work_struct)>;

#[repr(C)]
#[derive(Copy, Clone, MaybeZeroable)]
pub struct work_struct {
    pub func: work_func_t,
    pub name: *const u8,
    /// Number of the task that will run the item plus 1; 0 if the item is not pending.
    pub pending: usize,
    /// Number of callers that wait for the item in `cancel_work_sync()`; meanwhile it cannot be
    /// queued.
    pub disabled: usize,
}

#[repr(C)]
#[derive(Copy, Clone, MaybeZeroable)]
pub struct delayed_work {
    pub work: work_struct,
    /// Running timer, 0 if there is none.
    pub timer: usize,
}

#[repr(C)]
#[derive(Copy, Clone, MaybeZeroable)]
pub struct bio_vec {
    pub bv_page: *mut page,
    pub bv_len: u32,
    pub bv_offset: u32,
}

#[repr(C)]
#[derive(Copy, Clone, MaybeZeroable)]
pub struct sg_table {
    pub sgl: *mut scatterlist,
    pub nents: u32,
    pub orig_nents: u32,
}

/// As bindgen does it for a structure that contains a pointer.
macro_rules! zeroed_by_default {
    ($($name:ident)*) => {$(
        impl Default for $name {
            fn default() -> Self {
                // SAFETY: Integers, and pointers that may be null.
                unsafe { ::core::mem::zeroed() }
            }
        }
    )*};
}

zeroed_by_default! {
    list_head spinlock_t mutex work_struct delayed_work bio_vec sg_table
}

unsafe extern "C" {
    pub fn ro2ibk_kmalloc(size: usize, flags: u32) -> *mut c_void;
    pub fn ro2ibk_kfree(p: *const c_void);
    pub fn ro2ibk_kvmalloc(size: usize, flags: u32) -> *mut c_void;
    pub fn ro2ibk_kvfree(p: *const c_void);
    pub fn ro2ibk_spin_lock_init(lock: *mut spinlock_t, name: *const u8, key: *mut lock_class_key);
    pub fn ro2ibk_spin_lock(lock: *mut spinlock_t);
    pub fn ro2ibk_spin_trylock(lock: *mut spinlock_t) -> bool;
    pub fn ro2ibk_spin_unlock(lock: *mut spinlock_t);
    pub fn ro2ibk_spin_assert_held(lock: *mut spinlock_t);
    pub fn ro2ibk_mutex_lock_init(lock: *mut mutex, name: *const u8, key: *mut lock_class_key);
    pub fn ro2ibk_mutex_lock(lock: *mut mutex);
    pub fn ro2ibk_mutex_trylock(lock: *mut mutex) -> bool;
    pub fn ro2ibk_mutex_unlock(lock: *mut mutex);
    pub fn ro2ibk_mutex_assert_held(lock: *mut mutex);
    pub fn ro2ibk_init_completion(x: *mut completion);
    pub fn complete_all(x: *mut completion);
    pub fn wait_for_completion(x: *mut completion);
    pub fn wait_for_completion_timeout(x: *mut completion, timeout: usize) -> usize;
    pub fn ro2ibk_init_work(
        work: *mut work_struct,
        func: work_func_t,
        name: *const u8,
        key: *mut lock_class_key,
    );
    pub fn ro2ibk_init_delayed_work(
        work: *mut delayed_work,
        func: work_func_t,
        name: *const u8,
        key: *mut lock_class_key,
        timer_name: *const u8,
        timer_key: *mut lock_class_key,
    );
    pub fn queue_work_on(cpu: i32, wq: *mut workqueue_struct, work: *mut work_struct) -> bool;
    pub fn queue_delayed_work_on(
        cpu: i32,
        wq: *mut workqueue_struct,
        work: *mut delayed_work,
        delay: usize,
    ) -> bool;
    pub fn cancel_delayed_work(work: *mut delayed_work) -> bool;
    pub fn cancel_delayed_work_sync(work: *mut delayed_work) -> bool;
    pub fn destroy_workqueue(wq: *mut workqueue_struct);
    pub fn ktime_get() -> i64;
    pub fn ro2ibk_ktime_get_real() -> i64;
    pub fn ro2ibk_msecs_to_jiffies(ms: u32) -> usize;
    pub fn ro2ibk_fsleep(us: usize);
    pub fn ro2ibk_printk(level: i32, prefix: *const u8, text: *const u8, len: i32);
    pub fn ro2ibk_current_pid() -> i32;
    pub fn ro2ibk_this_module() -> *mut module;
    pub fn get_random_u32() -> u32;
    pub fn get_random_u64() -> u64;
}
