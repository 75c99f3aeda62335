// SPDX-License-Identifier: GPL-2.0
/*
 * Verbs. The functions that tests make fail are marked with
 * ALLOW_ERROR_INJECTION (debugfs: fail_function).
 */
#include <linux/error-injection.h>
#include <linux/preempt.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_cm.h>

#include "cq.h"
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

noinline struct ib_mr *ro2ib_alloc_mr(struct ib_pd *pd, u32 max_pages)
{
	return ib_alloc_mr(pd, IB_MR_TYPE_MEM_REG, max_pages);
}
ALLOW_ERROR_INJECTION(ro2ib_alloc_mr, ERRNO_NULL);

/*
 * Returns false if the device refuses. The device then has the region, and its
 * protection domain, for ever.
 */
bool ro2ib_dereg_mr(struct ib_mr *mr)
{
	struct ib_device *dev = mr->device;
	int rc;

	WARN_ON_ONCE(in_interrupt());
	rc = ib_dereg_mr(mr);
	if (rc)
		pr_err_ratelimited("ro2iblnd: %s: a memory region cannot be destroyed: error %d; a key may still be good: reset the device\n",
				   dev_name(&dev->dev), rc);
	return !rc;
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
			     struct ro2ib_cq *cq, struct ro2ib_qp_caps *caps,
			     struct ib_qp **out)
{
	struct ib_qp_init_attr attr = {
		.event_handler = ro2ib_qp_event,
		.qp_context = cq,
		.send_cq = cq->ib,
		.recv_cq = cq->ib,
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
