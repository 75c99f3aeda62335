// SPDX-License-Identifier: GPL-2.0
/*
 * Per-CPU counters, to count without sharing.
 */
#include <linux/bitops.h>
#include <linux/percpu.h>

#include "ro2iblnd_compat.h"
#include "ro2iblnd_helpers.h"

/*
 * bindgen does not know __percpu, which newer kernels make an address space:
 * the Rust side has a plain pointer that only this file uses.
 */
static u64 __percpu *of(u64 *p)
{
	return (u64 __percpu *)(unsigned long)p;
}

/* All counters are 0; returns NULL without memory. May sleep. */
u64 *ro2ib_percpu_alloc(u32 n)
{
	void __percpu *p = __alloc_percpu(array_size(n, sizeof(u64)),
					  sizeof(u64));

	return (u64 *)(unsigned long)p;
}

void ro2ib_percpu_free(u64 *p)
{
	free_percpu(of(p));
}

/*
 * A row has 64 counters. Adds @n to the first counter of row @row of this CPU,
 * and 1 to the counter of the highest bit of @n; values below 512 count as 511.
 * Each message calls it, so it has no instruction for the function tracer.
 */
notrace void ro2ib_percpu_record(u64 *p, unsigned long row, u64 n)
{
	u64 __percpu *mine = of(p) + row * 64;

	this_cpu_inc(mine[__fls(n | 511)]);
	this_cpu_add(mine[0], n);
}

/* Returns the sum over all CPUs, while other CPUs count. */
u64 ro2ib_percpu_sum(u64 *p, u32 at)
{
	u64 sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += READ_ONCE(*per_cpu_ptr(&of(p)[at], cpu));
	return sum;
}
