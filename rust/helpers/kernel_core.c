// SPDX-License-Identifier: GPL-2.0
/* Locks, allocation scopes, work queues and CPUs. */
#include <linux/cpumask.h>
#include <linux/error-injection.h>
#include <linux/kcsan-checks.h>
#include <linux/lockdep.h>
#include <linux/ratelimit.h>
#include <linux/rcupdate.h>
#include <linux/sched/mm.h>
#include <linux/workqueue.h>

#include "ro2iblnd_compat.h"
#include "ro2iblnd_helpers.h"

void ro2ib_spin_lock_bh(spinlock_t *lock)
{
	spin_lock_bh(lock);
}

void ro2ib_spin_unlock_bh(spinlock_t *lock)
{
	spin_unlock_bh(lock);
}

int ro2ib_spin_trylock_bh(spinlock_t *lock)
{
	return spin_trylock_bh(lock);
}

void ro2ib_spin_assert_held(spinlock_t *lock)
{
	lockdep_assert_held(lock);
}

/*
 * The scheduler reads the flags of any task without a lock: no race of this
 * driver.
 */
unsigned int ro2ib_memalloc_nofs_save(void)
{
	unsigned int flags;

	kcsan_disable_current();
	flags = memalloc_nofs_save();
	kcsan_enable_current();
	return flags;
}

void ro2ib_memalloc_nofs_restore(unsigned int flags)
{
	kcsan_disable_current();
	memalloc_nofs_restore(flags);
	kcsan_enable_current();
}

/* Kernels before 6.17 have no WQ_PERCPU: per-CPU is what 0 means there. */
#ifdef RO2IB_HAVE_WQ_PERCPU
#define RO2IB_WQ_PERCPU WQ_PERCPU
#else
#define RO2IB_WQ_PERCPU 0
#endif

/*
 * @at_once: limit of items that run at a time, 0 for the largest. The kernel counts
 * them, on a queue that is not bound to CPUs, per NUMA node (until 6.5), per CPU
 * (until 6.8), or in all, of which each node gets its share, 8 at least.
 */
struct workqueue_struct *ro2ib_alloc_workqueue(const char *name, bool unbound,
					       bool highpri, int at_once)
{
	unsigned int flags = WQ_MEM_RECLAIM;

	flags |= unbound ? WQ_UNBOUND : RO2IB_WQ_PERCPU;
	if (highpri)
		flags |= WQ_HIGHPRI;
	return alloc_workqueue("%s", flags, at_once ?: WQ_MAX_ACTIVE, name);
}

void ro2ib_flush_workqueue(struct workqueue_struct *wq)
{
	flush_workqueue(wq);
}

/*
 * Waits until every callback of the module that only has to return has
 * returned: in a softirq, or in a work item that was preempted there.
 */
void ro2ib_synchronize_callbacks(void)
{
	synchronize_rcu();
	synchronize_rcu_tasks();
}

/* Returns a CPU that is online now; it may go offline at any time. */
u32 ro2ib_online_cpu(u32 hint)
{
	unsigned int cpu = hint;

	if (cpu < nr_cpu_ids && cpu_online(cpu))
		return cpu;
	cpu = cpumask_nth(hint % num_online_cpus(), cpu_online_mask);
	return cpu < nr_cpu_ids ? cpu : cpumask_first(cpu_online_mask);
}

/* Returns the number of possible CPUs. */
u32 ro2ib_cpus(void)
{
	return num_possible_cpus();
}

struct net *ro2ib_init_net(void)
{
	return &init_net;
}

bool ro2ib_log_allowed(void)
{
	static DEFINE_RATELIMIT_STATE(rs, DEFAULT_RATELIMIT_INTERVAL,
				      DEFAULT_RATELIMIT_BURST);

	return __ratelimit(&rs);
}

bool ro2ib_log_untrusted_allowed(void)
{
	static DEFINE_RATELIMIT_STATE(rs, DEFAULT_RATELIMIT_INTERVAL,
				      DEFAULT_RATELIMIT_BURST);

	return __ratelimit(&rs);
}

#ifdef RO2IB_TEST_HOOKS
/*
 * Returns whether messages are finalized as if in an interrupt; for tests only.
 * Called from another file: within one, the compiler knows the result.
 */
noinline bool ro2ib_as_interrupt(void)
{
	barrier();
	return false;
}
ALLOW_ERROR_INJECTION(ro2ib_as_interrupt, TRUE);
#endif
