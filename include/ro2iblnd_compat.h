/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Interfaces that older kernels lack, under their names in newer ones. Included
 * before every C file (Kbuild). RO2IB_HAVE_* comes from scripts/kernel-probe;
 * macros need no probe. For kernels from 5.10 on.
 */
#ifndef RO2IBLND_COMPAT_H
#define RO2IBLND_COMPAT_H

#include "ro2iblnd_probes.h"

#include <linux/cpumask.h>
#include <linux/highmem.h>
#include <linux/overflow.h>
#include <linux/slab.h>
#include <linux/uio.h>
#include <linux/bvec.h>

/*
 * 7.0, backported to some: allocation by type. Some versions require the flags.
 */
#ifndef kzalloc_obj
#define kmalloc_obj(obj, flags) ((typeof(obj) *)kmalloc(sizeof(obj), flags))
#define kzalloc_obj(obj, flags) ((typeof(obj) *)kzalloc(sizeof(obj), flags))
#endif

/* 6.1: the names of READ and WRITE for iterators */
#ifndef ITER_DEST
#define ITER_SOURCE	1
#define ITER_DEST	0
#endif

#ifndef RO2IB_HAVE_KMAP_LOCAL_PAGE
static inline void *kmap_local_page(struct page *page)
{
	return kmap_atomic(page);
}

static inline void ro2ib_kunmap_local(const void *addr)
{
	kunmap_atomic((void *)addr);
}
#define kunmap_local(addr) ro2ib_kunmap_local(addr)
#endif

#ifndef RO2IB_HAVE_MEMCPY_PAGE
static inline void memcpy_from_page(char *to, struct page *page, size_t offset,
				    size_t len)
{
	char *from = kmap_local_page(page);

	memcpy(to, from + offset, len);
	kunmap_local(from);
}

static inline void memcpy_to_page(struct page *page, size_t offset,
				  const char *from, size_t len)
{
	char *to = kmap_local_page(page);

	memcpy(to + offset, from, len);
	flush_dcache_page(page);
	kunmap_local(to);
}
#endif

#ifndef RO2IB_HAVE_KREALLOC_ARRAY
static inline void *krealloc_array(void *p, size_t n, size_t size, gfp_t flags)
{
	size_t bytes;

	if (check_mul_overflow(n, size, &bytes))
		return NULL;
	return krealloc(p, bytes, flags);
}
#endif

#ifndef RO2IB_HAVE_BVEC_SET_PAGE
static inline void bvec_set_page(struct bio_vec *bv, struct page *page,
				 unsigned int len, unsigned int offset)
{
	bv->bv_page = page;
	bv->bv_len = len;
	bv->bv_offset = offset;
}
#endif

#ifndef RO2IB_HAVE_CPUMASK_NTH
static inline unsigned int cpumask_nth(unsigned int n,
				       const struct cpumask *mask)
{
	unsigned int cpu;

	for_each_cpu(cpu, mask)
		if (n-- == 0)
			return cpu;
	return nr_cpu_ids;
}
#endif

#ifndef RO2IB_HAVE_CPUMASK_NTH_AND
static inline unsigned int cpumask_nth_and(unsigned int n,
					   const struct cpumask *a,
					   const struct cpumask *b)
{
	unsigned int cpu;

	for_each_cpu_and(cpu, a, b)
		if (n-- == 0)
			return cpu;
	return nr_cpu_ids;
}
#endif

#ifndef RO2IB_HAVE_CPUMASK_WEIGHT_AND
static inline unsigned int cpumask_weight_and(const struct cpumask *a,
					      const struct cpumask *b)
{
	unsigned int cpu, n = 0;

	for_each_cpu_and(cpu, a, b)
		n++;
	return n;
}
#endif

#endif /* RO2IBLND_COMPAT_H */
