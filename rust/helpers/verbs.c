// SPDX-License-Identifier: GPL-2.0
/*
 * Verbs. The functions that tests make fail are marked with
 * ALLOW_ERROR_INJECTION (debugfs: fail_function).
 */
#include <linux/error-injection.h>
#include <linux/irq_poll.h>
#include <linux/list.h>
#include <linux/preempt.h>
#include <linux/sched.h>
#include <linux/spinlock.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_cm.h>

#include "ro2iblnd_helpers.h"

noinline struct ib_pd *ro2ib_alloc_pd(struct ib_device *dev)
{
	return ib_alloc_pd(dev, 0);
}
ALLOW_ERROR_INJECTION(ro2ib_alloc_pd, ERRNO);

/*
 * Sleeps, as do the functions below that destroy an object: the last reference
 * must not be dropped in a completion handler.
 */
void ro2ib_dealloc_pd(struct ib_pd *pd)
{
	WARN_ON_ONCE(in_interrupt());
	ib_dealloc_pd(pd);
}

u32 ro2ib_pd_lkey(struct ib_pd *pd)
{
	return pd->local_dma_lkey;
}

noinline struct ib_cq *ro2ib_cq_get(struct ib_device *dev, u32 nr_cqe,
				    int vector, u32 poll_ctx)
{
	return ib_cq_pool_get(dev, nr_cqe, vector, poll_ctx);
}
ALLOW_ERROR_INJECTION(ro2ib_cq_get, ERRNO_NULL);

/* Completions that are handled at a time with bottom halves off. */
#define QUIESCE_BATCH	64
/* Completions that the core handles in one run of a work item. */
#define QUIESCE_RUN	65536

/*
 * Queues that are being quiesced: irq_poll_disable() of two tasks at a time for
 * one queue would undo each other. Other queues are not held up: a poll on a
 * device that hangs never ends.
 */
struct quiescing {
	struct list_head list;
	struct ib_cq *cq;
};

static LIST_HEAD(quiescing);
static DEFINE_SPINLOCK(quiescing_lock);
static DECLARE_WAIT_QUEUE_HEAD(quiescing_wait);

static bool quiesce_begin(struct quiescing *s)
{
	struct quiescing *other;
	bool mine = true;

	spin_lock(&quiescing_lock);
	list_for_each_entry(other, &quiescing, list)
		if (other->cq == s->cq)
			mine = false;
	if (mine)
		list_add(&s->list, &quiescing);
	spin_unlock(&quiescing_lock);
	return mine;
}

static void quiesce_end(struct quiescing *s)
{
	spin_lock(&quiescing_lock);
	list_del(&s->list);
	spin_unlock(&quiescing_lock);
	wake_up_all(&quiescing_wait);
}

/*
 * For a queue that is polled in a softirq: disables the softirq, and does its
 * work. So no other code polls the queue, and no handler runs any more, however
 * busy other queue pairs keep it. Completions without an interrupt, or left
 * when the queue pair was destroyed, are handled. The completions at the time
 * of the call are no more than the queue can hold.
 */
static void quiesce_softirq(struct ib_cq *cq)
{
	struct quiescing s = { .cq = cq };
	int left = cq->cqe, n;

	wait_event(quiescing_wait, quiesce_begin(&s));
	irq_poll_disable(&cq->iop);
	do {
		/*
		 * The handlers may neither sleep nor be interrupted by a
		 * softirq.
		 */
		local_bh_disable();
		n = ib_process_cq_direct(cq, min(left, QUIESCE_BATCH));
		local_bh_enable();
		left -= n;
		cond_resched();
	} while (n > 0 && left > 0);
	local_bh_disable();
	irq_poll_enable(&cq->iop);
	/*
	 * An interrupt that came meanwhile was ignored, and an earlier poll
	 * could not schedule another: this poll requests the next interrupt,
	 * too.
	 */
	irq_poll_sched(&cq->iop);
	local_bh_enable();
	quiesce_end(&s);
}

/*
 * Waits until the completions that are in @cq have been handled, those of other
 * queue pairs, too. For a queue pair that is destroyed and could not be
 * drained: most adapters remove its completions from the queue, software
 * providers leave them there. Sleeps.
 */
void ro2ib_cq_quiesce(struct ib_cq *cq)
{
	int left = cq->cqe;

	switch (cq->poll_ctx) {
	case IB_POLL_SOFTIRQ:
		quiesce_softirq(cq);
		break;
	case IB_POLL_WORKQUEUE:
	case IB_POLL_UNBOUND_WORKQUEUE:
		/*
		 * Does not wait for the notification of the provider, which may
		 * be late, but polls. A run that begins from here on handles
		 * all current completions, however many other queue pairs add,
		 * unless the queue holds more than a run handles.
		 */
		do {
			queue_work(cq->comp_wq, &cq->work);
			flush_work(&cq->work);
			left -= QUIESCE_RUN;
		} while (left > 0);
		break;
	default:
		break;
	}
}

noinline struct ib_mr *ro2ib_alloc_mr(struct ib_pd *pd, u32 max_pages)
{
	return ib_alloc_mr(pd, IB_MR_TYPE_MEM_REG, max_pages);
}
ALLOW_ERROR_INJECTION(ro2ib_alloc_mr, ERRNO_NULL);

void ro2ib_dereg_mr(struct ib_mr *mr)
{
	struct ib_device *dev = mr->device;
	int rc;

	WARN_ON_ONCE(in_interrupt());
	rc = ib_dereg_mr(mr);
	/* No way to recover: the device still owns the memory. */
	if (rc)
		pr_err_ratelimited("ro2iblnd: %s: a memory region cannot be destroyed: error %d; a key may still be good: reset the device\n",
				   dev_name(&dev->dev), rc);
}

noinline int ro2ib_map_mr_sg(struct ib_mr *mr, struct sg_table *sgt,
			     u32 page_size)
{
	int n = ib_map_mr_sg(mr, sgt->sgl, sgt->nents, NULL, page_size);

	if (n < 0)
		return n;
	/* A shorter mapping would make the peer write behind the end. */
	return n == sgt->nents ? 0 : -EINVAL;
}
ALLOW_ERROR_INJECTION(ro2ib_map_mr_sg, ERRNO);

void ro2ib_mr_bump_key(struct ib_mr *mr)
{
	ib_update_fast_reg_key(mr, ib_inc_rkey(mr->rkey));
}

void ro2ib_mr_get(const struct ib_mr *mr, u32 *rkey, u64 *iova, u64 *length)
{
	*rkey = mr->rkey;
	*iova = mr->iova;
	*length = mr->length;
}

/*
 * bnxt_re keeps inline data of the kernel's in a buffer that it does not send
 * from (7.3: bnxt_re_copy_inline_data(), bnxt_qplib_put_inline()), and refuses
 * more than 96 bytes of it.
 */
static bool loses_inline(const struct ib_device *dev)
{
	return dev->ops.driver_id == RDMA_DRIVER_BNXT_RE;
}

noinline int ro2ib_create_qp(struct rdma_cm_id *id, struct ib_pd *pd,
			     struct ib_cq *cq, void *context,
			     void (*event)(struct ib_event *, void *),
			     struct ro2ib_qp_caps *caps, struct ib_qp **out)
{
	struct ib_qp_init_attr attr = {
		.event_handler = event,
		.qp_context = context,
		.send_cq = cq,
		.recv_cq = cq,
		.cap.max_send_wr = caps->max_send_wr,
		.cap.max_recv_wr = caps->max_recv_wr,
		.cap.max_send_sge = caps->max_send_sge,
		.cap.max_recv_sge = 1,
		.cap.max_inline_data = caps->max_inline,
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.qp_type = IB_QPT_RC,
	};
	int rc;

	if (loses_inline(id->device))
		attr.cap.max_inline_data = 0;
	rc = rdma_create_qp(id, pd, &attr);
	if (rc)
		return rc;
	/* Providers may grant more, and some grant less inline data. */
	caps->max_inline = loses_inline(id->device) ? 0 :
		min(caps->max_inline, attr.cap.max_inline_data);
	caps->qpn = id->qp->qp_num;
	*out = id->qp;
	return 0;
}
ALLOW_ERROR_INJECTION(ro2ib_create_qp, ERRNO);

noinline int ro2ib_qp_to_err(struct ib_qp *qp)
{
	struct ib_qp_attr attr = { .qp_state = IB_QPS_ERR };

	return ib_modify_qp(qp, &attr, IB_QP_STATE);
}
ALLOW_ERROR_INJECTION(ro2ib_qp_to_err, ERRNO);

/* The caller sets *bad to wr first, so that an injected error posts nothing. */
noinline int ro2ib_ib_post_send(struct ib_qp *qp, const struct ib_send_wr *wr,
				const struct ib_send_wr **bad)
{
	return ib_post_send(qp, wr, bad);
}
ALLOW_ERROR_INJECTION(ro2ib_ib_post_send, ERRNO);

noinline int ro2ib_ib_post_recv(struct ib_qp *qp, const struct ib_recv_wr *wr,
				const struct ib_recv_wr **bad)
{
	return ib_post_recv(qp, wr, bad);
}
ALLOW_ERROR_INJECTION(ro2ib_ib_post_recv, ERRNO);

#ifdef RO2IB_TEST_HOOKS
/*
 * Status of a successful completion. Tests change it per kind of work request:
 * the value that fail_function makes these functions return is the status,
 * negated.
 */
#define RO2IB_WC_STATUS(name, op)					\
noinline int ro2ib_wc_##name(const struct ib_wc *wc)			\
{									\
	/* Keeps the compiler from folding these into one. */		\
	asm volatile("" : : "i" (op));					\
	return wc->status;						\
}									\
ALLOW_ERROR_INJECTION(ro2ib_wc_##name, ERRNO)

RO2IB_WC_STATUS(send, IB_WC_SEND);
RO2IB_WC_STATUS(write, IB_WC_RDMA_WRITE);
RO2IB_WC_STATUS(reg, IB_WC_REG_MR);
RO2IB_WC_STATUS(inv, IB_WC_LOCAL_INV);
RO2IB_WC_STATUS(recv, IB_WC_RECV);

/* Returns that status for a work request of a send queue that is no SEND. */
int ro2ib_wc_other(const struct ib_wc *wc)
{
	switch (wc->opcode) {
	case IB_WC_RDMA_WRITE:
		return ro2ib_wc_write(wc);
	case IB_WC_REG_MR:
		return ro2ib_wc_reg(wc);
	case IB_WC_LOCAL_INV:
		return ro2ib_wc_inv(wc);
	default:
		return wc->status;
	}
}

/*
 * Returns whether a software device is served as if it were hardware; for tests
 * only. Called from other files: within one, the compiler knows the result.
 */
noinline bool ro2ib_as_hardware(void)
{
	barrier();
	return false;
}
ALLOW_ERROR_INJECTION(ro2ib_as_hardware, TRUE);

/*
 * Returns whether completions of a software device are polled in a softirq,
 * without the other effects of ro2ib_as_hardware(); for tests only.
 */
noinline bool ro2ib_in_softirq(void)
{
	barrier();
	return false;
}
ALLOW_ERROR_INJECTION(ro2ib_in_softirq, TRUE);

/* Returns whether every send completes by itself; for tests only. */
noinline bool ro2ib_signal_all(void)
{
	barrier();
	return false;
}
ALLOW_ERROR_INJECTION(ro2ib_signal_all, TRUE);
#endif /* RO2IB_TEST_HOOKS */
