// SPDX-License-Identifier: GPL-2.0
/*
 * Memory pressure: takes all memory except LEAVE_MIB, which the kernel cannot
 * reclaim because there is no swap. Then a child maps, fills and unmaps half of
 * what is left, repeatedly, until the file STOP exists, so that allocations have
 * to reclaim the page cache.
 *
 *	memory_hog LEAVE_MIB STOP
 *
 * Prints "ready" when the memory is taken. The OOM killer prefers the child, and
 * the parent then starts another one.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1UL << 20)

static unsigned long available(void)
{
	char line[128];
	unsigned long kib = 0;
	FILE *f = fopen("/proc/meminfo", "r");

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "MemAvailable: %lu", &kib) == 1)
			break;
	if (f)
		fclose(f);
	return kib << 10;
}

static void *fill(unsigned long bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		exit(3);
	return memset(at, 0x5a, bytes);
}

static void oom_score(const char *adjustment)
{
	FILE *f = fopen("/proc/self/oom_score_adj", "w");

	if (!f || fputs(adjustment, f) < 0 || fclose(f))
		exit(4);
}

static void breathe(unsigned long bytes, const char *stop)
{
	oom_score("1000");
	while (access(stop, F_OK)) {
		munmap(fill(bytes), bytes);
		usleep(20000);
	}
}

int main(int argc, char **argv)
{
	unsigned long leave, all;

	if (argc != 3)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	leave = strtoul(argv[1], NULL, 10) * MIB;
	all = available();
	oom_score("-1000");
	if (all > leave)
		fill(all - leave);
	puts("ready");
	while (access(argv[2], F_OK)) {
		pid_t child = fork();
		int status;

		if (!child) {
			breathe(leave / 2, argv[2]);
			return 0;
		}
		if (child < 0 || waitpid(child, &status, 0) < 0)
			return 5;
		if (WIFEXITED(status) && WEXITSTATUS(status))
			return 6;
	}
	return 0;
}
