// SPDX-License-Identifier: GPL-2.0
/*
 * Prober of the file system: creates a file, writes a few bytes, flushes them
 * to the server (fsync), reads them back and removes the file, repeatedly,
 * until the file `stop` exists. Each round needs the metadata server and the
 * object server.
 *
 *	prober DIRECTORY PERIOD_MS STOP
 *
 * Prints a line for each round: seconds since boot at its begin and end, "ok"
 * or the step that failed with its errno.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_BOOTTIME, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static const char *once(const char *path, unsigned long round)
{
	char wrote[32], got[32] = "";
	const char *step = NULL;
	int fd, len;

	fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
	if (fd < 0)
		return "open";
	len = snprintf(wrote, sizeof(wrote), "round %lu", round);
	if (write(fd, wrote, len) != len)
		step = "write";
	else if (fsync(fd))
		step = "fsync";
	else if (pread(fd, got, len, 0) != len)
		step = "read";
	else if (memcmp(wrote, got, len))
		step = "compare";
	if (close(fd) && !step)
		step = "close";
	if (unlink(path) && !step)
		step = "unlink";
	return step;
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (unsigned long round = 0; access(argv[3], F_OK); round++) {
		double began = now();
		char path[4096];
		const char *failed;

		/* A name of its own: a round does not meet the file of a failed round. */
		snprintf(path, sizeof(path), "%s/probe.%lu", argv[1], round);
		errno = 0;
		failed = once(path, round);
		printf("%.3f %.3f %s %d\n", began, now(), failed ? failed : "ok", failed ? errno : 0);
		usleep(atoi(argv[2]) * 1000);
	}
	return 0;
}
