// SPDX-License-Identifier: GPL-2.0
/*
 * ro2ib_cq_quiesce() with a completion queue of a fake device, the content of
 * which the tests make up.
 */
#include <kunit/test.h>
#include <linux/delay.h>
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
	/* Requests for an event. */
	int armed;
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

	WRITE_ONCE(f->armed, f->armed + 1);
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
	f->ib.device = dev;
	f->ib.cqe = CQE;
	f->cq.ib = &f->ib;
	f->left = left;
	ro2ib_cq_init(&f->cq, wq, fake_round, f);
	return f;
}

static bool armed(struct fake *f, int n)
{
	int i;

	for (i = 0; i < 1000 && READ_ONCE(f->armed) < n; i++)
		usleep_range(1000, 2000);
	return READ_ONCE(f->armed) >= n;
}

/* No interrupt comes for completions that a device has left in a queue. */
static void handles_what_is_left(struct kunit *test)
{
	struct fake *f = fake(test, NULL, CQE);

	ro2ib_cq_quiesce(&f->cq);
	KUNIT_EXPECT_EQ(test, f->handled, CQE);
	KUNIT_EXPECT_EQ(test, f->sleepy, 0);
	/* Events come again. */
	KUNIT_EXPECT_TRUE(test, armed(f, 1));
	ro2ib_cq_event(&f->ib, &f->cq);
	KUNIT_EXPECT_TRUE(test, armed(f, 2));
	ro2ib_cq_stop(&f->cq);
}

/* A queue that a work item polls, and for which no event has come. */
static void polls_without_an_event(struct kunit *test)
{
	struct fake *f = fake(test, system_wq, CQE);

	ro2ib_cq_quiesce(&f->cq);
	KUNIT_EXPECT_EQ(test, f->handled, CQE);
	KUNIT_EXPECT_EQ(test, f->sleepy, 0);
	KUNIT_EXPECT_TRUE(test, armed(f, 1));
	ro2ib_cq_event(&f->ib, &f->cq);
	KUNIT_EXPECT_TRUE(test, armed(f, 2));
	ro2ib_cq_stop(&f->cq);
}

/* A device that is broken may never stop to report completions. */
static void handles_no_more_than_it_holds(struct kunit *test)
{
	struct fake *f = fake(test, NULL, INT_MAX / 2);

	ro2ib_cq_quiesce(&f->cq);
	KUNIT_EXPECT_GE(test, READ_ONCE(f->handled), CQE);
	WRITE_ONCE(f->left, 0);
	ro2ib_cq_stop(&f->cq);
}

/* Events come meanwhile, and do not make a second context poll. */
static void excludes_other_rounds(struct kunit *test)
{
	struct workqueue_struct *const queues[] = { NULL, system_wq };
	int q, i;

	for (q = 0; q < ARRAY_SIZE(queues); q++) {
		struct fake *f = fake(test, queues[q], 0);

		for (i = 0; i < 200; i++) {
			WRITE_ONCE(f->left, 40);
			ro2ib_cq_event(&f->ib, &f->cq);
			ro2ib_cq_quiesce(&f->cq);
			KUNIT_EXPECT_EQ(test, READ_ONCE(f->left), 0);
		}
		ro2ib_cq_stop(&f->cq);
		KUNIT_EXPECT_EQ(test, f->handled, 200 * 40);
		KUNIT_EXPECT_EQ(test, f->overlaps, 0);
	}
}

static struct kunit_case quiesce_cases[] = {
	KUNIT_CASE(handles_what_is_left),
	KUNIT_CASE(polls_without_an_event),
	KUNIT_CASE(handles_no_more_than_it_holds),
	KUNIT_CASE(excludes_other_rounds),
	{}
};

static struct kunit_suite quiesce_suite = {
	.name = "ro2iblnd_cq_quiesce",
	.test_cases = quiesce_cases,
};

kunit_test_suite(quiesce_suite);
