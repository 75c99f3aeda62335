/* SPDX-License-Identifier: GPL-2.0 */
/* Memory of gpu_fake.c for other modules of the tests. */
#ifndef GPU_FAKE_H
#define GPU_FAKE_H

struct page;

/*
 * Return @n stand-in pages in @handles, and the pages of their memory in @data.
 * The stand-in pages are given back, in any order. Neither function sleeps.
 */
int gpu_fake_alloc(unsigned int n, struct page **handles, struct page **data);
void gpu_fake_free(unsigned int n, struct page **handles);

#endif
