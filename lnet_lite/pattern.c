// SPDX-License-Identifier: GPL-2.0
/*
 * lnet_lite: contents of buffers.
 *
 * The byte at offset o of transfer k is a function of (k, o) only, so that
 * source and sink agree without talking, and data of another transfer, or of
 * another place in the same one, never passes. Everything else in a buffer,
 * around and between its fragments, is poison.
 */
#include <linux/highmem.h>
#include <linux/jhash.h>

#include "internal.h"

#define LNL_POISON	0xa7

static u64 pattern_word(u64 key, u32 word)
{
	u64 x = key + 0x9e3779b97f4a7c15ULL * (word + 1ULL);

	x ^= x >> 29;
	x *= 0xbf58476d1ce4e5b9ULL;
	return x ^ (x >> 32);
}

static u8 pattern_byte(u64 key, u32 off)
{
	return pattern_word(key, off / 8) >> (8 * (off % 8));
}

static void pattern_fill(u8 *p, u64 key, u32 off, u32 len)
{
	for (; len && (off % 8); len--)
		*p++ = pattern_byte(key, off++);
	for (; len >= 8; len -= 8, off += 8, p += 8) {
		__le64 w = cpu_to_le64(pattern_word(key, off / 8));

		memcpy(p, &w, 8);
	}
	for (; len; len--)
		*p++ = pattern_byte(key, off++);
}

static bool pattern_ok(const u8 *p, u64 key, u32 off, u32 len)
{
	for (; len && (off % 8); len--)
		if (*p++ != pattern_byte(key, off++))
			return false;
	for (; len >= 8; len -= 8, off += 8, p += 8) {
		__le64 w = cpu_to_le64(pattern_word(key, off / 8));

		if (memcmp(p, &w, 8))
			return false;
	}
	for (; len; len--)
		if (*p++ != pattern_byte(key, off++))
			return false;
	return true;
}

/* Bytes [off, off + len) of the MD become bytes pattern_off... of pattern @key */
void lnl_buf_fill(struct lnl_buf *buf, u64 key, u32 off, u32 len, u32 pattern_off)
{
	struct lnet_libmd *md = buf->md;
	unsigned int i;

	for (i = 0; i < md->md_niov && len; i++) {
		struct bio_vec *bv = &md->md_kiov[i];
		u32 n;
		u8 *va;

		if (off >= bv->bv_len) {
			off -= bv->bv_len;
			continue;
		}
		n = min(bv->bv_len - off, len);
		va = kmap_local_page(buf->data[buf->first + i]);
		pattern_fill(va + bv->bv_offset + off, key, pattern_off, n);
		kunmap_local(va);
		pattern_off += n;
		len -= n;
		off = 0;
	}
}

/* All pages of the buffer, also what its fragments leave out */
void lnl_buf_poison(struct lnl_buf *buf)
{
	unsigned int i;

	for (i = 0; i < buf->npages; i++) {
		u8 *va = kmap_local_page(buf->data[i]);

		memset(va, LNL_POISON, PAGE_SIZE);
		kunmap_local(va);
	}
}

static bool poison_ok(const u8 *p, u32 len)
{
	return !memchr_inv(p, LNL_POISON, len);
}

/* One fragment, @off.. of it expected to hold data; returns false on a difference */
static bool check_frag(const u8 *va, const struct bio_vec *bv, u32 off, u32 n, u64 key,
		       u32 pattern_off, bool full)
{
	const u8 *start = va + bv->bv_offset;

	if (n && !pattern_ok(start + off, key, pattern_off, n))
		return false;
	if (!full)
		return true;
	return poison_ok(start, off) && poison_ok(start + off + n, bv->bv_len - off - n);
}

/*
 * Is the pattern where it belongs? With @full also: is the poison everywhere
 * else? Fragments come in the order of the buffer's pages, one page each, and
 * at most one per page, so that what lies around them can be checked too.
 * Returns 0 or -EILSEQ (wrong data) or -EOVERFLOW (written outside).
 */
int lnl_buf_check(struct lnl_buf *buf, u64 key, u32 off, u32 len, u32 pattern_off, bool full)
{
	struct lnet_libmd *md = buf->md;
	unsigned int i, page;
	int rc = 0;

	for (i = 0; i < md->md_niov && !rc; i++) {
		struct bio_vec *bv = &md->md_kiov[i];
		u32 skip = min(off, bv->bv_len);
		u32 n = min(bv->bv_len - skip, len);
		u8 *va;

		if (!n && !full)
			continue;
		va = kmap_local_page(buf->data[buf->first + i]);
		if (!check_frag(va, bv, skip, n, key, pattern_off, full))
			rc = -EILSEQ;
		else if (full && (!poison_ok(va, bv->bv_offset) ||
				  !poison_ok(va + bv->bv_offset + bv->bv_len,
					     PAGE_SIZE - bv->bv_offset - bv->bv_len)))
			rc = -EOVERFLOW;
		kunmap_local(va);
		off -= skip;
		len -= n;
		pattern_off += n;
	}
	if (rc || !full)
		return rc;

	/* pages that no fragment uses: guards */
	for (i = 0, page = 0; page < buf->npages && !rc; page++) {
		u8 *va;

		if (i < md->md_niov && md->md_kiov[i].bv_page == buf->pages[page]) {
			i++;
			continue;
		}
		va = kmap_local_page(buf->data[page]);
		if (!poison_ok(va, PAGE_SIZE))
			rc = -EOVERFLOW;
		kunmap_local(va);
	}
	return rc;
}

/* Of the descriptors, not of the data: an LND may not change them */
u32 lnl_kiov_sum(const struct bio_vec *kiov, unsigned int niov)
{
	return kiov ? jhash2((const u32 *)kiov, niov * sizeof(*kiov) / sizeof(u32), 0) : 0;
}
