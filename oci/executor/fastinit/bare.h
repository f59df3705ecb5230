// What child.c needs of libc, without libc: on amd64 it runs before that is set up. There
// libc asks the CPU for the sizes of its caches, by some hundred CPUID instructions, each
// of which a virtual machine traps: half a millisecond of each start and exec.
//
// So nothing here, and nothing that the compiler makes of it, may use what libc sets up:
// errno and other variables of a thread, the heap, and functions that it chooses by the
// CPU (memcpy, strlen and their like). TestChildIsBare looks at the object file.

#undef errno
#define errno bare_errno
static int bare_errno;

#if defined(__x86_64__)
static long bare_call(long n, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
	__asm__ volatile("syscall" : "+a"(n) : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
	if (n < 0 && n > -4096) {
		errno = (int)-n;
		return -1;
	}
	return n;
}
#else
static long bare_call(long n, long a, long b, long c, long d, long e, long f)
{
	long r = (syscall)(n, a, b, c, d, e, f);
	if (r < 0)
		errno = *__errno_location();
	return r;
}
#endif

#define BARE(n, a, b, c, d, e, f, ...) bare_call(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
#define syscall(...) BARE(__VA_ARGS__, 0, 0, 0, 0, 0, 0)

#define chdir(path) syscall(SYS_chdir, path)
#define close(fd) syscall(SYS_close, fd)
#define dup3(from, to, flags) syscall(SYS_dup3, from, to, flags)
#define execve(path, args, env) syscall(SYS_execve, path, args, env)
#define fchdir(fd) syscall(SYS_fchdir, fd)
#define fchmodat(dir, path, mode) syscall(SYS_fchmodat, dir, path, mode)
#define fchown(fd, uid, gid) syscall(SYS_fchown, fd, uid, gid)
#define fchownat(dir, path, uid, gid, flags) syscall(SYS_fchownat, dir, path, uid, gid, flags)
#define fcntl(fd, ...) ((int)syscall(SYS_fcntl, fd, __VA_ARGS__))
#define fsetxattr(fd, name, value, size, flags) syscall(SYS_fsetxattr, fd, name, value, size, flags)
#define fstat(fd, st) syscall(SYS_fstat, fd, st)
#define fstatfs(fd, fs) syscall(SYS_fstatfs, fd, fs)
#define ioctl(fd, what, arg) syscall(SYS_ioctl, fd, what, arg)
#undef makedev
#define makedev(major, minor) (((major) & 0xfffu) << 8 | ((minor) & ~0xffu) << 12 | ((minor) & 0xffu))
#define mkdirat(dir, path, mode) ((int)syscall(SYS_mkdirat, dir, path, mode))
#define mknodat(dir, path, mode, device) syscall(SYS_mknodat, dir, path, mode, device)
#define open(path, flags) openat(AT_FDCWD, path, flags, 0)
#define openat(dir, path, flags, mode) ((int)syscall(SYS_openat, dir, path, flags, mode))
#define prctl(...) syscall(SYS_prctl, __VA_ARGS__)
#define read(fd, to, size) syscall(SYS_read, fd, to, size)
#define sendmsg(fd, message, flags) syscall(SYS_sendmsg, fd, message, flags)
#define setns(fd, kinds) syscall(SYS_setns, fd, kinds)
#define setresgid(real, effective, saved) syscall(SYS_setresgid, real, effective, saved)
#define setresuid(real, effective, saved) syscall(SYS_setresuid, real, effective, saved)
#define setsid() syscall(SYS_setsid)
#define stat_of(path, st) syscall(SYS_newfstatat, AT_FDCWD, path, st, 0)
#define symlinkat(target, dir, path) syscall(SYS_symlinkat, target, dir, path)
#define umask(mask) syscall(SYS_umask, mask)
#define unshare(kinds) syscall(SYS_unshare, kinds)
#define write(fd, from, size) syscall(SYS_write, fd, from, size)

static void __attribute__((noreturn)) bare_exit(int status)
{
	for (;;)
		(void)syscall(SYS_exit_group, status);
}
#define _exit bare_exit

// The compiler would make calls of libc of these loops, if it knew them.
#define OPAQUE(p) __asm__ volatile("" : "+r"(p))

static size_t span(const char *s, char c, int of) // of c, or of others
{
	size_t n = 0;
	for (; s[n] && (s[n] == c) == of; n++)
		OPAQUE(s);
	return n;
}

static size_t length(const char *s) { return span(s, 0, 0); }

static char *copy(char *to, const char *from, size_t n)
{
	for (; n; n--) {
		*to++ = *from++;
		OPAQUE(to);
	}
	return to;
}

static int is(const char *a, const char *b)
{
	for (; *a && *a == *b; a++, b++)
		OPAQUE(a);
	return *a == *b;
}

static char *decimal(char *to, uint64_t n)
{
	if (n >= 10)
		to = decimal(to, n / 10);
	*to = (char)('0' + n % 10);
	return to + 1;
}

// may_execute is faccessat(2) by the effective rights, as libc has it for equal real ones.
static int may_execute(const char *path)
{
	int r = (int)syscall(439 /* SYS_faccessat2 */, AT_FDCWD, path, X_OK, AT_EACCESS);
	if (r < 0 && errno == ENOSYS)
		r = (int)syscall(SYS_faccessat, AT_FDCWD, path, X_OK);
	return r;
}

// reason is strerror(3) for what execve(2) fails with, as Go has it.
static const char *reason(int error)
{
	if (error == EACCES)
		return "permission denied";
	if (error == EINVAL)
		return "invalid argument";
	if (error == EIO)
		return "input/output error";
	if (error == ELIBBAD)
		return "accessing a corrupted shared library";
	if (error == ELOOP)
		return "too many levels of symbolic links";
	if (error == ENOENT)
		return "no such file or directory";
	if (error == ENOEXEC)
		return "exec format error";
	if (error == ENOMEM)
		return "cannot allocate memory";
	if (error == ENOTDIR)
		return "not a directory";
	if (error == EPERM)
		return "operation not permitted";
	if (error == ETXTBSY)
		return "text file busy";
	if (error == E2BIG)
		return "argument list too long";
	return "it cannot be executed";
}
