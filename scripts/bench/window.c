// SPDX-License-Identifier: GPL-2.0
/*
 * Program in the guest that opens and closes windows of icount.c:
 *
 *   window CTL COMMAND       opens a window, gives lnet_lite the command, waits
 *                            for the end of its work, and closes the window
 *   window -n COUNT FILE     waits in a window until LNet has sent and received
 *                            that many messages, which it reads in its stats;
 *                            prints how many there were
 *   window open | close      opens a window, closes it
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "window_marker.h"

#define SLICE_MS	20
#define PATIENCE	6000

static void rest(long ms)
{
	const struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };

	nanosleep(&t, NULL);
}

/* Returns the messages sent and received: the fourth and the fifth number. -1: not available. */
static long messages(const char *file)
{
	FILE *f = fopen(file, "r");
	long sent, received;
	int n = 0;

	if (f) {
		n = fscanf(f, "%*d %*d %*d %ld %ld", &sent, &received);
		fclose(f);
	}
	if (n != 2) {
		perror(file);
		return -1;
	}
	return sent + received;
}

/* Waits until there are @count more than @from. Returns how many, or -1. */
static long pass(const char *file, long from, long count)
{
	long now = messages(file);

	for (int i = 0; now >= 0 && now - from < count && i < PATIENCE; i++) {
		rest(SLICE_MS);
		now = messages(file);
	}
	return now < 0 ? -1 : now - from;
}

static int wait_for(long count, const char *file)
{
	long began = messages(file), passed;

	/* The first messages are not counted: they connect, or warm up. */
	if (began < 0 || pass(file, began, count / 4 + 1) <= count / 4)
		return 1;
	began = messages(file);
	WINDOW_MARK(1);
	passed = pass(file, began, count);
	WINDOW_MARK(2);
	printf("%ld\n", passed);
	return passed < count;
}

int main(int argc, char **argv)
{
	static char answer[16384];
	ssize_t n, rc;
	int fd;

	if (argc == 4 && !strcmp(argv[1], "-n"))
		return wait_for(atol(argv[2]), argv[3]);
	if (argc == 2) {
		if (!strcmp(argv[1], "open"))
			WINDOW_MARK(1);
		else
			WINDOW_MARK(2);
		return 0;
	}
	if (argc != 3)
		return 2;
	fd = open(argv[1], O_RDWR);
	if (fd < 0) {
		perror(argv[1]);
		return 1;
	}
	WINDOW_MARK(1);
	rc = write(fd, argv[2], strlen(argv[2]));
	rest(100);
	WINDOW_MARK(2);
	n = read(fd, answer, sizeof(answer) - 1);
	if (n > 0)
		fputs(answer, stdout);
	return rc < 0;
}
