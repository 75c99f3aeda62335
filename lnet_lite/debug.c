// SPDX-License-Identifier: GPL-2.0
/*
 * lnet_lite: the debug log, in the form that "lctl dk" prints. The newest
 * messages are kept.
 */
#include <linux/kernel.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/smp.h>
#include <linux/spinlock.h>
#include <linux/timekeeping.h>

#include <linux/libcfs/libcfs_debug.h>

#include "internal.h"

#define LNL_DK_LINE	1280

/* As libcfs has it: what went wrong, and every subsystem. Knobs set them */
unsigned int libcfs_debug = D_NETERROR;
EXPORT_SYMBOL_GPL(libcfs_debug);
unsigned int libcfs_subsystem_debug = INT_MAX;
EXPORT_SYMBOL_GPL(libcfs_subsystem_debug);

static char ring[LNL_DK_SIZE];
static char line[LNL_DK_LINE];
/* Bytes that were ever written, of which the last LNL_DK_SIZE are in the ring */
static u64 written;
/* Masks that were cleared */
static u64 cleared;
static DEFINE_RAW_SPINLOCK(dk_lock);

static void put(const char *text, size_t n)
{
	size_t at = written % LNL_DK_SIZE, first = min_t(size_t, n, LNL_DK_SIZE - at);

	memcpy(ring + at, text, first);
	memcpy(ring, text + first, n - first);
	written += n;
}

/* An LND checks the masks itself, except for console messages. Any context but NMI */
int libcfs_debug_msg(struct libcfs_debug_msg_data *data, const char *format, ...)
{
	struct timespec64 now;
	struct va_format vaf;
	unsigned long flags;
	va_list args;
	size_t n;

	/* With the name that LNet puts there. */
	if (data->msg_mask & D_CONSOLE) {
		va_start(args, format);
		vaf.fmt = format;
		vaf.va = &args;
		pr_info("LNet: %pV", &vaf);
		va_end(args);
	}
	ktime_get_real_ts64(&now);
	raw_spin_lock_irqsave(&dk_lock, flags);
	n = scnprintf(line, sizeof(line), "%08x:%08x:%u.0:%lld.%06lu:0:%d:0:(%s:%d:%s()) ",
		      data->msg_subsys, data->msg_mask, smp_processor_id(), (long long)now.tv_sec,
		      now.tv_nsec / NSEC_PER_USEC, task_pid_nr(current), data->msg_file,
		      data->msg_line, data->msg_fn);
	va_start(args, format);
	n += vscnprintf(line + n, sizeof(line) - n, format, args);
	va_end(args);
	put(line, n);
	raw_spin_unlock_irqrestore(&dk_lock, flags);
	return 0;
}
EXPORT_SYMBOL_GPL(libcfs_debug_msg);

/* All whole lines that are there: their length. @buf has LNL_DK_SIZE bytes */
size_t lnl_dk_read(char *buf)
{
	unsigned long flags;
	size_t n = 0;
	u64 from;

	raw_spin_lock_irqsave(&dk_lock, flags);
	from = max(cleared, written - min_t(u64, written, LNL_DK_SIZE));
	/* The first one may have lost its beginning. */
	if (from > cleared) {
		while (from < written && ring[from++ % LNL_DK_SIZE] != '\n')
			;
	}
	while (from < written)
		buf[n++] = ring[from++ % LNL_DK_SIZE];
	raw_spin_unlock_irqrestore(&dk_lock, flags);
	return n;
}

void lnl_dk_clear(void)
{
	unsigned long flags;

	raw_spin_lock_irqsave(&dk_lock, flags);
	cleared = written;
	raw_spin_unlock_irqrestore(&dk_lock, flags);
}
