// SPDX-License-Identifier: GPL-2.0
/*
 * Compiled command agent of the guest. It does the same as the loop at the end of init.sh, which documents the
 * protocol, with one fork and exec per command instead of ten. In an emulated guest this takes most of a test's time.
 * init.sh passes it the port as file descriptor 3; the agent is the init process.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define PORT 3

struct job {
	char *id;
	pid_t pid;
	int out;
	struct job *next;
};

static struct job *jobs;

static void must(int good, const char *what)
{
	if (good)
		return;
	/* The end of init is a panic, with this message on the console. */
	perror(what);
	exit(1);
}

static void *alloc(void *old, size_t size)
{
	void *p = realloc(old, size);

	must(p != NULL, "agent: memory");
	return p;
}

static void put(const char *data, size_t len)
{
	while (len) {
		ssize_t n = write(PORT, data, len);

		must(n > 0 || (n < 0 && errno == EINTR), "agent: write");
		if (n > 0) {
			data += n;
			len -= n;
		}
	}
}

static int value(char c)
{
	if (c >= 'A' && c <= 'Z')
		return c - 'A';
	if (c >= 'a' && c <= 'z')
		return c - 'a' + 26;
	if (c >= '0' && c <= '9')
		return c - '0' + 52;
	return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Decodes in place: the result is shorter. */
static void decode(char *text)
{
	unsigned int bits = 0, have = 0;
	char *to = text;

	for (; value(*text) >= 0; text++) {
		bits = bits << 6 | value(*text);
		have += 6;
		if (have >= 8) {
			have -= 8;
			*to++ = bits >> have;
		}
	}
	*to = '\0';
}

static size_t encode(const unsigned char *data, size_t len, char *to)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	char *begin = to;

	for (size_t i = 0; i < len; i += 3) {
		unsigned int left = len - i;
		unsigned int v = data[i] << 16 | (left > 1 ? data[i + 1] << 8 : 0) | (left > 2 ? data[i + 2] : 0);

		*to++ = digits[v >> 18];
		*to++ = digits[v >> 12 & 63];
		*to++ = left > 1 ? digits[v >> 6 & 63] : '=';
		*to++ = left > 2 ? digits[v & 63] : '=';
	}
	return to - begin;
}

/*
 * Writes `text`, if there is one, to the file, then the content of the file to the output, and exits. Returns if the
 * file cannot be opened: the shell is to execute the command, which says the same.
 */
static void direct(const char *path, char *text)
{
	static char data[65536];
	int file = open(path, text ? O_RDWR : O_RDONLY);
	ssize_t n;

	if (file < 0)
		return;
	if (text) {
		size_t len = strlen(text);

		text[len] = '\n';
		/* The command does not show this error either: the content of the file tells it. */
		n = write(file, text, len + 1);
	}
	while ((n = read(file, data, sizeof(data))) > 0)
		must(write(1, data, n) == n, "agent: output");
	if (n < 0)
		dprintf(2, "cat: read error: %s\n", strerror(errno));
	_exit(n < 0);
}

static void run(const char *id, char *command, char *path, char *text)
{
	struct job *job = alloc(NULL, sizeof(*job));
	sigset_t none;
	int null;

	job->id = strdup(id);
	job->out = open("/run/out", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	must(job->id && job->out >= 0, "agent: /run/out");
	unlink("/run/out");

	job->pid = fork();
	must(job->pid >= 0, "agent: fork");
	if (job->pid == 0) {
		sigemptyset(&none);
		null = open("/dev/null", O_RDONLY | O_CLOEXEC);
		if (setsid() < 0 || sigprocmask(SIG_SETMASK, &none, NULL) < 0)
			_exit(127);
		if (dup2(null, 0) < 0 || dup2(job->out, 1) < 0 || dup2(job->out, 2) < 0)
			_exit(127);
		decode(command);
		if (path) {
			decode(path);
			if (text)
				decode(text);
			direct(path, text);
		}
		execl("/bin/sh", "sh", "-c", command, NULL);
		_exit(127);
	}
	job->next = jobs;
	jobs = job;
}

static void answer(struct job *job, int status)
{
	int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
	off_t end = lseek(job->out, 0, SEEK_END);
	size_t len = end > 0 ? end : 0, got = 0, at;
	unsigned char *data = alloc(NULL, len + 1);
	char *line = alloc(NULL, strlen(job->id) + 32 + (len + 2) / 3 * 4);

	while (got < len) {
		ssize_t n = pread(job->out, data + got, len - got, got);

		if (n <= 0)
			break;
		got += n;
	}
	at = sprintf(line, "%s %d ", job->id, code);
	at += encode(data, got, line + at);
	line[at++] = '\n';
	put(line, at);
	free(line);
	free(data);
	close(job->out);
	free(job->id);
	free(job);
}

/* Reaps the agent's children, and their children that outlived them. */
static void reap(void)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		for (struct job **p = &jobs; *p; p = &(*p)->next) {
			struct job *job = *p;

			if (job->pid == pid) {
				*p = job->next;
				answer(job, status);
				break;
			}
		}
	}
}

static void request(char *line)
{
	char *id = strtok(line, " "), *what = strtok(NULL, " "), *command = strtok(NULL, " ");
	char *path = strtok(NULL, " "), *text = strtok(NULL, " ");

	if (!id || !what)
		return;
	if (command && strcmp(what, "run") == 0) {
		run(id, command, path, text);
		return;
	}
	for (struct job *job = jobs; job; job = job->next)
		/* A child that has only begun is not in a session of its own yet. */
		if (strcmp(what, "kill") == 0 && strcmp(job->id, id) == 0 && kill(-job->pid, SIGKILL) < 0)
			kill(job->pid, SIGKILL);
}

int main(void)
{
	size_t have = 0, room = 65536;
	char *buffer = alloc(NULL, room);
	struct signalfd_siginfo signal;
	struct pollfd fds[2];
	sigset_t child;

	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	must(sigprocmask(SIG_BLOCK, &child, NULL) == 0, "agent: sigprocmask");
	must(fcntl(PORT, F_SETFD, FD_CLOEXEC) == 0, "agent: port");
	fds[0] = (struct pollfd){ .fd = PORT, .events = POLLIN };
	fds[1] = (struct pollfd){ .fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK), .events = POLLIN };
	must(fds[1].fd >= 0, "agent: signalfd");

	put("0 0 \n", 5);
	for (;;) {
		char *end, *at = buffer;
		ssize_t n;

		must(poll(fds, 2, -1) > 0 || errno == EINTR, "agent: poll");
		if (fds[1].revents) {
			while (read(fds[1].fd, &signal, sizeof(signal)) > 0)
				;
			reap();
		}
		if (!(fds[0].revents & POLLIN)) {
			/* The other end has no reader: the guest is about to be killed. */
			if (fds[0].revents)
				usleep(100000);
			continue;
		}
		if (room - have < 32768)
			buffer = at = alloc(buffer, room *= 2);
		n = read(PORT, buffer + have, room - have - 1);
		must(n >= 0 || errno == EINTR, "agent: read");
		if (n <= 0)
			continue;
		have += n;
		while ((end = memchr(at, '\n', buffer + have - at))) {
			*end = '\0';
			request(at);
			at = end + 1;
		}
		have -= at - buffer;
		memmove(buffer, at, have);
	}
}
