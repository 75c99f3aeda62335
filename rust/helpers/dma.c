// SPDX-License-Identifier: GPL-2.0
/*
 * Buffers, pages, and their DMA mappings. Only ib_dma_*: software providers
 * have no DMA device and want virtual addresses instead.
 */
#include <linux/bvec.h>
#include <linux/error-injection.h>
#include <linux/gfp.h>
#include <linux/highmem.h>
#include <linux/scatterlist.h>
#include <rdma/ib_verbs.h>

#include "ro2iblnd_compat.h"
#include "ro2iblnd_helpers.h"

static enum dma_data_direction direction(int dir)
{
	return dir ? DMA_FROM_DEVICE : DMA_TO_DEVICE;
}

noinline int ro2ib_dma_map_buf(struct ib_device *dev, void *buf, size_t len,
			       int dir, u64 *addr)
{
	u64 a = ib_dma_map_single(dev, buf, len, direction(dir));

	if (ib_dma_mapping_error(dev, a))
		return -EIO;
	*addr = a;
	return 0;
}
ALLOW_ERROR_INJECTION(ro2ib_dma_map_buf, ERRNO);

void ro2ib_dma_unmap_buf(struct ib_device *dev, u64 addr, size_t len, int dir)
{
	ib_dma_unmap_single(dev, addr, len, direction(dir));
}

void ro2ib_dma_sync_for_cpu(struct ib_device *dev, u64 addr, size_t len,
			    int dir)
{
	ib_dma_sync_single_for_cpu(dev, addr, len, direction(dir));
}

void ro2ib_dma_sync_for_device(struct ib_device *dev, u64 addr, size_t len,
			       int dir)
{
	ib_dma_sync_single_for_device(dev, addr, len, direction(dir));
}

/*
 * Find the element that holds byte @at. Returns its index, or n when there is
 * none, and leaves the offset inside it in *@at.
 */
static u32 bvec_seek(const struct bio_vec *bv, u32 n, size_t *at)
{
	u32 i = 0;

	while (i < n && *at >= bv[i].bv_len)
		*at -= bv[i++].bv_len;
	return i;
}

int ro2ib_sgt_from_bvec(struct sg_table *sgt, const struct bio_vec *bv, u32 n,
			size_t offset, size_t nob)
{
	size_t at = offset, left = nob;
	struct scatterlist *sg;
	u32 first, i, used = 0;
	int rc;

	first = bvec_seek(bv, n, &at);
	for (i = first; i < n && left; i++) {
		size_t len = bv[i].bv_len - (i == first ? at : 0);

		left -= min(left, len);
		used += len != 0;
	}
	if (left || !used)
		return -EINVAL;

	rc = sg_alloc_table(sgt, used, GFP_NOFS);
	if (rc)
		return rc;

	left = nob;
	sg = sgt->sgl;
	for (i = first; left; i++) {
		size_t skip = i == first ? at : 0;
		size_t len = min(left, (size_t)bv[i].bv_len - skip);

		if (!len)
			continue;
		sg_set_page(sg, bv[i].bv_page, len, bv[i].bv_offset + skip);
		left -= len;
		sg = sg_next(sg);
	}
	return 0;
}

void ro2ib_sgt_free(struct sg_table *sgt)
{
	sg_free_table(sgt);
}

noinline int ro2ib_dma_map_sgt(struct ib_device *dev, struct sg_table *sgt,
			       int dir)
{
	int n = ib_dma_map_sg(dev, sgt->sgl, sgt->orig_nents, direction(dir));

	if (n <= 0)
		return -EIO;
	sgt->nents = n;
	return 0;
}
ALLOW_ERROR_INJECTION(ro2ib_dma_map_sgt, ERRNO);

void ro2ib_dma_unmap_sgt(struct ib_device *dev, struct sg_table *sgt, int dir)
{
	ib_dma_unmap_sg(dev, sgt->sgl, sgt->orig_nents, direction(dir));
}

struct scatterlist *ro2ib_sg_next(struct scatterlist *sg)
{
	return sg_next(sg);
}

u64 ro2ib_sg_dma_address(struct scatterlist *sg)
{
	return sg_dma_address(sg);
}

u32 ro2ib_sg_dma_len(struct scatterlist *sg)
{
	return sg_dma_len(sg);
}

/*
 * Low memory, so that it has an address all the time. Zeroed: a peer may say
 * that it has written into a page, and not have done so.
 */
struct page *ro2ib_alloc_page(void)
{
	return alloc_page(GFP_NOFS | __GFP_ZERO);
}

void ro2ib_free_page(struct page *page)
{
	__free_page(page);
}

/* How much can be copied in one go without leaving the page at @off. */
static size_t in_page(size_t off, size_t len)
{
	return min(len, PAGE_SIZE - offset_in_page(off));
}

static struct page *bvec_page(const struct bio_vec *bv, size_t off)
{
	return bv->bv_page + (off >> PAGE_SHIFT);
}

size_t ro2ib_bvec_read(const struct bio_vec *bv, u32 n, size_t at, void *to,
		       size_t len)
{
	u32 i = bvec_seek(bv, n, &at);
	size_t done = 0;

	for (; i < n && done < len; i++, at = 0) {
		while (at < bv[i].bv_len && done < len) {
			size_t off = bv[i].bv_offset + at;
			size_t nob = in_page(off, min(len - done,
						      bv[i].bv_len - at));

			memcpy_from_page(to + done, bvec_page(&bv[i], off),
					 offset_in_page(off), nob);
			done += nob;
			at += nob;
		}
	}
	return done;
}

size_t ro2ib_bvec_write(const struct bio_vec *bv, u32 n, size_t at,
			const void *from, size_t len)
{
	u32 i = bvec_seek(bv, n, &at);
	size_t done = 0;

	for (; i < n && done < len; i++, at = 0) {
		while (at < bv[i].bv_len && done < len) {
			size_t off = bv[i].bv_offset + at;
			size_t nob = in_page(off, min(len - done,
						      bv[i].bv_len - at));

			memcpy_to_page(bvec_page(&bv[i], off),
				       offset_in_page(off), from + done, nob);
			done += nob;
			at += nob;
		}
	}
	return done;
}

size_t ro2ib_bvec_copy(const struct bio_vec *to, u32 nto, size_t to_at,
		       const struct bio_vec *from, u32 nfrom, size_t from_at,
		       size_t len)
{
	u32 i = bvec_seek(from, nfrom, &from_at);
	size_t done = 0;

	for (; i < nfrom && done < len; i++, from_at = 0) {
		while (from_at < from[i].bv_len && done < len) {
			size_t off = from[i].bv_offset + from_at;
			size_t nob = in_page(off, min(len - done,
						      from[i].bv_len - from_at));
			void *p = kmap_local_page(bvec_page(&from[i], off));
			size_t put;

			put = ro2ib_bvec_write(to, nto, to_at + done,
					       p + offset_in_page(off), nob);
			kunmap_local(p);
			done += put;
			from_at += put;
			if (put < nob)
				return done;
		}
	}
	return done;
}
