/* SPDX-License-Identifier: GPL-2.0 */
/* CPU partitions: one, number 0, spans the machine */
#ifndef _LNL_LIB_CPT_H
#define _LNL_LIB_CPT_H

#include <linux/cpumask.h>
#include <linux/stddef.h>

#define CFS_CPT_ANY	(-1)

struct cfs_cpt_table;

#define lnet_cpt_table()	((struct cfs_cpt_table *)NULL)

/* The CPUs of a partition, whether they are online or not */
cpumask_var_t *cfs_cpt_cpumask(struct cfs_cpt_table *cptab, int cpt);

/* The partition of a NUMA node; CFS_CPT_ANY for NUMA_NO_NODE */
int cfs_cpt_of_node(struct cfs_cpt_table *cptab, int node);

#endif
