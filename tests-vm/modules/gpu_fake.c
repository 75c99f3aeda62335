// SPDX-License-Identifier: GPL-2.0
/*
 * Stand-in for nvidia-fs with a GPU, for tests on software devices.
 *
 * Its memory is a set of pages. As with nvidia-fs, each has another page that
 * stands for it, and only these stand-in pages are given away. A device finds
 * the memory at the addresses that the map call returns. Consecutive pages are
 * not consecutive there, and the content of the stand-in pages is checked when
 * they come back. A driver that reads or writes them by the CPU, has another
 * provider map them, or merges neighbours moves wrong data.
 *
 * Write to debugfs gpu_fake/ctl: "register"; "unregister", which waits until
 * nothing is mapped; "fail N": the N-th mapping from now on fails; "fail -N":
 * every N-th fails, until "fail 0"; "distance DEVICE N": the distance of that
 * device, by the name of the device that does its DMA, from the GPU. The
 * distance of other devices is unknown. gpu_fake/stats has the counters.
 */
#include <linux/bitmap.h>
#include <linux/debugfs.h>
#include <linux/gfp.h>
#include <linux/limits.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/scatterlist.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>
#include <linux/xarray.h>

#if __has_include("linux/lnet/lnet_rdma.h")
#include <linux/lnet/lib-lnet.h>
#include <linux/lnet/lnet_rdma.h>
#else
#include <lnet/lib-lnet.h>
#include <lnet/lnet_rdma.h>
#if __has_include("lnet/lnet_gds.h")
/*
 * LNet 2.16: nvidia-fs's structures, and its answers, which are in a C
 * file there
 */
#include <lnet/lnet_gds.h>
#define NVFS_IO_ERR	-1
#define NVFS_CPU_REQ	-2
#endif
#endif
#ifdef LNET_LITE
#include <lnet_lite.h>
#endif

#include "gpu_fake.h"

/* Consecutive pages */
#define BLOCK_ORDER	4
#define BLOCK		BIT(BLOCK_ORDER)
/* Content of the stand-in pages */
#define STAND_IN	0x5d
/* Number of the GPU, which a driver cannot guess */
#define GPU_INDEX	3
#define DEVICES		4

static unsigned int pages = 2048;
module_param(pages, uint, 0444);
MODULE_PARM_DESC(pages, "size of the memory");

struct fake_page {
	struct page *page;		/* stand-in page */
	void *data;			/* the memory */
	atomic_t mapped;
};

static struct fake_page *all;
static struct xarray numbers = XARRAY_INIT(numbers, 0);	/* by page frame */
static unsigned long *taken;
static DEFINE_SPINLOCK(taken_lock);
static struct xarray lists;		/* mapped lists: direction and length */
static struct dentry *dir;
static DEFINE_MUTEX(ctl_mutex);
static bool registered;
static atomic_t fail_in, fail_every;
static atomic_long_t maps, unmaps, mapped_pages, foreign, mixed, failed;
static struct {
	char device[32];
	unsigned int distance;
} distances[DEVICES];
static DEFINE_SPINLOCK(distances_lock);
static atomic_long_t asked, wrong_gpu;
static atomic_long_t crossing, bad_unmaps, freed_mapped, touched;

static struct fake_page *fake_of(struct page *page)
{
	void *number = xa_load(&numbers, page_to_pfn(page));

	return number ? &all[xa_to_value(number)] : NULL;
}

static bool fails_now(void)
{
	int every = atomic_read(&fail_every);
	static atomic_t calls;

	if (atomic_read(&fail_in) > 0 && atomic_dec_return(&fail_in) == 0)
		return true;
	return every && atomic_inc_return(&calls) % every == 0;
}

static void *mapped_as(int nents, enum dma_data_direction dma)
{
	return xa_mk_value((unsigned long)nents * 4 + dma);
}

static int fake_map(struct device *dev, struct scatterlist *sgl, int nents,
		    enum dma_data_direction dma, unsigned long attrs)
{
	struct scatterlist *sg;
	int i, ours = 0;

	for_each_sg(sgl, sg, nents, i) {
		ours += !!fake_of(sg_page(sg));
		if (sg->offset + sg->length > PAGE_SIZE) {
			atomic_long_inc(&crossing);
			return NVFS_IO_ERR;
		}
	}
	if (!ours) {
		atomic_long_inc(&foreign);
		return NVFS_CPU_REQ;
	}
	if (ours < nents) {
		atomic_long_inc(&mixed);
		return NVFS_IO_ERR;
	}
	if (fails_now()) {
		atomic_long_inc(&failed);
		return NVFS_IO_ERR;
	}
	if (xa_err(xa_store_bh(&lists, (unsigned long)sgl, mapped_as(nents, dma),
			       GFP_NOFS)))
		return NVFS_IO_ERR;
	/* A software device takes the address for the CPU. */
	for_each_sg(sgl, sg, nents, i) {
		struct fake_page *fake = fake_of(sg_page(sg));

		sg_dma_address(sg) = (uintptr_t)fake->data + sg->offset;
		sg_dma_len(sg) = sg->length;
		atomic_inc(&fake->mapped);
	}
	atomic_long_add(nents, &mapped_pages);
	atomic_long_inc(&maps);
	return nents;
}

static int fake_unmap(struct device *dev, struct scatterlist *sgl, int nents,
		      enum dma_data_direction dma)
{
	void *was = xa_erase_bh(&lists, (unsigned long)sgl);
	struct scatterlist *sg;
	int i;

	if (was != mapped_as(nents, dma)) {
		atomic_long_inc(&bad_unmaps);
		return 0;
	}
	for_each_sg(sgl, sg, nents, i) {
		atomic_dec(&fake_of(sg_page(sg))->mapped);
		sg_dma_address(sg) = ~(dma_addr_t)0;
	}
	atomic_long_sub(nents, &mapped_pages);
	atomic_long_inc(&unmaps);
	return nents;
}

static bool fake_is_gpu_page(struct page *page)
{
	return fake_of(page);
}

static unsigned int fake_index(struct page *page)
{
	return fake_of(page) ? GPU_INDEX : UINT_MAX;
}

/* Atomic: LNet holds a spinlock. */
static unsigned int fake_priority(struct device *dev, unsigned int index)
{
	unsigned int i, distance = UINT_MAX;

	atomic_long_inc(&asked);
	if (index != GPU_INDEX) {
		atomic_long_inc(&wrong_gpu);
		return UINT_MAX;
	}
	spin_lock(&distances_lock);
	for (i = 0; i < DEVICES; i++)
		if (!strcmp(distances[i].device, dev_name(dev)))
			distance = distances[i].distance;
	spin_unlock(&distances_lock);
	return distance;
}

static int set_distance(const char *device, unsigned int distance)
{
	unsigned int i;
	int rc = -ENOSPC;

	spin_lock(&distances_lock);
	for (i = 0; i < DEVICES; i++) {
		if (*distances[i].device && strcmp(distances[i].device, device))
			continue;
		strscpy(distances[i].device, device, sizeof(distances[i].device));
		distances[i].distance = distance;
		rc = 0;
		break;
	}
	spin_unlock(&distances_lock);
	return rc;
}

static int fake_no_request(struct request_queue *q, struct request *req,
			   struct scatterlist *sg)
{
	return NVFS_CPU_REQ;
}

static struct nvfs_dma_rw_ops fake_ops = {
	.ft_bmap		= nvfs_ft_prep_sglist | nvfs_ft_map_sglist |
				  nvfs_ft_is_gpu_page | nvfs_ft_device_priority,
	.nvfs_blk_rq_map_sg	= fake_no_request,
	.nvfs_dma_map_sg_attrs	= fake_map,
	.nvfs_dma_unmap_sg	= fake_unmap,
	.nvfs_is_gpu_page	= fake_is_gpu_page,
	.nvfs_gpu_index		= fake_index,
	.nvfs_device_priority	= fake_priority,
};

int gpu_fake_alloc(unsigned int n, struct page **handles, struct page **data)
{
	unsigned long at;
	unsigned int i;

	spin_lock(&taken_lock);
	at = bitmap_find_next_zero_area(taken, pages, 0, n, 0);
	if (at + n <= pages)
		bitmap_set(taken, at, n);
	spin_unlock(&taken_lock);
	if (at + n > pages)
		return -ENOMEM;
	for (i = 0; i < n; i++) {
		handles[i] = all[at + i].page;
		data[i] = virt_to_page(all[at + i].data);
	}
	return 0;
}
EXPORT_SYMBOL_GPL(gpu_fake_alloc);

void gpu_fake_free(unsigned int n, struct page **handles)
{
	unsigned int i;

	for (i = 0; i < n; i++) {
		struct fake_page *fake = fake_of(handles[i]);
		void *p = page_address(fake->page);

		if (atomic_read(&fake->mapped))
			atomic_long_inc(&freed_mapped);
		if (memchr_inv(p, STAND_IN, PAGE_SIZE)) {
			atomic_long_inc(&touched);
			memset(p, STAND_IN, PAGE_SIZE);
		}
		spin_lock(&taken_lock);
		bitmap_clear(taken, fake - all, 1);
		spin_unlock(&taken_lock);
	}
}
EXPORT_SYMBOL_GPL(gpu_fake_free);

#ifdef LNET_LITE
static const struct lnet_lite_gpu lent = {
	.owner	= THIS_MODULE,
	.alloc	= gpu_fake_alloc,
	.free	= gpu_fake_free,
};

static int lend(void)
{
	return lnet_lite_gpu_add(&lent);
}

static void lend_no_more(void)
{
	lnet_lite_gpu_del();
}
#else
static int lend(void)
{
	return 0;
}

static void lend_no_more(void)
{
}
#endif

static int set_registered(bool want)
{
	int rc = 0;

	if (registered == want)
		return -EALREADY;
	if (want)
		rc = lustre_v1_register_nvfs_dma_ops(&fake_ops);
	else
		lustre_v1_unregister_nvfs_dma_ops();
	if (!rc)
		registered = want;
	return rc;
}

static ssize_t ctl_write(struct file *file, const char __user *from, size_t len,
			 loff_t *pos)
{
	char line[64], device[32];
	int rc = -EINVAL, n;

	if (len >= sizeof(line))
		return -EINVAL;
	if (copy_from_user(line, from, len))
		return -EFAULT;
	line[len] = 0;
	mutex_lock(&ctl_mutex);
	if (sscanf(line, "fail %d", &n) == 1) {
		atomic_set(&fail_every, n < 0 ? -n : 0);
		atomic_set(&fail_in, max(n, 0));
		rc = 0;
	} else if (sscanf(line, "distance %31s %d", device, &n) == 2) {
		rc = set_distance(device, n);
	} else if (sysfs_streq(line, "register")) {
		rc = set_registered(true);
	} else if (sysfs_streq(line, "unregister")) {
		rc = set_registered(false);
	}
	mutex_unlock(&ctl_mutex);
	return rc ? rc : len;
}

static const struct file_operations ctl_fops = {
	.owner = THIS_MODULE,
	.write = ctl_write,
};

static int stats_show(struct seq_file *s, void *unused)
{
	seq_printf(s, "maps=%ld\nunmaps=%ld\nmapped_pages=%ld\ntaken=%u\n",
		   atomic_long_read(&maps), atomic_long_read(&unmaps),
		   atomic_long_read(&mapped_pages), bitmap_weight(taken, pages));
	seq_printf(s, "foreign=%ld\nmixed=%ld\nfailed=%ld\n",
		   atomic_long_read(&foreign), atomic_long_read(&mixed),
		   atomic_long_read(&failed));
	seq_printf(s, "crossing=%ld\nbad_unmaps=%ld\nfreed_mapped=%ld\ntouched=%ld\n",
		   atomic_long_read(&crossing), atomic_long_read(&bad_unmaps),
		   atomic_long_read(&freed_mapped), atomic_long_read(&touched));
	seq_printf(s, "asked=%ld\nwrong_gpu=%ld\n", atomic_long_read(&asked),
		   atomic_long_read(&wrong_gpu));
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(stats);

static void fake_free_memory(void)
{
	unsigned int i;

	for (i = 0; all && i < pages; i += BLOCK) {
		if (all[i].page)
			__free_pages(all[i].page, BLOCK_ORDER);
		if (all[i].data)
			/* The last page of its block. */
			free_pages((unsigned long)all[i + BLOCK - 1].data, BLOCK_ORDER);
	}
	xa_destroy(&numbers);
	xa_destroy(&lists);
	bitmap_free(taken);
	vfree(all);
}

static int fake_alloc_block(unsigned int at)
{
	struct page *page = alloc_pages(GFP_KERNEL, BLOCK_ORDER);
	unsigned long data = __get_free_pages(GFP_KERNEL, BLOCK_ORDER);
	unsigned int i;

	if (!page || !data) {
		if (page)
			__free_pages(page, BLOCK_ORDER);
		if (data)
			free_pages(data, BLOCK_ORDER);
		return -ENOMEM;
	}
	memset(page_address(page), STAND_IN, BLOCK * PAGE_SIZE);
	for (i = 0; i < BLOCK; i++) {
		struct fake_page *fake = &all[at + i];

		fake->page = page + i;
		/* Reverse order: neighbours are not consecutive. */
		fake->data = (void *)data + (BLOCK - 1 - i) * PAGE_SIZE;
	}
	for (i = 0; i < BLOCK; i++)
		if (xa_err(xa_store(&numbers, page_to_pfn(page + i), xa_mk_value(at + i),
				    GFP_KERNEL)))
			return -ENOMEM;
	return 0;
}

static int __init fake_init(void)
{
	unsigned int i;
	int rc = 0;

	pages = round_up(max(pages, 1U), BLOCK);
	xa_init_flags(&lists, XA_FLAGS_LOCK_BH);
	all = vzalloc(array_size(pages, sizeof(*all)));
	taken = bitmap_zalloc(pages, GFP_KERNEL);
	if (!all || !taken)
		rc = -ENOMEM;
	for (i = 0; !rc && i < pages; i += BLOCK)
		rc = fake_alloc_block(i);
	if (!rc)
		rc = lend();
	if (rc) {
		fake_free_memory();
		return rc;
	}
	dir = debugfs_create_dir("gpu_fake", NULL);
	debugfs_create_file("ctl", 0200, dir, NULL, &ctl_fops);
	debugfs_create_file("stats", 0400, dir, NULL, &stats_fops);
	return 0;
}

static void __exit fake_exit(void)
{
	debugfs_remove_recursive(dir);
	lend_no_more();
	if (registered)
		set_registered(false);
	fake_free_memory();
}

module_init(fake_init);
module_exit(fake_exit);
MODULE_DESCRIPTION("Passes for memory of a GPU, for tests");
MODULE_LICENSE("GPL");
