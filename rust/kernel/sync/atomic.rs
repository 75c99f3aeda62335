// SPDX-License-Identifier: GPL-2.0

//! Atomics with the orderings of the kernel's memory model.
//!
//! They are compiled in, as instructions, by way of `core::sync::atomic`. An operation that reads and
//! writes with [`Full`] order is a full barrier in the kernel, for all accesses before and after it.
//! `SeqCst` is that on x86 only, where any locked instruction is one; elsewhere there is a fence on
//! either side (`smp_mb__before_atomic()` and `smp_mb__after_atomic()`).

use core::{
    cell::UnsafeCell,
    sync::atomic::{
        fence,
        AtomicBool,
        AtomicI32,
        AtomicU32,
        AtomicU64,
        AtomicUsize,
        Ordering as Core, //
    }, //
};

mod ordering {
    use super::Core;

    /// How an operation is ordered: for the reading half, the writing half, and both.
    pub trait Any: Copy {
        /// Of an operation that reads and writes; `None`: a full barrier.
        const RMW: Option<Core>;
    }

    /// Orders that a load may have.
    pub trait Load: Any {
        /// The order of `core`.
        const LOAD: Core;
    }

    /// Orders that a store may have.
    pub trait Store: Any {
        /// The order of `core`.
        const STORE: Core;
    }
}

/// No order.
#[derive(Clone, Copy)]
pub struct Relaxed;
/// Before everything that follows.
#[derive(Clone, Copy)]
pub struct Acquire;
/// After everything in front.
#[derive(Clone, Copy)]
pub struct Release;
/// Both, and a full barrier.
#[derive(Clone, Copy)]
pub struct Full;

impl ordering::Any for Relaxed {
    const RMW: Option<Core> = Some(Core::Relaxed);
}
impl ordering::Any for Acquire {
    const RMW: Option<Core> = Some(Core::Acquire);
}
impl ordering::Any for Release {
    const RMW: Option<Core> = Some(Core::Release);
}
impl ordering::Any for Full {
    const RMW: Option<Core> = if cfg!(target_arch = "x86_64") {
        Some(Core::SeqCst)
    } else {
        None
    };
}
impl ordering::Load for Relaxed {
    const LOAD: Core = Core::Relaxed;
}
impl ordering::Load for Acquire {
    const LOAD: Core = Core::Acquire;
}
impl ordering::Store for Relaxed {
    const STORE: Core = Core::Relaxed;
}
impl ordering::Store for Release {
    const STORE: Core = Core::Release;
}

/// Lets another CPU of the simulation run before the operation: Documentation/simulation.md.
#[inline(always)]
fn point<O: ordering::Any>() {
    #[cfg(ro2iblnd_sim)]
    if !matches!(O::RMW, Some(Core::Relaxed)) {
        kernel::point();
    }
}

/// Performs `op` in the order `O`.
#[inline(always)]
fn rmw<O: ordering::Any, R>(op: impl FnOnce(Core) -> R) -> R {
    point::<O>();
    match O::RMW {
        Some(order) => op(order),
        None => {
            fence(Core::SeqCst);
            let result = op(Core::Relaxed);
            fence(Core::SeqCst);
            result
        }
    }
}

/// A type that [`Atomic`] can hold.
///
/// # Safety
///
/// `Cell` is the atomic of `core` with the size and alignment of the type; all its values are values
/// of the type.
#[doc(hidden)]
pub unsafe trait AtomicType: Copy {
    type Cell;

    /// Returns the value at `ptr` as an atomic of `core`.
    ///
    /// # Safety
    ///
    /// `ptr` is valid during `'a`, and all code that uses it then uses it as an atomic.
    unsafe fn cell<'a>(ptr: *mut Self) -> &'a Self::Cell;
    fn load(cell: &Self::Cell, order: Core) -> Self;
    fn store(cell: &Self::Cell, v: Self, order: Core);
    fn xchg(cell: &Self::Cell, v: Self, order: Core) -> Self;
    fn cmpxchg(cell: &Self::Cell, old: Self, new: Self, order: Core) -> Result<Self, Self>;
}

/// A number that [`Atomic`] can count with; overflow wraps.
#[doc(hidden)]
pub trait AtomicNumber: AtomicType {
    fn fetch_add(cell: &Self::Cell, v: Self, order: Core) -> Self;
    fn fetch_sub(cell: &Self::Cell, v: Self, order: Core) -> Self;
}

/// A value that may be changed by several CPUs at once.
#[repr(transparent)]
pub struct Atomic<T: AtomicType>(UnsafeCell<T>);

// SAFETY: It is only used by atomic operations.
unsafe impl<T: AtomicType + Send> Sync for Atomic<T> {}

macro_rules! atomic_type {
    ($($t:ty: $cell:ty)*) => {$(
        // SAFETY: They correspond, by the documentation of `core`.
        unsafe impl AtomicType for $t {
            type Cell = $cell;

            #[inline(always)]
            unsafe fn cell<'a>(ptr: *mut Self) -> &'a $cell {
                // SAFETY: By the contract of this function; the alignments are the same for all of
                // these types on 64-bit machines.
                unsafe { <$cell>::from_ptr(ptr) }
            }
            #[inline(always)]
            fn load(cell: &$cell, order: Core) -> Self {
                cell.load(order)
            }
            #[inline(always)]
            fn store(cell: &$cell, v: Self, order: Core) {
                cell.store(v, order)
            }
            #[inline(always)]
            fn xchg(cell: &$cell, v: Self, order: Core) -> Self {
                cell.swap(v, order)
            }
            #[inline(always)]
            fn cmpxchg(cell: &$cell, old: Self, new: Self, order: Core) -> Result<Self, Self> {
                // A comparison that fails orders nothing, as in C.
                cell.compare_exchange(old, new, order, Core::Relaxed)
            }
        }
    )*};
}

macro_rules! atomic_number {
    ($($t:ty)*) => {$(
        impl AtomicNumber for $t {
            #[inline(always)]
            fn fetch_add(cell: &Self::Cell, v: Self, order: Core) -> Self {
                cell.fetch_add(v, order)
            }
            #[inline(always)]
            fn fetch_sub(cell: &Self::Cell, v: Self, order: Core) -> Self {
                cell.fetch_sub(v, order)
            }
        }
    )*};
}

atomic_type! {
    bool: AtomicBool
    i32: AtomicI32
    u32: AtomicU32
    u64: AtomicU64
    usize: AtomicUsize
}
atomic_number! { i32 u32 u64 usize }

impl<T: AtomicType> Atomic<T> {
    /// Creates an atomic with this value.
    pub const fn new(v: T) -> Self {
        Self(UnsafeCell::new(v))
    }

    /// Returns a value that C keeps, and changes at any time, as an atomic.
    ///
    /// # Safety
    ///
    /// `ptr` is valid and aligned during `'a`, and all accesses to it are atomic.
    #[inline(always)]
    pub unsafe fn from_ptr<'a>(ptr: *mut T) -> &'a Self {
        // SAFETY: Guaranteed by the caller; `Self` is transparent, and `UnsafeCell` too.
        unsafe { &*ptr.cast::<Self>() }
    }

    #[inline(always)]
    fn cell(&self) -> &T::Cell {
        // SAFETY: It is valid as long as `self` is, and no code uses it except through this.
        unsafe { T::cell(self.0.get()) }
    }

    /// Returns the value. [`Relaxed`] or [`Acquire`].
    #[inline(always)]
    pub fn load<O: ordering::Load>(&self, _: O) -> T {
        point::<O>();
        T::load(self.cell(), O::LOAD)
    }

    /// Sets it. [`Relaxed`] or [`Release`].
    #[inline(always)]
    pub fn store<O: ordering::Store>(&self, v: T, _: O) {
        point::<O>();
        T::store(self.cell(), v, O::STORE)
    }

    /// Sets it, returns what it was.
    #[inline(always)]
    pub fn xchg<O: ordering::Any>(&self, v: T, _: O) -> T {
        rmw::<O, _>(|order| T::xchg(self.cell(), v, order))
    }

    /// Sets it to `new` if it is `old`. Returns what it was, as an error if that was another.
    #[inline(always)]
    pub fn cmpxchg<O: ordering::Any>(&self, old: T, new: T, _: O) -> Result<T, T> {
        rmw::<O, _>(|order| T::cmpxchg(self.cell(), old, new, order))
    }
}

impl<T: AtomicNumber> Atomic<T> {
    /// Adds, returns what it was.
    #[inline(always)]
    pub fn fetch_add<O: ordering::Any>(&self, v: T, _: O) -> T {
        rmw::<O, _>(|order| T::fetch_add(self.cell(), v, order))
    }

    /// Subtracts, returns what it was.
    #[inline(always)]
    pub fn fetch_sub<O: ordering::Any>(&self, v: T, _: O) -> T {
        rmw::<O, _>(|order| T::fetch_sub(self.cell(), v, order))
    }
}
