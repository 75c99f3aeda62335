// SPDX-License-Identifier: GPL-2.0
/* Numbers that every CPU has of its own, to count without sharing. */
#include <linux/percpu.h>

#include "ro2iblnd_compat.h"
#include "ro2iblnd_helpers.h"

/*
 * bindgen does not know __percpu, which newer kernels make an address space of:
 * the Rust side has a plain pointer that only this file uses.
 */
static u64 __percpu *of(u64 *p)
{
	return (u64 __percpu *)(unsigned long)p;
}

/* All of them 0; NULL without memory. May sleep. */
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

/* Adds 1 to the number at @one and @n to that at @sum, of this CPU. */
void ro2ib_percpu_count(u64 *p, u32 one, u32 sum, u64 n)
{
	u64 __percpu *mine = of(p);

	this_cpu_inc(mine[one]);
	this_cpu_add(mine[sum], n);
}

/* The sum over all CPUs, while others count. */
u64 ro2ib_percpu_sum(u64 *p, u32 at)
{
	u64 sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += READ_ONCE(*per_cpu_ptr(&of(p)[at], cpu));
	return sum;
}
