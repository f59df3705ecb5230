/*
 * crisp-podinit: the first process of a PID namespace that the containers of a pod
 * share. It reaps what they leave behind and ends on SIGTERM or SIGINT, which ends
 * the namespace. It does nothing else, is linked with nothing, and touches some
 * three pages of memory.
 *
 * All signals are blocked and taken one by one: a signal that is blocked is queued
 * even for a first process, which otherwise gets none without a handler
 * (pid_namespaces(7)), and no handler is needed.
 */
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static long call(long n, long a, long b, long c, long d)
{
	long ret;
#if defined(__x86_64__)
	register long r10 __asm__("r10") = d;
	__asm__ volatile("syscall" : "=a"(ret) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
#elif defined(__aarch64__)
	register long x8 __asm__("x8") = n;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
	ret = x0;
#else
#error "crisp-podinit: no system calls for this architecture yet"
#endif
	return ret;
}

#define BIT(sig) (1UL << ((sig) - 1))

__attribute__((noreturn, used)) void _start(void)
{
	/* The kernel's sigset, 8 bytes: not libc's. */
	unsigned long set = BIT(SIGCHLD) | BIT(SIGTERM) | BIT(SIGINT);

	call(SYS_rt_sigprocmask, SIG_BLOCK, (long)&set, 0, sizeof(set));
	for (;;) {
		/* Reap first: a child may have ended before the signals were blocked. */
		while (call(SYS_wait4, -1, 0, WNOHANG, 0) > 0)
			;
		switch (call(SYS_rt_sigtimedwait, (long)&set, 0, 0, sizeof(set))) {
		case SIGTERM:
		case SIGINT:
			for (;;)
				call(SYS_exit_group, 0, 0, 0, 0);
		}
	}
}
