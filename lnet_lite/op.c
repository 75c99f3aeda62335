// SPDX-License-Identifier: GPL-2.0
/*
 * lnet_lite: one PUT or GET from the side that starts it, waited for.
 */
#include <linux/slab.h>

#include "internal.h"

#define GOT_SEND	BIT(0)
#define GOT_REPLY	BIT(1)
#define GOT_ACK		BIT(2)

struct lnl_op {
	spinlock_t		lock;
	struct completion	done;
	unsigned int		need, got;
	bool			over;
	bool			in_vain;
	int			status;
	u32			mlength;
	ktime_t			end;
};

static void op_event(struct lnet_event *ev)
{
	struct lnl_op *op = ev->md_user_ptr;

	spin_lock(&op->lock);
	switch (ev->type) {
	case LNET_EVENT_SEND:
		op->got |= GOT_SEND;
		break;
	case LNET_EVENT_REPLY:
		op->got |= GOT_REPLY;
		op->mlength = ev->mlength;
		break;
	case LNET_EVENT_ACK:
		op->got |= GOT_ACK;
		op->mlength = ev->mlength;
		break;
	default:
		break;
	}
	if (ev->status && !op->status)
		op->status = ev->status;
	if (!op->over && (op->status || (op->got & op->need) == op->need)) {
		op->over = true;
		op->end = ktime_get();
		complete(&op->done);
	}
	spin_unlock(&op->lock);
}

static void fill_put(struct lnl_msg *lm, const struct lnl_op_args *a)
{
	struct lnet_put *put = &lm->msg.msg_hdr.msg.put;

	lnl_prep_send(lm, LNET_MSG_PUT, &a->target, a->offset, a->len);
	put->match_bits = (__force u64)cpu_to_le64(a->match_bits);
	put->hdr_data = (__force u64)cpu_to_le64(a->hdr_data);
	put->ptl_index = (__force u32)cpu_to_le32(a->portal);
	put->offset = (__force u32)cpu_to_le32(a->remote_offset);
	if (a->ack)
		lnl_md_wire(a->buf->md, &put->ack_wmd);
	else
		memset(&put->ack_wmd, 0xff, sizeof(put->ack_wmd));
}

static void fill_get(struct lnl_msg *lm, const struct lnl_op_args *a)
{
	struct lnet_get *get = &lm->msg.msg_hdr.msg.get;

	lnl_prep_send(lm, LNET_MSG_GET, &a->target, 0, 0);
	get->match_bits = (__force u64)cpu_to_le64(a->match_bits);
	get->ptl_index = (__force u32)cpu_to_le32(a->portal);
	get->src_offset = (__force u32)cpu_to_le32(a->remote_offset);
	get->sink_length = (__force u32)cpu_to_le32(a->buf->md->md_length);
	lnl_md_wire(a->buf->md, &get->return_wmd);
}

/* For its end, its time limit, or the NI's: what is under way there comes to its end without it */
static void op_wait(struct lnl_op *op, const struct lnl_op_args *a)
{
	unsigned long end = jiffies + a->timeout * HZ;
	int rc = 0;

	while (!rc && !wait_for_completion_timeout(&op->done, HZ / 4)) {
		if (time_after_eq(jiffies, end))
			rc = -ETIMEDOUT;
		else if (READ_ONCE(a->ni->ni.ni_state) != LNET_NI_STATE_ACTIVE)
			rc = -ESHUTDOWN;
	}
	spin_lock(&op->lock);
	if (rc && !op->over) {
		op->over = true;
		op->status = rc;
		op->in_vain = rc == -ETIMEDOUT;
		op->end = ktime_get();
	}
	spin_unlock(&op->lock);
}

/*
 * Sleeps until the operation is over and no message refers to the buffer any
 * more. @res->stuck: the LND has kept one far beyond its timeout; the buffer,
 * and the operation, are then lost on purpose.
 */
void lnl_op_run(const struct lnl_op_args *a, struct lnl_op_result *res)
{
	struct lnet_libmd *md = a->buf->md;
	unsigned long grace = (2UL * lnl_lnd_timeout(a->ni) + 10) * HZ;
	struct lnl_op *op;
	struct lnl_msg *lm;
	ktime_t start;
	int rc;

	*res = (struct lnl_op_result) {};
	op = kzalloc_obj(*op, GFP_NOFS);
	lm = op ? lnl_msg_alloc() : NULL;
	if (!lm) {
		kfree(op);
		res->status = -ENOMEM;
		return;
	}
	spin_lock_init(&op->lock);
	init_completion(&op->done);
	op->need = GOT_SEND | (a->get ? GOT_REPLY : 0) | (a->ack ? GOT_ACK : 0);
	op->mlength = a->get || a->ack ? 0 : a->len;
	md->md_handler = op_event;
	md->md_user_ptr = op;
	md->md_options = (a->get ? LNET_MD_OP_GET : LNET_MD_OP_PUT) | LNET_MD_TRUNCATE;
	rc = lnl_md_link(md);
	if (rc) {
		lnl_msg_free(lm);
		kfree(op);
		res->status = rc;
		return;
	}

	refcount_inc(&md->md_refcount);
	lnl_msg_attach(lm, md, a->offset, a->len);
	if (a->get)
		fill_get(lm, a);
	else
		fill_put(lm, a);
	lm->msg.msg_ev.type = LNET_EVENT_SEND;
	lm->msg.msg_ev.mlength = a->len;

	start = ktime_get();
	rc = lnl_send(lm, a->ni, &a->hop, a->route || !nid_same(&a->hop, &a->target.nid));
	if (rc)
		lnl_finish(lm, rc);
	op_wait(op, a);

	res->stuck = !lnl_md_unlink(md, grace);
	res->status = op->status;
	res->in_vain = op->in_vain;
	res->mlength = op->mlength;
	res->nsec = ktime_to_ns(ktime_sub(op->end, start));
	if (!res->stuck)
		kfree(op);
	else
		pr_err("lnet_lite: %s to %s is stuck in the LND\n", a->get ? "GET" : "PUT",
		       libcfs_nidstr(&a->hop));
}
