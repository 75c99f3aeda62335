// SPDX-License-Identifier: GPL-2.0
/*
 * Counts requests of a consumer to an RDMA device and their results, for any
 * consumer: work requests, doorbells (calls) and completions of reliable
 * connections. It stands between the verbs and the device's own functions.
 *
 * Debugfs ib_count has the text, for all devices together. The module cannot be
 * unloaded, because a call may always be running.
 */
#include <linux/debugfs.h>
#include <linux/module.h>
#include <rdma/ib_verbs.h>

static struct ib_device_ops real;

static atomic_long_t sends, writes, regs, invs, others, doorbells, cqes;
static atomic_long_t recvs, recv_doorbells, recv_cqes, polls, arms;

static int count_post_send(struct ib_qp *qp, const struct ib_send_wr *wr,
			   const struct ib_send_wr **bad)
{
	const struct ib_send_wr *w;

	if (qp->qp_type != IB_QPT_RC)
		return real.post_send(qp, wr, bad);
	atomic_long_inc(&doorbells);
	for (w = wr; w; w = w->next) {
		switch (w->opcode) {
		case IB_WR_SEND:
			atomic_long_inc(&sends);
			break;
		case IB_WR_RDMA_WRITE:
			atomic_long_inc(&writes);
			break;
		case IB_WR_REG_MR:
			atomic_long_inc(&regs);
			break;
		case IB_WR_LOCAL_INV:
			atomic_long_inc(&invs);
			break;
		default:
			atomic_long_inc(&others);
		}
	}
	return real.post_send(qp, wr, bad);
}

static int count_post_recv(struct ib_qp *qp, const struct ib_recv_wr *wr,
			   const struct ib_recv_wr **bad)
{
	const struct ib_recv_wr *w;

	if (qp->qp_type == IB_QPT_RC) {
		atomic_long_inc(&recv_doorbells);
		for (w = wr; w; w = w->next)
			atomic_long_inc(&recvs);
	}
	return real.post_recv(qp, wr, bad);
}

static int count_poll_cq(struct ib_cq *cq, int room, struct ib_wc *wc)
{
	int i, n = real.poll_cq(cq, room, wc);

	for (i = 0; i < n; i++) {
		if (wc[i].qp->qp_type != IB_QPT_RC)
			continue;
		if (wc[i].opcode & IB_WC_RECV)
			atomic_long_inc(&recv_cqes);
		else
			atomic_long_inc(&cqes);
	}
	atomic_long_inc(&polls);
	return n;
}

static int count_req_notify_cq(struct ib_cq *cq, enum ib_cq_notify_flags flags)
{
	atomic_long_inc(&arms);
	return real.req_notify_cq(cq, flags);
}

static int count_add(struct ib_device *dev)
{
	/* Devices of one driver have the same functions. */
	if (real.post_send && real.driver_id != dev->ops.driver_id)
		return -EOPNOTSUPP;
	real = dev->ops;
	dev->ops.post_send = count_post_send;
	dev->ops.post_recv = count_post_recv;
	dev->ops.poll_cq = count_poll_cq;
	dev->ops.req_notify_cq = count_req_notify_cq;
	return 0;
}

static void count_remove(struct ib_device *dev, void *unused)
{
}

static struct ib_client count_client = {
	.name = "ib_count",
	.add = count_add,
	.remove = count_remove,
};

static int ib_count_show(struct seq_file *s, void *unused)
{
	seq_printf(s, "sends=%ld\nwrites=%ld\nregs=%ld\ninvs=%ld\nothers=%ld\n",
		   atomic_long_read(&sends), atomic_long_read(&writes),
		   atomic_long_read(&regs), atomic_long_read(&invs),
		   atomic_long_read(&others));
	seq_printf(s, "doorbells=%ld\ncqes=%ld\nrecvs=%ld\nrecv_doorbells=%ld\n",
		   atomic_long_read(&doorbells), atomic_long_read(&cqes),
		   atomic_long_read(&recvs), atomic_long_read(&recv_doorbells));
	seq_printf(s, "recv_cqes=%ld\npolls=%ld\narms=%ld\n",
		   atomic_long_read(&recv_cqes), atomic_long_read(&polls),
		   atomic_long_read(&arms));
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(ib_count);

static int __init ib_count_init(void)
{
	debugfs_create_file("ib_count", 0400, NULL, NULL, &ib_count_fops);
	return ib_register_client(&count_client);
}

module_init(ib_count_init);
MODULE_DESCRIPTION("Counts work requests, doorbells and completions");
MODULE_LICENSE("GPL");
