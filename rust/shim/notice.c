// SPDX-License-Identifier: GPL-2.0
/*
 * Notices for programs that watch: a uevent of the module, which udev and
 * whatever listens as it does can act on.
 */
#include <linux/kernel.h>
#include <linux/kobject.h>
#include <linux/module.h>
#include <linux/sched/mm.h>

#include "ro2iblnd_shim.h"

/*
 * Without memory nobody is told: the log and debugfs say it, too. What has to
 * be allocated must not wait for a file system, which may wait for this device.
 */
void ro2ib_notice(const char *what, const char *ni, const char *device)
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
