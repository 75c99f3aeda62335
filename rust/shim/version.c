// SPDX-License-Identifier: GPL-2.0
/*
 * Identity of this module, for modinfo and the log. Its author, description
 * and licence are in rust/ro2iblnd.rs.
 */
/* The driver's name also when it is built as ko2iblnd. */
#undef pr_fmt
#define pr_fmt(fmt) "ro2iblnd: " fmt

#include <generated/utsrelease.h>
#include <linux/module.h>
#include <linux/printk.h>

#include "ro2iblnd_version.h"
#include "internal.h"

/* The build says which Rust crate `kernel` it took. */
#ifndef RO2IB_KERNEL_CRATE
#define RO2IB_KERNEL_CRATE "in-tree"
#endif

#if defined(LNET_LITE)
#define RO2IB_LNET "lnet_lite " RO2IBLND_VERSION
#elif defined(LUSTRE_VERSION_STRING)
#define RO2IB_LNET "LNet " LUSTRE_VERSION_STRING
#else
#define RO2IB_LNET "LNet of unknown version"
#endif

/* The build says whose headers of the RDMA core it took. */
#ifdef RO2IB_OFED
#define RO2IB_RDMA_CORE "OFED"
#define RO2IB_RDMA_CORE_TEXT ", RDMA core: OFED"
#else
#define RO2IB_RDMA_CORE "in-tree"
#define RO2IB_RDMA_CORE_TEXT ""
#endif

MODULE_VERSION(RO2IBLND_VERSION);
MODULE_INFO(lnet, RO2IB_LNET);
MODULE_INFO(kernel_crate, RO2IB_KERNEL_CRATE);
MODULE_INFO(rdma_core, RO2IB_RDMA_CORE);
/* LNet asks for the driver of an o2ib network by this name. */
MODULE_ALIAS("ko2iblnd");

void ro2ib_print_version(void)
{
	pr_info("%s, for Linux %s, %s" RO2IB_RDMA_CORE_TEXT
		", kernel crate: %s, sources: %s\n", RO2IBLND_VERSION,
		UTS_RELEASE, RO2IB_LNET, RO2IB_KERNEL_CRATE, ro2ib_sources);
}
