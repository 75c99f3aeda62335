// SPDX-License-Identifier: GPL-2.0
/*
 * One-sided traffic under real LNet, which lnet_selftest cannot make: its
 * server answers every message.
 *
 * Loaded on both nodes. Each is a target for PUT and GET at a portal of its own.
 * Write "put|get NID COUNT CONCURRENCY SIZE" to debugfs lnet_flood/run to send.
 * The write returns when all messages are finished. lnet_flood/stats counts the
 * messages that the last run sent, and all that arrived. p50_ns and so on are
 * latencies of a run with one message at a time (of the first FLOOD_SAMPLES).
 * twice= counts PUTs that LNet resent although they had arrived, of the first
 * FLOOD_SERIALS. "0" into lnet_flood/take: PUTs wait in LNet, and keep the
 * driver's buffers, until it is "1" again.
 */
#include <linux/bitmap.h>
#include <linux/completion.h>
#include <linux/debugfs.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/semaphore.h>
#include <linux/slab.h>
#include <linux/sort.h>
#include <linux/uaccess.h>
#include <linux/wait_bit.h>

#include "lnet_api.h"

#define FLOOD_PORTAL	60
#define FLOOD_BITS	0x666c6f6f64ULL
#define FLOOD_BUFFER	(1U << 20)
#define FLOOD_PATIENCE	(120 * HZ)
#define FLOOD_SERIALS	(1U << 20)
#define FLOOD_SAMPLES	(1U << 16)

static struct dentry *flood_dir;
static DEFINE_MUTEX(flood_mutex);
static DEFINE_MUTEX(sink_mutex);

/* Received messages. Handlers of one connection run one after the other. */
static void *sink_buffer;
static struct lnet_handle_md sink_md;
static bool sink_takes;
static DECLARE_COMPLETION(sink_gone);
static atomic_long_t sink_puts, sink_gets, sink_errors, sink_disorder;
static atomic_long_t sink_twice;
static u32 sink_next;
static unsigned long *sink_seen;

/* The current run, or the last one. */
static void *source_buffer;
static struct semaphore source_free;
static struct completion source_gone;
static enum lnet_event_kind source_end;
static atomic_long_t source_done, source_errors;
static atomic_t source_sending;
/* The last error: the kind of its event, and its status. */
static int source_error_event, source_error;
static s64 source_longest_us, source_took_us;
/* Latency of each message. */
static u32 *samples;
static unsigned int nr_samples;
/* Serial numbers of the PUTs of all runs. */
static u32 source_serial;

static void sink_event(struct lnet_event *ev)
{
	if (ev->status) {
		atomic_long_inc(&sink_errors);
	} else if (ev->type == LNET_EVENT_GET) {
		atomic_long_inc(&sink_gets);
	} else if (ev->type == LNET_EVENT_PUT) {
		/* The sender numbers PUTs from 0 in each run, and serially over all runs. */
		u32 number = lower_32_bits(ev->hdr_data);
		u32 serial = upper_32_bits(ev->hdr_data);

		if (number && number != READ_ONCE(sink_next))
			atomic_long_inc(&sink_disorder);
		WRITE_ONCE(sink_next, number + 1);
		if (serial < FLOOD_SERIALS &&
		    test_and_set_bit(serial, sink_seen))
			atomic_long_inc(&sink_twice);
		atomic_long_inc(&sink_puts);
	}
	if (ev->unlinked)
		complete(&sink_gone);
}

static void source_event(struct lnet_event *ev)
{
	if (ev->status) {
		source_error_event = ev->type;
		source_error = ev->status;
		atomic_long_inc(&source_errors);
	}
	/* A GET that failed to be sent has no REPLY. */
	if (ev->type == source_end ||
	    (ev->type == LNET_EVENT_SEND && ev->status)) {
		atomic_long_inc(&source_done);
		up(&source_free);
	}
	if (ev->type == LNET_EVENT_SEND && atomic_dec_and_test(&source_sending))
		wake_up_var(&source_sending);
	if (ev->unlinked)
		complete(&source_gone);
}

/* Takes a free place for a message, and notes how long that took. */
static int flood_wait(void)
{
	ktime_t began = ktime_get();
	int rc = down_timeout(&source_free, FLOOD_PATIENCE);
	s64 waited = ktime_us_delta(ktime_get(), began);

	source_longest_us = max(source_longest_us, waited);
	return rc;
}

static void flood_sample(ktime_t since)
{
	s64 took = ktime_to_ns(ktime_sub(ktime_get(), since));

	if (nr_samples < FLOOD_SAMPLES)
		samples[nr_samples++] = min_t(s64, took, U32_MAX);
}

static int compare(const void *a, const void *b)
{
	u32 x = *(const u32 *)a, y = *(const u32 *)b;

	return x < y ? -1 : x > y;
}

static u32 permille(unsigned int part)
{
	return nr_samples ? samples[(u64)(nr_samples - 1) * part / 1000] : 0;
}

static int flood(bool get, struct lnet_nid *nid, long count, int conc,
		 unsigned int size)
{
	struct lnet_processid target = { .nid = *nid, .pid = LNET_PID_LUSTRE };
	struct lnet_md md = {
		.umd_start = source_buffer,
		.umd_length = size,
		.umd_threshold = LNET_MD_THRESH_INF,
		.umd_handler = source_event,
	};
	ktime_t began = ktime_get(), issued = 0;
	struct lnet_handle_md mdh;
	bool one_by_one = conc == 1;
	u64 serial;
	long i;
	int rc;

	sema_init(&source_free, conc);
	init_completion(&source_gone);
	source_end = get ? LNET_EVENT_REPLY : LNET_EVENT_SEND;
	atomic_long_set(&source_done, 0);
	atomic_long_set(&source_errors, 0);
	source_longest_us = 0;
	nr_samples = 0;
	source_error_event = 0;
	source_error = 0;
	rc = LNetMDBind(&md, LNET_UNLINK, &mdh);
	if (rc)
		return rc;
	for (i = 0; i < count; i++) {
		rc = flood_wait();
		if (rc)
			break;
		if (i && one_by_one)
			flood_sample(issued);
		atomic_inc(&source_sending);
		issued = ktime_get();
		if (get) {
			rc = LNetGet(NULL, mdh, &target, FLOOD_PORTAL,
				     FLOOD_BITS, 0, false);
		} else {
			serial = source_serial++;
			rc = LNetPut(NULL, mdh, LNET_NOACK_REQ, &target,
				     FLOOD_PORTAL, FLOOD_BITS, 0,
				     serial << 32 | i);
		}
		if (rc)
			break;
	}
	/* All places are free again: no message is on its way. */
	while (!rc && conc--)
		rc = flood_wait();
	source_took_us = ktime_us_delta(ktime_get(), began);
	if (i && one_by_one && !rc)
		flood_sample(issued);
	sort(samples, nr_samples, sizeof(*samples), compare, NULL);
	/*
	 * A REPLY may be faster than its GET's SEND, which LNet calls a failure
	 * if the MD is gone by then.
	 */
	wait_var_event_timeout(&source_sending, !atomic_read(&source_sending),
			       FLOOD_PATIENCE);
	LNetMDUnlink(mdh);
	wait_for_completion(&source_gone);
	return rc;
}

static ssize_t run_write(struct file *file, const char __user *from,
			 size_t len, loff_t *pos)
{
	char line[128], op[8], name[64];
	struct lnet_nid nid;
	unsigned int size;
	long count;
	int conc, rc;

	if (len >= sizeof(line))
		return -EINVAL;
	if (copy_from_user(line, from, len))
		return -EFAULT;
	line[len] = 0;
	if (sscanf(line, "%7s %63s %ld %d %u", op, name, &count, &conc,
		   &size) != 5)
		return -EINVAL;
	if (libcfs_strnid(&nid, name) || conc < 1 || size > FLOOD_BUFFER)
		return -EINVAL;
	if (mutex_lock_interruptible(&flood_mutex))
		return -EINTR;
	rc = flood(!strcmp(op, "get"), &nid, count, conc, size);
	mutex_unlock(&flood_mutex);
	return rc ? rc : len;
}

static const struct file_operations run_fops = {
	.owner = THIS_MODULE,
	.write = run_write,
};

static int stats_show(struct seq_file *s, void *unused)
{
	seq_printf(s, "done=%ld\nerrors=%ld\nlongest_us=%lld\ntook_us=%lld\n",
		   atomic_long_read(&source_done),
		   atomic_long_read(&source_errors),
		   source_longest_us, source_took_us);
	seq_printf(s, "error_event=%d\nerror=%d\n", source_error_event,
		   source_error);
	seq_printf(s, "samples=%u\np50_ns=%u\np99_ns=%u\np999_ns=%u\n",
		   nr_samples, permille(500), permille(990), permille(999));
	seq_printf(s, "puts=%ld\ngets=%ld\nsink_errors=%ld\ndisorder=%ld\ntwice=%ld\n",
		   atomic_long_read(&sink_puts), atomic_long_read(&sink_gets),
		   atomic_long_read(&sink_errors),
		   atomic_long_read(&sink_disorder),
		   atomic_long_read(&sink_twice));
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(stats);

static int sink_attach(void)
{
	struct lnet_processid any = {
		.nid = LNET_ANY_NID,
		.pid = LNET_PID_ANY,
	};
	struct lnet_md md = {
		.umd_start = sink_buffer,
		.umd_length = FLOOD_BUFFER,
		.umd_threshold = LNET_MD_THRESH_INF,
		.umd_options = LNET_MD_OP_PUT | LNET_MD_OP_GET |
			       LNET_MD_MANAGE_REMOTE | LNET_MD_TRUNCATE,
		.umd_handler = sink_event,
	};
	struct lnet_me *me;
	int rc;

	me = LNetMEAttach(FLOOD_PORTAL, &any, FLOOD_BITS, 0, LNET_UNLINK,
			  LNET_INS_AFTER);
	if (IS_ERR(me))
		return PTR_ERR(me);
	rc = LNetMDAttach(me, &md, LNET_RETAIN, &sink_md);
	sink_takes = !rc;
	return rc;
}

static void sink_detach(void)
{
	if (!sink_takes)
		return;
	sink_takes = false;
	LNetMDUnlink(sink_md);
	wait_for_completion(&sink_gone);
}

static ssize_t take_write(struct file *file, const char __user *from,
			  size_t len, loff_t *pos)
{
	bool take;
	int rc = kstrtobool_from_user(from, len, &take);

	if (rc)
		return rc;
	if (mutex_lock_interruptible(&sink_mutex))
		return -EINTR;
	if (!take) {
		rc = LNetSetLazyPortal(FLOOD_PORTAL);
		if (!rc)
			sink_detach();
	} else if (!sink_takes) {
		rc = sink_attach();
		LNetClearLazyPortal(FLOOD_PORTAL);
	}
	mutex_unlock(&sink_mutex);
	return rc ? rc : len;
}

static const struct file_operations take_fops = {
	.owner = THIS_MODULE,
	.write = take_write,
};

static int __init flood_init(void)
{
	int rc = LNetNIInit(LNET_PID_LUSTRE);

	if (rc < 0)
		return rc;
	sink_buffer = kvzalloc(FLOOD_BUFFER, GFP_KERNEL);
	source_buffer = kvzalloc(FLOOD_BUFFER, GFP_KERNEL);
	sink_seen = bitmap_zalloc(FLOOD_SERIALS, GFP_KERNEL);
	samples = kvmalloc_array(FLOOD_SAMPLES, sizeof(*samples), GFP_KERNEL);
	rc = -ENOMEM;
	if (sink_buffer && source_buffer && sink_seen && samples)
		rc = sink_attach();
	if (rc) {
		kvfree(samples);
		bitmap_free(sink_seen);
		kvfree(sink_buffer);
		kvfree(source_buffer);
		LNetNIFini();
		return rc;
	}
	flood_dir = debugfs_create_dir("lnet_flood", NULL);
	debugfs_create_file("run", 0200, flood_dir, NULL, &run_fops);
	debugfs_create_file("take", 0200, flood_dir, NULL, &take_fops);
	debugfs_create_file("stats", 0400, flood_dir, NULL, &stats_fops);
	return 0;
}

static void __exit flood_exit(void)
{
	debugfs_remove_recursive(flood_dir);
	sink_detach();
	LNetClearLazyPortal(FLOOD_PORTAL);
	lnet_assert_handler_unused(sink_event);
	lnet_assert_handler_unused(source_event);
	LNetNIFini();
	kvfree(samples);
	bitmap_free(sink_seen);
	kvfree(sink_buffer);
	kvfree(source_buffer);
}

module_init(flood_init);
module_exit(flood_exit);
MODULE_DESCRIPTION("One-sided traffic under LNet, for tests");
MODULE_LICENSE("GPL");
