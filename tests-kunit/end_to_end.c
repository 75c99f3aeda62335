// SPDX-License-Identifier: GPL-2.0
/*
 * NI to NI in one kernel: lnet_lite on top, ro2iblnd in the middle, two
 * soft-RoCE links below (veth0 with 10.0.1.1 and veth1 with 10.0.1.2, see
 * scripts/vm/rdma_links.py). All three modules must be there before this one.
 */
#include <kunit/test.h>
#include <linux/sizes.h>
#include <lnet_lite.h>

static struct lnet_nid left, right;

static int end_to_end_init(struct kunit_suite *suite)
{
	struct lnet_lite_ni_opts opts = LNET_LITE_NI_OPTS_DEFAULT;
	int rc;

	rc = lnet_lite_ni_add("o2ib", "veth0", &opts, &left);
	if (rc)
		return rc;
	rc = lnet_lite_ni_add("o2ib", "veth1", &opts, &right);
	if (rc)
		lnet_lite_ni_del(&left);
	return rc;
}

static void end_to_end_exit(struct kunit_suite *suite)
{
	lnet_lite_ni_del(&right);
	lnet_lite_ni_del(&left);
}

static void run(struct kunit *test, struct lnet_lite_traffic *t)
{
	struct lnet_lite_result r;

	t->from = left;
	t->to = right;
	t->timeout = 120;
	KUNIT_ASSERT_EQ(test, lnet_lite_traffic(t, &r), 0);
	KUNIT_EXPECT_EQ(test, r.done, t->count);
	KUNIT_EXPECT_EQ(test, r.first_error, 0);
	KUNIT_EXPECT_EQ(test, r.errors, 0);
	KUNIT_EXPECT_EQ(test, r.timeouts, 0);
	KUNIT_EXPECT_EQ(test, r.stuck, 0);
	KUNIT_EXPECT_EQ(test, r.verify_errors, 0);
	KUNIT_EXPECT_EQ(test, r.peer_verify_errors, 0);
	KUNIT_EXPECT_EQ(test, lnet_lite_stat("violations"), 0);
}

static void pings_both_ways(struct kunit *test)
{
	KUNIT_EXPECT_GT(test, lnet_lite_ping(&left, &right, 60), 0);
	KUNIT_EXPECT_GT(test, lnet_lite_ping(&right, &left, 60), 0);
}

struct size {
	u32 bytes;
};

/* Around the border between IMMEDIATE and RDMA, and one LNet MTU */
static const struct size sizes[] = {
	{ 0 }, { 1 }, { 3976 }, { 3977 }, { SZ_4K }, { SZ_64K }, { SZ_1M },
};

static void size_name(const struct size *size, char *name)
{
	snprintf(name, KUNIT_PARAM_DESC_SIZE, "%u bytes", size->bytes);
}
KUNIT_ARRAY_PARAM(sizes, sizes, size_name);

static void moves_every_size(struct kunit *test)
{
	const struct size *size = test->param_value;
	struct lnet_lite_traffic t;
	int op;

	for (op = LNET_LITE_PUT; op <= LNET_LITE_MIX; op++) {
		lnet_lite_traffic_init(&t);
		t.op = op;
		t.size = size->bytes;
		t.count = 8;
		t.conc = 4;
		run(test, &t);
	}
}

static void moves_every_shape(struct kunit *test)
{
	struct lnet_lite_traffic t;
	int shape;

	for (shape = LNET_LITE_ALIGNED; shape < LNET_LITE_BIGMD; shape++) {
		lnet_lite_traffic_init(&t);
		t.op = LNET_LITE_MIX;
		t.shape = shape;
		t.tshape = LNET_LITE_BIGMD - 1 - shape;
		t.size = 50001;
		t.count = 16;
		run(test, &t);
	}
}

/* An unaligned start makes 257 pieces of one MTU */
static void moves_257_fragments(struct kunit *test)
{
	struct lnet_lite_traffic t;

	lnet_lite_traffic_init(&t);
	t.op = LNET_LITE_MIX;
	t.shape = LNET_LITE_UNALIGNED;
	t.tshape = LNET_LITE_UNALIGNED;
	t.size = SZ_1M;
	t.count = 6;
	t.conc = 3;
	run(test, &t);
}

static void leaves_the_rest_of_a_sink_alone(struct kunit *test)
{
	struct lnet_lite_traffic t;

	lnet_lite_traffic_init(&t);
	t.op = LNET_LITE_GET;
	t.size = 5000;
	t.sink = SZ_64K;
	t.count = 16;
	run(test, &t);
}

static void truncates(struct kunit *test)
{
	struct lnet_lite_traffic t;

	lnet_lite_traffic_init(&t);
	t.op = LNET_LITE_MIX;
	t.size = SZ_64K;
	t.sink = 5000;
	t.count = 16;
	run(test, &t);
}

static void gets_through_a_router(struct kunit *test)
{
	struct lnet_lite_traffic t;

	lnet_lite_traffic_init(&t);
	t.op = LNET_LITE_GET;
	t.size = SZ_64K;
	t.route = true;
	t.count = 16;
	run(test, &t);
}

static void survives_a_slow_consumer(struct kunit *test)
{
	struct lnet_lite_traffic t;

	KUNIT_ASSERT_EQ(test, lnet_lite_set("slow_ms", 5), 0);
	lnet_lite_traffic_init(&t);
	t.op = LNET_LITE_MIX;
	t.count = 64;
	t.conc = 32;
	run(test, &t);
	KUNIT_EXPECT_EQ(test, lnet_lite_set("slow_ms", 0), 0);
}

static struct kunit_case end_to_end_cases[] = {
	KUNIT_CASE_SLOW(pings_both_ways),
	KUNIT_CASE_PARAM_ATTR(moves_every_size, sizes_gen_params, { .speed = KUNIT_SPEED_SLOW }),
	KUNIT_CASE_SLOW(moves_every_shape),
	KUNIT_CASE_SLOW(moves_257_fragments),
	KUNIT_CASE_SLOW(leaves_the_rest_of_a_sink_alone),
	KUNIT_CASE_SLOW(truncates),
	KUNIT_CASE_SLOW(gets_through_a_router),
	KUNIT_CASE_SLOW(survives_a_slow_consumer),
	{}
};

static struct kunit_suite end_to_end_suite = {
	.name = "ro2iblnd_end_to_end",
	.suite_init = end_to_end_init,
	.suite_exit = end_to_end_exit,
	.test_cases = end_to_end_cases,
};
kunit_test_suite(end_to_end_suite);

MODULE_DESCRIPTION("KUnit suite of ro2iblnd: NI to NI");
MODULE_LICENSE("GPL");
