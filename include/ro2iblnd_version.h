/* SPDX-License-Identifier: GPL-2.0 */
/* The version, said here and nowhere else; whoever wants it reads this line. */
#ifndef RO2IBLND_VERSION_H
#define RO2IBLND_VERSION_H

#define RO2IBLND_VERSION "0.1.0"

#endif /* RO2IBLND_VERSION_H */
