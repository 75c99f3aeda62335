/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Input of bindgen. Types that the kernel crate already has bindings for are
 * taken from there (see rust/bindings.rs); scripts/bindgen_parameters selects
 * the others by name.
 */
#include <linux/bvec.h>
#include <rdma/ib_verbs.h>
#include <rdma/ib_cm.h>
#include <rdma/rdma_cm.h>

#include "ro2iblnd_helpers.h"
#if __has_include("ro2iblnd_shim.h")
#include "ro2iblnd_shim.h"
#endif
