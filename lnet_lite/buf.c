// SPDX-License-Identifier: GPL-2.0
/*
 * lnet_lite: buffers of every shape that LNet can hand to an LND.
 *
 * A fragment never crosses a page, and no page carries two fragments. Buffers
 * are kept for reuse, so that an unverified run measures the driver and not the
 * page allocator.
 */
#include <linux/gfp.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "internal.h"

#define LNL_UNALIGNED_START	1239
#define LNL_VMALLOC_START	520
#define LNL_GAP_MAX_PIECE	4061
#define LNL_BIGMD_PAGES		400
#define LNL_POOL_MAX		64

static LIST_HEAD(pool);
static unsigned int pool_size;
static DEFINE_SPINLOCK(pool_lock);
static atomic_t buf_count;

unsigned int lnl_bufs_live(void)
{
	return atomic_read(&buf_count);
}

static void add_frag(struct lnl_buf *buf, struct page *page, u32 off, u32 len)
{
	struct lnet_libmd *md = buf->md;

	bvec_set_page(&md->md_kiov[md->md_niov++], page, len, off);
	md->md_length += len;
}

/* Pages back to back, @start bytes into the first */
static void frag_run(struct lnl_buf *buf, unsigned int first, u32 start, u32 len)
{
	while (len) {
		u32 n = min_t(u32, len, PAGE_SIZE - start);

		add_frag(buf, buf->pages[first++], start, n);
		len -= n;
		start = 0;
	}
}

static unsigned int gap_pieces(u32 len)
{
	unsigned int n = len / 1400 + 2;

	if (n > LNET_MAX_IOV - 6)
		n = LNET_MAX_IOV - 6;
	if (len / n > LNL_GAP_MAX_PIECE - 200)
		n = len / (LNL_GAP_MAX_PIECE - 200) + 1;
	return min_t(unsigned int, n, max(len, 1u));
}

/* Odd sizes at odd offsets, nothing touches a page boundary */
static void frag_gaps(struct lnl_buf *buf, u32 len)
{
	unsigned int n = gap_pieces(len), i;
	u32 base = len / n;

	for (i = 0; i < n && len; i++) {
		u32 jitter = min_t(u32, base / 3, LNL_GAP_MAX_PIECE - base);
		u32 piece = i % 2 ? base - jitter : base + jitter;

		piece = clamp_t(u32, piece | 1, 1, LNL_GAP_MAX_PIECE);
		/* what is left has to fit into the pieces left */
		if (len > (n - i) * LNL_GAP_MAX_PIECE - (LNL_GAP_MAX_PIECE - piece))
			piece = LNL_GAP_MAX_PIECE;
		if (i == n - 1 || piece > len)
			piece = len;
		add_frag(buf, buf->pages[i], ((PAGE_SIZE - piece) / 2) | 1, piece);
		len -= piece;
	}
}

static int alloc_single_pages(struct lnl_buf *buf)
{
	unsigned int i;

	for (i = 0; i < buf->npages; i++) {
		buf->pages[i] = alloc_page(GFP_NOFS);
		if (!buf->pages[i])
			return -ENOMEM;
	}
	return 0;
}

/* Deal the pages like cards, so that neighbours in the list are not neighbours */
static void shuffle(struct lnl_buf *buf)
{
	unsigned int half = buf->npages / 2, i;

	for (i = 0; i + 1 < half; i += 2) {
		unsigned int j = buf->npages - 1 - i;

		swap(buf->pages[i], buf->pages[j]);
		if (buf->data != buf->pages)
			swap(buf->data[i], buf->data[j]);
	}
}

/* Of a mixed buffer the last page is not the GPU's */
static int alloc_gpu_pages(struct lnl_buf *buf)
{
	bool mixed = buf->memory == LNET_LITE_MIXED;
	unsigned int n = buf->npages - mixed;

	if (!n || buf->shape == LNET_LITE_VMALLOC ||
	    (mixed && buf->shape != LNET_LITE_ALIGNED && buf->shape != LNET_LITE_UNALIGNED))
		return -EOPNOTSUPP;
	buf->data = kvcalloc(buf->npages, sizeof(*buf->data), GFP_NOFS);
	if (!buf->data)
		return -ENOMEM;
	if (mixed) {
		buf->pages[n] = alloc_page(GFP_NOFS);
		buf->data[n] = buf->pages[n];
		if (!buf->pages[n])
			return -ENOMEM;
	}
	buf->gpu = lnl_gpu_alloc(n, buf->pages, buf->data);
	if (!buf->gpu)
		return -ENOMEM;
	buf->gpu_pages = n;
	buf->md->md_flags |= LNET_MD_FLAG_GPU;
	return 0;
}

static int alloc_pages_of(struct lnl_buf *buf)
{
	unsigned int i;

	if (buf->memory != LNET_LITE_HOST)
		return alloc_gpu_pages(buf);
	buf->data = buf->pages;
	switch (buf->shape) {
	case LNET_LITE_CONTIG:
		buf->vaddr = alloc_pages_exact((size_t)buf->npages * PAGE_SIZE,
					       GFP_NOFS | __GFP_NOWARN);
		if (!buf->vaddr)
			return -ENOMEM;
		for (i = 0; i < buf->npages; i++)
			buf->pages[i] = virt_to_page(buf->vaddr + i * PAGE_SIZE);
		return 0;
	case LNET_LITE_VMALLOC: {
		unsigned int flags = memalloc_nofs_save();

		buf->vaddr = vmalloc((size_t)buf->npages * PAGE_SIZE);
		memalloc_nofs_restore(flags);
		if (!buf->vaddr)
			return -ENOMEM;
		for (i = 0; i < buf->npages; i++)
			buf->pages[i] = vmalloc_to_page(buf->vaddr + i * PAGE_SIZE);
		return 0;
	}
	default:
		return alloc_single_pages(buf);
	}
}

static unsigned int pages_needed(enum lnet_lite_shape shape, u32 len)
{
	switch (shape) {
	case LNET_LITE_CONTIG:
		return DIV_ROUND_UP(len, PAGE_SIZE) + 2;	/* a guard at each end */
	case LNET_LITE_UNALIGNED:
		return DIV_ROUND_UP(len + LNL_UNALIGNED_START, PAGE_SIZE);
	case LNET_LITE_VMALLOC:
		return DIV_ROUND_UP(len + LNL_VMALLOC_START, PAGE_SIZE);
	case LNET_LITE_GAPS:
		return gap_pieces(len);
	case LNET_LITE_BIGMD:
		return max_t(u32, DIV_ROUND_UP(len, PAGE_SIZE), LNL_BIGMD_PAGES);
	default:
		return max_t(u32, DIV_ROUND_UP(len, PAGE_SIZE), 1);
	}
}

/* @len usable bytes (BIGMD: at least). ERR_PTR(-EMSGSIZE): LNet has no such MD */
struct lnl_buf *lnl_buf_alloc(enum lnet_lite_memory memory, enum lnet_lite_shape shape, u32 len)
{
	struct lnl_buf *buf;
	unsigned int n = pages_needed(shape, len);
	int rc;

	if (len > LNL_MAX_LEN || (shape == LNET_LITE_GAPS && n > LNET_MAX_IOV))
		return ERR_PTR(-EMSGSIZE);
	buf = kzalloc_obj(*buf, GFP_NOFS);
	if (!buf)
		return ERR_PTR(-ENOMEM);
	atomic_inc(&buf_count);
	buf->shape = shape;
	buf->memory = memory;
	buf->len = len;
	buf->npages = n;
	buf->first = shape == LNET_LITE_CONTIG;
	buf->pages = kvcalloc(n, sizeof(*buf->pages), GFP_NOFS);
	buf->md = kvzalloc(struct_size(buf->md, md_kiov, n), GFP_NOFS);
	rc = buf->pages && buf->md ? alloc_pages_of(buf) : -ENOMEM;
	if (rc) {
		lnl_buf_free(buf);
		return ERR_PTR(rc);
	}

	switch (shape) {
	case LNET_LITE_CONTIG:
		frag_run(buf, buf->first, 0, len);
		break;
	case LNET_LITE_SCATTER:
		shuffle(buf);
		frag_run(buf, 0, 0, len);
		break;
	case LNET_LITE_UNALIGNED:
		frag_run(buf, 0, LNL_UNALIGNED_START, len);
		break;
	case LNET_LITE_VMALLOC:
		frag_run(buf, 0, LNL_VMALLOC_START, len);
		break;
	case LNET_LITE_GAPS:
		frag_gaps(buf, len);
		break;
	case LNET_LITE_BIGMD:
		frag_run(buf, 0, 0, n * PAGE_SIZE);
		break;
	default:
		frag_run(buf, 0, 0, len);
		break;
	}
	return buf;
}

void lnl_buf_free(struct lnl_buf *buf)
{
	unsigned int i;

	if (buf->memory != LNET_LITE_HOST) {
		if (buf->gpu)
			lnl_gpu_free(buf->gpu, buf->gpu_pages, buf->pages);
		if (buf->memory == LNET_LITE_MIXED && buf->pages && buf->pages[buf->npages - 1])
			__free_page(buf->pages[buf->npages - 1]);
		kvfree(buf->data);
	} else if (buf->shape == LNET_LITE_CONTIG && buf->vaddr) {
		free_pages_exact(buf->vaddr, (size_t)buf->npages * PAGE_SIZE);
	} else if (buf->shape == LNET_LITE_VMALLOC) {
		vfree(buf->vaddr);
	} else if (buf->pages && !buf->vaddr && buf->shape != LNET_LITE_CONTIG) {
		for (i = 0; i < buf->npages && buf->pages[i]; i++)
			__free_page(buf->pages[i]);
	}
	kvfree(buf->pages);
	kvfree(buf->md);
	kfree(buf);
	atomic_dec(&buf_count);
}

struct lnl_buf *lnl_buf_get(enum lnet_lite_memory memory, enum lnet_lite_shape shape, u32 len)
{
	struct lnl_buf *buf;

	if (memory != LNET_LITE_HOST)
		return lnl_buf_alloc(memory, shape, len);
	spin_lock(&pool_lock);
	list_for_each_entry(buf, &pool, list) {
		if (buf->shape == shape && buf->len == len) {
			list_del(&buf->list);
			pool_size--;
			spin_unlock(&pool_lock);
			return buf;
		}
	}
	spin_unlock(&pool_lock);
	return lnl_buf_alloc(memory, shape, len);
}

/* The oldest makes room, so that the pool follows the sizes in use */
void lnl_buf_put(struct lnl_buf *buf)
{
	struct lnl_buf *old = NULL;

	/* Pages of a GPU go back to the GPU at once */
	if (buf->memory != LNET_LITE_HOST || (buf->md->md_flags & LNET_MD_FLAG_SPOILED)) {
		lnl_buf_free(buf);
		return;
	}
	spin_lock(&pool_lock);
	list_add(&buf->list, &pool);
	if (++pool_size > LNL_POOL_MAX) {
		old = list_last_entry(&pool, struct lnl_buf, list);
		list_del(&old->list);
		pool_size--;
	}
	spin_unlock(&pool_lock);
	if (old)
		lnl_buf_free(old);
}

void lnl_buf_fini(void)
{
	struct lnl_buf *buf, *next;

	list_for_each_entry_safe(buf, next, &pool, list) {
		list_del(&buf->list);
		lnl_buf_free(buf);
	}
	if (lnl_bufs_live())
		pr_err("lnet_lite: %u buffers left to memory the LND never gave back\n",
		       lnl_bufs_live());
}
