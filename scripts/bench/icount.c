// SPDX-License-Identifier: GPL-2.0
/*
 * Plugin for QEMU (TCG) that counts every executed kernel instruction of the guest by its address. Arguments:
 *
 *   out=PREFIX   the counts of window K go to PREFIX.K
 *   ctl=FILE     shared by the QEMUs of two guests
 *   role=master  the guest with the marker; role=slave follows it
 *   lines=1      cache lines that move from one vCPU to another, too
 *
 * There is one counter per address of the upper 2 GiB, where the kernel and its modules are (hence nokaslr). The
 * translated code itself adds to it, without a call. Code that is translated again continues with the same counters.
 * The additions are not atomic: only one thread of QEMU may run them, and vCPUs take turns (accel=tcg,thread=single).
 *
 * A window is the difference between two readings. A program in the master's guest (window.c) opens and closes it by
 * executing a no-op that no other program executes. An output line is an address and a count; an instruction repeated
 * by a rep prefix counts as often as it is repeated.
 *
 * Lines: as if each vCPU had a cache of its own, of unlimited size. A vCPU has the current content of a line since it
 * last read or wrote the line, until another vCPU writes it. An access moves a line if another vCPU has its content,
 * and this vCPU does not have it (a read), or is not the only one (a write). The number of moves is a third number of
 * the output, at the address of the instruction. vCPUs take turns of many instructions, so the count does not show two
 * vCPUs that access a line at the same moment.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "window_marker.h"
#include "qemu_plugin.h"

#define TOP		0xffffffff80000000ull
#define PAGE		4096u
#define PAGES		(1u << 19)
/* of a guest's memory, 4 GiB; and of a page */
#define FRAMES		(1u << 20)
#define LINE		64u
/* naps of 0.1 ms */
#define PATIENCE	100000

struct page {
	uint64_t *now;		/* PAGE counters */
	uint64_t base[PAGE];
	uint64_t *moved;	/* PAGE counters of the window, with lines=1 */
	struct qemu_plugin_scoreboard *score;
};

QEMU_PLUGIN_EXPORT int qemu_plugin_version = RO2IB_PLUGIN_API;

static struct page *_Atomic pages[PAGES];
static struct { _Atomic uint32_t ask, done; } *ctl;
static const char *out;
static bool master = true;
static bool lines;
/* vCPUs that have the content of each line: a bit for each */
static uint8_t *frames[FRAMES];
static unsigned int windows;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void nap(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
}

static void *need(void *p)
{
	if (!p || p == MAP_FAILED) {
		perror("icount: no memory");
		exit(1);
	}
	return p;
}

static void open_window(void)
{
	for (unsigned int i = 0; i < PAGES; i++) {
		struct page *p = pages[i];

		if (!p)
			continue;
		memcpy(p->base, p->now, sizeof(p->base));
		if (lines)
			memset(p->moved, 0, PAGE * sizeof(*p->moved));
	}
}

static void close_window(void)
{
	char name[4096], tmp[4104];
	FILE *f;

	/* The guest of the slave is not stopped, so the quick part comes first. */
	for (unsigned int i = 0; i < PAGES; i++) {
		struct page *p = pages[i];

		for (unsigned int j = 0; p && j < PAGE; j++)
			p->base[j] = p->now[j] - p->base[j];
	}

	snprintf(name, sizeof(name), "%s.%u", out, ++windows);
	snprintf(tmp, sizeof(tmp), "%s.tmp", name);
	f = need(fopen(tmp, "w"));
	for (unsigned int i = 0; i < PAGES; i++) {
		struct page *p = pages[i];

		for (unsigned int j = 0; p && j < PAGE; j++)
			if (p->base[j])
				fprintf(f, "%llx %llu %llu\n",
					TOP + (unsigned long long)i * PAGE + j,
					(unsigned long long)p->base[j],
					lines ? (unsigned long long)p->moved[j] : 0);
	}
	if (fclose(f) || rename(tmp, name)) {
		perror(name);
		exit(1);
	}
}

static void mark(bool closes)
{
	pthread_mutex_lock(&lock);
	if (closes)
		close_window();
	else
		open_window();
	pthread_mutex_unlock(&lock);
}

/* Stops the guest of the master until the slave has followed. */
static void marker(unsigned int cpu, void *closes)
{
	(void)cpu;
	if (!master)
		return;
	if (ctl) {
		/* Even numbers open, odd numbers close; no number is used twice. */
		uint32_t ask = 2 * (ctl->ask / 2 + 1) + !!closes;

		ctl->ask = ask;
		for (int i = 0; ctl->done != ask && i < PATIENCE; i++)
			nap();
	}
	mark(closes);
}

static void *follow(void *unused)
{
	uint32_t seen = ctl->ask;

	for (;; nap()) {
		uint32_t now = ctl->ask;

		if (now == seen)
			continue;
		mark(now & 1);
		ctl->done = now;
		seen = now;
	}
	return unused;
}

static struct page *page_of(uint64_t pc)
{
	struct page *_Atomic *slot = &pages[(pc - TOP) / PAGE];
	struct page *p = *slot;

	if (p)
		return p;
	pthread_mutex_lock(&lock);
	p = *slot;
	if (!p) {
		p = need(calloc(1, sizeof(*p)));
#if RO2IB_PLUGIN_API >= 4
		p->score = need(qemu_plugin_scoreboard_new(PAGE * sizeof(*p->now)));
		p->now = need(qemu_plugin_scoreboard_find(p->score, 0));
#else
		p->now = need(calloc(PAGE, sizeof(*p->now)));
#endif
		if (lines)
			p->moved = need(calloc(PAGE, sizeof(*p->moved)));
		*slot = p;
	}
	pthread_mutex_unlock(&lock);
	return p;
}

/* Counts moves of a line. One thread runs all vCPUs, so there is no other thread here. */
static void touch(unsigned int cpu, qemu_plugin_meminfo_t info, uint64_t vaddr, void *counter)
{
	struct qemu_plugin_hwaddr *hw = qemu_plugin_get_hwaddr(info, vaddr);
	uint8_t self = 1u << (cpu % 8), *has;
	uint64_t addr;

	if (!hw || qemu_plugin_hwaddr_is_io(hw))
		return;
	addr = qemu_plugin_hwaddr_phys_addr(hw);
	if (addr / PAGE >= FRAMES)
		return;
	if (!frames[addr / PAGE])
		frames[addr / PAGE] = need(calloc(PAGE / LINE, 1));
	has = &frames[addr / PAGE][addr % PAGE / LINE];
	if (qemu_plugin_mem_is_store(info)) {
		*(uint64_t *)counter += !!(*has & ~self);
		*has = self;
	} else if (!(*has & self)) {
		*(uint64_t *)counter += !!*has;
		*has |= self;
	}
}

static void count(struct qemu_plugin_insn *insn, uint64_t pc)
{
	struct page *p = page_of(pc);
	unsigned int at = pc % PAGE;
#if RO2IB_PLUGIN_API >= 4
	qemu_plugin_u64 counter = { .score = p->score, .offset = at * sizeof(*p->now) };

	qemu_plugin_register_vcpu_insn_exec_inline_per_vcpu(insn, QEMU_PLUGIN_INLINE_ADD_U64,
							    counter, 1);
#else
	qemu_plugin_register_vcpu_insn_exec_inline(insn, QEMU_PLUGIN_INLINE_ADD_U64, &p->now[at], 1);
#endif
	if (lines)
		qemu_plugin_register_vcpu_mem_cb(insn, touch, QEMU_PLUGIN_CB_NO_REGS,
						 QEMU_PLUGIN_MEM_RW, &p->moved[at]);
}

/* Returns whether an instruction is the marker, and whether it opens or closes. */
static bool is_marker(struct qemu_plugin_insn *insn, bool *closes)
{
	static const uint8_t code[2][WINDOW_MARKER_LEN] = { WINDOW_MARKER(1), WINDOW_MARKER(2) };
	uint8_t b[WINDOW_MARKER_LEN];

	if (qemu_plugin_insn_size(insn) != sizeof(b))
		return false;
#if RO2IB_PLUGIN_API >= 4
	if (qemu_plugin_insn_data(insn, b, sizeof(b)) != sizeof(b))
		return false;
#else
	memcpy(b, qemu_plugin_insn_data(insn), sizeof(b));
#endif
	*closes = !memcmp(b, code[1], sizeof(b));
	return *closes || !memcmp(b, code[0], sizeof(b));
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	size_t n = qemu_plugin_tb_n_insns(tb);

	(void)id;
	for (size_t i = 0; i < n; i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);
		uint64_t pc = qemu_plugin_insn_vaddr(insn);
		bool closes;

		if (pc >= TOP)
			count(insn, pc);
		else if (!(pc >> 63) && is_marker(insn, &closes))
			qemu_plugin_register_vcpu_insn_exec_cb(insn, marker, QEMU_PLUGIN_CB_NO_REGS,
							       (void *)(uintptr_t)closes);
	}
}

static int share(const char *file)
{
	int fd = open(file, O_RDWR | O_CREAT, 0600);
	pthread_t thread;

	if (fd < 0 || ftruncate(fd, PAGE))
		return -1;
	ctl = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (ctl == MAP_FAILED)
		return -1;
	return master ? 0 : pthread_create(&thread, NULL, follow, NULL);
}

QEMU_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc,
					   char **argv)
{
	const char *file = NULL;

	if (!info->system_emulation || (RO2IB_PLUGIN_API >= 4 && info->system.smp_vcpus != 1)) {
		fprintf(stderr, "icount: guests with one vCPU only, under this QEMU\n");
		return -1;
	}
	for (int i = 0; i < argc; i++) {
		if (!strncmp(argv[i], "out=", 4))
			out = strdup(argv[i] + 4);
		else if (!strncmp(argv[i], "ctl=", 4))
			file = argv[i] + 4;
		else if (!strncmp(argv[i], "role=", 5))
			master = !strcmp(argv[i] + 5, "master");
		else if (!strcmp(argv[i], "lines=1"))
			lines = true;
		else
			return -1;
	}
	if (!out || (file && share(file)))
		return -1;
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	return 0;
}
