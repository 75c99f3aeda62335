/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Headers that bindgen reads for the own kernel crate. bindings.list names the
 * items that it makes bindings of.
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
