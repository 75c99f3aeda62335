// SPDX-License-Identifier: GPL-2.0
/*
 * lnet_lite: /sys/kernel/debug/lnet_lite.
 *
 * ctl     write one command line, then read the answer from the same open file
 * result  the answer to the last command
 * stats   counters
 * knobs   what "set" has set
 * dk      the debug log; a write empties it
 */
#include <linux/debugfs.h>
#include <linux/fs.h>
#include <linux/mutex.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>

#include "internal.h"

#define LNL_RESULT	16384
#define LNL_LINE	1024

struct lnl_ctl {
	struct mutex	lock;
	char		line[LNL_LINE];
	char		result[LNL_RESULT];
};

struct lnl_dk {
	struct mutex	lock;
	size_t		len;
	char		text[LNL_DK_SIZE];
};

static struct dentry *dir;
static char *last_result;
static DEFINE_MUTEX(last_lock);

static int ctl_open(struct inode *inode, struct file *file)
{
	struct lnl_ctl *c = kvzalloc(sizeof(*c), GFP_KERNEL);

	if (!c)
		return -ENOMEM;
	mutex_init(&c->lock);
	file->private_data = c;
	return 0;
}

static int ctl_release(struct inode *inode, struct file *file)
{
	kvfree(file->private_data);
	return 0;
}

/* Sleeps until the command is done; the file position stays, for the read */
static ssize_t ctl_write(struct file *file, const char __user *buf, size_t len, loff_t *ppos)
{
	struct lnl_ctl *c = file->private_data;
	size_t n;
	int rc;

	if (len >= LNL_LINE)
		return -E2BIG;
	if (mutex_lock_interruptible(&c->lock))
		return -EINTR;
	if (copy_from_user(c->line, buf, len)) {
		rc = -EFAULT;
		goto out;
	}
	c->line[len] = 0;
	rc = lnl_cmd(c->line, c->result, LNL_RESULT);
	n = strlen(c->result);
	scnprintf(c->result + n, LNL_RESULT - n, "rc=%d\n", rc);

	mutex_lock(&last_lock);
	strscpy(last_result, c->result, LNL_RESULT);
	mutex_unlock(&last_lock);
out:
	mutex_unlock(&c->lock);
	return rc ? rc : len;
}

static ssize_t ctl_read(struct file *file, char __user *buf, size_t len, loff_t *ppos)
{
	struct lnl_ctl *c = file->private_data;
	ssize_t rc;

	if (mutex_lock_interruptible(&c->lock))
		return -EINTR;
	rc = simple_read_from_buffer(buf, len, ppos, c->result, strlen(c->result));
	mutex_unlock(&c->lock);
	return rc;
}

static const struct file_operations ctl_fops = {
	.owner		= THIS_MODULE,
	.open		= ctl_open,
	.release	= ctl_release,
	.read		= ctl_read,
	.write		= ctl_write,
	.llseek		= default_llseek,
};

static int result_show(struct seq_file *m, void *v)
{
	mutex_lock(&last_lock);
	seq_puts(m, last_result);
	mutex_unlock(&last_lock);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(result);

static int print_into(struct seq_file *m, int (*print)(char *buf, size_t size))
{
	char *buf = kvzalloc(LNL_RESULT, GFP_KERNEL);

	if (!buf)
		return -ENOMEM;
	print(buf, LNL_RESULT);
	seq_puts(m, buf);
	kvfree(buf);
	return 0;
}

static int stats_show(struct seq_file *m, void *v)
{
	return print_into(m, lnl_stats_print);
}
DEFINE_SHOW_ATTRIBUTE(stats);

static int knobs_show(struct seq_file *m, void *v)
{
	return print_into(m, lnl_knobs_print);
}
DEFINE_SHOW_ATTRIBUTE(knobs);

/* At the beginning all is taken, so that a reader sees each line once, and no part of one */
static ssize_t dk_read(struct file *file, char __user *buf, size_t len, loff_t *ppos)
{
	struct lnl_dk *dk = file->private_data;
	ssize_t rc;

	if (mutex_lock_interruptible(&dk->lock))
		return -EINTR;
	if (*ppos == 0)
		dk->len = lnl_dk_read(dk->text);
	rc = simple_read_from_buffer(buf, len, ppos, dk->text, dk->len);
	mutex_unlock(&dk->lock);
	return rc;
}

static int dk_open(struct inode *inode, struct file *file)
{
	struct lnl_dk *dk = kvzalloc(sizeof(*dk), GFP_KERNEL);

	if (!dk)
		return -ENOMEM;
	mutex_init(&dk->lock);
	file->private_data = dk;
	return 0;
}

static ssize_t dk_write(struct file *file, const char __user *buf, size_t len, loff_t *ppos)
{
	lnl_dk_clear();
	return len;
}

static const struct file_operations dk_fops = {
	.owner		= THIS_MODULE,
	.open		= dk_open,
	.release	= ctl_release,
	.read		= dk_read,
	.write		= dk_write,
	.llseek		= default_llseek,
};

int lnl_ctl_init(void)
{
	last_result = kvzalloc(LNL_RESULT, GFP_KERNEL);
	if (!last_result)
		return -ENOMEM;
	dir = debugfs_create_dir("lnet_lite", NULL);
	debugfs_create_file("ctl", 0600, dir, NULL, &ctl_fops);
	debugfs_create_file("result", 0400, dir, NULL, &result_fops);
	debugfs_create_file("stats", 0400, dir, NULL, &stats_fops);
	debugfs_create_file("knobs", 0400, dir, NULL, &knobs_fops);
	debugfs_create_file("dk", 0600, dir, NULL, &dk_fops);
	return 0;
}

void lnl_ctl_fini(void)
{
	debugfs_remove(dir);
	kvfree(last_result);
}
