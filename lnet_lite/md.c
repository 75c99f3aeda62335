// SPDX-License-Identifier: GPL-2.0
/*
 * lnet_lite: memory descriptors and the handles that name them on the wire.
 *
 * Every message that moves data of an MD holds a reference on it; so does its
 * owner until lnl_md_unlink(). The memory may be touched again, or freed, only
 * when the last reference is gone: before that the HCA may still write to it.
 */
#include <linux/random.h>
#include <linux/xarray.h>

#include "internal.h"

static DEFINE_XARRAY_ALLOC1(mds);
static u32 md_next;
static u64 interface_cookie;
static atomic_t md_count;

void lnl_md_init(void)
{
	interface_cookie = get_random_u64();
}

unsigned int lnl_mds_live(void)
{
	return atomic_read(&md_count);
}

/* A new life for @md, with a handle of its own; md_refcount must be 0 before */
int lnl_md_link(struct lnet_libmd *md)
{
	u32 id;
	int rc;

	refcount_set(&md->md_refcount, 1);
	init_completion(&md->md_idle);
	md->md_cookie = 0;
	md->md_release = NULL;
	rc = xa_alloc_cyclic(&mds, &id, md, XA_LIMIT(1, INT_MAX), &md_next, GFP_NOFS);
	if (rc < 0)
		return rc;
	md->md_cookie = id;
	atomic_inc(&md_count);
	return 0;
}

/* The same without a handle; @release has the MD once the last reference is gone */
void lnl_md_hold(struct lnet_libmd *md, void (*release)(struct lnet_libmd *md))
{
	refcount_set(&md->md_refcount, 1);
	md->md_cookie = 0;
	md->md_release = release;
	atomic_inc(&md_count);
}

void lnl_md_put(struct lnet_libmd *md)
{
	if (!refcount_dec_and_test(&md->md_refcount))
		return;
	atomic_dec(&md_count);
	if (md->md_release)
		md->md_release(md);
	else
		complete(&md->md_idle);
}

/*
 * Take the handle away, so that no more messages find the MD, and wait for
 * those that already have. False: after @timeout jiffies there still are some,
 * and the memory must be left alone for good.
 */
bool lnl_md_unlink(struct lnet_libmd *md, unsigned long timeout)
{
	xa_erase(&mds, md->md_cookie);
	lnl_md_put(md);
	if (wait_for_completion_timeout(&md->md_idle, timeout))
		return true;
	lnl_count(stuck_mds);
	return false;
}

void lnl_md_wire(const struct lnet_libmd *md, struct lnet_handle_wire *wh)
{
	wh->wh_interface_cookie = interface_cookie;
	wh->wh_object_cookie = md->md_cookie;
}

/* With a reference for the caller; NULL if the handle is not of a live MD */
struct lnet_libmd *lnl_md_lookup(const struct lnet_handle_wire *wh)
{
	struct lnet_libmd *md = NULL;

	if (wh->wh_interface_cookie != interface_cookie || wh->wh_object_cookie > INT_MAX)
		return NULL;
	xa_lock(&mds);
	md = xa_load(&mds, wh->wh_object_cookie);
	if (md)
		refcount_inc(&md->md_refcount);
	xa_unlock(&mds);
	return md;
}

void lnl_md_fini(void)
{
	unsigned int left = lnl_mds_live();

	if (left)
		lnl_fault(leaked_mds, "%u MDs are still referenced\n", left);
	xa_destroy(&mds);
}
