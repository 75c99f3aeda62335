// SPDX-License-Identifier: GPL-2.0

//! Panic handler: a line with the place of the panic, and the end of the task.

use crate::print::{
    call_printk,
    level, //
};

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    call_printk(level::EMERG, c"rust_kernel", format_args!("{info}\n"));
    // Not `BUG()` in C: what follows such a call confuses objtool.
    //
    // SAFETY: An invalid instruction; it does not return.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!("ud2", options(noreturn, nostack))
    }
    // SAFETY: As above; 0x800 is the number of `BUG()` (`BUG_BRK_IMM`).
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!("brk #0x800", options(noreturn, nostack))
    }
}
