// The executor's fork of a child. Go's copies the table of all descriptors, and the execve
// closes them one by one: of 1000 pods there are thousands, which takes longer than the rest
// of an exec. Here the child shares the executor's table until it makes its own, which ends
// after the few that were put at its beginning.
#define _GNU_SOURCE
#include "spawn.h"
#include "child.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#define UNSHARE (1U << 1) // CLOSE_RANGE_UNSHARE, close_range(2)
#define WORD 64           // descriptors by which the kernel keeps its bitmaps

static int slots[SPAWN_FILES];    // are copies of nothing between two calls
static int nothing = -1;          // -1: nothing is reserved
static unsigned end;              // of the slots, a multiple of WORD
static int shares;                // whether a child may share the table until it makes its own
static struct rlimit files_limit; // before the runtime of Go raised it

// Runs before the runtime of Go does.
static void __attribute__((constructor)) remember_limit(void)
{
	(void)getrlimit(RLIMIT_NOFILE, &files_limit);
}

// cut makes a table of the descriptors below WORD, and exits with whether the next one is free.
static int cut(void *arg)
{
	(void)arg;
	_exit(syscall(SYS_close_range, WORD, ~0U, UNSHARE) < 0 || fcntl(slots[0], F_DUPFD, WORD) != WORD);
}

// can_share tries the kernel for a fault (CVE-2024-45025, mended in Linux 6.11 and in stable
// kernels): in a table that CLOSE_RANGE_UNSHARE has cut, words of descriptors that were all
// open before stay taken, for the container's programs too.
static int can_share(void)
{
	char stack[16 << 10] __attribute__((aligned(16)));
	int fds[2 * WORD], n = 0, status = -1;
	if (end > WORD)
		return 0;
	while (n < 2 * WORD && (fds[n] = fcntl(nothing, F_DUPFD_CLOEXEC, WORD)) >= 0)
		if (fds[n++] >= 2 * WORD)
			break;
	if (n > 0 && fds[n - 1] >= 2 * WORD - 1) {
		pid_t pid = clone(cut, stack + sizeof stack, CLONE_VM | CLONE_VFORK | CLONE_FILES, NULL);
		if (pid > 0)
			while (waitpid(pid, &status, __WALL) < 0 && errno == EINTR)
				;
	}
	while (n-- > 0)
		close(fds[n]);
	return status == 0;
}

int spawn_reserve(void)
{
	if (nothing >= 0)
		return 0;
	nothing = eventfd(0, EFD_CLOEXEC);
	if (nothing < 0)
		return errno;
	for (int i = 0; i < SPAWN_FILES; i++) {
		slots[i] = fcntl(nothing, F_DUPFD_CLOEXEC, SPAWN_FILES);
		if (slots[i] < 0) {
			int err = errno;
			while (i-- > 0)
				close(slots[i]);
			close(nothing);
			nothing = -1;
			return err;
		}
		if (end <= (unsigned)slots[i])
			end = ((unsigned)slots[i] / WORD + 1) * WORD;
	}
	shares = can_share();
	return 0;
}

struct child {
	sigset_t mask;
	int err;
};

// begin is what the child does. It runs in the executor's memory, whose thread waits for the
// execve.
static int begin(void *arg)
{
	static char *const argv[] = {"crisp-executor", FASTINIT_ARG1, FASTINIT_ARG2, NULL};
	static char *const none[] = {NULL};
	struct child *c = arg;
	struct rlimit limit;
	if (shares && syscall(SYS_close_range, end, ~0U, UNSHARE) < 0)
		goto failed; // and nothing below may be done to a table that is shared
	for (int sig = 1; sig < NSIG; sig++) { // or a handler of Go's could run here
		struct sigaction act;
		if (sigaction(sig, NULL, &act) == 0 && act.sa_handler != SIG_IGN && act.sa_handler != SIG_DFL) {
			act = (struct sigaction){.sa_handler = SIG_DFL};
			(void)sigaction(sig, &act, NULL);
		}
	}
	for (int i = 0; i < SPAWN_FILES; i++)
		if (dup2(slots[i], i) < 0)
			goto failed;
	if (syscall(SYS_close_range, SPAWN_FILES, ~0U, 0) < 0 || chdir("/") < 0)
		goto failed;
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && files_limit.rlim_cur < limit.rlim_cur) {
		limit.rlim_cur = files_limit.rlim_cur;
		(void)setrlimit(RLIMIT_NOFILE, &limit);
	}
	if (sigprocmask(SIG_SETMASK, &c->mask, NULL) == 0)
		execve("/proc/self/exe", argv, none);
failed:
	c->err = errno;
	_exit(127);
}

pid_t spawn(const int files[SPAWN_FILES], int flags)
{
	char stack[32 << 10] __attribute__((aligned(16)));
	struct child c = {.err = 0};
	sigset_t all;
	pid_t pid = -1;
	int used = 0;
	for (; used < SPAWN_FILES; used++)
		if (dup3(files[used], slots[used], O_CLOEXEC) < 0) {
			c.err = errno;
			break;
		}
	if (!c.err) {
		sigfillset(&all);
		(void)sigprocmask(SIG_BLOCK, &all, &c.mask);
		pid = clone(begin, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD | (shares ? CLONE_FILES : 0) | flags, &c);
		if (pid < 0)
			c.err = errno;
		else if (c.err)
			while (waitpid(pid, NULL, __WALL) < 0 && errno == EINTR)
				;
		(void)sigprocmask(SIG_SETMASK, &c.mask, NULL);
	}
	while (used-- > 0)
		(void)dup3(nothing, slots[used], O_CLOEXEC);
	if (c.err)
		return -c.err;
	return pid;
}
