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
 * - with early_ms, work requests complete as flushed when a queue pair is moved to
 *   the error state, and the device goes on with them for that long;
 * - commands for queue pairs, completion queues and memory regions take command_ms
 *   each, one after the other;
 * - with in_post=1, posting a send calls the handler of the completion queue;
 * - with comm_est=1 a queue pair reports IB_EVENT_COMM_EST when it has received its
 *   first message;
 * - fatal=1 puts the newest queue pair into the error state, and it reports
 *   IB_EVENT_QP_FATAL;
 * - with dead=1 no work request of a reliable connection completes, and new ones and
 *   commands fail.
 *
 * Load it before the devices are made, and after ib_imitate_dma, which then sees
 * the completions as the driver does. early_ms needs ib_imitate_dma, because that
 * posts work requests one by one.
 */
#include <linux/delay.h>
#include <linux/hash.h>
#include <linux/irq_work.h>
#include <linux/jiffies.h>
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

#include "ops_hook.h"

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
static unsigned int early_ms;
module_param(early_ms, uint, 0444);
MODULE_PARM_DESC(early_ms, "time for which the device uses work requests that it has flushed");
static unsigned int command_ms;
module_param(command_ms, uint, 0644);
MODULE_PARM_DESC(command_ms, "time of a command for a queue pair, completion queue or region");
static bool in_post;
module_param(in_post, bool, 0644);
MODULE_PARM_DESC(in_post, "posting a send calls the handler of the completion queue");

static bool comm_est;
module_param(comm_est, bool, 0444);
MODULE_PARM_DESC(comm_est, "a queue pair reports its first message by an event");
static bool dead;
module_param(dead, bool, 0644);
MODULE_PARM_DESC(dead, "reliable connections do nothing any more; at any time");

static atomic_t interrupts, swapped, late, early, events;

static int counts_get(char *buffer, const struct kernel_param *kp)
{
	return sysfs_emit(buffer, "interrupts=%d swapped=%d late=%d early=%d events=%d\n",
			  atomic_read(&interrupts), atomic_read(&swapped), atomic_read(&late),
			  atomic_read(&early), atomic_read(&events));
}

static const struct kernel_param_ops counts_ops = { .get = counts_get };
module_param_cb(counts, &counts_ops, NULL, 0444);
MODULE_PARM_DESC(counts, "interrupts, completions that overtook another, came late or came early, events");

/* A completion that the driver has not got. */
struct held {
	struct list_head list;
	unsigned long due;
	struct ib_wc wc;
};

struct timed_cq {
	struct ib_cq *cq;
	ib_comp_handler handler;
	int cpu;
	/* The user has asked for an interrupt since the last one. */
	bool armed;
	/* Protects the list, and the queue pairs. */
	spinlock_t lock;
	struct list_head held;
	struct delayed_work timer;
	struct irq_work here;
	call_single_data_t there;
};

/* A queue pair of a device that flushes early. */
struct early_qp {
	/* Completions that the device owes; as flushed. */
	struct list_head sends, recvs;
	/* They are reported, and those of the device are not. */
	bool flushed;
};

static struct ib_device_ops real;
static DEFINE_XARRAY_FLAGS(timed_cqs, XA_FLAGS_LOCK_IRQ);
static DEFINE_XARRAY_FLAGS(early_qps, XA_FLAGS_LOCK_IRQ);
static DEFINE_MUTEX(commands);
/* Queue pairs that have not received a message. */
static DEFINE_XARRAY_FLAGS(silent, XA_FLAGS_LOCK_IRQ);
static struct ib_qp *newest;
/* Protects "newest". */
static DEFINE_MUTEX(newest_mutex);

static bool is_dead(const struct ib_qp *qp)
{
	return READ_ONCE(dead) && qp->qp_type == IB_QPT_RC;
}

/* Calls the user of the queue pair. Not in a task. */
static void report(struct ib_qp *qp, enum ib_event_type type)
{
	struct ib_event event = { .device = qp->device, .element.qp = qp, .event = type };

	atomic_inc(&events);
	if (qp->event_handler)
		qp->event_handler(&event, qp->qp_context);
}

static struct timed_cq *timed_cq_of(struct ib_cq *cq)
{
	return xa_load(&timed_cqs, (uintptr_t)cq >> 3);
}

/* NULL: a queue pair that flushes when the device has stopped. */
static struct early_qp *early_qp_of(const struct ib_qp *qp)
{
	return xa_load(&early_qps, (uintptr_t)qp >> 3);
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

/* Calls the user of the completion queue, if the user waits for that. */
static bool notify(struct timed_cq *timed)
{
	bool armed = xchg(&timed->armed, false);

	if (armed)
		timed->handler(timed->cq, timed->cq->cq_context);
	return armed;
}

static void interrupt_here(struct irq_work *work)
{
	WARN_ON_ONCE(!in_hardirq());
	if (notify(container_of(work, struct timed_cq, here)))
		atomic_inc(&interrupts);
}

/* An idle CPU may call this without an interrupt. */
static void interrupt_there(void *context)
{
	struct timed_cq *timed = context;

	irq_work_queue(&timed->here);
}

static void raise_interrupt(struct timed_cq *timed)
{
	int cpu = get_cpu();

	if (timed->cpu == cpu || !cpu_online(timed->cpu))
		irq_work_queue(&timed->here);
	else
		/* If it is under way, the handler has not run yet. */
		smp_call_function_single_async(timed->cpu, &timed->there);
	put_cpu();
}

static void timer(struct work_struct *work)
{
	raise_interrupt(container_of(to_delayed_work(work), struct timed_cq, timer));
}

static void later(struct timed_cq *timed, unsigned long jiffies_left)
{
	mod_delayed_work(system_highpri_wq, &timed->timer, jiffies_left);
}

/* Runs instead of the handler of the queue's user. The device has a completion. */
static void completed(struct ib_cq *cq, void *context)
{
	struct timed_cq *timed = timed_cq_of(cq);
	unsigned int delay = READ_ONCE(delay_ms);

	if (!timed)
		return;
	if (delay)
		later(timed, msecs_to_jiffies(delay));
	else
		raise_interrupt(timed);
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

static void drop(struct held *held)
{
	list_del(&held->list);
	kfree(held);
}

/*
 * Under the lock: the device has completed a work request, and those before it that
 * have no completion. Returns false if the user has their completions.
 */
static bool settle(struct early_qp *qp, const struct ib_wc *wc)
{
	struct list_head *queues[] = { &qp->sends, &qp->recvs };
	struct held *held, *next;
	unsigned int i;

	if (qp->flushed)
		return false;
	for (i = 0; i < ARRAY_SIZE(queues); i++) {
		bool found = false;

		list_for_each_entry(held, queues[i], list)
			found = found || held->wc.wr_cqe == wc->wr_cqe;
		list_for_each_entry_safe(held, next, queues[i], list) {
			if (!found)
				break;
			found = held->wc.wr_cqe != wc->wr_cqe;
			drop(held);
		}
	}
	return true;
}

/* Under the lock: takes all completions from the device. */
static void fetch(struct timed_cq *timed)
{
	struct early_qp *early_qp;
	struct held *held;
	unsigned int ms;

	while ((held = kmalloc(sizeof(*held), GFP_ATOMIC))) {
		if (real.poll_cq(timed->cq, 1, &held->wc) != 1)
			break;
		early_qp = early_qp_of(held->wc.qp);
		if (early_qp && !settle(early_qp, &held->wc)) {
			kfree(held);
			continue;
		}
		if (!xa_empty(&silent) && held->wc.status == IB_WC_SUCCESS &&
		    is_receive(&held->wc) && xa_erase(&silent, (uintptr_t)held->wc.qp >> 3))
			report(held->wc.qp, IB_EVENT_COMM_EST);
		ms = lateness(&held->wc);
		if (ms)
			atomic_inc(&late);
		held->due = jiffies + msecs_to_jiffies(ms);
		list_add_tail(&held->list, &timed->held);
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
static int deliver(struct timed_cq *timed, int n, struct ib_wc *wc, unsigned int pick,
		   bool others)
{
	struct blocked blocked = {};
	struct held *held, *next;
	bool passed = false, other = false;
	int got = 0;

	list_for_each_entry(held, &timed->held, list)
		other = other || held->wc.status != IB_WC_WR_FLUSH_ERR;
	list_for_each_entry_safe(held, next, &timed->held, list) {
		uintptr_t queue = queue_of(&held->wc);
		bool first = (hash_long(queue, 8) ^ pick) & 1;

		if (got == n)
			break;
		if (is_dead(held->wc.qp) || is_blocked(&blocked, &held->wc))
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
		drop(held);
	}
	return got;
}

static int timing_poll_cq(struct ib_cq *cq, int n, struct ib_wc *wc)
{
	struct timed_cq *timed = timed_cq_of(cq);
	unsigned int pick = get_random_u32();
	unsigned long flags, wait = 0;
	int got;

	if (!timed)
		return real.poll_cq(cq, n, wc);
	spin_lock_irqsave(&timed->lock, flags);
	fetch(timed);
	got = deliver(timed, n, wc, pick, false);
	if (got < n)
		got += deliver(timed, n - got, wc + got, pick, true);
	if (got < n && !list_empty(&timed->held))
		wait = max(1UL, msecs_to_jiffies(1));
	spin_unlock_irqrestore(&timed->lock, flags);
	if (wait)
		later(timed, wait);
	return got;
}

static int timing_req_notify_cq(struct ib_cq *cq, enum ib_cq_notify_flags flags)
{
	struct timed_cq *timed = timed_cq_of(cq);
	int rc;

	if (!timed)
		return real.req_notify_cq(cq, flags);
	/* The RDMA core sets its handler after it has created the queue. */
	if (cq->comp_handler != completed) {
		timed->handler = cq->comp_handler;
		WRITE_ONCE(cq->comp_handler, completed);
	}
	WRITE_ONCE(timed->armed, true);
	rc = real.req_notify_cq(cq, flags);
	if (!list_empty_careful(&timed->held))
		later(timed, 1);
	return rc;
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

/*
 * Third argument of create_cq(). 6.11, and older kernels with a port of it, pass
 * struct uverbs_attr_bundle.
 */
typedef typeof(_Generic(real.create_cq,
	int (*)(struct ib_cq *, const struct ib_cq_init_attr *, struct ib_udata *):
		(struct ib_udata *)NULL,
	default: (struct uverbs_attr_bundle *)NULL)) cq_user;

static int timing_create_cq(struct ib_cq *cq, const struct ib_cq_init_attr *attr,
			    cq_user user)
{
	struct timed_cq *timed;
	int rc;

	command(!user);
	rc = real.create_cq(cq, attr, user);
	if (rc || user)
		return rc;
	timed = kzalloc(sizeof(*timed), GFP_KERNEL);
	if (!timed)
		return 0;
	timed->cq = cq;
	/* Vectors are not numbered as CPUs are. */
	timed->cpu = num_online_cpus() - 1 - attr->comp_vector % num_online_cpus();
	spin_lock_init(&timed->lock);
	INIT_LIST_HEAD(&timed->held);
	INIT_DELAYED_WORK(&timed->timer, timer);
	init_irq_work(&timed->here, interrupt_here);
	INIT_CSD(&timed->there, interrupt_there, timed);
	if (xa_err(xa_store_irq(&timed_cqs, (uintptr_t)cq >> 3, timed, GFP_KERNEL)))
		kfree(timed);
	return 0;
}

static void nothing(void *unused)
{
}

static int timing_destroy_cq(struct ib_cq *cq, struct ib_udata *udata)
{
	struct timed_cq *timed = timed_cq_of(cq);
	struct held *held, *next;
	int rc;

	command(timed);
	rc = real.destroy_cq(cq, udata);
	if (rc || !timed)
		return rc;
	xa_erase_irq(&timed_cqs, (uintptr_t)cq >> 3);
	cancel_delayed_work_sync(&timed->timer);
	/* Other CPUs have queued their interrupt works then. */
	smp_call_function(nothing, NULL, 1);
	irq_work_sync(&timed->here);
	synchronize_rcu();
	list_for_each_entry_safe(held, next, &timed->held, list)
		kfree(held);
	kfree(timed);
	return 0;
}

static void forget(struct ib_cq *cq, const struct ib_qp *qp)
{
	struct timed_cq *timed = timed_cq_of(cq);
	struct held *held, *next;
	unsigned long flags;

	if (!timed)
		return;
	spin_lock_irqsave(&timed->lock, flags);
	fetch(timed);
	list_for_each_entry_safe(held, next, &timed->held, list)
		if (held->wc.qp == qp)
			drop(held);
	spin_unlock_irqrestore(&timed->lock, flags);
}

/* The device does not know this queue pair any more. */
static void forget_early(const struct ib_qp *qp)
{
	struct early_qp *early_qp = xa_erase_irq(&early_qps, (uintptr_t)qp >> 3);
	struct held *held, *next;

	if (!early_qp)
		return;
	list_splice(&early_qp->recvs, &early_qp->sends);
	list_for_each_entry_safe(held, next, &early_qp->sends, list)
		drop(held);
	kfree(early_qp);
}

/* Completes all work requests as flushed. Returns false if they were before. */
static bool flush_early(struct ib_qp *qp)
{
	struct timed_cq *timed = timed_cq_of(qp->send_cq);
	struct early_qp *early_qp = early_qp_of(qp);
	unsigned long flags;
	struct held *held;
	bool first;

	if (!early_qp)
		return false;
	spin_lock_irqsave(&timed->lock, flags);
	fetch(timed);
	first = !early_qp->flushed;
	early_qp->flushed = true;
	list_splice_tail_init(&early_qp->recvs, &early_qp->sends);
	list_for_each_entry(held, &early_qp->sends, list)
		atomic_inc(&early);
	list_splice_tail_init(&early_qp->sends, &timed->held);
	spin_unlock_irqrestore(&timed->lock, flags);
	raise_interrupt(timed);
	return first;
}

static int timing_create_qp(struct ib_qp *qp, struct ib_qp_init_attr *init,
			    struct ib_udata *udata)
{
	int rc;

	command(init->qp_type == IB_QPT_RC);
	if (READ_ONCE(dead) && init->qp_type == IB_QPT_RC)
		return -EIO;
	rc = real.create_qp(qp, init, udata);
	if (rc || init->qp_type != IB_QPT_RC)
		return rc;
	mutex_lock(&newest_mutex);
	newest = qp;
	mutex_unlock(&newest_mutex);
	/* The driver has one completion queue for both queues. */
	if (early_ms && init->send_cq == init->recv_cq && timed_cq_of(init->send_cq)) {
		struct early_qp *early_qp = kzalloc(sizeof(*early_qp), GFP_KERNEL);

		if (!early_qp)
			return 0;
		INIT_LIST_HEAD(&early_qp->sends);
		INIT_LIST_HEAD(&early_qp->recvs);
		if (xa_err(xa_store_irq(&early_qps, (uintptr_t)qp >> 3, early_qp, GFP_KERNEL)))
			kfree(early_qp);
	}
	return 0;
}

static int timing_modify_qp(struct ib_qp *qp, struct ib_qp_attr *attr, int mask,
			    struct ib_udata *udata)
{
	int rc;

	command(qp->qp_type == IB_QPT_RC);
	if (is_dead(qp))
		return -EIO;
	if (mask & IB_QP_STATE && attr->qp_state == IB_QPS_ERR && flush_early(qp))
		msleep(early_ms);
	rc = real.modify_qp(qp, attr, mask, udata);
	if (!rc && comm_est && qp->qp_type == IB_QPT_RC && mask & IB_QP_STATE &&
	    attr->qp_state == IB_QPS_RTR)
		xa_store_irq(&silent, (uintptr_t)qp >> 3, xa_mk_value(1), GFP_KERNEL);
	return rc;
}

static int timing_destroy_qp(struct ib_qp *qp, struct ib_udata *udata)
{
	struct ib_cq *send_cq = qp->send_cq, *recv_cq = qp->recv_cq;
	int rc;

	command(qp->qp_type == IB_QPT_RC);
	mutex_lock(&newest_mutex);
	if (newest == qp)
		newest = NULL;
	mutex_unlock(&newest_mutex);
	xa_erase_irq(&silent, (uintptr_t)qp >> 3);
	rc = real.destroy_qp(qp, udata);
	if (rc)
		return rc;
	/* An adapter's driver removes the completions of a queue pair that goes. */
	if (send_cq)
		forget(send_cq, qp);
	if (recv_cq)
		forget(recv_cq, qp);
	forget_early(qp);
	return 0;
}

static enum ib_wc_opcode completion_of(enum ib_wr_opcode opcode)
{
	switch (opcode) {
	case IB_WR_RDMA_WRITE:
		return IB_WC_RDMA_WRITE;
	case IB_WR_LOCAL_INV:
		return IB_WC_LOCAL_INV;
	case IB_WR_REG_MR:
		return IB_WC_REG_MR;
	default:
		return IB_WC_SEND;
	}
}

/* Posts one work request, a send or a receive. */
static int post_early(struct ib_qp *qp, struct early_qp *early_qp,
		      const struct ib_send_wr *send, const struct ib_recv_wr *recv)
{
	struct list_head *queue = send ? &early_qp->sends : &early_qp->recvs;
	struct timed_cq *timed = timed_cq_of(qp->send_cq);
	const struct ib_send_wr *bad_send;
	const struct ib_recv_wr *bad_recv;
	unsigned long flags;
	struct held *held;
	int rc = 0;

	if (WARN_ON_ONCE(send ? !!send->next : !!recv->next))
		return -EINVAL;
	held = kzalloc(sizeof(*held), GFP_ATOMIC);
	if (!held)
		return -ENOMEM;
	held->wc.wr_cqe = send ? send->wr_cqe : recv->wr_cqe;
	held->wc.opcode = send ? completion_of(send->opcode) : IB_WC_RECV;
	held->wc.status = IB_WC_WR_FLUSH_ERR;
	held->wc.qp = qp;
	held->due = jiffies;
	spin_lock_irqsave(&timed->lock, flags);
	list_add_tail(&held->list, early_qp->flushed ? &timed->held : queue);
	if (early_qp->flushed)
		raise_interrupt(timed);
	else if (send)
		rc = real.post_send(qp, send, &bad_send);
	else
		rc = real.post_recv(qp, recv, &bad_recv);
	if (rc)
		drop(held);
	spin_unlock_irqrestore(&timed->lock, flags);
	return rc;
}

static int timing_post_send(struct ib_qp *qp, const struct ib_send_wr *wr,
			    const struct ib_send_wr **bad)
{
	struct early_qp *early_qp = early_qp_of(qp);
	struct timed_cq *timed = timed_cq_of(qp->send_cq);
	int rc;

	*bad = wr;
	if (is_dead(qp))
		return -EIO;
	if (early_qp)
		rc = post_early(qp, early_qp, wr, NULL);
	else
		rc = real.post_send(qp, wr, bad);
	if (READ_ONCE(in_post) && qp->qp_type == IB_QPT_RC && timed)
		notify(timed);
	return rc;
}

static int timing_post_recv(struct ib_qp *qp, const struct ib_recv_wr *wr,
			    const struct ib_recv_wr **bad)
{
	struct early_qp *early_qp = early_qp_of(qp);

	*bad = wr;
	if (is_dead(qp))
		return -EIO;
	if (early_qp)
		return post_early(qp, early_qp, NULL, wr);
	return real.post_recv(qp, wr, bad);
}

static void report_fatal(struct irq_work *work)
{
	report(newest, IB_EVENT_QP_FATAL);
}

static struct irq_work fatal_work = IRQ_WORK_INIT_HARD(report_fatal);

static int fatal_set(const char *text, const struct kernel_param *kp)
{
	struct ib_qp_attr attr = { .qp_state = IB_QPS_ERR };
	int rc = -ENODEV;

	mutex_lock(&newest_mutex);
	if (newest)
		rc = real.modify_qp(newest, &attr, IB_QP_STATE, NULL);
	if (!rc) {
		irq_work_queue(&fatal_work);
		irq_work_sync(&fatal_work);
	}
	mutex_unlock(&newest_mutex);
	return rc;
}

static const struct kernel_param_ops fatal_ops = { .set = fatal_set };
module_param_cb(fatal, &fatal_ops, NULL, 0200);
MODULE_PARM_DESC(fatal, "the newest queue pair fails; at any time");

static struct ib_mr *timing_alloc_mr(struct ib_pd *pd, enum ib_mr_type type, u32 pages)
{
	command(true);
	if (READ_ONCE(dead))
		return ERR_PTR(-EIO);
	return real.alloc_mr(pd, type, pages);
}

static int timing_dereg_mr(struct ib_mr *mr, struct ib_udata *udata)
{
	command(mr->type == IB_MR_TYPE_MEM_REG);
	return real.dereg_mr(mr, udata);
}

static const struct ib_device_ops timing_ops = {
	.create_cq = timing_create_cq,
	.destroy_cq = timing_destroy_cq,
	.poll_cq = timing_poll_cq,
	.req_notify_cq = timing_req_notify_cq,
	.create_qp = timing_create_qp,
	.modify_qp = timing_modify_qp,
	.destroy_qp = timing_destroy_qp,
	.post_send = timing_post_send,
	.post_recv = timing_post_recv,
	.alloc_mr = timing_alloc_mr,
	.dereg_mr = timing_dereg_mr,
};

static void adapt(struct ib_device *dev, struct pt_regs *regs)
{
	dev->num_comp_vectors = vectors;
}

static struct ops_hook hook = { .by = &timing_ops, .real = &real, .adapt = adapt };

static int __init ib_imitate_timing_init(void)
{
	return ops_hook_add(&hook);
}
module_init(ib_imitate_timing_init);

MODULE_DESCRIPTION("Gives soft-RoCE devices the completions, flushes and commands of an adapter");
MODULE_LICENSE("GPL");
