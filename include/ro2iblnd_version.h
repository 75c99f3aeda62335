/* SPDX-License-Identifier: GPL-2.0 */
/* The version, said here and nowhere else; whoever wants it reads this line. */
#ifndef RO2IBLND_VERSION_H
#define RO2IBLND_VERSION_H

#define RO2IBLND_VERSION "0.1.0"

/* What scripts/source-id says: two builds of one version may be two drivers. */
extern const char ro2ib_sources[];

#endif /* RO2IBLND_VERSION_H */
