// SPDX-License-Identifier: GPL-2.0
/*
 * ro2ib_cq_quiesce() with completion queues of a fake device: the tests make up
 * their content, and whether other queue pairs keep them busy.
 */
#include <kunit/test.h>
#include <linux/completion.h>
#include <linux/delay.h>
#include <linux/irq_poll.h>
#include <linux/jiffies.h>
#include <linux/preempt.h>
#include <linux/workqueue.h>
#include <rdma/ib_verbs.h>

#include "ro2iblnd_helpers.h"

#define CQE	300

struct fake {
	struct ib_device *dev;
	struct ib_cq cq;
	struct ib_cqe cqe;
	/* Completions in the queue, and completions that were handled. */
	int left, handled;
	/* Completions that were handled where a handler might have slept. */
	int sleepy;
	/* Other queue pairs keep the queue busy. */
	bool busy;
	/* Rounds of the softirq. */
	int rounds;
};

static int fake_poll(struct ib_cq *cq, int n, struct ib_wc *wc)
{
	struct fake *f = container_of(cq, struct fake, cq);
	int i;

	for (i = 0; i < n && f->left > 0; i++, f->left--) {
		wc[i].wr_cqe = &f->cqe;
		wc[i].status = IB_WC_WR_FLUSH_ERR;
	}
	return i;
}

static void fake_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct fake *f = container_of(cq, struct fake, cq);

	f->handled++;
	f->sleepy += !in_softirq();
}

static int fake_round(struct irq_poll *iop, int budget)
{
	struct fake *f = container_of(iop, struct fake, cq.iop);

	WRITE_ONCE(f->rounds, f->rounds + 1);
	if (READ_ONCE(f->busy))
		return budget;
	irq_poll_complete(iop);
	return 0;
}

static struct fake *fake(struct kunit *test, int left)
{
	struct fake *f = kunit_kzalloc(test, sizeof(*f), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, f);
	f->dev = kunit_kzalloc(test, sizeof(*f->dev), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, f->dev);
	f->dev->ops.poll_cq = fake_poll;
	f->cq.device = f->dev;
	f->cq.cqe = CQE;
	f->cq.poll_ctx = IB_POLL_SOFTIRQ;
	f->cqe.done = fake_done;
	f->left = left;
	irq_poll_init(&f->cq.iop, 16, fake_round);
	return f;
}

static void sched(struct fake *f)
{
	local_bh_disable();
	irq_poll_sched(&f->cq.iop);
	local_bh_enable();
}

static bool runs(struct fake *f)
{
	int before = READ_ONCE(f->rounds), i;

	for (i = 0; i < 1000 && READ_ONCE(f->rounds) == before; i++)
		usleep_range(1000, 2000);
	return READ_ONCE(f->rounds) != before;
}

/* No interrupt comes for completions that a device has left in a queue. */
static void handles_what_is_left(struct kunit *test)
{
	struct fake *f = fake(test, CQE);

	ro2ib_cq_quiesce(&f->cq);
	KUNIT_EXPECT_EQ(test, f->handled, CQE);
	KUNIT_EXPECT_EQ(test, f->sleepy, 0);
	KUNIT_EXPECT_TRUE(test, runs(f) || f->rounds);
	irq_poll_disable(&f->cq.iop);
}

/* Does not wait for completions that other queue pairs add meanwhile. */
static void handles_no_more_than_it_holds(struct kunit *test)
{
	struct fake *f = fake(test, INT_MAX);

	ro2ib_cq_quiesce(&f->cq);
	KUNIT_EXPECT_EQ(test, f->handled, CQE);
	irq_poll_disable(&f->cq.iop);
}

/*
 * Does not wait until the other queue pairs pause. The rounds of the softirq go
 * on afterwards.
 */
static void settles_a_busy_queue(struct kunit *test)
{
	struct fake *f = fake(test, CQE);
	unsigned long began;

	WRITE_ONCE(f->busy, true);
	sched(f);
	KUNIT_EXPECT_TRUE(test, runs(f));
	began = jiffies;
	ro2ib_cq_quiesce(&f->cq);
	KUNIT_EXPECT_TRUE(test, time_before(jiffies, began + 5 * HZ));
	KUNIT_EXPECT_EQ(test, f->handled, CQE);
	KUNIT_EXPECT_TRUE(test, runs(f));
	WRITE_ONCE(f->busy, false);
	irq_poll_disable(&f->cq.iop);
}

/* A queue that a work item polls, and that no notification has come for. */
static void fake_run(struct work_struct *work)
{
	struct fake *f = container_of(work, struct fake, cq.work);
	struct ib_wc wc[16];
	int n, i;

	while ((n = fake_poll(&f->cq, ARRAY_SIZE(wc), wc)) > 0)
		for (i = 0; i < n; i++)
			fake_done(&f->cq, &wc[i]);
}

static void polls_without_a_notification(struct kunit *test)
{
	struct fake *f = fake(test, CQE);

	f->cq.poll_ctx = IB_POLL_WORKQUEUE;
	f->cq.comp_wq = system_wq;
	INIT_WORK(&f->cq.work, fake_run);
	ro2ib_cq_quiesce(&f->cq);
	KUNIT_EXPECT_EQ(test, f->handled, CQE);
}

struct settler {
	struct work_struct work;
	struct completion done;
	struct fake *f;
};

static void settle(struct work_struct *work)
{
	struct settler *s = container_of(work, struct settler, work);

	ro2ib_cq_quiesce(&s->f->cq);
	complete(&s->done);
}

static void start(struct settler *s, struct fake *f)
{
	s->f = f;
	init_completion(&s->done);
	INIT_WORK_ONSTACK(&s->work, settle);
	queue_work(system_unbound_wq, &s->work);
}

static bool ends(struct settler *s, unsigned int seconds)
{
	return wait_for_completion_timeout(&s->done, seconds * HZ);
}

/* A device whose poll never ends holds up no other device. */
static void settles_beside_a_queue_that_hangs(struct kunit *test)
{
	struct fake *hung = fake(test, CQE), *f = fake(test, CQE);
	struct settler first, second, third;

	/* Stands for a poll that is under way. */
	irq_poll_disable(&hung->cq.iop);
	start(&first, hung);
	start(&second, hung);
	msleep(100);
	start(&third, f);
	KUNIT_EXPECT_TRUE(test, ends(&third, 10));
	KUNIT_EXPECT_EQ(test, f->handled, CQE);
	KUNIT_EXPECT_FALSE(test, completion_done(&first.done));
	KUNIT_EXPECT_FALSE(test, completion_done(&second.done));
	irq_poll_enable(&hung->cq.iop);
	wait_for_completion(&first.done);
	wait_for_completion(&second.done);
	flush_work(&first.work);
	flush_work(&second.work);
	flush_work(&third.work);
	destroy_work_on_stack(&first.work);
	destroy_work_on_stack(&second.work);
	destroy_work_on_stack(&third.work);
	KUNIT_EXPECT_EQ(test, hung->handled, CQE);
	irq_poll_disable(&hung->cq.iop);
	irq_poll_disable(&f->cq.iop);
}

static struct kunit_case settle_cases[] = {
	KUNIT_CASE(polls_without_a_notification),
	KUNIT_CASE(settles_beside_a_queue_that_hangs),
	KUNIT_CASE(handles_what_is_left),
	KUNIT_CASE(handles_no_more_than_it_holds),
	KUNIT_CASE(settles_a_busy_queue),
	{}
};

static struct kunit_suite settle_suite = {
	.name = "ro2iblnd_settle",
	.test_cases = settle_cases,
};

kunit_test_suite(settle_suite);
