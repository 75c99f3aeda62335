// SPDX-License-Identifier: GPL-2.0
/*
 * Module that makes a software device look like another adapter: with lower
 * limits, and with errors for requests beyond them. It stands between the
 * verbs and the device's own functions. Load it before the devices are made.
 *
 * It can also make a device faster: the port reports the given speed. Or deaf:
 * its receive queues stay empty. Or stalled, as when the firmware of an adapter
 * does not answer commands: its queue pairs stay as they are.
 *
 * A parameter of 0 changes nothing. DMA stays as it is, because only rxe can
 * use rxe's addresses. The parameter "dma" can name another DMA device while
 * nothing is mapped: a driver that starts to use the device in that time
 * believes it. The number of the driver, by which rxe finds its own devices,
 * stays unless "driver" changes it: then rxe misses events of the interface.
 */
#include <linux/device.h>
#include <linux/module.h>
#include <linux/string.h>
#include <rdma/ib_verbs.h>

#include "netdev_device.h"
#include "ops_hook.h"

static unsigned int send_sge;
module_param(send_sge, uint, 0444);
MODULE_PARM_DESC(send_sge, "gather elements of a send");
static unsigned int reg_pages;
module_param(reg_pages, uint, 0444);
MODULE_PARM_DESC(reg_pages, "pages of a memory region");
static unsigned int qp_wr;
module_param(qp_wr, uint, 0444);
MODULE_PARM_DESC(qp_wr, "work requests of a queue");
static unsigned int regions;
module_param(regions, uint, 0444);
MODULE_PARM_DESC(regions, "memory regions at a time");
static unsigned int speed;
module_param(speed, uint, 0644);
MODULE_PARM_DESC(speed, "code of the speed of a lane; at any time");
static unsigned int width;
module_param(width, uint, 0644);
MODULE_PARM_DESC(width, "code of the number of lanes; at any time");
static unsigned long long page_sizes;
module_param(page_sizes, ullong, 0444);
MODULE_PARM_DESC(page_sizes, "sizes of the pages of a memory region, a bit each");
static unsigned int no_inline;
module_param(no_inline, uint, 0444);
MODULE_PARM_DESC(no_inline, "no inline data: 1 says so of a new queue pair, 2 refuses one that wants some");
static unsigned int inline_max;
module_param(inline_max, uint, 0444);
MODULE_PARM_DESC(inline_max, "inline bytes; a queue pair that wants more is refused, and the limit is not told");
static bool no_inv;
module_param(no_inv, bool, 0444);
MODULE_PARM_DESC(no_inv, "LOCAL_INV is refused when it is posted, as by hns");
static unsigned int driver;
module_param(driver, uint, 0444);
MODULE_PARM_DESC(driver, "number of the driver (enum rdma_driver_id)");
static unsigned int qps;
module_param(qps, uint, 0644);
MODULE_PARM_DESC(qps, "queue pairs of reliable connections at a time; at any time");
static unsigned int qps_error = ENOMEM;
module_param(qps_error, uint, 0644);
MODULE_PARM_DESC(qps_error, "errno of the queue pair that is one too many; at any time");
static bool map_sleeps;
module_param(map_sleeps, bool, 0444);
MODULE_PARM_DESC(map_sleeps, "giving pages to a region may sleep");
static bool stalled;
module_param(stalled, bool, 0644);
MODULE_PARM_DESC(stalled, "queue pairs of reliable connections are neither destroyed nor moved to the error state; at any time");
static bool deaf;
module_param(deaf, bool, 0644);
MODULE_PARM_DESC(deaf, "buffers to receive into are taken and never used; at any time");

static int set_dma(struct ib_device *dev, bool end)
{
	char name[IB_DEVICE_NAME_MAX + 8];
	struct device *dma = dev->dma_device;

	snprintf(name, sizeof(name), "%s-dma", dev_name(&dev->dev));
	if (end) {
		if (!dma || strcmp(dev_name(dma), name))
			return -EINVAL;
		dev->dma_device = NULL;
		root_device_unregister(dma);
		return 0;
	}
	if (dma)
		return -EBUSY;
	dma = root_device_register(name);
	if (IS_ERR(dma))
		return PTR_ERR(dma);
	dev->dma_device = dma;
	return 0;
}

/*
 * "eth0": a device of its own does the DMA of the RDMA device of eth0. "-eth0":
 * the RDMA device does it.
 */
static int dma_set(const char *text, const struct kernel_param *kp)
{
	char interface[IFNAMSIZ + 2] = "";
	bool end = *text == '-';
	struct ib_device *dev;
	int rc;

	strscpy(interface, text + end, sizeof(interface));
	dev = device_of(strim(interface));
	if (!dev)
		return -ENODEV;
	rc = set_dma(dev, end);
	ib_device_put(dev);
	return rc;
}

static const struct kernel_param_ops dma_ops = { .set = dma_set };
module_param_cb(dma, &dma_ops, NULL, 0200);
MODULE_PARM_DESC(dma, "interface whose device has a DMA device of its own; at any time");

static struct ib_device_ops real;

/* Requests beyond the limits that the attributes report. */
static atomic_t asked_too_much;
module_param_named(asked_too_much, asked_too_much.counter, int, 0444);
MODULE_PARM_DESC(asked_too_much, "requests beyond the attributes");
static atomic_t regions_made;
module_param_named(regions_made, regions_made.counter, int, 0444);
MODULE_PARM_DESC(regions_made, "memory regions that there are");
static atomic_t qps_refused;
module_param_named(qps_refused, qps_refused.counter, int, 0444);
MODULE_PARM_DESC(qps_refused, "queue pairs that inline_max or qps refused");
static atomic_t qps_made;

static int too_much(int error)
{
	atomic_inc(&asked_too_much);
	return error;
}

static int profile_create_qp(struct ib_qp *qp, struct ib_qp_init_attr *init,
			     struct ib_udata *udata)
{
	struct ib_qp_cap *cap = &init->cap;
	unsigned int most = READ_ONCE(qps);
	bool rc_qp = init->qp_type == IB_QPT_RC;
	int rc;

	if (rc_qp && inline_max && cap->max_inline_data > inline_max) {
		atomic_inc(&qps_refused);
		return -EINVAL;
	}
	if (init->qp_type == IB_QPT_RC && no_inline > 1 && cap->max_inline_data)
		return -EINVAL;
	if (init->qp_type == IB_QPT_RC &&
	    ((qp_wr && (cap->max_send_wr > qp_wr || cap->max_recv_wr > qp_wr)) ||
	     (send_sge && cap->max_send_sge > send_sge)))
		return too_much(-EINVAL);
	if (rc_qp && atomic_inc_return(&qps_made) > most && most) {
		atomic_dec(&qps_made);
		atomic_inc(&qps_refused);
		return -(int)READ_ONCE(qps_error);
	}
	rc = real.create_qp(qp, init, udata);
	if (rc && rc_qp)
		atomic_dec(&qps_made);
	if (no_inline)
		cap->max_inline_data = 0;
	else if (inline_max)
		cap->max_inline_data = min(cap->max_inline_data, inline_max);
	return rc;
}

static int profile_modify_qp(struct ib_qp *qp, struct ib_qp_attr *attr, int attr_mask,
			     struct ib_udata *udata)
{
	if (READ_ONCE(stalled) && qp->qp_type == IB_QPT_RC &&
	    attr_mask & IB_QP_STATE && attr->qp_state == IB_QPS_ERR)
		return -ETIMEDOUT;
	ops_hook_ack_timeout(attr, attr_mask);
	return real.modify_qp(qp, attr, attr_mask, udata);
}

static int profile_destroy_qp(struct ib_qp *qp, struct ib_udata *udata)
{
	bool rc_qp = qp->qp_type == IB_QPT_RC;
	int rc;

	if (READ_ONCE(stalled) && rc_qp)
		return -ETIMEDOUT;
	rc = real.destroy_qp(qp, udata);
	if (!rc && rc_qp)
		atomic_dec(&qps_made);
	return rc;
}

/* Posts the work requests before @stop, like a provider that rejects @stop. */
static int post_until(struct ib_qp *qp, const struct ib_send_wr *wr,
		      const struct ib_send_wr *stop,
		      const struct ib_send_wr **bad)
{
	struct ib_send_wr *last = (struct ib_send_wr *)wr;
	int rc;

	if (wr != stop) {
		while (last->next != stop)
			last = (struct ib_send_wr *)last->next;
		last->next = NULL;
		rc = real.post_send(qp, wr, bad);
		last->next = (struct ib_send_wr *)stop;
		if (rc)
			return rc;
	}
	*bad = stop;
	return -EINVAL;
}

static int profile_post_send(struct ib_qp *qp, const struct ib_send_wr *wr,
			     const struct ib_send_wr **bad)
{
	const struct ib_send_wr *w;

	for (w = wr; qp->qp_type == IB_QPT_RC && w; w = w->next) {
		if ((send_sge && w->num_sge > send_sge) ||
		    (no_inline && w->send_flags & IB_SEND_INLINE)) {
			*bad = wr;
			return too_much(-EINVAL);
		}
		if (no_inv && w->opcode == IB_WR_LOCAL_INV)
			return post_until(qp, wr, w, bad);
	}
	return real.post_send(qp, wr, bad);
}

/*
 * A sender gets RNR NAKs. A receive without a buffer marks the end of a
 * queue.
 */
static int profile_post_recv(struct ib_qp *qp, const struct ib_recv_wr *wr,
			     const struct ib_recv_wr **bad)
{
	if (READ_ONCE(deaf) && qp->qp_type == IB_QPT_RC && wr->num_sge)
		return 0;
	return real.post_recv(qp, wr, bad);
}

/* Like devices that run out of regions: the caller finds out by an error. */
static struct ib_mr *profile_alloc_mr(struct ib_pd *pd, enum ib_mr_type type,
				      u32 pages)
{
	struct ib_mr *mr;

	if (reg_pages && pages > reg_pages)
		return ERR_PTR(too_much(-EINVAL));
	if (atomic_inc_return(&regions_made) > regions && regions) {
		atomic_dec(&regions_made);
		return ERR_PTR(-ENOMEM);
	}
	mr = real.alloc_mr(pd, type, pages);
	if (IS_ERR(mr))
		atomic_dec(&regions_made);
	return mr;
}

static int profile_dereg_mr(struct ib_mr *mr, struct ib_udata *udata)
{
	bool counted = mr->type == IB_MR_TYPE_MEM_REG;
	int rc = real.dereg_mr(mr, udata);

	if (!rc && counted)
		atomic_dec(&regions_made);
	return rc;
}

static int profile_map_mr_sg(struct ib_mr *mr, struct scatterlist *sg, int n,
			     unsigned int *offset)
{
	if (map_sleeps)
		might_sleep();
	/* irdma would take it for a page size of 4 KiB, without an error. */
	if (page_sizes && !(mr->page_size & page_sizes))
		return too_much(-EINVAL);
	return real.map_mr_sg(mr, sg, n, offset);
}

static int profile_query_port(struct ib_device *dev, u32 port,
			      struct ib_port_attr *attr)
{
	int rc = real.query_port(dev, port, attr);

	if (speed)
		attr->active_speed = speed;
	if (width)
		attr->active_width = width;
	return rc;
}

static void less(int *have, unsigned int wanted)
{
	if (wanted && wanted < *have)
		*have = wanted;
}

static void less_u32(u32 *have, u32 wanted)
{
	if (wanted && wanted < *have)
		*have = wanted;
}

static int profile_query_device(struct ib_device *dev, struct ib_device_attr *attr,
				struct ib_udata *udata)
{
	int rc = real.query_device(dev, attr, udata);

	less(&attr->max_send_sge, send_sge);
	less(&attr->max_qp_wr, qp_wr);
	less(&attr->max_mr, regions);
	less(&attr->max_qp, qps);
	less_u32(&attr->max_fast_reg_page_list_len, reg_pages);
	if (page_sizes)
		attr->page_size_cap = page_sizes;
	return rc;
}

static const struct ib_device_ops profile_ops = {
	.create_qp = profile_create_qp,
	.modify_qp = profile_modify_qp,
	.destroy_qp = profile_destroy_qp,
	.post_send = profile_post_send,
	.post_recv = profile_post_recv,
	.alloc_mr = profile_alloc_mr,
	.dereg_mr = profile_dereg_mr,
	.map_mr_sg = profile_map_mr_sg,
	.query_device = profile_query_device,
	.query_port = profile_query_port,
};

static void adapt(struct ib_device *dev, struct pt_regs *regs)
{
	if (driver)
		dev->ops.driver_id = driver;
}

static struct ops_hook hook = { .by = &profile_ops, .real = &real, .siw = true, .adapt = adapt };

static int __init ib_imitate_init(void)
{
	return ops_hook_add(&hook);
}

module_init(ib_imitate_init);
MODULE_DESCRIPTION("Makes a software device look like another adapter");
MODULE_LICENSE("GPL");
