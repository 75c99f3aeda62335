// SPDX-License-Identifier: GPL-2.0
/*
 * Gives soft-RoCE devices the DMA of an adapter. soft-RoCE uses "virtual DMA":
 * ib_dma_map_*() return CPU addresses, and nothing is mapped, bounced or
 * synchronised. With this module each device has a DMA device of its own, so
 * the kernel's DMA layer maps for it as for an adapter: swiotlb=force bounces
 * all, mask= bounces what lies beyond it, DMA_API_DEBUG checks each call. With
 * iommu=1 the DMA device is a PCI device (QEMU's pci-testdev) behind an IOMMU, which
 * joins elements of a list up to segment= bytes. DMA addresses are never those of the
 * CPU. The module stands between the verbs and soft-RoCE and translates addresses back.
 *
 * It checks rules that an adapter relies on: an element has a DMA address, inline
 * data have a CPU address, posted memory is mapped in the right direction and
 * belongs to the device (the driver has synchronised it after the CPU had it), and
 * memory is unmapped as it was mapped, after the work requests that use it have
 * ended and after keys for it are invalid. A failed work request of a reliable
 * connection has ended when its queue pair was moved to the error state, because
 * some providers report it while their device uses it. A broken rule is a warning, and is
 * counted in the parameter "violations". The parameter "fault" breaks the rules.
 *
 * Load it before the devices are made.
 */
#include <linux/dma-direct.h>
#include <linux/dma-mapping.h>
#include <linux/hashtable.h>
#include <linux/interval_tree_generic.h>
#include <linux/iommu.h>
#include <linux/list.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/platform_device.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/xarray.h>
#include <rdma/ib_verbs.h>

#include "ops_hook.h"

static unsigned int mask = 64;
module_param(mask, uint, 0444);
MODULE_PARM_DESC(mask, "bits of an address that the device can reach");
static unsigned long long shift = 1ULL << 42;
module_param(shift, ullong, 0444);
MODULE_PARM_DESC(shift, "DMA address of the first byte of memory");
static bool iommu;
module_param(iommu, bool, 0444);
MODULE_PARM_DESC(iommu, "the DMA device is QEMU's pci-testdev, behind an IOMMU");
static unsigned int segment = SZ_64K;
module_param(segment, uint, 0444);
MODULE_PARM_DESC(segment, "bytes of the longest element of a mapped list");
static unsigned long boundary = U32_MAX;
module_param(boundary, ulong, 0444);
MODULE_PARM_DESC(boundary, "mask of the addresses between which an element lies");
static unsigned int fail_nth;
module_param(fail_nth, uint, 0644);
MODULE_PARM_DESC(fail_nth, "each n-th mapping fails");
static atomic_t nr_joined;
module_param_named(joined, nr_joined.counter, int, 0444);
MODULE_PARM_DESC(joined, "lists that were mapped to fewer elements");
static atomic_t nr_failed;
module_param_named(failed, nr_failed.counter, int, 0444);
MODULE_PARM_DESC(failed, "mappings that fail_nth let fail");

static char skip[16];
module_param_string(skip, skip, sizeof(skip), 0644);
MODULE_PARM_DESC(skip, "calls that do nothing, to test the tests: cpu or device, then the direction (1: to, 2: from the device)");

static char fault[16];
module_param_string(fault, fault, sizeof(fault), 0644);
MODULE_PARM_DESC(fault, "rule that is broken for the user, to test the tests: unmap, flush, key, direction or length");

static bool faulty(const char *name)
{
	return sysfs_streq(fault, name);
}

static atomic_t violations;
module_param_named(violations, violations.counter, int, 0444);
MODULE_PARM_DESC(violations, "rules that the users of the devices broke");

/* A mapping that takes room in the bounce buffer. */
struct occupant {
	struct list_head list;
	dma_addr_t addr;
	size_t len;
};

/* Largest and smallest mapping of swiotlb in one piece. */
#define OCCUPANT_MAX	SZ_256K
#define OCCUPANT_MIN	SZ_2K

static LIST_HEAD(occupants);
static void *occupant_buf;

static int occupied_get(char *buffer, const struct kernel_param *kp)
{
	return sysfs_emit(buffer, "%d\n", !list_empty(&occupants));
}

static int occupied_set(const char *val, const struct kernel_param *kp);

static const struct kernel_param_ops occupied_ops = { .set = occupied_set, .get = occupied_get };
module_param_cb(occupied, &occupied_ops, NULL, 0644);
MODULE_PARM_DESC(occupied, "whether the module has taken all room in the bounce buffer");

#define violation(...) ({		\
	atomic_inc(&violations);	\
	WARN(1, "ib_imitate_dma: " __VA_ARGS__);\
})

#define MOST_SGES 32

/* Copies of data that an IOMMU has joined: soft-RoCE reads contiguous memory only. */
struct copies {
	int n;
	struct {
		void *data;
		size_t len;
	} of[MOST_SGES];
};

/* A range of DMA addresses that the device may read or write. */
struct piece {
	struct rb_node rb;
	u64 first, last, last_below;
	const struct use *use;
	/* Of a mapping. */
	enum dma_data_direction dir;
};

/* A work request that has not ended, or a memory region that has a valid key. */
struct use {
	struct list_head list;
	const struct ib_qp *qp;
	const struct ib_cqe *cqe;
	/* Memory region that a work request validates, or invalidates on completion. */
	const struct ib_mr *mr;
	u32 inv_rkey;
	/* It failed, and its queue pair may not have stopped. */
	bool failed;
	struct copies *copies;
	int n;
	struct piece pieces[];
};

/* Effects of a queue pair's work requests, in order of completion. */
struct queues {
	struct hlist_node hash;
	const struct ib_qp *qp;
	struct list_head sends, recvs;
	/* The device does not use their memory any more. */
	bool stopped;
};

static DEFINE_SPINLOCK(lock);
static DEFINE_HASHTABLE(all_queues, 8);
static LIST_HEAD(regions);
/* Memory that regions map, until they have a key. */
static DEFINE_XARRAY_FLAGS(mapped, XA_FLAGS_LOCK_IRQ);
static struct rb_root_cached used = RB_ROOT_CACHED;
/* Mappings. Not all are known if there was no memory to note one. */
static struct rb_root_cached mappings = RB_ROOT_CACHED;
static bool all_known = true;
/* Memory that belongs to the CPU since it was synchronised for the CPU. */
static struct rb_root_cached cpus = RB_ROOT_CACHED;

static struct ib_device_ops real;
static struct device *dma_device;
static struct platform_device *platform;
static struct pci_dev *testdev;
/* Past all memory, unless the device cannot reach so far. */
static struct bus_dma_region ranges[2];

/* Returns the CPU address that soft-RoCE finds at a DMA address, 0 if none. */
static u64 cpu_address(u64 addr)
{
	struct iommu_domain *domain = iommu_get_domain_for_dev(dma_device);
	phys_addr_t phys = domain ? iommu_iova_to_phys(domain, addr) :
				    dma_to_phys(dma_device, addr);

	if (!phys || phys == (phys_addr_t)-1 || !pfn_valid(PHYS_PFN(phys)))
		return 0;
	return (u64)(uintptr_t)phys_to_virt(phys);
}

/*
 * Returns how many of the @len bytes at a DMA address are contiguous in memory,
 * too, and their CPU address. Returns 0 if it is no DMA address.
 */
static size_t contiguous(u64 addr, size_t len, u64 *cpu)
{
	size_t n = PAGE_SIZE - offset_in_page(addr);

	*cpu = cpu_address(addr);
	if (!*cpu)
		return 0;
	while (n < len && cpu_address(addr + n) == *cpu + n)
		n += PAGE_SIZE;
	return min(n, len);
}

static void free_copies(struct copies *copies)
{
	int i;

	for (i = 0; copies && i < copies->n; i++)
		free_pages_exact(copies->of[i].data, copies->of[i].len);
	kfree(copies);
}

/* Returns a copy of the data at a DMA address, NULL without memory. @copies is made if it is NULL. */
static void *copy_of(u64 addr, size_t len, struct copies **copies)
{
	size_t done = 0, n;
	void *data;
	u64 cpu;

	if (!*copies)
		*copies = kzalloc(sizeof(**copies), GFP_ATOMIC);
	data = *copies ? alloc_pages_exact(len, GFP_ATOMIC) : NULL;
	if (!data)
		return NULL;
	(*copies)->of[(*copies)->n].data = data;
	(*copies)->of[(*copies)->n++].len = len;
	for (; done < len && (n = contiguous(addr + done, len - done, &cpu)); done += n)
		memcpy(data + done, (void *)(uintptr_t)cpu, n);
	return done < len ? NULL : data;
}

static bool is_cpu_address(u64 addr)
{
	return (s64)addr < 0;
}

#define FIRST(piece) ((piece)->first)
#define LAST(piece) ((piece)->last)
INTERVAL_TREE_DEFINE(struct piece, rb, u64, last_below, FIRST, LAST,
		     static __maybe_unused, pieces);

static struct use *new_use(const struct ib_qp *qp, int n)
{
	struct use *use = kzalloc(struct_size(use, pieces, n), GFP_ATOMIC);

	if (use) {
		INIT_LIST_HEAD(&use->list);
		use->qp = qp;
	}
	return use;
}

static void add_piece(struct use *use, u64 addr, u32 len)
{
	struct piece *piece = &use->pieces[use->n++];

	piece->use = use;
	piece->first = addr;
	piece->last = addr + len - 1;
}

/* Under the lock. */
static void begin_use(struct use *use, struct list_head *list)
{
	int i;

	list_add_tail(&use->list, list);
	for (i = 0; i < use->n; i++)
		pieces_insert(&use->pieces[i], &used);
}

/* Under the lock. */
static void end_use(struct use *use)
{
	int i;

	list_del(&use->list);
	for (i = 0; i < use->n; i++)
		pieces_remove(&use->pieces[i], &used);
	free_copies(use->copies);
	kfree(use);
}

/* Under the lock: gives a range to the CPU. */
static void give_to_cpu(u64 first, u64 last)
{
	struct piece *piece = kzalloc(sizeof(*piece), GFP_ATOMIC);

	if (!piece || first > last) {
		kfree(piece);
		return;
	}
	piece->first = first;
	piece->last = last;
	pieces_insert(piece, &cpus);
}

/* Under the lock: takes a range from the CPU. */
static void take_from_cpu(u64 first, u64 last)
{
	struct piece *piece;

	while ((piece = pieces_iter_first(&cpus, first, last))) {
		u64 before = piece->first, after = piece->last;

		pieces_remove(piece, &cpus);
		kfree(piece);
		if (before < first)
			give_to_cpu(before, first - 1);
		if (after > last)
			give_to_cpu(last + 1, after);
	}
}

/* Under the lock: returns a mapping that has the whole range, NULL if none has. */
static struct piece *mapping_of(u64 addr, u64 len, enum dma_data_direction dir, bool exact)
{
	struct piece *piece;
	u64 last = addr + len - 1;

	for (piece = pieces_iter_first(&mappings, addr, last); piece;
	     piece = pieces_iter_next(piece, addr, last))
		if (piece->first <= addr && piece->last >= last &&
		    (piece->dir == dir || (piece->dir == DMA_BIDIRECTIONAL && !exact)) &&
		    (!exact || (piece->first == addr && piece->last == last)))
			return piece;
	return NULL;
}

static void add_mapping(u64 addr, u64 len, enum dma_data_direction dir)
{
	struct piece *piece = kzalloc(sizeof(*piece), GFP_ATOMIC);
	unsigned long flags;

	if (!piece || !len) {
		all_known = all_known && !len;
		kfree(piece);
		return;
	}
	piece->first = addr;
	piece->last = addr + len - 1;
	piece->dir = dir;
	spin_lock_irqsave(&lock, flags);
	pieces_insert(piece, &mappings);
	spin_unlock_irqrestore(&lock, flags);
}

/* Checks memory at @addr that is being unmapped. */
static void check_unmap(u64 addr, u64 len, enum dma_data_direction dir)
{
	struct piece *piece;
	unsigned long flags;
	const struct use *use;

	if (!len)
		return;
	spin_lock_irqsave(&lock, flags);
	piece = mapping_of(addr, len, dir, true);
	if (piece) {
		pieces_remove(piece, &mappings);
		kfree(piece);
	} else if (all_known) {
		violation("%llx+%llx is unmapped, and was not mapped so (direction %d)\n",
			  addr, len, dir);
	}
	take_from_cpu(addr, addr + len - 1);
	piece = pieces_iter_first(&used, addr, addr + len - 1);
	if (piece) {
		use = piece->use;
		violation("%llx+%llx is unmapped, and %s of queue pair %u uses it\n",
			  addr, len, use->mr ? "a region" : "a work request",
			  use->qp->qp_num);
	}
	spin_unlock_irqrestore(&lock, flags);
}

/* Under the lock. */
static struct queues *queues_of(const struct ib_qp *qp)
{
	struct queues *queues;

	hash_for_each_possible(all_queues, queues, hash, (uintptr_t)qp)
		if (queues->qp == qp)
			return queues;
	queues = kzalloc(sizeof(*queues), GFP_ATOMIC);
	if (!queues)
		return NULL;
	queues->qp = qp;
	queues->stopped = qp->qp_type != IB_QPT_RC;
	INIT_LIST_HEAD(&queues->sends);
	INIT_LIST_HEAD(&queues->recvs);
	hash_add(all_queues, &queues->hash, (uintptr_t)qp);
	return queues;
}

/* Under the lock: ends a region, which cannot be used any more. */
static void end_region(const struct ib_qp *qp, const struct ib_mr *mr, u32 rkey)
{
	struct use *use, *next;

	list_for_each_entry_safe(use, next, &regions, list)
		if (mr ? use->mr == mr : use->qp == qp &&
		    (!rkey || use->mr->rkey == rkey))
			end_use(use);
}

/* Under the lock: checks memory that the device is going to use. */
static void check_mapped(const struct ib_qp *qp, u64 first, u64 last,
			 enum dma_data_direction dir)
{
	if (all_known && !mapping_of(first, last - first + 1, dir, false))
		violation("queue pair %u: %llx+%llx is not mapped in the direction %d\n",
			  qp->qp_num, first, last - first + 1, dir);
}

/* Notes what a work request uses, before it is posted. */
static struct use *post_use(struct ib_qp *qp, const struct ib_sge *list, int n,
			    const struct ib_cqe *cqe, bool send)
{
	struct use *use = new_use(qp, n);
	struct queues *queues;
	unsigned long flags;
	int i;

	if (!use)
		return NULL;
	use->cqe = cqe;
	for (i = 0; i < n; i++)
		if (list[i].length)
			add_piece(use, list[i].addr, list[i].length);
	spin_lock_irqsave(&lock, flags);
	for (i = 0; i < use->n; i++) {
		u64 first = use->pieces[i].first, last = use->pieces[i].last;

		if (pieces_iter_first(&cpus, first, last))
			violation("queue pair %u: %llx belongs to the CPU\n",
				  qp->qp_num, first);
		check_mapped(qp, first, last, send ? DMA_TO_DEVICE : DMA_FROM_DEVICE);
	}
	queues = queues_of(qp);
	if (queues) {
		begin_use(use, send ? &queues->sends : &queues->recvs);
	} else {
		kfree(use);
		use = NULL;
	}
	spin_unlock_irqrestore(&lock, flags);
	return use;
}

static void unpost_use(struct use *use)
{
	unsigned long flags;

	spin_lock_irqsave(&lock, flags);
	end_use(use);
	spin_unlock_irqrestore(&lock, flags);
}

/*
 * Under the lock: ends work requests up to @cqe. One before it that has not
 * been reported has succeeded, also if @cqe failed, because each failed work
 * request is reported. Returns false if there is none.
 */
static bool completed(struct list_head *list, const struct ib_cqe *cqe,
		      bool well, bool stopped)
{
	struct use *use, *next;
	bool found = false;

	list_for_each_entry(use, list, list)
		if (use->cqe == cqe && !use->failed) {
			found = true;
			break;
		}
	if (!found)
		return false;
	list_for_each_entry_safe(use, next, list, list) {
		bool last = use->cqe == cqe && !use->failed;
		bool succeeded = last ? well : !use->failed;

		if (use->inv_rkey && succeeded)
			end_region(use->qp, NULL, use->inv_rkey);
		if (succeeded || stopped)
			end_use(use);
		else
			use->failed = true;
		if (last)
			break;
	}
	return true;
}

static void unmap_page(struct device *dev, dma_addr_t addr, size_t len,
		       enum dma_data_direction dir, unsigned long attrs);

/* Unmaps the first range of @use, though the device uses it. */
static void unmap_early(const struct use *use, enum dma_data_direction dir)
{
	u64 first = use->pieces[0].first, last = use->pieces[0].last;

	unmap_page(dma_device, first, last - first + 1, dir, DMA_ATTR_SKIP_CPU_SYNC);
}

/* Unmaps the buffer of a failed receive before its queue pair has stopped, if there is one. */
static void unmap_failed(const struct ib_qp *qp)
{
	struct queues *queues;
	unsigned long flags;
	struct use *use;
	struct use *copy = NULL;

	spin_lock_irqsave(&lock, flags);
	queues = queues_of(qp);
	if (queues)
		list_for_each_entry(use, &queues->recvs, list)
			if (use->failed && use->n) {
				copy = kmemdup(use, struct_size(use, pieces, use->n), GFP_ATOMIC);
				break;
			}
	spin_unlock_irqrestore(&lock, flags);
	if (copy)
		unmap_early(copy, DMA_FROM_DEVICE);
	kfree(copy);
}

static int dma_poll_cq(struct ib_cq *cq, int n, struct ib_wc *wc)
{
	int i, got = real.poll_cq(cq, n, wc);
	struct queues *queues;
	unsigned long flags;

	spin_lock_irqsave(&lock, flags);
	for (i = 0; i < got; i++) {
		bool well = wc[i].status == IB_WC_SUCCESS;

		queues = queues_of(wc[i].qp);
		if (queues &&
		    !completed(&queues->recvs, wc[i].wr_cqe, well, queues->stopped))
			completed(&queues->sends, wc[i].wr_cqe, well, queues->stopped);
	}
	spin_unlock_irqrestore(&lock, flags);
	if (got > 0 && faulty("flush"))
		unmap_failed(wc[0].qp);
	return got;
}

/* Under the lock. */
static void end_failed(struct list_head *list)
{
	struct use *use, *next;

	list_for_each_entry_safe(use, next, list, list)
		if (use->failed)
			end_use(use);
}

static int dma_modify_qp(struct ib_qp *qp, struct ib_qp_attr *attr, int attr_mask,
			 struct ib_udata *udata)
{
	struct queues *queues;
	unsigned long flags;
	int rc;

	ops_hook_ack_timeout(attr, attr_mask);
	rc = real.modify_qp(qp, attr, attr_mask, udata);
	if (rc || !(attr_mask & IB_QP_STATE) || attr->qp_state != IB_QPS_ERR)
		return rc;
	spin_lock_irqsave(&lock, flags);
	queues = queues_of(qp);
	if (queues) {
		queues->stopped = true;
		end_failed(&queues->sends);
		end_failed(&queues->recvs);
	}
	spin_unlock_irqrestore(&lock, flags);
	return 0;
}

static int dma_destroy_qp(struct ib_qp *qp, struct ib_udata *udata)
{
	int rc = real.destroy_qp(qp, udata);
	struct use *use, *next;
	struct queues *queues;
	unsigned long flags;

	if (rc)
		return rc;
	spin_lock_irqsave(&lock, flags);
	end_region(qp, NULL, 0);
	queues = queues_of(qp);
	if (queues) {
		list_for_each_entry_safe(use, next, &queues->sends, list)
			end_use(use);
		list_for_each_entry_safe(use, next, &queues->recvs, list)
			end_use(use);
		hash_del(&queues->hash);
		kfree(queues);
	}
	spin_unlock_irqrestore(&lock, flags);
	return 0;
}

/* Sets the memory that a region maps until it has a key, and returns the former one. */
static struct use *set_mapped(const struct ib_mr *mr, struct use *use)
{
	unsigned long flags;
	void *old;

	xa_lock_irqsave(&mapped, flags);
	old = __xa_store(&mapped, (uintptr_t)mr, use, GFP_ATOMIC);
	xa_unlock_irqrestore(&mapped, flags);
	if (!xa_is_err(old))
		return old;
	kfree(use);
	return NULL;
}

static int dma_dereg_mr(struct ib_mr *mr, struct ib_udata *udata)
{
	unsigned long flags;
	int rc = real.dereg_mr(mr, udata);

	if (rc)
		return rc;
	kfree(set_mapped(mr, NULL));
	spin_lock_irqsave(&lock, flags);
	end_region(NULL, mr, 0);
	spin_unlock_irqrestore(&lock, flags);
	return 0;
}

/*
 * Translates elements to @to. Elements of a memory region have its
 * addresses. An element of a send whose pages are not contiguous becomes a copy.
 */
static int translate(struct ib_qp *qp, const struct ib_sge *from, int n,
		     struct ib_sge *to, struct copies **copies)
{
	size_t whole;
	int i;

	if (n > MOST_SGES)
		return -EINVAL;
	for (i = 0; i < n; i++) {
		to[i] = from[i];
		if (from[i].lkey != qp->pd->local_dma_lkey || !from[i].length)
			continue;
		whole = contiguous(from[i].addr, from[i].length, &to[i].addr);
		if (!whole || (whole < from[i].length && !copies)) {
			violation("element %d of %d: no DMA address: %llx+%x\n",
				  i, n, from[i].addr, from[i].length);
			return -EINVAL;
		}
		if (whole == from[i].length)
			continue;
		to[i].addr = (uintptr_t)copy_of(from[i].addr, from[i].length, copies);
		if (!to[i].addr)
			return -ENOMEM;
	}
	return 0;
}

static int check_inline(const struct ib_send_wr *wr)
{
	int i;

	for (i = 0; i < wr->num_sge; i++) {
		if (is_cpu_address(wr->sg_list[i].addr))
			continue;
		violation("inline element %d of %d: no CPU address: %llx\n", i,
			  wr->num_sge, wr->sg_list[i].addr);
		return -EINVAL;
	}
	return 0;
}

/* Returns what the region uses; NULL: the same pages as before, with another key. */
static struct use *begin_region(struct ib_qp *qp, const struct ib_reg_wr *wr)
{
	struct use *use = set_mapped(wr->mr, NULL);
	bool writes = wr->access & (IB_ACCESS_REMOTE_WRITE | IB_ACCESS_LOCAL_WRITE);
	unsigned long flags;
	int i;

	if (!use)
		return NULL;
	use->qp = qp;
	spin_lock_irqsave(&lock, flags);
	for (i = 0; i < use->n; i++)
		check_mapped(qp, use->pieces[i].first, use->pieces[i].last,
			     writes ? DMA_FROM_DEVICE : DMA_TO_DEVICE);
	end_region(NULL, wr->mr, 0);
	begin_use(use, &regions);
	spin_unlock_irqrestore(&lock, flags);
	return use;
}

/* The region has no key, because the work request was not posted. */
static void undo_region(struct use *use)
{
	unsigned long flags;
	int i;

	spin_lock_irqsave(&lock, flags);
	list_del_init(&use->list);
	for (i = 0; i < use->n; i++)
		pieces_remove(&use->pieces[i], &used);
	spin_unlock_irqrestore(&lock, flags);
	kfree(set_mapped(use->mr, use));
}

/*
 * Posts one work request after the other: each is changed while soft-RoCE reads
 * it. When a region gets a key, the memory that it maps is in use.
 */
static int dma_post_send(struct ib_qp *qp, const struct ib_send_wr *wr,
			 const struct ib_send_wr **bad)
{
	struct ib_sge sges[MOST_SGES];
	int rc;

	for (; wr; wr = wr->next) {
		struct ib_send_wr *one = (struct ib_send_wr *)wr;
		bool inlined = one->send_flags & IB_SEND_INLINE;
		struct ib_send_wr *next = one->next;
		struct ib_sge *list = one->sg_list;
		struct use *use = NULL, *region = NULL;
		struct copies *copies = NULL;

		rc = inlined ? check_inline(one) :
			       translate(qp, list, one->num_sge, sges, &copies);
		if (!rc) {
			use = post_use(qp, list, inlined ? 0 : one->num_sge,
				       one->wr_cqe, true);
			rc = use ? 0 : -ENOMEM;
		}
		if (rc)
			free_copies(copies);
		else
			use->copies = copies;
		if (!rc) {
			if (one->opcode == IB_WR_LOCAL_INV)
				use->inv_rkey = one->ex.invalidate_rkey;
			if (one->opcode == IB_WR_REG_MR)
				region = begin_region(qp, reg_wr(one));
			if (use->n && faulty("unmap"))
				unmap_early(use, DMA_TO_DEVICE);
			if (region && faulty("key"))
				unmap_early(region, DMA_FROM_DEVICE);
			if (!inlined)
				one->sg_list = sges;
			one->next = NULL;
			rc = real.post_send(qp, one, bad);
			one->sg_list = list;
			one->next = next;
		}
		if (rc) {
			if (region)
				undo_region(region);
			if (use)
				unpost_use(use);
			*bad = wr;
			return rc;
		}
	}
	return 0;
}

static int dma_post_recv(struct ib_qp *qp, const struct ib_recv_wr *wr,
			 const struct ib_recv_wr **bad)
{
	struct ib_sge sges[MOST_SGES];
	int rc;

	for (; wr; wr = wr->next) {
		struct ib_recv_wr *one = (struct ib_recv_wr *)wr;
		struct ib_recv_wr *next = one->next;
		struct ib_sge *list = one->sg_list;
		struct use *use = NULL;

		rc = translate(qp, list, one->num_sge, sges, NULL);
		if (!rc) {
			use = post_use(qp, list, one->num_sge, one->wr_cqe,
				       false);
			rc = use ? 0 : -ENOMEM;
		}
		if (!rc) {
			one->sg_list = sges;
			one->next = NULL;
			rc = real.post_recv(qp, one, bad);
			one->sg_list = list;
			one->next = next;
		}
		if (rc) {
			if (use)
				unpost_use(use);
			*bad = wr;
			return rc;
		}
	}
	return 0;
}

/*
 * Returns the list with CPU addresses, and its length @total. An element whose
 * pages are not contiguous becomes several.
 */
static struct scatterlist *cpu_list(struct scatterlist *list, int n, int *total)
{
	struct scatterlist *sg, *cpus, *to;
	size_t most = 0, done, part;
	u64 cpu;
	int i;

	for_each_sg(list, sg, n, i)
		most += 1 + (offset_in_page(sg_dma_address(sg)) + sg_dma_len(sg)) / PAGE_SIZE;
	cpus = kcalloc(most, sizeof(*cpus), GFP_ATOMIC);
	if (!cpus)
		return NULL;
	sg_init_table(cpus, most);
	to = cpus;
	for_each_sg(list, sg, n, i) {
		for (done = 0; done < sg_dma_len(sg); done += part, to++) {
			part = contiguous(sg_dma_address(sg) + done, sg_dma_len(sg) - done, &cpu);
			if (!part) {
				violation("piece %d of %d: no DMA address: %llx\n", i, n,
					  (u64)sg_dma_address(sg));
				kfree(cpus);
				return NULL;
			}
			sg_dma_address(to) = cpu;
			sg_dma_len(to) = part;
		}
	}
	*total = to - cpus;
	return cpus;
}

/*
 * Gives the region DMA addresses, also for the peer. soft-RoCE keeps its
 * pages.
 */
static int dma_map_mr_sg(struct ib_mr *mr, struct scatterlist *list, int n,
			 unsigned int *offset)
{
	struct scatterlist *sg, *cpus;
	struct use *use;
	int i, total, rc;

	use = new_use(NULL, n);
	cpus = cpu_list(list, n, &total);
	if (!use || !cpus) {
		kfree(cpus);
		kfree(use);
		return -ENOMEM;
	}
	use->mr = mr;
	for_each_sg(list, sg, n, i)
		add_piece(use, sg_dma_address(sg), sg_dma_len(sg));
	rc = real.map_mr_sg(mr, cpus, total, offset);
	if (rc == total) {
		mr->iova = mr->iova - sg_dma_address(cpus) + sg_dma_address(list);
		/* The last mapping, if no work request followed it. */
		kfree(set_mapped(mr, use));
		rc = n;
	} else {
		/* Not all of it, however much of it that is. */
		rc = min(rc, n - 1);
		kfree(use);
	}
	kfree(cpus);
	return rc;
}

static void occupy(void)
{
	struct device *dev = dma_device;
	struct occupant *occupant;
	size_t len;

	if (!occupant_buf)
		occupant_buf = alloc_pages_exact(OCCUPANT_MAX, GFP_KERNEL);
	if (!occupant_buf)
		return;
	for (len = OCCUPANT_MAX; len >= OCCUPANT_MIN; len /= 2) {
		while ((occupant = kzalloc(sizeof(*occupant), GFP_KERNEL))) {
			occupant->len = len;
			occupant->addr = dma_map_single_attrs(dev, occupant_buf, len,
							      DMA_TO_DEVICE, DMA_ATTR_NO_WARN);
			if (dma_mapping_error(dev, occupant->addr))
				break;
			list_add(&occupant->list, &occupants);
		}
		kfree(occupant);
	}
}

static void vacate(void)
{
	struct occupant *occupant, *next;

	list_for_each_entry_safe(occupant, next, &occupants, list) {
		dma_unmap_single(dma_device, occupant->addr, occupant->len, DMA_TO_DEVICE);
		list_del(&occupant->list);
		kfree(occupant);
	}
}

/* Takes or releases all room in the bounce buffer. Parameters are written one at a time. */
static int occupied_set(const char *val, const struct kernel_param *kp)
{
	bool on;
	int rc = kstrtobool(val, &on);

	if (rc)
		return rc;
	if (!dma_device)
		return -ENODEV;
	vacate();
	if (on)
		occupy();
	return 0;
}

static const struct ib_device_ops device_ops = {
	.post_send = dma_post_send,
	.post_recv = dma_post_recv,
	.poll_cq = dma_poll_cq,
	.modify_qp = dma_modify_qp,
	.destroy_qp = dma_destroy_qp,
	.dereg_mr = dma_dereg_mr,
	.map_mr_sg = dma_map_mr_sg,
};

/* Replaces the third argument of ib_register_device(dev, name, dma_device). */
static void adapt(struct ib_device *dev, struct pt_regs *regs)
{
#ifdef CONFIG_X86_64
	regs->dx = (uintptr_t)dma_device;
#else
	regs->regs[2] = (uintptr_t)dma_device;
#endif
}

static struct ops_hook hook = { .by = &device_ops, .real = &real, .adapt = adapt };

/* Returns whether a mapping is the one of fail_nth that fails. */
static bool fails(void)
{
	static atomic_t nr;

	if (!fail_nth || atomic_inc_return(&nr) % fail_nth)
		return false;
	atomic_inc(&nr_failed);
	return true;
}

/*
 * Functions that run instead of those of the DMA layer, for the module's device.
 * When the module calls the DMA layer, the kernel's own function runs.
 */
static dma_addr_t map_page(struct device *dev, struct page *page, size_t offset, size_t len,
			   enum dma_data_direction dir, unsigned long attrs)
{
	dma_addr_t addr;

	if (fails())
		return DMA_MAPPING_ERROR;
	if (faulty("length"))
		len /= 2;
	addr = dma_map_page_attrs(dev, page, offset, len, dir, attrs);
	if (!dma_mapping_error(dev, addr))
		add_mapping(addr, len, dir);
	return addr;
}

static void unmap_page(struct device *dev, dma_addr_t addr, size_t len,
		       enum dma_data_direction dir, unsigned long attrs)
{
	check_unmap(addr, len, dir);
	dma_unmap_page_attrs(dev, addr, len, dir, attrs);
}

static unsigned int map_sg(struct device *dev, struct scatterlist *list, int n,
			   enum dma_data_direction dir, unsigned long attrs)
{
	struct scatterlist *sg;
	int i, count;

	if (fails())
		return 0;
	if (faulty("direction"))
		dir = dir == DMA_TO_DEVICE ? DMA_FROM_DEVICE : DMA_TO_DEVICE;
	count = dma_map_sg_attrs(dev, list, n, dir, attrs);
	if (count && count < n)
		atomic_inc(&nr_joined);
	for_each_sg(list, sg, count, i)
		add_mapping(sg_dma_address(sg), sg_dma_len(sg), dir);
	return count;
}

static void unmap_sg(struct device *dev, struct scatterlist *list, int n,
		     enum dma_data_direction dir, unsigned long attrs)
{
	struct scatterlist *sg;
	int i;

	for_each_sg(list, sg, n, i)
		check_unmap(sg_dma_address(sg), sg_dma_len(sg), dir);
	dma_unmap_sg_attrs(dev, list, n, dir, attrs);
}

static bool skips(const char *owner, enum dma_data_direction dir)
{
	char name[sizeof(skip)];

	if (!skip[0])
		return false;
	snprintf(name, sizeof(name), "%s %u", owner, dir);
	return sysfs_streq(name, skip);
}

/* Checks memory that is synchronised, and gives it to the CPU or to the device. */
static void synced(u64 addr, u64 len, enum dma_data_direction dir, bool cpu)
{
	unsigned long flags;

	spin_lock_irqsave(&lock, flags);
	if (all_known && !mapping_of(addr, len, dir, false))
		violation("%llx+%llx is synchronised, and is not mapped so (direction %d)\n",
			  addr, len, dir);
	take_from_cpu(addr, addr + len - 1);
	if (cpu)
		give_to_cpu(addr, addr + len - 1);
	spin_unlock_irqrestore(&lock, flags);
}

/* Since Linux 6.10 an inline function precedes these two. */
#ifdef CONFIG_DMA_NEED_SYNC
#define SYNC(name) "__dma_sync_single_for_" name
#define dma_sync_for_cpu __dma_sync_single_for_cpu
#define dma_sync_for_device __dma_sync_single_for_device
#else
#define SYNC(name) "dma_sync_single_for_" name
#define dma_sync_for_cpu dma_sync_single_for_cpu
#define dma_sync_for_device dma_sync_single_for_device
#endif

static void sync_for_cpu(struct device *dev, dma_addr_t addr, size_t len,
			 enum dma_data_direction dir)
{
	if (skips("cpu", dir))
		return;
	synced(addr, len, dir, true);
	dma_sync_for_cpu(dev, addr, len, dir);
}

static void sync_for_device(struct device *dev, dma_addr_t addr, size_t len,
			    enum dma_data_direction dir)
{
	if (skips("device", dir))
		return;
	synced(addr, len, dir, false);
	dma_sync_for_device(dev, addr, len, dir);
}

/* Function of the kernel, and the one that runs instead. */
struct replacement {
	struct kprobe probe;
	void *by;
};

/*
 * Changes where the caller continues. A breakpoint is handled like an NMI, so no
 * more than that happens here.
 */
static int replace(struct kprobe *probe, struct pt_regs *regs)
{
#ifdef CONFIG_X86_64
	unsigned long caller = regs_get_kernel_stack_nth(regs, 0);
#else
	unsigned long caller = regs->regs[30];
#endif

	if (regs_get_kernel_argument(regs, 0) != (uintptr_t)dma_device ||
	    within_module(caller, THIS_MODULE))
		return 0;
	instruction_pointer_set(regs,
				(uintptr_t)container_of(probe, struct replacement, probe)->by);
	return 1;
}

/* Lets replace() change where the kernel continues. */
static void after(struct kprobe *probe, struct pt_regs *regs, unsigned long flags)
{
}

#define REPLACE(name, function) {					\
	.probe = { .symbol_name = name, .pre_handler = replace,		\
		   .post_handler = after },				\
	.by = function,							\
}

static struct replacement replacements[] = {
	REPLACE("dma_map_page_attrs", map_page),
	REPLACE("dma_unmap_page_attrs", unmap_page),
	REPLACE("dma_map_sg_attrs", map_sg),
	REPLACE("dma_unmap_sg_attrs", unmap_sg),
	REPLACE(SYNC("cpu"), sync_for_cpu),
	REPLACE(SYNC("device"), sync_for_device),
};

/* Makes the DMA device. */
static int add_platform_device(void)
{
	struct platform_device_info info = {
		.name = "ib_imitate_dma",
		.id = PLATFORM_DEVID_NONE,
		.dma_mask = DMA_BIT_MASK(mask),
	};

	platform = platform_device_register_full(&info);
	if (IS_ERR(platform))
		return PTR_ERR(platform);
	dma_device = &platform->dev;
	if (shift) {
		ranges[0].dma_start = shift;
		ranges[0].size = 1ULL << 40;
		dma_device->dma_range_map = ranges;
	}
	return 0;
}

/* Takes the PCI device as the DMA device. */
static int take_testdev(void)
{
	int rc;

	testdev = pci_get_device(PCI_VENDOR_ID_REDHAT, 0x0005, NULL);
	if (!testdev)
		return -ENODEV;
	dma_device = &testdev->dev;
	rc = iommu_get_domain_for_dev(dma_device) ? 0 : -ENXIO;
	if (!rc)
		rc = dma_set_mask_and_coherent(dma_device, DMA_BIT_MASK(mask));
	if (rc) {
		pci_dev_put(testdev);
		return rc;
	}
	dma_set_max_seg_size(dma_device, segment);
	dma_set_seg_boundary(dma_device, boundary);
	return 0;
}

static void drop_device(void)
{
	if (iommu)
		pci_dev_put(testdev);
	else
		platform_device_unregister(platform);
}

static int __init ib_imitate_dma_init(void)
{
	int i, rc = iommu ? take_testdev() : add_platform_device();

	if (rc)
		return rc;
	for (i = 0; i < ARRAY_SIZE(replacements); i++) {
		rc = register_kprobe(&replacements[i].probe);
		if (rc)
			goto undo;
	}
	rc = ops_hook_add(&hook);
	if (!rc)
		return 0;
undo:
	while (i--)
		unregister_kprobe(&replacements[i].probe);
	drop_device();
	return rc;
}
module_init(ib_imitate_dma_init);

MODULE_DESCRIPTION("Gives soft-RoCE devices the DMA of an adapter");
MODULE_LICENSE("GPL");
