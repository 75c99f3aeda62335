// SPDX-License-Identifier: GPL-2.0
/*
 * lnet_lite: messages for another node (knob routing).
 *
 * The payload is received into a buffer of the router, then the same message is
 * sent on, marked as being routed; it has no MD.
 */
#include <linux/mm.h>
#include <linux/slab.h>

#include "internal.h"

int lnl_forward_recv(struct lnl_ni *ni, struct lnl_msg *lm)
{
	struct lnet_msg *msg = &lm->msg;
	unsigned int left = msg->msg_len, n = DIV_ROUND_UP(left, PAGE_SIZE), i;

	if (n) {
		lm->router_kiov = kcalloc(n, sizeof(*lm->router_kiov), GFP_NOFS);
		if (!lm->router_kiov)
			return -ENOMEM;
	}
	for (i = 0; i < n; i++) {
		struct page *page = alloc_page(GFP_NOFS);

		if (!page)
			return -ENOMEM;
		bvec_set_page(&lm->router_kiov[i], page, min_t(u32, left, PAGE_SIZE), 0);
		left -= lm->router_kiov[i].bv_len;
		lm->router_pages = i + 1;
	}
	msg->msg_niov = n;
	msg->msg_kiov = lm->router_kiov;
	msg->msg_offset = 0;
	lnl_ni_recv(ni, msg->msg_private, lm, 0, 0, msg->msg_len, msg->msg_len);
	return 0;
}

/* The payload is here: on to the destination, from an NI on its net */
int lnl_forward_send(struct lnl_msg *lm)
{
	struct lnet_nid dest = lm->msg.msg_hdr.dest_nid;
	struct lnet_nid any = LNET_ANY_NID;
	struct lnl_ni *ni;
	int rc;

	ni = lnl_ni_pick(&any, &dest);
	if (!ni)
		return -EHOSTUNREACH;
	lnl_count(forwarded);
	rc = lnl_send(lm, ni, &dest, false);
	lnl_ni_put(ni);
	return rc;
}

void lnl_forward_free(struct lnl_msg *lm)
{
	unsigned int i;

	for (i = 0; i < lm->router_pages; i++)
		__free_page(lm->router_kiov[i].bv_page);
	kfree(lm->router_kiov);
	lm->router_kiov = NULL;
	lm->router_pages = 0;
}
