// SPDX-License-Identifier: GPL-2.0
/*
 * Uevents of the module for programs that watch the node, such as udev.
 */
#include <linux/kernel.h>
#include <linux/kobject.h>
#include <linux/module.h>
#include <linux/sched/mm.h>

#include "ro2iblnd_shim.h"

/*
 * Sends nothing if there is no memory: the log and debugfs have the event, too.
 * Allocations must not wait for a file system, which may wait for this device.
 */
void ro2ib_uevent(const char *what, const char *ni, const char *device)
{
	char text[3][96];
	char *env[] = { text[0], text[1], text[2], NULL };
	unsigned int flags = memalloc_nofs_save();

	snprintf(text[0], sizeof(text[0]), "RO2IBLND_EVENT=%s", what);
	snprintf(text[1], sizeof(text[1]), "RO2IBLND_NI=%s", ni);
	snprintf(text[2], sizeof(text[2]), "RO2IBLND_DEVICE=%s", device);
	kobject_uevent_env(&THIS_MODULE->mkobj.kobj, KOBJ_CHANGE, env);
	memalloc_nofs_restore(flags);
}
