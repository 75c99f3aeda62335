// SPDX-License-Identifier: GPL-2.0
/*
 * Buffers, pages, and their DMA mappings. Only ib_dma_*: software providers
 * have no DMA device and want virtual addresses instead.
 */
#include <linux/bvec.h>
#include <linux/dma-mapping.h>
#include <linux/error-injection.h>
#include <linux/gfp.h>
#include <linux/highmem.h>
#include <linux/log2.h>
#include <linux/memremap.h>
#include <linux/mm.h>
#include <linux/scatterlist.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <rdma/ib_verbs.h>

#include "ro2iblnd_compat.h"
#include "ro2iblnd_helpers.h"

static enum dma_data_direction direction(int dir)
{
	return dir ? DMA_FROM_DEVICE : DMA_TO_DEVICE;
}

/*
 * Message buffers are in pages of their own, up to eight in one piece: a
 * connection has dozens, and frees them at once. With KASAN or kmemleak, which
 * must see each buffer, kmalloc() allocates them, and also where pages are
 * larger: slabs do the same there.
 */
#define BUF_LEN		SZ_4K
#define BUF_PIECE	SZ_32K
#define BUF_OF_SLAB	(PAGE_SIZE != BUF_LEN || IS_ENABLED(CONFIG_KASAN) || \
			 IS_ENABLED(CONFIG_DEBUG_KMEMLEAK))

/*
 * Allocates zeroed message buffers one behind the other, as near to the device
 * as possible: up to *@n of them; *@n is then their number. NULL if there is no
 * memory. @wait: may sleep until there is some.
 *
 * The pages behind the first of a chunk have no references of their own, so
 * they must not be sent without a copy (sendpage, MSG_SPLICE_PAGES). siw copies
 * them only because every send is signalled (Qp::signals_all() in
 * rust/rdma/qp.rs).
 */
void *ro2ib_bufs_alloc(struct ib_device *dev, u32 *n, bool wait)
{
	gfp_t gfp = wait ? GFP_KERNEL : GFP_NOWAIT | __GFP_NOWARN;
	u32 most = min_t(u32, *n, BUF_PIECE / BUF_LEN);
	int node = ibdev_to_node(dev);
	unsigned int order;
	struct page *page;

	if (BUF_OF_SLAB) {
		*n = 1;
		return kzalloc_node(BUF_LEN, gfp, node);
	}
	order = most ? ilog2(most) : 0;
	do {
		gfp_t flags = gfp | __GFP_ZERO;

		/* A smaller piece is enough. */
		if (order)
			flags |= __GFP_NORETRY | __GFP_NOWARN;
		page = alloc_pages_node(node, flags, order);
	} while (!page && order--);
	if (!page)
		return NULL;
	*n = 1 << order;
	return page_address(page);
}

/* Frees all @n buffers of a piece. Any context except hard interrupts. */
void ro2ib_bufs_free(void *bufs, u32 n)
{
	if (BUF_OF_SLAB)
		kfree(bufs);
	else
		free_pages((unsigned long)bufs, ilog2(n));
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

/*
 * Returns whether the mapping has to be synchronised at all. That does not
 * change until it is unmapped. Software providers map nothing: they have no DMA
 * device, or until 5.10 a device whose operations need no synchronisation.
 */
bool ro2ib_dma_needs_sync(struct ib_device *dev, u64 addr)
{
	return dev->dma_device && dma_need_sync(dev->dma_device, addr);
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
 * Finds the element that holds byte @at. Returns its index, or n when there is
 * none, and leaves the offset inside it in *@at.
 */
static u32 bvec_seek(const struct bio_vec *bv, u32 n, size_t *at)
{
	u32 i = 0;

	while (i < n && *at >= bv[i].bv_len)
		*at -= bv[i++].bv_len;
	return i;
}

/*
 * sg_next(), which is a call for each element, for an element that is not the
 * last
 */
static struct scatterlist *next_sg(struct scatterlist *sg)
{
	sg++;
	return unlikely(sg_is_chain(sg)) ? sg_chain_ptr(sg) : sg;
}

static bool whole_page(const struct bio_vec *bv)
{
	/* One comparison, where the compiler can: both are one word. */
	return ((u64)bv->bv_offset << 32 | bv->bv_len) == PAGE_SIZE;
}

/*
 * Gives @list room for @n elements: what it keeps (ro2ib_sg_list_reserve()),
 * the element inside, or new ones. This never waits for memory: pages may only
 * become clean when the caller has sent them, so reclaim could wait for the
 * caller.
 */
static int make_table(struct ro2ib_sg_list *list, u32 n)
{
	struct sg_table *sgt = &list->table;

	if (unlikely(list->reserved)) {
		if (n > sgt->orig_nents)
			return -ENOMEM;
		sg_init_table(sgt->sgl, sgt->orig_nents);
		return 0;
	}
	if (n > 1)
		return sg_alloc_table(sgt, n, GFP_NOWAIT | __GFP_NOWARN);
	sg_init_table(&list->one, 1);
	sgt->sgl = &list->one;
	sgt->orig_nents = 1;
	return 0;
}

/* As ro2ib_sg_list_fill(), for a single fragment */
static int sg_from_one(struct ro2ib_sg_list *list, const struct bio_vec *bv,
		       u32 at, u32 nob, struct ro2ib_sg_shape *run)
{
	u32 begin = bv->bv_offset + at;
	int rc;

	if (nob > bv->bv_len - at)
		return -EINVAL;
	/* Not used after an error. */
	run->used = 1;
	run->pages = PAGE_ALIGN(offset_in_page(begin) + nob) >> PAGE_SHIFT;
	rc = make_table(list, 1);
	if (rc)
		return rc;
	sg_set_page(list->table.sgl, bv->bv_page, nob, begin);
	return 0;
}

/*
 * Pages one behind the other become one element, up to the DMA layer's default
 * limit for a segment (dma_get_max_seg_size()).
 */
#define ELEMENT_MAX	SZ_64K

/* Whether pages whose frames follow each other are neighbours in memory's map */
#define PAGES_IN_ORDER	(IS_ENABLED(CONFIG_SPARSEMEM_VMEMMAP) || \
			 IS_ENABLED(CONFIG_FLATMEM))

/*
 * As ro2ib_sg_list_fill(), in one pass over the fragments. The table has room
 * for each fragment that is left, used or not, and one element more.
 */
static noinline int sg_from_bvecs(struct ro2ib_sg_list *list,
				  const struct bio_vec *bv, u32 n, u32 offset,
				  u32 nob, bool merge,
				  struct ro2ib_sg_shape *run)
{
	u32 left = nob, used = 0, pages = 0, inside = 0, end = 0;
	const struct bio_vec *stop = bv + n;
	const struct page *behind = NULL;	/* the page behind @last */
	struct scatterlist *sg, *last;
	size_t at = offset;
	int rc;

	bv += bvec_seek(bv, n, &at);
	if (!nob || bv == stop)
		return -EINVAL;
	if (stop - bv == 1)
		return sg_from_one(list, bv, at, nob, run);
	rc = make_table(list, stop - bv + 1);
	if (rc)
		return rc;

	sg = list->table.sgl;
	last = sg;
	while (left && bv < stop) {
		const struct bio_vec *first = bv, *most = bv;
		u32 begin, len;

		/* Nearly all of a large payload. */
		if (!at)
			most += min_t(size_t, stop - bv, left >> PAGE_SHIFT);
		while (bv < most && whole_page(bv)) {
			if (bv->bv_page == behind && PAGES_IN_ORDER && merge &&
			    last->length <= ELEMENT_MAX - PAGE_SIZE) {
				last->length += PAGE_SIZE;
			} else {
				last = sg;
				sg_set_page(sg, bv->bv_page, PAGE_SIZE, 0);
				sg = next_sg(sg);
				used++;
			}
			behind = bv->bv_page + 1;
			bv++;
		}
		if (bv > first) {
			u32 whole = bv - first;

			inside |= end;
			end = 0;
			pages += whole;
			left -= whole << PAGE_SHIFT;
			continue;
		}

		len = min(left, (u32)(bv->bv_len - at));
		if (len) {
			last = sg;
			sg_set_page(sg, bv->bv_page, len, bv->bv_offset + at);
			sg = next_sg(sg);
			begin = offset_in_page(bv->bv_offset + at);
			inside |= end;
			if (used++)
				inside |= begin;
			pages += PAGE_ALIGN(begin + len) >> PAGE_SHIFT;
			end = offset_in_page(begin + len);
			behind = NULL;
			left -= len;
		}
		at = 0;
		bv++;
	}
	/* The caller frees the table. */
	if (left)
		return -EINVAL;
	sg_mark_end(last);
	run->used = used;
	run->pages = inside ? 0 : pages;
	return 0;
}

/*
 * Fills an unused list with the @nob bytes from @offset on, and describes it.
 * One region can cover the bytes if every fragment except the first begins, and
 * every fragment except the last ends, at a page boundary. Without @merge each
 * fragment is an element. -ENOMEM: there is no memory for the list at the
 * moment; this never waits. A filled list must not move. The caller frees it,
 * also after an error.
 */
int ro2ib_sg_list_fill(struct ro2ib_sg_list *list, const struct bio_vec *bv,
		       u32 n, u32 offset, u32 nob, bool merge,
		       struct ro2ib_sg_shape *run)
{
	/*
	 * The common case of small payloads; it saves no registers for the
	 * rest.
	 */
	if (n == 1 && nob && offset < bv->bv_len)
		return sg_from_one(list, bv, offset, nob, run);
	return sg_from_bvecs(list, bv, n, offset, nob, merge, run);
}

/* Allocates room for @n elements, which a zeroed list keeps. May sleep. */
int ro2ib_sg_list_reserve(struct ro2ib_sg_list *list, u32 n)
{
	struct sg_table *sgt = &list->table;

	sgt->sgl = kvmalloc_array(n, sizeof(*sgt->sgl), GFP_KERNEL);
	if (!sgt->sgl)
		return -ENOMEM;
	sgt->orig_nents = n;
	list->reserved = true;
	return 0;
}

/*
 * Frees the elements of a list, which is not mapped. May sleep if it has room
 * that it keeps.
 */
void ro2ib_sg_list_free(struct ro2ib_sg_list *list)
{
	if (list->reserved)
		kvfree(list->table.sgl);
	else if (list->table.sgl != &list->one)
		sg_free_table(&list->table);
}

/* Returns whether some of the pages are memory of a PCI device. */
static bool has_p2pdma(const struct sg_table *sgt, u32 used)
{
	struct scatterlist *sg;
	u32 i;

	for_each_sg(sgt->sgl, sg, used, i)
		if (is_pci_p2pdma_page(sg_page(sg)))
			return true;
	return false;
}

/*
 * Maps the first @used elements. -EREMOTEIO: some are memory of a PCI device
 * that @dev cannot reach. -EIO: there is no room at the moment.
 */
noinline int ro2ib_dma_map_sgt(struct ib_device *dev, struct sg_table *sgt,
			       u32 used, int dir)
{
	int n = ib_dma_map_sg(dev, sgt->sgl, used, direction(dir));

	if (n <= 0)
		return has_p2pdma(sgt, used) ? -EREMOTEIO : -EIO;
	sgt->nents = n;
	return 0;
}
ALLOW_ERROR_INJECTION(ro2ib_dma_map_sgt, ERRNO);

void ro2ib_dma_unmap_sgt(struct ib_device *dev, struct sg_table *sgt, u32 used,
			 int dir)
{
	ib_dma_unmap_sg(dev, sgt->sgl, used, direction(dir));
}

/*
 * Checks a list that a provider, not the DMA layer, has mapped in @n elements:
 * whether it covers the requested @nob bytes, and how many pages a region has
 * that covers them at their addresses (see above).
 */
int ro2ib_sgt_is_mapped(struct sg_table *sgt, int n, u32 nob,
			struct ro2ib_sg_shape *run)
{
	struct scatterlist *sg = sgt->sgl;
	u32 left = nob, pages = 0, inside = 0;
	int i;

	if (n <= 0 || n > run->used)
		return -EINVAL;
	for (i = 0; i < n; i++) {
		dma_addr_t begin = sg_dma_address(sg);
		u32 len = sg_dma_len(sg);

		if (!len || len > left)
			return -EINVAL;
		left -= len;
		if (i)
			inside |= offset_in_page(begin);
		if (left)
			inside |= offset_in_page(begin + len);
		pages += PAGE_ALIGN(offset_in_page(begin) + len) >> PAGE_SHIFT;
		sg = sg_next(sg);
	}
	if (left)
		return -EINVAL;
	sgt->nents = n;
	run->pages = inside ? 0 : pages;
	return 0;
}

/*
 * Writes entries for the next @nob bytes, @max of them at most, and moves @pos
 * behind the covered bytes. Returns the number of entries.
 */
u32 ro2ib_sg_gather(struct ro2ib_sg_pos *pos, struct ib_sge *sge, u32 max,
		    u32 nob, u32 lkey)
{
	u32 want = min(nob, pos->left), todo = want, at = pos->at, n = 0;
	struct scatterlist *sg = pos->sg;

	while (todo && n < max) {
		u32 len = sg_dma_len(sg) - at;

		sge[n].addr = sg_dma_address(sg) + at;
		sge[n].lkey = lkey;
		if (len > todo) {
			sge[n++].length = todo;
			at += todo;
			todo = 0;
			break;
		}
		sge[n++].length = len;
		at = 0;
		todo -= len;
		if (!todo) {
			/* The rest is in further elements. */
			sg = pos->left > want ? next_sg(sg) : NULL;
			break;
		}
		sg = next_sg(sg);
	}
	pos->sg = sg;
	pos->at = at;
	pos->left -= want - todo;
	return n;
}

/*
 * Low memory, so that it has an address all the time. Zeroed: a peer may claim
 * to have written a page without doing so. Does not wait for memory, because
 * reclaim may wait for the message that needs the page.
 */
struct page *ro2ib_alloc_page(void)
{
	return alloc_page(GFP_NOWAIT | __GFP_NOWARN | __GFP_ZERO);
}

void ro2ib_free_page(struct page *page)
{
	__free_page(page);
}

/* Returns how many bytes can be copied without leaving the page at @off. */
static size_t in_page(size_t off, size_t len)
{
	return min(len, PAGE_SIZE - offset_in_page(off));
}

static struct page *bvec_page(const struct bio_vec *bv, size_t off)
{
	return bv->bv_page + (off >> PAGE_SHIFT);
}

/*
 * Returns whether @len bytes at @at are in the first piece, and in one page.
 * Small payloads are.
 */
static bool in_first(const struct bio_vec *bv, u32 n, size_t at, size_t len)
{
	return n && at < bv->bv_len && len <= bv->bv_len - at &&
	       offset_in_page(bv->bv_offset + at) + len <= PAGE_SIZE;
}

/* Out of line, so that the short path saves no registers for it. */
static noinline size_t read_pieces(const struct bio_vec *bv, u32 n, size_t at,
				   void *to, size_t len)
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

size_t ro2ib_bvec_read(const struct bio_vec *bv, u32 n, size_t at, void *to,
		       size_t len)
{
	size_t off;

	if (!in_first(bv, n, at, len))
		return read_pieces(bv, n, at, to, len);

	off = bv->bv_offset + at;
	memcpy_from_page(to, bvec_page(bv, off), offset_in_page(off), len);
	return len;
}

static noinline size_t write_pieces(const struct bio_vec *bv, u32 n, size_t at,
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

size_t ro2ib_bvec_write(const struct bio_vec *bv, u32 n, size_t at,
			const void *from, size_t len)
{
	size_t off;

	if (!in_first(bv, n, at, len))
		return write_pieces(bv, n, at, from, len);

	off = bv->bv_offset + at;
	memcpy_to_page(bvec_page(bv, off), offset_in_page(off), from, len);
	return len;
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
