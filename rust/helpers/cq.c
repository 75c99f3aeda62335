// SPDX-License-Identifier: GPL-2.0
/*
 * Completion queues: one for each queue pair, so that the driver handles the
 * completions of a poll in one round, with one lock and one doorbell.
 *
 * Hardware raises completions in an interrupt: then a softirq (irq_poll) is
 * the shortest way. A software provider (rxe, siw) raises them in a work item
 * of its own, where a softirq would cost a switch to ksoftirqd: then a work
 * item on the same CPU saves one context switch in six.
 */
#include <linux/delay.h>
#include <linux/err.h>
#include <linux/error-injection.h>
#include <linux/module.h>
#include <linux/preempt.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include "cq.h"

/* Completions that are handled in one run of the softirq or work item. */
#define RUN	256

/* Handles up to @budget completions; returns their number. */
static int poll(struct ro2ib_cq *cq, int budget)
{
	int done = 0, n;

	do {
		n = ib_poll_cq(cq->ib, min(budget - done, RO2IB_CQ_BATCH),
			       cq->wcs);
		if (n <= 0)
			break;
		cq->round(cq->context, cq->wcs, n);
		done += n;
	} while (n == RO2IB_CQ_BATCH && done < budget);
	return done;
}

/* Requests the next event; returns true if completions were missed. */
static bool rearm(struct ro2ib_cq *cq)
{
	return ib_req_notify_cq(cq->ib, IB_CQ_NEXT_COMP |
					IB_CQ_REPORT_MISSED_EVENTS) > 0;
}

static int run_softirq(struct irq_poll *iop, int budget)
{
	struct ro2ib_cq *cq = container_of(iop, struct ro2ib_cq, iop);
	int done = poll(cq, budget);

	if (done < budget) {
		/* irq_poll_disable() does not wait for what follows. */
		atomic_inc(&cq->arming);
		irq_poll_complete(iop);
		if (rearm(cq))
			irq_poll_sched(iop);
		/* The last access: ro2ib_cq_destroy() frees @cq. */
		smp_mb__before_atomic();
		atomic_dec(&cq->arming);
	}
	return done;
}

static void run_work(struct work_struct *work)
{
	struct ro2ib_cq *cq = container_of(work, struct ro2ib_cq, work);

	if (READ_ONCE(cq->stopped))
		return;
	if (poll(cq, RUN) >= RUN || rearm(cq))
		queue_work(cq->wq, &cq->work);
}

void ro2ib_cq_event(struct ib_cq *ib, void *context)
{
	struct ro2ib_cq *cq = context;

	if (!cq->wq) {
		irq_poll_sched(&cq->iop);
		return;
	}
	/* The queue of an abandoned @cq is gone. */
	rcu_read_lock();
	if (!READ_ONCE(cq->abandoned))
		queue_work(cq->wq, &cq->work);
	rcu_read_unlock();
}

void ro2ib_qp_event(struct ib_event *event, void *context)
{
	struct ro2ib_cq *cq = context;

	rcu_read_lock();
	if (!READ_ONCE(cq->abandoned))
		cq->event(event, cq->context);
	rcu_read_unlock();
}

void ro2ib_cq_init(struct ro2ib_cq *cq, struct workqueue_struct *wq,
		   ro2ib_cq_round_t *round, ro2ib_qp_event_t *event,
		   void *context)
{
	cq->round = round;
	cq->event = event;
	cq->context = context;
	cq->wq = wq;
	if (wq)
		INIT_WORK(&cq->work, run_work);
	else
		irq_poll_init(&cq->iop, RUN, run_softirq);
}

/*
 * Creates a queue for @nr_cqe completions, polled in a work item of @wq, or in
 * a softirq if @wq is NULL. @event gets the events of the queue pair that uses
 * it. Sleeps.
 */
noinline struct ro2ib_cq *ro2ib_cq_create(struct ib_device *dev, u32 nr_cqe,
					  u32 vector,
					  struct workqueue_struct *wq,
					  ro2ib_cq_round_t *round,
					  ro2ib_qp_event_t *event,
					  void *context)
{
	struct ib_cq_init_attr attr = {
		.cqe = nr_cqe,
		.comp_vector = vector % max(dev->num_comp_vectors, 1),
	};
	struct ro2ib_cq *cq = kzalloc(sizeof(*cq), GFP_KERNEL);
	int rc;

	if (!cq)
		return ERR_PTR(-ENOMEM);
	ro2ib_cq_init(cq, wq, round, event, context);
	cq->ib = ib_create_cq(dev, ro2ib_cq_event, NULL, cq, &attr);
	if (IS_ERR(cq->ib)) {
		rc = PTR_ERR(cq->ib);
		kfree(cq);
		return ERR_PTR(rc);
	}
	ib_req_notify_cq(cq->ib, IB_CQ_NEXT_COMP);
	return cq;
}
ALLOW_ERROR_INJECTION(ro2ib_cq_create, ERRNO_NULL);

void ro2ib_cq_stop(struct ro2ib_cq *cq)
{
	if (cq->stopped)
		return;
	/* A work item that an event queues from here on returns at once. */
	WRITE_ONCE(cq->stopped, true);
	if (cq->wq) {
		cancel_work_sync(&cq->work);
		return;
	}
	irq_poll_disable(&cq->iop);
	while (atomic_read_acquire(&cq->arming))
		msleep(1);
}

/*
 * Handles the completions that are in @cq, and stops all other polling of it.
 * For a queue pair that could not be drained: a device may have left
 * completions without an interrupt, and software providers leave those of a
 * destroyed queue pair. Sleeps; not called by two threads at a time.
 */
void ro2ib_cq_quiesce(struct ro2ib_cq *cq)
{
	int left = cq->ib->cqe, n;

	ro2ib_cq_stop(cq);
	do {
		/*
		 * The handlers may neither sleep nor be interrupted by a
		 * softirq.
		 */
		local_bh_disable();
		n = poll(cq, min(left, RO2IB_CQ_BATCH));
		local_bh_enable();
		left -= n;
		cond_resched();
	} while (n > 0 && left > 0);
}

/*
 * Polls @cq, because an event may have been lost. Some providers (ionic,
 * bnxt_re) make the completions of a flush themselves. Their event does nothing
 * while the softirq is in its last round, and they do not report these
 * completions to rearm(). Any context.
 */
void ro2ib_cq_poll(struct ro2ib_cq *cq)
{
	ro2ib_cq_event(cq->ib, cq);
}

/*
 * Returns whether the queue pair of @cq exists. rdma_destroy_qp() does not
 * report that the provider has refused to destroy it.
 */
bool ro2ib_cq_is_used(const struct ro2ib_cq *cq)
{
	return atomic_read(&cq->ib->usecnt) != 0;
}

/*
 * Cuts @cq off from the driver for ever, because the device did not destroy it,
 * or its queue pair, and may still report completions and events. Their
 * functions are in this module, which therefore stays loaded. When this
 * returns, none of the functions of the driver runs, nor will. Sleeps.
 */
static void cut_off(struct ro2ib_cq *cq, const char *what)
{
	__module_get(THIS_MODULE);
	ro2ib_cq_stop(cq);
	WRITE_ONCE(cq->abandoned, true);
	synchronize_rcu();
	/* An event may have queued it meanwhile; none does any more. */
	if (cq->wq)
		cancel_work_sync(&cq->work);
	pr_err_ratelimited("ro2iblnd: %s: a %s stays: the device refuses to destroy it: reset the device\n",
			   dev_name(&cq->ib->device->dev), what);
}

/* For a queue pair that was not destroyed. @cq stays. Sleeps, not in a round. */
void ro2ib_cq_abandon(struct ro2ib_cq *cq)
{
	WARN_ON_ONCE(in_interrupt());
	cut_off(cq, "queue pair");
}

/*
 * Destroys @cq, whose queue pair is gone, unless it was abandoned. Waits for a
 * round that is under way. Sleeps, not in a round.
 */
void ro2ib_cq_destroy(struct ro2ib_cq *cq)
{
	WARN_ON_ONCE(in_interrupt());
	if (cq->abandoned)
		return;
	ro2ib_cq_stop(cq);
	if (ib_destroy_cq_user(cq->ib, NULL)) {
		cut_off(cq, "completion queue");
		return;
	}
	/* An event may have queued it meanwhile. */
	if (cq->wq)
		cancel_work_sync(&cq->work);
	kfree(cq);
}
