/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What bindgen reads for our own kernel crate; what it makes bindings of is
 * named in bindings.list.
 */
#include <linux/bvec.h>
#include <linux/fs.h>
#include <linux/net.h>
#include <linux/random.h>
#include <linux/scatterlist.h>
#include <net/net_namespace.h>
#ifdef CONFIG_KUNIT
#include <kunit/test.h>
#endif

#include "helpers.h"
