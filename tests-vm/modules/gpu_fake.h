/* SPDX-License-Identifier: GPL-2.0 */
/* Memory of gpu_fake.c for other modules of the tests. */
#ifndef GPU_FAKE_H
#define GPU_FAKE_H

struct page;

/*
 * @n pages that stand for memory, and those where it is. The first are given
 * back, in any order. Neither sleeps.
 */
int gpu_fake_alloc(unsigned int n, struct page **handles, struct page **data);
void gpu_fake_free(unsigned int n, struct page **handles);

#endif
