// SPDX-License-Identifier: GPL-2.0
/*
 * ro2ib_cq_quiesce() with a completion queue of a fake device, the content of
 * which the tests make up.
 */
#include <kunit/test.h>
#include <linux/cpumask.h>
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/preempt.h>
#include <linux/workqueue.h>

#include "../rust/helpers/cq.h"

#define CQE	300

struct fake {
	struct ro2ib_cq cq;
	struct ib_cq ib;
	/* Completions in the queue, and completions that were handled. */
	int left, handled;
	/* Completions that were handled where a handler might have slept. */
	int sleepy;
	/* An event is being requested, which takes long if @slow. */
	bool arming, slow;
	struct work_struct raise;
	/* Events of the queue pair that were handled. */
	int events;
	/* Rounds that began while another one was under way. */
	int overlaps;
	atomic_t inside;
};

static int fake_poll(struct ib_cq *ib, int n, struct ib_wc *wc)
{
	struct fake *f = container_of(ib, struct fake, ib);
	int i;

	for (i = 0; i < n && f->left > 0; i++, f->left--)
		wc[i].status = IB_WC_WR_FLUSH_ERR;
	return i;
}

static int fake_arm(struct ib_cq *ib, enum ib_cq_notify_flags flags)
{
	struct fake *f = container_of(ib, struct fake, ib);

	if (f->slow) {
		WRITE_ONCE(f->arming, true);
		mdelay(100);
		WRITE_ONCE(f->arming, false);
	}
	return 0;
}

static void fake_round(void *context, struct ib_wc *wcs, int n)
{
	struct fake *f = context;

	f->overlaps += atomic_inc_return(&f->inside) != 1;
	f->handled += n;
	f->sleepy += !in_softirq();
	atomic_dec(&f->inside);
}

static void fake_event(struct ib_event *event, void *context)
{
	struct fake *f = context;

	f->events++;
}

static int refuse_to_destroy(struct ib_cq *ib, struct ib_udata *udata)
{
	return -EIO;
}

static struct fake *fake(struct kunit *test, struct workqueue_struct *wq,
			 int left)
{
	struct fake *f = kunit_kzalloc(test, sizeof(*f), GFP_KERNEL);
	struct ib_device *dev;

	KUNIT_ASSERT_NOT_NULL(test, f);
	dev = kunit_kzalloc(test, sizeof(*dev), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, dev);
	dev->ops.poll_cq = fake_poll;
	dev->ops.req_notify_cq = fake_arm;
	dev->ops.destroy_cq = refuse_to_destroy;
	f->ib.device = dev;
	f->ib.cqe = CQE;
	f->cq.ib = &f->ib;
	f->left = left;
	ro2ib_cq_init(&f->cq, wq, fake_round, fake_event, f);
	return f;
}

/* No interrupt comes for completions that a device has left in a queue. */
static void handles_what_is_left(struct kunit *test)
{
	struct workqueue_struct *const queues[] = { NULL, system_wq };
	int q;

	for (q = 0; q < ARRAY_SIZE(queues); q++) {
		struct fake *f = fake(test, queues[q], CQE);

		ro2ib_cq_quiesce(&f->cq);
		KUNIT_EXPECT_EQ(test, f->handled, CQE);
		KUNIT_EXPECT_EQ(test, f->sleepy, 0);
		/* Events have no effect any more, and a second call has. */
		f->left = 3;
		ro2ib_cq_event(&f->ib, &f->cq);
		if (queues[q])
			flush_work(&f->cq.work);
		KUNIT_EXPECT_EQ(test, f->handled, CQE);
		ro2ib_cq_quiesce(&f->cq);
		KUNIT_EXPECT_EQ(test, f->handled, CQE + 3);
	}
}

/* A device that is broken may never stop to report completions. */
static void handles_no_more_than_it_holds(struct kunit *test)
{
	struct fake *f = fake(test, NULL, INT_MAX / 2);

	ro2ib_cq_quiesce(&f->cq);
	KUNIT_EXPECT_EQ(test, f->handled, CQE);
}

/* Events come meanwhile, and do not make a second context poll. */
static void excludes_other_rounds(struct kunit *test)
{
	struct workqueue_struct *const queues[] = { NULL, system_wq };
	int q, i;

	for (q = 0; q < ARRAY_SIZE(queues); q++) {
		for (i = 0; i < 100; i++) {
			struct fake *f = fake(test, queues[q], 40);

			ro2ib_cq_event(&f->ib, &f->cq);
			ro2ib_cq_quiesce(&f->cq);
			KUNIT_EXPECT_EQ(test, f->handled, 40);
			KUNIT_EXPECT_EQ(test, f->overlaps, 0);
		}
	}
}

static void raise_event(struct work_struct *work)
{
	struct fake *f = container_of(work, struct fake, raise);

	ro2ib_cq_event(&f->ib, &f->cq);
}

/* The queue may be freed then: no other CPU requests the next event. */
static void waits_for_the_request_of_an_event(struct kunit *test)
{
	struct fake *f = fake(test, NULL, 1);
	int i;

	f->slow = true;
	INIT_WORK(&f->raise, raise_event);
	queue_work_on(cpumask_last(cpu_online_mask), system_wq, &f->raise);
	for (i = 0; i < 1000 && !READ_ONCE(f->arming); i++)
		usleep_range(1000, 2000);
	ro2ib_cq_stop(&f->cq);
	KUNIT_EXPECT_FALSE(test, READ_ONCE(f->arming));
	KUNIT_EXPECT_EQ(test, f->handled, 1);
	flush_work(&f->raise);
}

/* A device may refuse to destroy a queue pair, or its queue, and go on. */
static void nothing_follows_what_stays(struct kunit *test)
{
	struct ib_event event = { .event = IB_EVENT_QP_FATAL };
	int i;

	for (i = 0; i < 4; i++) {
		bool in_work = i & 1, stays = i & 2;
		struct workqueue_struct *wq = NULL;
		struct fake *f;

		if (in_work) {
			wq = alloc_workqueue("abandoned", WQ_UNBOUND, 0);
			KUNIT_ASSERT_NOT_NULL(test, wq);
		}
		f = fake(test, wq, 3);
		KUNIT_EXPECT_FALSE(test, ro2ib_cq_is_used(&f->cq));
		atomic_set(&f->ib.usecnt, 2);
		KUNIT_EXPECT_TRUE(test, ro2ib_cq_is_used(&f->cq));
		ro2ib_qp_event(&event, &f->cq);
		KUNIT_EXPECT_EQ(test, f->events, 1);
		ro2ib_cq_quiesce(&f->cq);
		KUNIT_EXPECT_EQ(test, f->handled, 3);

		if (stays) {
			ro2ib_cq_abandon(&f->cq);
		} else {
			atomic_set(&f->ib.usecnt, 0);
			ro2ib_cq_destroy(&f->cq);
		}
		/* The tests do not use it any more. */
		module_put(THIS_MODULE);
		if (wq)
			destroy_workqueue(wq);
		f->left = 3;
		f->cq.context = NULL;
		ro2ib_cq_event(&f->ib, &f->cq);
		ro2ib_qp_event(&event, &f->cq);
		if (stays)
			ro2ib_cq_destroy(&f->cq);
		msleep(20);
		KUNIT_EXPECT_EQ(test, f->handled, 3);
		KUNIT_EXPECT_EQ(test, f->events, 1);
	}
}

static struct kunit_case quiesce_cases[] = {
	KUNIT_CASE(handles_what_is_left),
	KUNIT_CASE(handles_no_more_than_it_holds),
	KUNIT_CASE(excludes_other_rounds),
	KUNIT_CASE(waits_for_the_request_of_an_event),
	KUNIT_CASE(nothing_follows_what_stays),
	{}
};

static struct kunit_suite quiesce_suite = {
	.name = "ro2iblnd_cq_quiesce",
	.test_cases = quiesce_cases,
};

kunit_test_suite(quiesce_suite);
