// SPDX-License-Identifier: GPL-2.0
/*
 * The C half of our own kernel crate: macros, static inlines, and what drifts
 * between kernels. Differences are found by compiling probes (scripts/kernel-probe,
 * which defines RO2IB_HAVE_*), because distributions port features to kernels
 * of any version.
 */
#include <linux/delay.h>
#include <linux/lockdep.h>
#include <linux/mm.h>
#include <linux/printk.h>
#include <linux/sched.h>
#include <linux/string.h>
#include <linux/timekeeping.h>
#include <linux/timer.h>

#if IS_BUILTIN(CONFIG_KUNIT)
#include <kunit/test.h>
#endif

#include "helpers.h"

#ifndef RO2IB_HAVE_BCMP
/* LLVM compares memory by it. The module does not export it. */
int bcmp(const void *a, const void *b, size_t len);
int bcmp(const void *a, const void *b, size_t len)
{
	return memcmp(a, b, len);
}
#endif

void *ro2ibk_kmalloc(size_t size, u32 flags)
{
	return kmalloc(size, (__force gfp_t)flags);
}

void ro2ibk_kfree(const void *p)
{
	kfree(p);
}

void *ro2ibk_kvmalloc(size_t size, u32 flags)
{
	return kvmalloc(size, (__force gfp_t)flags);
}

void ro2ibk_kvfree(const void *p)
{
	kvfree(p);
}

/* spin_lock_init() makes the class of the place where it is written: here. */
void ro2ibk_spin_lock_init(spinlock_t *lock, const char *name,
			   struct lock_class_key *key)
{
	spin_lock_init(lock);
	lockdep_set_class_and_name(lock, key, name);
}

void ro2ibk_spin_lock(spinlock_t *lock)
{
	spin_lock(lock);
}

bool ro2ibk_spin_trylock(spinlock_t *lock)
{
	return spin_trylock(lock);
}

void ro2ibk_spin_unlock(spinlock_t *lock)
{
	spin_unlock(lock);
}

void ro2ibk_spin_assert_held(spinlock_t *lock)
{
	lockdep_assert_held(lock);
}

void ro2ibk_mutex_lock_init(struct mutex *lock, const char *name,
			    struct lock_class_key *key)
{
	mutex_init(lock);
	lockdep_set_class_and_name(lock, key, name);
}

void ro2ibk_mutex_lock(struct mutex *lock)
{
	mutex_lock(lock);
}

bool ro2ibk_mutex_trylock(struct mutex *lock)
{
	return mutex_trylock(lock);
}

void ro2ibk_mutex_unlock(struct mutex *lock)
{
	mutex_unlock(lock);
}

void ro2ibk_mutex_assert_held(struct mutex *lock)
{
	lockdep_assert_held(lock);
}

void ro2ibk_init_completion(struct completion *x)
{
	init_completion(x);
}

/* INIT_WORK() makes the class of the place where it is written: here. */
static void set_class(struct work_struct *work, const char *name,
		      struct lock_class_key *key)
{
#ifdef CONFIG_LOCKDEP
	lockdep_init_map(&work->lockdep_map, name, key, 0);
#endif
}

void ro2ibk_init_work(struct work_struct *work, work_func_t fn,
		      const char *name, struct lock_class_key *key)
{
	INIT_WORK(work, fn);
	set_class(work, name, key);
}

void ro2ibk_init_delayed_work(struct delayed_work *work, work_func_t fn,
			      const char *name, struct lock_class_key *key,
			      const char *timer_name,
			      struct lock_class_key *timer_key)
{
	INIT_DELAYED_WORK(work, fn);
	set_class(&work->work, name, key);
#ifdef CONFIG_LOCKDEP
	lockdep_init_map(&work->timer.lockdep_map, timer_name, timer_key, 0);
#endif
}

s64 ro2ibk_ktime_get_real(void)
{
	return ktime_get_real();
}

unsigned long ro2ibk_msecs_to_jiffies(unsigned int ms)
{
	return msecs_to_jiffies(ms);
}

void ro2ibk_fsleep(unsigned long us)
{
	fsleep(us);
}

void ro2ibk_printk(int level, const char *prefix, const char *text, int len)
{
	printk("%c%c%s: %.*s", KERN_SOH_ASCII, '0' + level, prefix, len, text);
}

int ro2ibk_current_pid(void)
{
	return current->pid;
}

struct module *ro2ibk_this_module(void)
{
	return THIS_MODULE;
}

#if IS_BUILTIN(CONFIG_KUNIT)
void ro2ibk_kunit_fail(const char *file, int line, const char *condition)
{
	struct kunit *test = current->kunit_test;

	if (!test) {
		pr_err("    # ASSERTION FAILED at %s:%d, outside of a test\n    Expected %s to be true, but is false\n",
		       file, line, condition);
		return;
	}
	KUNIT_ASSERT_TRUE_MSG(test, false,
			      "\n    # ASSERTION FAILED at %s:%d\n    Expected %s to be true, but is false\n",
			      file, line, condition);
}
#endif
