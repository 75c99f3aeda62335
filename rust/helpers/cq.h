/* SPDX-License-Identifier: GPL-2.0 */
#ifndef RO2IB_CQ_H
#define RO2IB_CQ_H

#include <linux/irq_poll.h>
#include <linux/workqueue.h>
#include <rdma/ib_verbs.h>

#include "ro2iblnd_helpers.h"

/* Completions that are handled in one round. */
#define RO2IB_CQ_BATCH	16

/*
 * Completion queue of one queue pair. It is the context of the queue pair, too:
 * a device that refuses to destroy the queue pair reaches nothing else of the
 * driver, and this stays then.
 */
struct ro2ib_cq {
	struct ib_cq *ib;
	ro2ib_cq_round_t *round;
	void *context;
	/* Queue of @work; NULL: completions are handled in a softirq. */
	struct workqueue_struct *wq;
	union {
		struct work_struct work;
		struct irq_poll iop;
	};
	ro2ib_qp_event_t *event;
	/* Only ro2ib_cq_quiesce() polls. */
	bool stopped;
	/* The device may use it for ever; @round, @event, @context, @wq not. */
	bool abandoned;
	/* Softirqs that request the next event. */
	atomic_t arming;
	struct ib_wc wcs[RO2IB_CQ_BATCH];
};

/* Prepares @cq to poll @cq->ib. */
void ro2ib_cq_init(struct ro2ib_cq *cq, struct workqueue_struct *wq,
		   ro2ib_cq_round_t *round, ro2ib_qp_event_t *event,
		   void *context);
/* Returns when no other context uses @cq, and from then on none does. */
void ro2ib_cq_stop(struct ro2ib_cq *cq);
/* The function that a provider calls for a new completion; any context. */
void ro2ib_cq_event(struct ib_cq *ib, void *context);
/* The function that a provider calls for an event of the queue pair. */
void ro2ib_qp_event(struct ib_event *event, void *context);

#endif /* RO2IB_CQ_H */
