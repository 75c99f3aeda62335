/* SPDX-License-Identifier: GPL-2.0 */
/*
 * C functions of the own kernel crate. Read by the C compiler and by bindgen.
 *
 * Everything in which kernels differ is hidden behind these functions (see
 * helpers.c), so that the Rust side is the same for all of them. The prefix is
 * ours alone: kernels with Rust have functions named rust_helper_*.
 */
#ifndef RO2IBLND_KERNEL_HELPERS_H
#define RO2IBLND_KERNEL_HELPERS_H

#include <linux/completion.h>
#include <linux/debugfs.h>
#include <linux/errno.h>
#include <linux/gfp.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <linux/workqueue.h>

/* Macros, and what is an anonymous enum in older kernels. */
enum ro2ibk_const {
	RO2IBK_PAGE_SIZE = PAGE_SIZE,
	RO2IBK_GFP_KERNEL = (__force int)GFP_KERNEL,
	RO2IBK_GFP_ATOMIC = (__force int)GFP_ATOMIC,
	RO2IBK_GFP_NOWAIT = (__force int)GFP_NOWAIT,
	RO2IBK_GFP_NOWARN = (__force int)__GFP_NOWARN,
	RO2IBK_KMALLOC_MINALIGN = ARCH_KMALLOC_MINALIGN,
	RO2IBK_WORK_CPU_UNBOUND = WORK_CPU_UNBOUND,
};

/* Memory; the context is what the flags say. */
void *ro2ibk_kmalloc(size_t size, u32 flags);
void ro2ibk_kfree(const void *p);
void *ro2ibk_kvmalloc(size_t size, u32 flags);
void ro2ibk_kvfree(const void *p);

/* Locks; name and key must stay as long as the lock does. */
void ro2ibk_spin_lock_init(spinlock_t *lock, const char *name,
			   struct lock_class_key *key);
void ro2ibk_spin_lock(spinlock_t *lock);
bool ro2ibk_spin_trylock(spinlock_t *lock);
void ro2ibk_spin_unlock(spinlock_t *lock);
void ro2ibk_spin_assert_held(spinlock_t *lock);
void ro2ibk_mutex_lock_init(struct mutex *lock, const char *name,
			    struct lock_class_key *key);
void ro2ibk_mutex_lock(struct mutex *lock);
bool ro2ibk_mutex_trylock(struct mutex *lock);
void ro2ibk_mutex_unlock(struct mutex *lock);
void ro2ibk_mutex_assert_held(struct mutex *lock);
void ro2ibk_init_completion(struct completion *x);

/* Work items; names and keys must stay as long as the item does. */
void ro2ibk_init_work(struct work_struct *work, work_func_t fn,
		      const char *name, struct lock_class_key *key);
void ro2ibk_init_delayed_work(struct delayed_work *work, work_func_t fn,
			      const char *name, struct lock_class_key *key,
			      const char *timer_name,
			      struct lock_class_key *timer_key);

/* Time. fsleep sleeps. */
s64 ro2ibk_ktime_get_real(void);
unsigned long ro2ibk_msecs_to_jiffies(unsigned int ms);
void ro2ibk_fsleep(unsigned long us);

/* The rest; any context. */
void ro2ibk_printk(int level, const char *prefix, const char *text, int len);
int ro2ibk_current_pid(void);
struct module *ro2ibk_this_module(void);

#if IS_BUILTIN(CONFIG_KUNIT)
/* Fails the test that this task runs, and ends it; else only prints. */
void ro2ibk_kunit_fail(const char *file, int line, const char *condition);
#endif

#endif /* RO2IBLND_KERNEL_HELPERS_H */
