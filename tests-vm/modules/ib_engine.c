// SPDX-License-Identifier: GPL-2.0
/*
 * Completions, flushes and commands of soft-RoCE devices as an adapter has them.
 * soft-RoCE reports a completion at once, from a work item on the CPU that did
 * the work. It flushes at once, and its commands cost nothing. With this module
 *
 * - a completion queue interrupts the CPU of its vector, which is not the CPU of
 *   the same number, in hard interrupt context, delay_ms late;
 * - completions of sends come send_ms late, so that a message may come before the
 *   completion of the send that asked for it;
 * - completions of different queue pairs, and of the send and receive queue of one,
 *   change places, and those of one queue never do;
 * - flushed work requests complete flush_ms late, with lazy=1 only when no other
 *   completion is there;
 * - commands for queue pairs and memory regions take command_ms each, one after the
 *   other.
 *
 * Load it before the devices are made, and after ib_dma, which then sees the
 * completions as the driver does. It cannot be unloaded.
 */
#include <linux/delay.h>
#include <linux/hash.h>
#include <linux/irq_work.h>
#include <linux/jiffies.h>
#include <linux/kprobes.h>
#include <linux/list.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/random.h>
#include <linux/slab.h>
#include <linux/smp.h>
#include <linux/spinlock.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>
#include <rdma/ib_verbs.h>

static unsigned int vectors = 2;
module_param(vectors, uint, 0444);
MODULE_PARM_DESC(vectors, "completion vectors of a device");
static unsigned int delay_ms;
module_param(delay_ms, uint, 0644);
MODULE_PARM_DESC(delay_ms, "time from a completion to its interrupt");
static unsigned int send_ms;
module_param(send_ms, uint, 0644);
MODULE_PARM_DESC(send_ms, "longest time for which the completion of a send is late");
static unsigned int flush_ms;
module_param(flush_ms, uint, 0644);
MODULE_PARM_DESC(flush_ms, "time for which a flushed work request is late");
static bool lazy;
module_param(lazy, bool, 0644);
MODULE_PARM_DESC(lazy, "flushed work requests wait until no other completion is there");
static unsigned int command_ms;
module_param(command_ms, uint, 0644);
MODULE_PARM_DESC(command_ms, "time of a command for a queue pair or region");

static atomic_t interrupts, swapped, late;

static int counts_get(char *buffer, const struct kernel_param *kp)
{
	return sysfs_emit(buffer, "interrupts=%d swapped=%d late=%d\n", atomic_read(&interrupts),
			  atomic_read(&swapped), atomic_read(&late));
}

static const struct kernel_param_ops counts_ops = { .get = counts_get };
module_param_cb(counts, &counts_ops, NULL, 0444);
MODULE_PARM_DESC(counts, "interrupts, completions that overtook another, completions that were late");

/* A completion that the driver has not got. */
struct held {
	struct list_head list;
	unsigned long due;
	struct ib_wc wc;
};

struct engine {
	struct ib_cq *cq;
	ib_comp_handler handler;
	int cpu;
	/* Protects the list. */
	spinlock_t lock;
	struct list_head held;
	struct delayed_work timer;
	struct irq_work here;
	call_single_data_t there;
};

static struct ib_device_ops real;
static DEFINE_XARRAY_FLAGS(engines, XA_FLAGS_LOCK_IRQ);
static DEFINE_MUTEX(commands);

static struct engine *engine_of(struct ib_cq *cq)
{
	return xa_load(&engines, (uintptr_t)cq >> 3);
}

static bool is_receive(const struct ib_wc *wc)
{
	return wc->opcode & IB_WC_RECV;
}

/*
 * Returns the queue of a completion. The opcode of a failed one is not valid, so
 * it may be of the send or the receive queue of its queue pair.
 */
static uintptr_t queue_of(const struct ib_wc *wc)
{
	if (wc->status != IB_WC_SUCCESS)
		return (uintptr_t)wc->qp + 2;
	return (uintptr_t)wc->qp + is_receive(wc);
}

/* Calls the core in hard interrupt context. */
static void interrupt(struct engine *engine)
{
	atomic_inc(&interrupts);
	engine->handler(engine->cq, engine->cq->cq_context);
}

static void interrupt_here(struct irq_work *work)
{
	interrupt(container_of(work, struct engine, here));
}

static void interrupt_there(void *engine)
{
	interrupt(engine);
}

static void raise_interrupt(struct engine *engine)
{
	int cpu = get_cpu();

	if (engine->cpu == cpu || !cpu_online(engine->cpu))
		irq_work_queue(&engine->here);
	else
		/* If it is under way, the handler has not run yet. */
		smp_call_function_single_async(engine->cpu, &engine->there);
	put_cpu();
}

static void timer(struct work_struct *work)
{
	raise_interrupt(container_of(to_delayed_work(work), struct engine, timer));
}

static void later(struct engine *engine, unsigned long jiffies_left)
{
	mod_delayed_work(system_highpri_wq, &engine->timer, jiffies_left);
}

/* Stands for the handler of the core. The device has a completion. */
static void completed(struct ib_cq *cq, void *context)
{
	struct engine *engine = engine_of(cq);
	unsigned int delay = READ_ONCE(delay_ms);

	if (!engine)
		return;
	if (delay)
		later(engine, msecs_to_jiffies(delay));
	else
		raise_interrupt(engine);
}

static unsigned int lateness(const struct ib_wc *wc)
{
	unsigned int most;

	if (wc->qp->qp_type != IB_QPT_RC)
		return 0;
	if (wc->status == IB_WC_WR_FLUSH_ERR)
		return READ_ONCE(flush_ms);
	most = READ_ONCE(send_ms);
	if (!most || (wc->status == IB_WC_SUCCESS && is_receive(wc)))
		return 0;
	return get_random_u32() % (most + 1);
}

/* Under the lock: takes all completions from the device. */
static void fetch(struct engine *engine)
{
	struct held *held;
	unsigned int ms;

	while ((held = kmalloc(sizeof(*held), GFP_ATOMIC))) {
		if (real.poll_cq(engine->cq, 1, &held->wc) != 1)
			break;
		ms = lateness(&held->wc);
		if (ms)
			atomic_inc(&late);
		held->due = jiffies + msecs_to_jiffies(ms);
		list_add_tail(&held->list, &engine->held);
	}
	kfree(held);
}

/* Queues of which a completion has to wait, and so must those behind it. */
struct blocked {
	unsigned int n;
	uintptr_t queues[32];
};

static bool is_blocked(const struct blocked *blocked, const struct ib_wc *wc)
{
	unsigned int i;

	for (i = 0; i < blocked->n; i++) {
		uintptr_t of_qp = blocked->queues[i] - (uintptr_t)wc->qp;

		if (blocked->queues[i] == queue_of(wc) ||
		    (wc->status != IB_WC_SUCCESS && of_qp <= 2))
			return true;
	}
	return blocked->n == ARRAY_SIZE(blocked->queues);
}

/* Under the lock: gives completions to the driver, those of some queues first. */
static int deliver(struct engine *engine, int n, struct ib_wc *wc, unsigned int pick,
		   bool others)
{
	struct blocked blocked = {};
	struct held *held, *next;
	bool passed = false, other = false;
	int got = 0;

	list_for_each_entry(held, &engine->held, list)
		other = other || held->wc.status != IB_WC_WR_FLUSH_ERR;
	list_for_each_entry_safe(held, next, &engine->held, list) {
		uintptr_t queue = queue_of(&held->wc);
		bool first = (hash_long(queue, 8) ^ pick) & 1;

		if (got == n)
			break;
		if (is_blocked(&blocked, &held->wc))
			continue;
		if (time_before(jiffies, held->due) || (!first && !others) ||
		    (lazy && other && held->wc.status == IB_WC_WR_FLUSH_ERR)) {
			blocked.queues[blocked.n++] = queue;
			passed = true;
			continue;
		}
		if (passed)
			atomic_inc(&swapped);
		wc[got++] = held->wc;
		list_del(&held->list);
		kfree(held);
	}
	return got;
}

static int engine_poll_cq(struct ib_cq *cq, int n, struct ib_wc *wc)
{
	struct engine *engine = engine_of(cq);
	unsigned int pick = get_random_u32();
	unsigned long flags, wait = 0;
	int got;

	if (!engine)
		return real.poll_cq(cq, n, wc);
	spin_lock_irqsave(&engine->lock, flags);
	fetch(engine);
	got = deliver(engine, n, wc, pick, false);
	if (got < n)
		got += deliver(engine, n - got, wc + got, pick, true);
	/* The caller does not look again by itself. */
	if (got < n && !list_empty(&engine->held))
		wait = max(1UL, msecs_to_jiffies(1));
	spin_unlock_irqrestore(&engine->lock, flags);
	if (wait)
		later(engine, wait);
	return got;
}

static int engine_req_notify_cq(struct ib_cq *cq, enum ib_cq_notify_flags flags)
{
	struct engine *engine = engine_of(cq);

	/* The core has set its handler since the queue was created. */
	if (engine && cq->comp_handler != completed) {
		engine->handler = cq->comp_handler;
		WRITE_ONCE(cq->comp_handler, completed);
	}
	return real.req_notify_cq(cq, flags);
}

static int engine_create_cq(struct ib_cq *cq, const struct ib_cq_init_attr *attr,
			    struct uverbs_attr_bundle *attrs)
{
	struct engine *engine;
	int rc = real.create_cq(cq, attr, attrs);

	if (rc || attrs)
		return rc;
	engine = kzalloc(sizeof(*engine), GFP_KERNEL);
	if (!engine)
		return 0;
	engine->cq = cq;
	/* Vectors are not numbered as CPUs are. */
	engine->cpu = num_online_cpus() - 1 - attr->comp_vector % num_online_cpus();
	spin_lock_init(&engine->lock);
	INIT_LIST_HEAD(&engine->held);
	INIT_DELAYED_WORK(&engine->timer, timer);
	init_irq_work(&engine->here, interrupt_here);
	INIT_CSD(&engine->there, interrupt_there, engine);
	if (xa_err(xa_store_irq(&engines, (uintptr_t)cq >> 3, engine, GFP_KERNEL)))
		kfree(engine);
	return 0;
}

static void nothing(void *unused)
{
}

static int engine_destroy_cq(struct ib_cq *cq, struct ib_udata *udata)
{
	struct engine *engine = engine_of(cq);
	struct held *held, *next;
	int rc = real.destroy_cq(cq, udata);

	if (rc || !engine)
		return rc;
	xa_erase_irq(&engines, (uintptr_t)cq >> 3);
	cancel_delayed_work_sync(&engine->timer);
	irq_work_sync(&engine->here);
	/* Interrupts of the other CPUs are over then. */
	smp_call_function(nothing, NULL, 1);
	synchronize_rcu();
	list_for_each_entry_safe(held, next, &engine->held, list)
		kfree(held);
	kfree(engine);
	return 0;
}

static void forget(struct ib_cq *cq, const struct ib_qp *qp)
{
	struct engine *engine = engine_of(cq);
	struct held *held, *next;
	unsigned long flags;

	if (!engine)
		return;
	spin_lock_irqsave(&engine->lock, flags);
	fetch(engine);
	list_for_each_entry_safe(held, next, &engine->held, list)
		if (held->wc.qp == qp) {
			list_del(&held->list);
			kfree(held);
		}
	spin_unlock_irqrestore(&engine->lock, flags);
}

/* Waits as long as the firmware takes for a command. */
static void command(bool counts)
{
	unsigned int ms = READ_ONCE(command_ms);

	if (!counts || !ms)
		return;
	mutex_lock(&commands);
	msleep(ms);
	mutex_unlock(&commands);
}

static int engine_create_qp(struct ib_qp *qp, struct ib_qp_init_attr *init,
			    struct ib_udata *udata)
{
	command(init->qp_type == IB_QPT_RC);
	return real.create_qp(qp, init, udata);
}

static int engine_modify_qp(struct ib_qp *qp, struct ib_qp_attr *attr, int mask,
			    struct ib_udata *udata)
{
	command(qp->qp_type == IB_QPT_RC);
	return real.modify_qp(qp, attr, mask, udata);
}

static int engine_destroy_qp(struct ib_qp *qp, struct ib_udata *udata)
{
	struct ib_cq *send_cq = qp->send_cq, *recv_cq = qp->recv_cq;
	int rc;

	command(qp->qp_type == IB_QPT_RC);
	/* An adapter's driver removes the completions of a queue pair that goes. */
	if (send_cq)
		forget(send_cq, qp);
	if (recv_cq)
		forget(recv_cq, qp);
	rc = real.destroy_qp(qp, udata);
	return rc;
}

static struct ib_mr *engine_alloc_mr(struct ib_pd *pd, enum ib_mr_type type, u32 pages)
{
	command(true);
	return real.alloc_mr(pd, type, pages);
}

static int engine_dereg_mr(struct ib_mr *mr, struct ib_udata *udata)
{
	command(mr->type == IB_MR_TYPE_MEM_REG);
	return real.dereg_mr(mr, udata);
}

/* Runs before ib_register_device(device, ...). */
static int register_device(struct kprobe *probe, struct pt_regs *regs)
{
	struct ib_device *dev = (struct ib_device *)regs_get_kernel_argument(regs, 0);

	if (dev->ops.driver_id != RDMA_DRIVER_RXE)
		return 0;
	real = dev->ops;
	dev->num_comp_vectors = vectors;
	dev->ops.create_cq = engine_create_cq;
	dev->ops.destroy_cq = engine_destroy_cq;
	dev->ops.poll_cq = engine_poll_cq;
	dev->ops.req_notify_cq = engine_req_notify_cq;
	dev->ops.create_qp = engine_create_qp;
	dev->ops.modify_qp = engine_modify_qp;
	dev->ops.destroy_qp = engine_destroy_qp;
	dev->ops.alloc_mr = engine_alloc_mr;
	dev->ops.dereg_mr = engine_dereg_mr;
	return 0;
}

static struct kprobe probe = {
	.symbol_name = "ib_register_device",
	.pre_handler = register_device,
};

static int __init ib_engine_init(void)
{
	return register_kprobe(&probe);
}
module_init(ib_engine_init);

MODULE_DESCRIPTION("Gives soft-RoCE devices the completions, flushes and commands of an adapter");
MODULE_LICENSE("GPL");
