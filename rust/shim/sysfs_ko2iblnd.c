// SPDX-License-Identifier: GPL-2.0
/*
 * Link /sys/module/ko2iblnd to this module.
 *
 * lnetctl reads and writes parameters of ko2iblnd there ("lnetctl service-id",
 * "lnetctl net set --lnd-timeout"), and tests of Lustre look for it.
 *
 * While the link exists, the kernel cannot load a module with the name
 * ko2iblnd: the name is taken. Lustre's ko2iblnd would make LNet panic, because
 * LNet already has a driver of that type.
 */
#undef pr_fmt
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kobject.h>
#include <linux/module.h>
#include <linux/printk.h>
#include <linux/string.h>
#include <linux/sysfs.h>

#include "internal.h"

#define RO2IB_LINK_NAME "ko2iblnd"

static bool ro2ib_module_linked;

/*
 * Takes the name. Returns -EBUSY if a module with that name is there, which may
 * be about to register.
 */
int ro2ib_module_link_add(void)
{
	struct kobject *self = &THIS_MODULE->mkobj.kobj;
	int rc;

	if (!strcmp(THIS_MODULE->name, RO2IB_LINK_NAME))
		return 0;

	rc = sysfs_create_link_nowarn(self->parent, self, RO2IB_LINK_NAME);
	ro2ib_module_linked = !rc;
	if (rc == -EEXIST)
		return -EBUSY;
	if (rc)
		pr_warn("cannot make /sys/module/" RO2IB_LINK_NAME ": %d: lnetctl does not find the parameters\n",
			rc);
	return 0;
}

void ro2ib_module_link_remove(void)
{
	if (ro2ib_module_linked)
		sysfs_remove_link(THIS_MODULE->mkobj.kobj.parent,
				  RO2IB_LINK_NAME);
}
