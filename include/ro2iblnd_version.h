/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Version of the driver, defined only here.
 */
#ifndef RO2IBLND_VERSION_H
#define RO2IBLND_VERSION_H

#define RO2IBLND_VERSION "0.1.0"

/* Output of scripts/source-id: two builds of one version may differ. */
extern const char ro2ib_sources[];

#endif /* RO2IBLND_VERSION_H */
