// SPDX-License-Identifier: GPL-2.0
/*
 * Files of debugfs that keep the module loaded while they are open: debugfs
 * uses the file operations at the last close, when the file is long removed.
 */
#include <linux/debugfs.h>
#include <linux/module.h>
#include <linux/seq_file.h>

#include "ro2iblnd_compat.h"
#include "ro2iblnd_helpers.h"

static int show(struct seq_file *seq, void *unused)
{
	struct ro2ib_debugfs_file *file = seq->private;

	return file->show(seq, file->data);
}

static int open(struct inode *inode, struct file *file)
{
	return single_open(file, show, inode->i_private);
}

static const struct file_operations fops = {
	.owner = THIS_MODULE,
	.open = open,
	.read = seq_read,
	.llseek = seq_lseek,
	.release = single_release,
};

/* All of these may sleep. */
struct dentry *ro2ib_debugfs_dir(const char *name)
{
	return debugfs_create_dir(name, NULL);
}

/* @file must stay until the dentry is removed. */
struct dentry *ro2ib_debugfs_create(const char *name, struct dentry *parent,
				    struct ro2ib_debugfs_file *file)
{
	return debugfs_create_file(name, 0444, parent, file, &fops);
}

/* Waits for readers. Ignores NULL and errors. */
void ro2ib_debugfs_remove(struct dentry *dentry)
{
	debugfs_remove(dentry);
}

/*
 * Drops text that does not fit, and debugfs shows the file again with a larger
 * buffer: returns false, so that the caller stops.
 */
bool ro2ib_debugfs_write(struct seq_file *seq, const char *text, size_t len)
{
	seq_write(seq, text, len);
	return !seq_has_overflowed(seq);
}
