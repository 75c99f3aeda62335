// SPDX-License-Identifier: GPL-2.0
/*
 * PUT and GET under real LNet to and from memory of gpu_fake, or with gpu=0 of
 * the system. lnet_selftest does not support such memory.
 *
 * Loaded on both nodes. Each is a target for PUT and GET at a portal of its own.
 * Write to debugfs lnet_gpu/run. The write returns when the command is done,
 * with an errno if it failed or the data is wrong:
 *
 *   fill SEED SIZE        sets the data for the peer's GETs
 *   check SEED SIZE       checks the data after a PUT of the peer
 *   put NID SEED SIZE     sends the data, and waits for the ACK
 *   get NID SEED SIZE     fetches the data, and checks it
 */
#include <linux/bvec.h>
#include <linux/completion.h>
#include <linux/debugfs.h>
#include <linux/highmem.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/uaccess.h>

#include "lnet_api.h"

#include "gpu_fake.h"

#define GPU_PORTAL	61
#define GPU_BITS	0x677075ULL
#define GPU_PAGES	256
#define GPU_PATIENCE	(60 * HZ)

static bool gpu = true;
module_param(gpu, bool, 0444);
MODULE_PARM_DESC(gpu, "memory of gpu_fake; else of the system");

struct memory {
	struct page *pages[GPU_PAGES];
	struct page *data[GPU_PAGES];
	struct bio_vec kiov[GPU_PAGES];
};

static struct memory here, target;	/* memory of local operations, and of the peer's */
static struct lnet_handle_md target_md;
static DECLARE_COMPLETION(target_gone);
static struct completion op_done, op_gone;
static int op_status;
static struct dentry *dir;
static DEFINE_MUTEX(run_mutex);

static u8 pattern(u32 seed, u32 at)
{
	return (seed + at) * 0x9e3779b1U >> 24;
}

/* Fills the memory, or checks its content. */
static int each_byte(struct memory *m, u32 seed, u32 size, bool look)
{
	u32 at;
	int rc = 0;

	for (at = 0; at < size; at += PAGE_SIZE) {
		u8 *p = kmap_local_page(m->data[at / PAGE_SIZE]);
		u32 i;

		for (i = 0; i < min_t(u32, PAGE_SIZE, size - at); i++) {
			if (!look)
				p[i] = pattern(seed, at + i);
			else if (p[i] != pattern(seed, at + i))
				rc = -EILSEQ;
		}
		kunmap_local(p);
	}
	return rc;
}

static void memory_free(struct memory *m)
{
	unsigned int i;

	if (gpu && m->pages[0])
		gpu_fake_free(GPU_PAGES, m->pages);
	for (i = 0; !gpu && i < GPU_PAGES && m->pages[i]; i++)
		__free_page(m->pages[i]);
}

static int memory_alloc(struct memory *m)
{
	unsigned int i;
	int rc;

	if (gpu) {
		rc = gpu_fake_alloc(GPU_PAGES, m->pages, m->data);
		if (rc)
			return rc;
	}
	for (i = 0; !gpu && i < GPU_PAGES; i++) {
		m->pages[i] = alloc_page(GFP_KERNEL);
		m->data[i] = m->pages[i];
		if (!m->pages[i])
			return -ENOMEM;
	}
	return 0;
}

/* Describes the first @size bytes in @md. */
static void memory_md(struct memory *m, u32 size, struct lnet_md *md)
{
	u32 at;

	for (at = 0; at < size; at += PAGE_SIZE) {
		struct bio_vec *bv = &m->kiov[at / PAGE_SIZE];

		bv->bv_page = m->pages[at / PAGE_SIZE];
		bv->bv_len = min_t(u32, PAGE_SIZE, size - at);
		bv->bv_offset = 0;
	}
	md->umd_start = m->kiov;
	md->umd_length = DIV_ROUND_UP(size, PAGE_SIZE);
	md->umd_options |= LNET_MD_KIOV | (gpu ? LNET_MD_GPU_ADDR : 0);
	md->umd_threshold = LNET_MD_THRESH_INF;
}

static void target_event(struct lnet_event *ev)
{
	if (ev->unlinked)
		complete(&target_gone);
}

static void op_event(struct lnet_event *ev)
{
	/* A message that failed to be sent has no ACK and no REPLY. */
	if (ev->type == LNET_EVENT_ACK || ev->type == LNET_EVENT_REPLY ||
	    (ev->type == LNET_EVENT_SEND && ev->status)) {
		op_status = ev->status;
		complete(&op_done);
	}
	if (ev->unlinked)
		complete(&op_gone);
}

static int operate(bool get, struct lnet_nid *nid, u32 seed, u32 size)
{
	struct lnet_processid to = { .nid = *nid, .pid = LNET_PID_LUSTRE };
	struct lnet_md md = { .umd_handler = op_event };
	struct lnet_handle_md mdh;
	int rc;

	init_completion(&op_done);
	init_completion(&op_gone);
	each_byte(&here, get ? ~seed : seed, size, false);
	memory_md(&here, size, &md);
	rc = LNetMDBind(&md, LNET_UNLINK, &mdh);
	if (rc)
		return rc;
	if (get)
		rc = LNetGet(NULL, mdh, &to, GPU_PORTAL, GPU_BITS, 0, false);
	else
		rc = LNetPut(NULL, mdh, LNET_ACK_REQ, &to, GPU_PORTAL, GPU_BITS,
			     0, 0);
	if (!rc)
		rc = wait_for_completion_timeout(&op_done, GPU_PATIENCE) ?
		     op_status : -ETIMEDOUT;
	LNetMDUnlink(mdh);
	wait_for_completion(&op_gone);
	return rc ?: get ? each_byte(&here, seed, size, true) : 0;
}

static int run(char *line)
{
	char op[8], name[64];
	struct lnet_nid nid;
	u32 seed, size;
	bool look;

	if (sscanf(line, "fill %u %u", &seed, &size) == 2 ||
	    sscanf(line, "check %u %u", &seed, &size) == 2) {
		look = line[0] == 'c';
		return size > GPU_PAGES * PAGE_SIZE ? -EINVAL :
		       each_byte(&target, seed, size, look);
	}
	if (sscanf(line, "%7s %63s %u %u", op, name, &seed, &size) != 4 ||
	    libcfs_strnid(&nid, name) || !size || size > GPU_PAGES * PAGE_SIZE)
		return -EINVAL;
	return operate(!strcmp(op, "get"), &nid, seed, size);
}

static ssize_t run_write(struct file *file, const char __user *from, size_t len,
			 loff_t *pos)
{
	char line[128];
	int rc;

	if (len >= sizeof(line))
		return -EINVAL;
	if (copy_from_user(line, from, len))
		return -EFAULT;
	line[len] = 0;
	if (mutex_lock_interruptible(&run_mutex))
		return -EINTR;
	rc = run(line);
	mutex_unlock(&run_mutex);
	return rc ? rc : len;
}

static const struct file_operations run_fops = {
	.owner = THIS_MODULE,
	.write = run_write,
};

static int target_attach(void)
{
	struct lnet_processid any = {
		.nid = LNET_ANY_NID,
		.pid = LNET_PID_ANY,
	};
	struct lnet_md md = {
		.umd_options = LNET_MD_OP_PUT | LNET_MD_OP_GET |
			       LNET_MD_MANAGE_REMOTE | LNET_MD_TRUNCATE,
		.umd_handler = target_event,
	};
	struct lnet_me *me;

	memory_md(&target, GPU_PAGES * PAGE_SIZE, &md);
	me = LNetMEAttach(GPU_PORTAL, &any, GPU_BITS, 0, LNET_UNLINK,
			  LNET_INS_AFTER);
	if (IS_ERR(me))
		return PTR_ERR(me);
	return LNetMDAttach(me, &md, LNET_RETAIN, &target_md);
}

static int __init gpu_init(void)
{
	int rc = LNetNIInit(LNET_PID_LUSTRE);

	if (rc < 0)
		return rc;
	rc = memory_alloc(&here) ?: memory_alloc(&target) ?: target_attach();
	if (rc) {
		memory_free(&here);
		memory_free(&target);
		LNetNIFini();
		return rc;
	}
	dir = debugfs_create_dir("lnet_gpu", NULL);
	debugfs_create_file("run", 0200, dir, NULL, &run_fops);
	return 0;
}

static void __exit gpu_exit(void)
{
	debugfs_remove_recursive(dir);
	LNetMDUnlink(target_md);
	wait_for_completion(&target_gone);
	lnet_assert_handler_unused(target_event);
	lnet_assert_handler_unused(op_event);
	LNetNIFini();
	memory_free(&here);
	memory_free(&target);
}

module_init(gpu_init);
module_exit(gpu_exit);
MODULE_DESCRIPTION("Messages with memory of a GPU under LNet, for tests");
MODULE_LICENSE("GPL");
