// SPDX-License-Identifier: GPL-2.0
/*
 * In the guest: window CTL COMMAND. Opens a window of icount.c, gives lnet_lite
 * the command, lets what is left of it end, and closes the window.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "icount.h"

int main(int argc, char **argv)
{
	const struct timespec rest = { .tv_nsec = 100 * 1000 * 1000 };
	static char answer[16384];
	ssize_t n, rc;
	int fd;

	if (argc != 3)
		return 2;
	fd = open(argv[1], O_RDWR);
	if (fd < 0) {
		perror(argv[1]);
		return 1;
	}
	ICOUNT_MARK(1);
	rc = write(fd, argv[2], strlen(argv[2]));
	nanosleep(&rest, NULL);
	ICOUNT_MARK(2);
	n = read(fd, answer, sizeof(answer) - 1);
	if (n > 0)
		fputs(answer, stdout);
	return rc < 0;
}
