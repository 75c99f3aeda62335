// SPDX-License-Identifier: GPL-2.0
/*
 * Writes a file through the page cache and flushes it, or compares a file with
 * what was written: each word depends on the seed and on its place in the file.
 *
 *	pattern_file write|verify PATH MIB SEED
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB (1UL << 20)
#define PIECE (64UL << 10)

static uint64_t word(uint64_t seed, uint64_t place)
{
	uint64_t x = (seed << 40 ^ place) * 0x9e3779b97f4a7c15;

	x ^= x >> 29;
	return x * 0xbf58476d1ce4e5b9;
}

static void transfer(int fd, char *data, size_t bytes, off_t at, int is_write)
{
	while (bytes) {
		ssize_t done = is_write ? pwrite(fd, data, bytes, at) : pread(fd, data, bytes, at);

		if (done <= 0)
			err(1, "%s at %jd: %zd", is_write ? "write" : "read", (intmax_t)at, done);
		data += done;
		bytes -= done;
		at += done;
	}
}

int main(int argc, char **argv)
{
	static uint64_t wanted[PIECE / 8], found[PIECE / 8];
	uint64_t seed, size;
	int fd, is_write;

	if (argc != 5)
		return 2;
	is_write = !strcmp(argv[1], "write");
	size = strtoul(argv[3], NULL, 10) * MIB;
	seed = strtoul(argv[4], NULL, 10);
	fd = open(argv[2], is_write ? O_RDWR | O_CREAT | O_TRUNC : O_RDONLY, 0600);
	if (fd < 0)
		err(1, "open");
	for (uint64_t at = 0; at < size; at += PIECE) {
		for (uint64_t i = 0; i < PIECE / 8; i++)
			wanted[i] = word(seed, at / 8 + i);
		transfer(fd, (char *)(is_write ? wanted : found), PIECE, at, is_write);
		if (!is_write && memcmp(wanted, found, PIECE))
			errx(1, "wrong data between %" PRIu64 " and %" PRIu64, at, at + PIECE);
	}
	if (is_write && fsync(fd))
		err(1, "fsync");
	if (close(fd))
		err(1, "close");
	return 0;
}
